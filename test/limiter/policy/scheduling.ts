/** Builders for tests that drive the scheduler's transitions directly. */
import { replicaId, type LeaseToken, type ReplicaId } from '../../../src/ids.ts';
import { createBucket, type Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { StoredAdmission } from '../../../src/limiter/policy/bucket-events.ts';
import type { Effects, Granted } from '../../../src/limiter/policy/pump.policy.ts';
import * as policy from '../../../src/limiter/policy/admit.policy.ts';
import { upkeep } from '../../../src/limiter/policy/scheduler.policy.ts';
import { admission, arrivalStepMs, type AdmissionOptions } from '../../support/admission.ts';
import type { Instant } from '../../support/at-origins.ts';

export const replica = replicaId('r');

/** A call into a bucket of ten a ten seconds, with all the time in the world. */
export const call = (ticket: string, options: AdmissionOptions = {}): StoredAdmission =>
  admission(ticket, { lane: 'l', limit: 10, maxQueued: 1_000_000, maxWaitMs: Infinity, ...options });

/** Calls arrive this long before they are entered, so that many of one instant have arrivals of their own. Milliseconds. */
const enteringMs = 500;
const lastArrivals = new WeakMap<Bucket, number>();

/** As the policy's `admit`, for calls that arrive in the order in which they are entered. */
export function admit(
  bucket: Bucket,
  asked: StoredAdmission,
  by: ReplicaId,
  now: number,
): ReturnType<typeof policy.admit> {
  const last = lastArrivals.get(bucket) ?? -Infinity;
  const at = Math.max(now - enteringMs, last + arrivalStepMs);
  lastArrivals.set(bucket, at);
  const arriving = { ...asked, position: { kind: 'arrival', at } } as const;
  return policy.admit(bucket, { admission: arriving, replica: by }, now);
}

/** A bucket that has just been created, and starts open. */
export const newBucket = (instant: Instant, probe = 0): Bucket => createBucket(probe, instant(0));

/** A bucket into which so many calls came a second after the origin. */
export function bucketWith(
  instant: Instant,
  calls: number,
  options: AdmissionOptions = {},
): { bucket: Bucket; grants: Granted[] } {
  const bucket = newBucket(instant, options.probe);
  const grants: Granted[] = [];
  for (let at = 0; at < calls; at += 1)
    grants.push(...admit(bucket, call(`t${at}`, options), replica, instant(1_000)).effects.grants);
  return { bucket, grants };
}

/** The replica is heard of, its leases go on, and the bucket has its upkeep. */
export function tick(
  bucket: Bucket,
  { replica: of, leases }: { readonly replica: ReplicaId; readonly leases: readonly LeaseToken[] },
  now: number,
): Effects {
  bucket.replicas.set(of, now);
  for (const token of leases) {
    const lease = bucket.leases.get(token);
    if (lease === undefined || lease.stage === 'abandoned' || lease.ticket.replica !== of) continue;
    lease.expiresAt = now + lease.ticket.leaseMs;
    bucket.expiries.set(token, lease.expiresAt);
  }
  return upkeep(bucket, now);
}

/** Lets time pass, a tick at a time and whenever the pump asks for it; tells when each ticket was granted. */
export function runOn(
  bucket: Bucket,
  from: number,
  until: number,
  leases: readonly LeaseToken[],
): Map<string, number> {
  const granted = new Map<string, number>();
  const held = [...leases];
  let now = from;
  while (now <= until) {
    const effects = tick(bucket, { replica, leases: held }, now);
    for (const each of effects.grants) {
      granted.set(each.ticket, now);
      held.push(each.lease);
    }
    now = Math.min(now + 1_000, Math.max(now + 0.5, effects.nextAt ?? Infinity));
  }
  return granted;
}
