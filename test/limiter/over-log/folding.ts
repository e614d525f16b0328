/** A state that entries of a log are folded into, one after the other, and builders of their events. */
import { bucketKey, leaseToken, replicaId } from '../../../src/ids.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import type { Entry } from '../../../src/log/log.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import {
  createState,
  fold,
  type EntryEffects,
  type LogEvent,
  type SharedState,
} from '../../../src/limiter/over-log/fold.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import type { Instant } from '../../support/at-origins.ts';

export const leaseMs = 15_000;

/** An entry of a log; what tests seldom care for is filled in. */
export function entryOf(at: number, author: string, events: readonly LogEvent[], term = 1): Entry<LogEvent> {
  return { sequence: 1, term, at, replica: replicaId(author), batch: 1, events };
}

export const tick: LogEvent = { kind: 'tick' };

export const inBucket = (event: Extract<LogEvent, { kind: 'in' }>['event'], bucket = 'bucket'): LogEvent => ({
  kind: 'in',
  bucket: bucketKey(bucket),
  event,
});

/** A call that came at this time, with ten minutes to wait. */
export function admit(ticket: string, at: number, options: AdmissionOptions = {}): LogEvent {
  const limit = 'setting' in options ? {} : { limit: 10 };
  const asked = admission(ticket, { ...limit, maxWaitMs: 600_000, leaseMs, arrivedAt: at, ...options });
  const { bucket, ...entering } = asked;
  return { kind: 'admit', bucket, admission: entering };
}

export const settle = (
  lease: string,
  settlement: Settlement = { kind: 'succeeded', spent: null },
  bucket = 'bucket',
): LogEvent => inBucket({ kind: 'settle', lease: leaseToken(lease), settlement, lesson: null }, bucket);

export const granted = ({ grants }: EntryEffects): string[] => grants.map(({ ticket }) => ticket);

/** A state, folded by its author each time; times are milliseconds since the origin. */
export class Folded {
  readonly state: SharedState = createState(leaseMs);
  readonly #instant: Instant;
  readonly #leases = new Map<string, string>();
  term = 1;

  constructor(instant: Instant) {
    this.#instant = instant;
  }

  /** One entry, and what it does. */
  say(ms: number, author: string, ...events: readonly LogEvent[]): EntryEffects {
    const effects = fold(this.state, entryOf(this.#instant(ms), author, events, this.term));
    for (const { ticket, lease } of effects.grants) this.#leases.set(ticket, lease);
    return effects;
  }

  /** As `say`; the calls that it grants. */
  grants(ms: number, author: string, ...events: readonly LogEvent[]): string[] {
    return granted(this.say(ms, author, ...events));
  }

  call(ticket: string, ms: number, options?: AdmissionOptions): LogEvent {
    return admit(ticket, this.#instant(ms), options);
  }

  /** The call that was granted under this name ends. */
  end(ticket: string, settlement?: Settlement, bucket?: string): LogEvent {
    return settle(this.#leases.get(ticket) ?? '', settlement, bucket);
  }

  bucket(name = 'bucket'): Bucket {
    const bucket = this.state.buckets.get(bucketKey(name));
    if (bucket === undefined) throw new Error(`no bucket ${name}`);
    return bucket;
  }

  names(): string[] {
    return [...this.state.buckets.keys()];
  }
}
