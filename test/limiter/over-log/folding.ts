/** Builders for tests that fold entries of a log. */
import { bucketKey, leaseToken, replicaId } from '../../../src/ids.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import type { Entry } from '../../../src/log/log.ts';
import { fold } from '../../../src/limiter/over-log/fold.ts';
import type { EntryEffects, LogEvent, SharedState } from '../../../src/limiter/over-log/state.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';

export const leaseMs = 15_000;
export const replica = replicaId;
export const bucketOf = bucketKey;

/** An entry of a log; what tests seldom care for is filled in. */
export function entryOf(at: number, author: string, events: readonly LogEvent[], term = 1): Entry<LogEvent> {
  return { sequence: 1, term, at, replica: replicaId(author), batch: 1, events };
}

export const tick: LogEvent = { kind: 'tick' };

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
): LogEvent => ({
  kind: 'in',
  bucket: bucketKey(bucket),
  event: { kind: 'settle', lease: leaseToken(lease), settlement, lesson: null },
});

/** Folds an entry as the replica that appended it. */
export const foldOwn = (state: SharedState, entry: Entry<LogEvent>): EntryEffects =>
  fold(state, entry, entry.replica);

export const granted = ({ grants }: EntryEffects): string[] => grants.map(({ ticket }) => ticket);
