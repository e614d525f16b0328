/** Builders for tests that fold entries of a log. */
import { bucketKey, laneKey, replicaId, ticketId, type ReplicaId } from '../../../src/ids.ts';
import type { Entry } from '../../../src/log/log.ts';
import { fold } from '../../../src/limiter/shared/fold.ts';
import type { Effects, LogEvent, SharedState } from '../../../src/limiter/shared/state.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';

export const leaseMs = 15_000;

/** An entry of a log; what tests seldom care for is filled in. */
export function entryOf(
  at: number,
  replica: string,
  events: readonly LogEvent[],
  { term = 1, sequence = 1 }: { readonly term?: number; readonly sequence?: number } = {},
): Entry<LogEvent> {
  return { sequence, mark: '', term, at, replica: replicaId(replica), batch: sequence, events };
}

/** A call of ten a ten seconds that came now. */
export function admit(ticket: string, at: number, options: AdmissionOptions = {}): LogEvent {
  const asked = admission(ticket, { limit: 10, maxWaitMs: 600_000, leaseMs, arrivedAt: at, ...options });
  return { kind: 'admit', bucket: asked.bucket, admission: asked };
}

/** Folds an entry as the replica that appended it. */
export const foldOwn = (state: SharedState, entry: Entry<LogEvent>): Effects =>
  fold(state, entry, entry.replica);

export const granted = ({ grants }: Effects): string[] => grants.map(({ ticket }) => ticket);

export const names = { bucket: bucketKey('bucket'), lane: laneKey('lane') } as const;
export const ticket = ticketId;
export const replica: (name: string) => ReplicaId = replicaId;
