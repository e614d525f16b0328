/**
 * Events on their way to Redis: one function per kind, typed values in, what `lua/apply.lua` reads out. A batch goes as
 * JSON, because both ends have it built in and a double survives it; what is `null` here is absent there.
 *
 * Names (bucket, ticket, lane, replica, class) must be opaque words of `A-Z a-z 0-9 _ . -`: they are parts of sorted
 * members. Throws a `RangeError` for one that is not, and for a number that is none.
 */
import type { Costs } from '../../../call.ts';
import type { BucketEvent, EventKind, StoredAdmission } from '../../policy/bucket-events.ts';
import { costEntries } from '../../policy/meter-names.policy.ts';
import type { ReplicaId } from '../../../ids.ts';
import { bucketKeys, type BucketKeys } from './keys.ts';
import { refusedUnits, type TimedLesson } from '../../policy/lessons.policy.ts';
import type {
  BucketKey,
  BucketSetting,
  CeilingEdge,
  LaneKey,
  LaneSetting,
  Settlement,
} from '../../limiter.ts';

/** Leases one `tick` renews at most; a replica with more sends several. */
export const leasesPerTick = 64;
/** A lease may not outlive what a bucket remembers of an hour without use. Milliseconds. */
export const maxLeaseMs = 3_600_000;

/** The asking replica and the bucket. `now`: a test's time in milliseconds; absent = the server's `TIME`. */
export interface Asking {
  readonly bucket: BucketKey;
  readonly replica: ReplicaId;
  readonly now?: number;
}

/** One call of `apply`, ready for `FCALL` or `EVALSHA`. */
export interface ApplyCall {
  readonly keys: BucketKeys;
  readonly argv: readonly [batch: string];
}

type Wire = Readonly<Record<string, unknown>>;
type EventOf<K extends EventKind> = Extract<BucketEvent, { kind: K }>;

/** JSON has no infinity; Lua reads these words as numbers. */
type WireNumber = number | 'inf' | '-inf';

/** The events in order, to be applied at one time. */
export function applyCall(asking: Asking, events: readonly BucketEvent[]): ApplyCall {
  const { bucket, replica, now } = asking;
  return {
    keys: bucketKeys(word(bucket)),
    argv: [JSON.stringify({ bucket, replica: word(replica), now, events: written(events) })],
  };
}

/** The setting of a bucket is written when it differs from the one before it in the batch. */
function written(events: readonly BucketEvent[]): Wire[] {
  let before: BucketSetting | null = null;
  return events.map((event) => {
    const setting = settingOf(event);
    const wire = { kind: event.kind, ...bodyOf(event) };
    if (setting === null || setting === before) return wire;
    before = setting;
    return { ...wire, setting: settingWire(setting) };
  });
}

function settingOf(event: BucketEvent): BucketSetting | null {
  if (event.kind === 'admit') return event.admission.setting;
  return event.kind === 'reconfigure' ? event.setting : null;
}

function bodyOf(event: BucketEvent): Wire {
  switch (event.kind) {
    case 'admit':
      return admission(event.admission);
    case 'settle':
      return settle(event);
    case 'learn':
      return { lease: word(event.lease), lesson: lesson(event.lesson) };
    case 'charge':
      return { lease: word(event.lease), ...edge(event.edge) };
    case 'cancel':
    case 'forecast':
      return { ticket: word(event.ticket) };
    case 'tick':
      return tick(event);
    case 'reconfigure':
      return { lanes: event.lanes.map(laneSetting) };
    case 'wake':
      return { lane: word(event.lane) };
    case 'open':
      return { before: optional(event.before) };
  }
}

const admission = (asked: StoredAdmission): Wire => ({
  ...laneSetting(asked),
  ticket: word(asked.ticket),
  maxQueued: number(asked.maxQueued),
  urgency: number(asked.urgency),
  callClass: word(asked.callClass),
  costs: costEntries(asked.costs),
  document: asked.document === null ? undefined : word(asked.document),
  maxWaitMs: number(asked.maxWaitMs),
  leaseMs: number(asked.leaseMs),
  ...(asked.position.kind === 'kept'
    ? { order: number(asked.position.order) }
    : { arrivedAt: optional(asked.position.at) }),
});

