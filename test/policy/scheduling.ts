/** Builders for tests that drive the scheduler's transitions directly. */
import type { Costs } from '../../src/call.ts';
import { createBucket, type Bucket } from '../../src/limiter/bucket-state.policy.ts';
import type { Admission } from '../../src/limiter/limiter.ts';
import { admit, tick, type Granted } from '../../src/limiter/scheduler.policy.ts';
import type { Instant } from './at-origins.ts';

export const replica = 'r';

export interface Wish {
  readonly lane?: string;
  readonly weight?: number;
  readonly costs?: Costs;
  readonly maxInFlight?: number | null;
  readonly maxQueued?: number;
  readonly maxWaitMs?: number;
  readonly urgency?: number;
  readonly callClass?: string;
  readonly limit?: number;
  readonly windowMs?: number;
  readonly probe?: number;
}

export function admission(ticket: string, wish: Wish = {}): Admission {
  const { limit = 10, windowMs = 10_000 } = wish;
  return {
    ticket,
    bucket: 'b',
    setting: { meters: [{ meter: 'requests', limit, windowMs }], learn: true, probe: wish.probe ?? 0 },
    lane: wish.lane ?? 'l',
    weight: wish.weight ?? 1,
    maxInFlight: wish.maxInFlight ?? null,
    maxQueued: wish.maxQueued ?? 1_000_000,
    urgency: wish.urgency ?? 3,
    callClass: wish.callClass ?? 'default',
    costs: wish.costs ?? { requests: 1 },
    maxWaitMs: wish.maxWaitMs ?? Infinity,
    leaseMs: 15_000,
    order: null,
  };
}

/** A bucket into which so many calls came a second after the origin. */
export const bucketWith = (
  instant: Instant,
  calls: number,
  wish: Wish = {},
): { bucket: Bucket; grants: Granted[] } => {
  const bucket = createBucket();
  const grants: Granted[] = [];
  for (let at = 0; at < calls; at += 1)
    grants.push(...admit(bucket, admission(`t${at}`, wish), replica, instant(1_000)).effects.grants);
  return { bucket, grants };
};

/** Lets time pass, a tick at a time and whenever the pump asks for it; tells when each ticket was granted. */
export function runOn(
  bucket: Bucket,
  from: number,
  until: number,
  leases: readonly string[],
): Map<string, number> {
  const granted = new Map<string, number>();
  const held = [...leases];
  let now = from;
  while (now <= until) {
    const effects = tick(bucket, replica, held, now);
    for (const each of effects.grants) {
      granted.set(each.ticket, now);
      held.push(each.lease);
    }
    now = Math.min(now + 1_000, Math.max(now + 0.5, effects.nextAt ?? Infinity));
  }
  return granted;
}
