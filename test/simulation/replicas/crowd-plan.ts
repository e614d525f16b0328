/** A crowd of one workspace's calls over three replicas, and nothing else that happens. Owns: that world. */
import type { BucketPlan, Plan } from '../plan.ts';
import { plainBucket } from '../plan-buckets.ts';
import { plainCall } from '../plan-special.ts';
import { faultyPlanOf, quiet } from './plan.ts';

export interface Crowd {
  /** Mean way to Redis, and back; each takes half to one and a half times as long. Milliseconds. */
  readonly wayMs: number;
  readonly calls: number;
  readonly firstAt: number;
  readonly everyMs: number;
  readonly maxWaitMs: number;
  /** Of the workspace's ceiling. */
  readonly perMinute: number;
  /** Requests per minute that the upstream lets through. */
  readonly limit: number;
  readonly bucket: Partial<BucketPlan>;
}

const lane = { key: 'w0-b0', workspace: 'w0', bucket: 'b0', weight: 1, maxInFlight: null };

/** The calls go to the replicas in turn. Seeds differ in what clocks show and in how long ways take. */
export function crowdPlan(seed: number, crowd: Crowd): Plan {
  return {
    ...faultyPlanOf(seed),
    replicas: 3,
    uptimesMs: [0, 86_400_000, 3_600_000],
    leaseMs: 15_000,
    network: { ...quiet, meanMs: crowd.wayMs, commandTimeoutMs: 1_000 },
    faults: [],
    reloads: [],
    frozenWrites: 0,
    buckets: [bucketOf(crowd)],
    lanes: [lane],
    workspaces: [
      { name: 'w0', perMinute: crowd.perMinute, perDay: null, maxQueued: 10_000, revokedAt: Infinity },
    ],
    calls: Array.from({ length: crowd.calls }, (_, index) => ({
      ...plainCall(index, lane),
      id: `c${String(index).padStart(3, '0')}`,
      at: crowd.firstAt + index * crowd.everyMs,
      slot: index % 3,
      maxWaitMs: crowd.maxWaitMs,
      serviceMs: 20,
      safe: false,
    })),
  };
}

const bucketOf = ({ limit, bucket }: Crowd): BucketPlan => ({
  ...plainBucket('b0', { limit, windowMs: 60_000 }),
  reports: 'rounded',
  ...bucket,
});