const laneSetting = (lane: LaneSetting & { readonly lane: LaneKey }): Wire => ({
  lane: word(lane.lane),
  weight: number(lane.weight),
  maxInFlight: optional(lane.maxInFlight),
  perMinute: optional(lane.perMinute),
  ceilingTag: word(lane.ceilingTag),
});

const settingWire = ({ meters, learn, probe }: BucketSetting): Wire => ({
  meters: meters.map(({ meter, limit, windowMs, counts }) => ({
    meter,
    limit: number(limit),
    windowMs: number(windowMs),
    counts,
  })),
  learn,
  probe: number(probe),
});

const settle = ({ lease, settlement, lesson: learned }: EventOf<'settle'>): Wire => ({
  lease: word(lease),
  outcome: settlement.kind,
  ...outcome(settlement),
  lesson: learned === null ? undefined : lesson(learned),
});

function outcome(settlement: Settlement): Wire {
  switch (settlement.kind) {
    case 'succeeded':
      return { spent: settlement.spent === null ? undefined : spent(settlement.spent) };
    case 'throttled': {
      const { closeMs, requeue, sleepMs } = settlement;
      return { closeMs: number(closeMs), requeue, sleepMs: number(sleepMs) };
    }
    case 'returned': {
      const { sleepMs, because, ceilingTag } = settlement;
      return {
        sleepMs: number(sleepMs),
        because,
        ceilingTag: ceilingTag === undefined ? undefined : word(ceilingTag),
      };
    }
    case 'dropped':
    case 'unknown':
      return {};
  }
}

/** Unlike a reserved cost, a spent one may be zero. */
const spent = (costs: Costs): [string, WireNumber][] =>
  Object.entries(costs).map(([name, units]) => [name, number(units)]);

function lesson({ feedback, sentAt, headAt }: TimedLesson): Wire {
  const { meters, throttle, requestedCost } = feedback;
  return {
    sentAt: number(sentAt),
    headAt: number(headAt),
    meters: meters.map(({ meter, limit, windowMs, resetMs, level }) => ({
      meter,
      limit: number(limit > 0 ? limit : 0),
      windowMs: optional(windowMs),
      resetMs: optional(resetMs ?? null),
      lowest: level === null ? undefined : number(level.lowest),
      highest: level === null ? undefined : number(level.highest),
    })),
    rateMeter: throttle?.kind === 'rate' ? (throttle.meter ?? undefined) : undefined,
    isTimed: (throttle?.waitMs ?? null) === null ? undefined : true,
    refusedUnits: optional(refusedUnits(feedback)),
    requestedCost: optional(requestedCost ?? null),
  };
}

const edge = (reported: CeilingEdge | null): Wire =>
  reported === null
    ? {}
    : {
        slots: number(reported.slots),
        nextSlotMs: number(reported.nextSlotMs),
        ceilingTag: reported.ceilingTag === undefined ? undefined : word(reported.ceilingTag),
      };

function tick({ leases }: EventOf<'tick'>): Wire {
  if (leases.length > leasesPerTick) throw new RangeError(`more than ${leasesPerTick} leases in one tick`);
  return { leases: leases.map(word) };
}

function word<Name extends string>(name: Name): Name {
  if (!/^[\w.-]+$/.test(name)) throw new RangeError('a name for Redis must be an opaque word');
  return name;
}

function number(value: number): WireNumber {
  if (Number.isNaN(value)) throw new RangeError('a number for Redis must not be NaN');
  if (Number.isFinite(value)) return value;
  return value > 0 ? 'inf' : '-inf';
}

/** Absent = none. */
const optional = (value: number | null): WireNumber | undefined =>
  value === null ? undefined : number(value);
