/** Admission as tests use it: a call with the fields filled in that they seldom care for, and the queue over its stores. */
import { AdmissionQueue, type AdmissionQueueParts } from '../../src/admission/admission.ts';
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import type { AdmissionRequest } from '../../src/admission/ticket.ts';
import type { Clock } from '../../src/clock.ts';
import { bucketKey, ceilingKey } from '../../src/ids.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import { createEmbeddedLimiter } from '../../src/limiter/over-log/limiter.ts';
import { admission, type AdmissionOptions } from './admission.ts';

export interface CallOptions extends AdmissionOptions {
  readonly perMinute?: number | null;
  readonly perDay?: number | null;
  /** The ceilings are defaults, and yield to what the upstream states. */
  readonly isDefault?: boolean;
  readonly workspace?: string;
  readonly maxWaitMs?: number;
  readonly maxWaitIfAskedMs?: number;
  readonly clientGone?: AbortSignal;
  readonly stillValid?: () => boolean;
  readonly mode?: AdmissionRequest['mode'];
}

export type Entering = Parameters<AdmissionQueue['enter']>;

export function callOf(clock: Clock, ticket: string, options: CallOptions = {}): Entering {
  const { perMinute = null, perDay = null, workspace = 'w', maxWaitIfAskedMs = 600_000 } = options;
  const { isDefault = false, mode = 'enforce', ...more } = options;
  const { clientGone = new AbortController().signal, stillValid = () => true, ...asked } = more;
  const arrivedAt = options.arrivedAt ?? clock.monotonic();
  const request: AdmissionRequest = {
    admission: admission(ticket, {
      perMinute,
      ceilingTag: ceilingTagOf(perMinute, perDay),
      ...asked,
      arrivedAt,
    }),
    arrivedAt,
    ceiling: { key: ceilingKey(workspace), perMinute, perDay },
    mode,
    yielded: null,
    workspaceId: workspace,
    subject: { upstream: 'u', credential: '', bucket: bucketKey('b'), host: '', model: null, operation: '' },
    maxWaitMs: options.maxWaitMs ?? 45_000,
    maxWaitIfAskedMs,
    stillValid,
  };
  const yielded = isDefault ? settingsOf(request, { perMinute: null, perDay: null }) : null;
  return [{ ...request, yielded }, clientGone];
}

/** What a reload says of a call: everything as it was, but for `changes`. */
export function settingsOf(
  { admission: of, ceiling, mode }: AdmissionRequest,
  changes: Partial<CallSettings>,
): CallSettings {
  const { setting, weight, maxInFlight, maxQueued } = of;
  const { perMinute, perDay } = { perMinute: ceiling.perMinute, perDay: ceiling.perDay, ...changes };
  return {
    mode,
    setting,
    weight,
    maxInFlight,
    maxQueued,
    yielded: null,
    ...changes,
    perMinute,
    perDay,
    ceilingTag: ceilingTagOf(perMinute, perDay),
  };
}

/** The limits of a ceiling as one word, as `callSettings` writes them. */
const ceilingTagOf = (perMinute: number | null, perDay: number | null): string =>
  `${perMinute ?? 'none'}.${perDay ?? 'none'}`;

export type EmbeddedQueue = ReturnType<typeof embeddedQueue>;

export interface QueueParts extends Pick<AdmissionQueueParts, 'onReckoned'> {
  readonly clock: Clock;
  /** The ceilings in the place of the embedded ones. */
  readonly ceilings?: Ceilings;
  /** Left out, a failure is thrown. */
  readonly onFailure?: (failure: unknown) => void;
}

export function embeddedQueue({
  clock,
  ceilings = new CeilingStore(clock),
  onFailure = fail,
  ...listener
}: QueueParts) {
  const limiter = createEmbeddedLimiter(clock, {
    onGrant: (grant) => queue.listener.onGrant(grant),
    onClosed: (bucket, closedMs) => queue.listener.onClosed(bucket, closedMs),
  });
  const queue = new AdmissionQueue({ clock, limiter, ceilings, onFailure, ...listener });
  return { queue, limiter, ceilings };
}

function fail(failure: unknown): never {
  throw failure;
}
