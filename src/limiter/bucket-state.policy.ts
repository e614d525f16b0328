/**
 * The data of one bucket: lanes with their lines, meters, leases. Plain values only, so that a second store can keep
 * the same under other containers. `scheduler.policy.ts` is the only writer.
 */
import type { Costs, MeterName } from '../call.ts';
import type { LaneKey } from './limiter.ts';
import { createMeter, type Meter, type MeterMark } from './meter.policy.ts';
import { SortedNames } from './sorted.policy.ts';

/** Sequence numbers stay below this; an order is `urgency * orderUnit + sequence`. */
export const orderUnit = 2 ** 48;
/**
 * A new bucket counts from its time on, this many numbers per millisecond: a store that lost everything gives its
 * first newcomers later places than the tickets that are about to be entered again. Fits below `orderUnit` until 2109.
 */
export const sequencePerMs = 64;

/** A call in its lane; keeps its place (`order`) over resends. */
export interface Ticket {
  readonly id: string;
  readonly lane: LaneKey;
  readonly replica: string;
  /** Urgency, then arrival: `urgency * 2^48 + sequence`. */
  readonly order: number;
  readonly callClass: string;
  /** Changes when an answer to another call tells what such calls cost. */
  costs: Costs;
  readonly leaseMs: number;
  /** Lease of the grant it holds; `null` while it waits. */
  lease: string | null;
}

export interface Lease {
  readonly token: string;
  readonly ticket: Ticket;
  readonly grantedAt: number;
  /** No other call of the bucket was granted within the quiet gap before this one. */
  readonly quiet: boolean;
  /** Quiet, and no calls have crowded for as long as the first of them may be late. */
  readonly calm: boolean;
  readonly marks: ReadonlyMap<MeterName, MeterMark>;
  expiresAt: number;
  /** An answer was learned from: its costs are no longer on their way. */
  answered: boolean;
  /** Counted in its lane's `unconfirmed`. */
  unconfirmed: boolean;
  /** Fate unknown: only time ends it. */
  abandoned: boolean;
}

export interface Lane {
  readonly key: LaneKey;
  weight: number;
  maxInFlight: number | null;
  /** Start tag of the lane's next ticket (start-time fair queueing). */
  start: number;
  inFlight: number;
  /** Waiting tickets, ordered. */
  readonly line: SortedNames;
  /** Sum of the waiting tickets' costs per meter. */
  readonly waitingCosts: Map<MeterName, number>;
  /** Out of the running until then; 0 = not asleep. */
  asleepUntil: number;
  /** Places left under the lane's ceiling when last told; `null` = plenty. */
  places: number | null;
  /** Grants since `places` was told that have not taken their place yet. */
  unconfirmed: number;
  /** Mean time a grant of this lane stays in flight, milliseconds, rather too short; 0 = not known. */
  serviceMs: number;
  /** When it was last granted something; -1 = never. */
  grantedAt: number;
  /** Of a capped lane: when its leases of unknown fate end, soonest first. They are counted in `inFlight`. */
  readonly abandoned: number[];
  /** Class under which the lane is in a ready set; `null` = not ready. */
  readyAs: string | null;
}

export interface Bucket {
  readonly meters: Map<MeterName, Meter>;
  readonly lanes: Map<LaneKey, Lane>;
  readonly tickets: Map<string, Ticket>;
  readonly leases: Map<string, Lease>;
  /** Leases by expiry. */
  readonly expiries: SortedNames;
  /** Leases granted a quiet gap behind the one before that no answer has spoken of yet, by the time of the grant. */
  readonly unanswered: SortedNames;
  /** Ready lanes by start tag, one set per class of their head. */
  readonly ready: Map<string, SortedNames>;
  /** Sleeping lanes by waking time. */
  readonly asleep: SortedNames;
  /** Lanes with nothing waiting, in flight or asleep, by start tag. */
  readonly idle: SortedNames;
  /** Replicas by the time they were last heard of. */
  readonly replicas: SortedNames;
  learn: boolean;
  probe: number;
  /** False until an answer told the level (or that there is nothing to tell). */
  opened: boolean;
  probingSince: number;
  closedUntil: number;
  /** When an answer last closed the bucket. */
  closedAt: number;
  /** Virtual time: start tag of the last granted ticket. */
  virtual: number;
  sequence: number;
  lastGrantAt: number;
  /** When a call was last granted within the quiet gap behind another. */
  crowdedAt: number;
  waiting: number;
  /** Sum of the waiting tickets' costs per meter, over all lanes. */
  readonly waitingCosts: Map<MeterName, number>;
  /** Sum of the weights of lanes with waiting tickets. */
  waitingWeight: number;
}

export function createBucket(): Bucket {
  return {
    meters: new Map(),
    lanes: new Map(),
    tickets: new Map(),
    leases: new Map(),
    expiries: new SortedNames(),
    unanswered: new SortedNames(),
    ready: new Map(),
    asleep: new SortedNames(),
    idle: new SortedNames(),
    replicas: new SortedNames(),
    learn: true,
    probe: 0,
    opened: true,
    probingSince: -1,
    closedUntil: 0,
    closedAt: -1,
    virtual: 0,
    sequence: 0,
    lastGrantAt: -Infinity,
    crowdedAt: -Infinity,
    waiting: 0,
    waitingCosts: new Map(),
    waitingWeight: 0,
  };
}

export function meterOf(bucket: Bucket, name: MeterName, now: number): Meter {
  let meter = bucket.meters.get(name);
  if (meter === undefined) {
    meter = createMeter(name, now);
    bucket.meters.set(name, meter);
  }
  return meter;
}

/** Meter names and units of a call's costs, without the zeros. */
export function costEntries(costs: Costs): [MeterName, number][] {
  const entries: [MeterName, number][] = [];
  for (const name of meterNames) {
    const units = costs[name] ?? 0;
    if (units > 0) entries.push([name, units]);
  }
  return entries;
}

const meterNames: readonly MeterName[] = [
  'requests',
  'tokens',
  'requests_day',
  'tokens_day',
  'cost',
  'images',
];
