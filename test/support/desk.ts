/** The desk as tests use it: an entry with the fields filled in that they seldom care for, and the desk over its stores. */
import { createDesk, type Desk } from '../../src/admission/admit.ts';
import type { EntrySettings } from '../../src/admission/buckets.policy.ts';
import type { Entry } from '../../src/admission/ticket.ts';
import type { Clock } from '../../src/clock.ts';
import type { Ceilings } from '../../src/limiter/ceilings.ts';
import type { Limiter } from '../../src/limiter/limiter.ts';
import { createMemoryCeilings } from '../../src/limiter/memory-ceilings.ts';
import { createMemoryLimiter } from '../../src/limiter/memory-limiter.ts';
import { admission, type AdmissionWish } from './admission.ts';

export interface EntryWish extends AdmissionWish {
  readonly perMinute?: number | null;
  readonly perDay?: number | null;
  /** Names the ceiling. */
  readonly workspace?: string;
  /** How long the call may wait, milliseconds. */
  readonly maxWaitMs?: number;
  readonly maxPreferMs?: number;
  readonly clientGone?: AbortSignal;
  readonly stillValid?: () => boolean;
}

/** A call that arrives now. */
export function entry(clock: Clock, ticket: string, wish: EntryWish = {}): Entry {
  const { perMinute = null, perDay = null, workspace = 'w', maxPreferMs = 600_000, ...more } = wish;
  const { clientGone = new AbortController().signal, stillValid = () => true, ...asked } = more;
  const arrivedAt = wish.arrivedAt ?? clock.monotonic();
  return {
    admission: admission(ticket, { perMinute, ceiling: ceilingWord(perMinute, perDay), ...asked, arrivedAt }),
    arrivedAt,
    ceiling: { key: workspace, perMinute, perDay },
    workspaceId: workspace,
    upstream: 'u',
    maxWaitMs: wish.maxWaitMs ?? 45_000,
    maxPreferMs,
    clientGone,
    stillValid,
  };
}

/** What a reload says of a call: everything as it was, but for `changes`. */
export function settingsOf(
  { admission: of, ceiling }: Entry,
  changes: Partial<EntrySettings>,
): EntrySettings {
  const { setting, weight, maxInFlight, maxQueued } = of;
  const { perMinute, perDay } = { perMinute: ceiling.perMinute, perDay: ceiling.perDay, ...changes };
  return {
    setting,
    weight,
    maxInFlight,
    maxQueued,
    ...changes,
    perMinute,
    perDay,
    ceiling: ceilingWord(perMinute, perDay),
  };
}

/** The limits of a ceiling as one word, as `entrySettings` writes them. */
const ceilingWord = (perMinute: number | null, perDay: number | null): string =>
  `${perMinute ?? 'none'}.${perDay ?? 'none'}`;

export interface EmbeddedDesk {
  readonly desk: Desk;
  readonly limiter: Limiter;
  readonly ceilings: Ceilings;
}

export interface DeskParts {
  readonly clock: Clock;
  readonly ceilings?: Ceilings;
  /** Left out, a failure is thrown. */
  readonly onFailure?: (failure: unknown) => void;
  /** Puts something in front of the embedded limiter. */
  readonly around?: (limiter: Limiter) => Limiter;
}

/** A desk over the embedded stores. */
export function embeddedDesk({ clock, onFailure = fail, around, ...more }: DeskParts): EmbeddedDesk {
  const ceilings = more.ceilings ?? createMemoryCeilings(clock);
  const desk: Desk = createDesk({ clock, limiter: () => limiter, ceilings, onFailure });
  const embedded = createMemoryLimiter(clock, desk.listener);
  const limiter: Limiter = around === undefined ? embedded : around(embedded);
  return { desk, limiter, ceilings };
}

const fail = (failure: unknown): never => {
  throw failure;
};
