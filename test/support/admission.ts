/** The one builder of what the limiter is asked to admit: the fields that tests seldom care for are filled in. */
import { bucketKey, laneKey, ticketId } from '../../src/ids.ts';
import type { Admission } from '../../src/limiter/limiter.ts';
import type { StoredAdmission } from '../../src/limiter/policy/bucket-state.policy.ts';

export interface AdmissionOptions extends Partial<Omit<Admission, 'ticket' | 'bucket' | 'lane'>> {
  readonly bucket?: string;
  readonly lane?: string;
  /** Left out, the bucket has none (unless `limit` or `setting` is given). */
  readonly meters?: Admission['setting']['meters'];
  readonly limit?: number;
  readonly windowMs?: number;
  readonly probe?: number;
  /** What a store is asked for; a limiter has the life of its leases from its settings. */
  readonly leaseMs?: number;
  /** Monotonic milliseconds; left out, the call arrives when it is built. */
  readonly arrivedAt?: number;
}

export function admission(
  ticket: string,
  options: AdmissionOptions = {},
): Admission & Pick<StoredAdmission, 'leaseMs'> {
  const {
    bucket = 'bucket',
    lane = 'lane',
    limit,
    windowMs = 10_000,
    meters = limit === undefined ? [] : [{ meter: 'requests', limit, windowMs }],
    probe = 0,
    arrivedAt,
    ...more
  } = options;
  return {
    ticket: ticketId(ticket),
    bucket: bucketKey(bucket),
    setting: { meters, learn: true, probe },
    lane: laneKey(lane),
    weight: 1,
    maxInFlight: null,
    perMinute: null,
    ceilingTag: 'none.none',
    maxQueued: 100,
    urgency: 3,
    callClass: 'default',
    costs: { requests: 1 },
    document: null,
    maxWaitMs: 30_000,
    leaseMs: 15_000,
    position: { kind: 'arrival', at: arrivedAt ?? arrivesNow() },
    ...more,
  };
}

/** The smallest difference between two positions. Milliseconds. */
export const arrivalStepMs = 1 / 64;

let lastArrival = 0;
/** Calls that are built one after the other arrive one after the other. */
function arrivesNow(): number {
  lastArrival = Math.max(performance.now(), lastArrival + arrivalStepMs);
  return lastArrival;
}
