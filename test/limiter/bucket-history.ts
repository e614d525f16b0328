/**
 * Random histories of one bucket as plain data. A step names tickets and leases by number.
 */
import type { Costs, Feedback, MeterName, MeterReport, Throttle } from '../../src/call.ts';
import { metersOf } from '../simulation/described.ts';
import type { StoredAdmission } from '../../src/limiter/policy/bucket-state.policy.ts';
import type {
  BucketSetting,
  CeilingEdge,
  LaneSetting,
  MeterSetting,
  Settlement,
} from '../../src/limiter/limiter.ts';

export interface AdmitStep {
  readonly kind: 'admit';
  /** The n-th ticket; how many tickets in a row enter (as many lanes when `spread`). */
  readonly ticket: number;
  readonly count: number;
  readonly spread: boolean;
  readonly lane: number;
  readonly background: boolean;
  /** The n-th caller of the workspace; `null` = none is named. */
  readonly caller: number | null;
  /** Milliseconds since its replica received it; `null` = the replica cannot tell. */
  readonly arrivedAgoMs: number | null;
  /** Enters with the order it had before (or a made-up one), as after a loss. */
  readonly again: boolean;
  readonly asked: Omit<StoredAdmission, 'ticket' | 'lane' | 'position' | 'caller' | 'reservation'>;
}

/** `lease` and `ticket` of a step that ends something pick among the live ones first, then among all that ever were. */
export type Step = {
  readonly afterMs: number;
  readonly replica: string;
  /** The operation is repeated at the same time: its reply was lost. */
  readonly twice: boolean;
  /** It happens at the time of the step before, and goes in one batch with it. */
  readonly joins: boolean;
} & (AdmitStep | LeaseStep | TicketStep | BucketStep);

type LeaseStep = { readonly lease: number } & (
  | { readonly kind: 'settle'; readonly settlement: Settlement; readonly lesson: Learned | null }
  | { readonly kind: 'learn'; readonly lesson: Learned }
  | { readonly kind: 'slot_taken'; readonly edge: CeilingEdge | null }
);
interface TicketStep {
  readonly kind: 'cancel' | 'forecast';
  readonly ticket: number;
}
type BucketStep =
  | {
      readonly kind: 'reconfigure';
      readonly setting: BucketSetting;
      readonly lanes: readonly (LaneSetting & { readonly lane: number })[];
    }
  | { readonly kind: 'wake'; readonly lane: number }
  /** Opens what was closed until so long ago. */
  | { readonly kind: 'open'; readonly agoMs: number }
  | { readonly kind: 'tick' }
  /** Redis loses everything. */
  | { readonly kind: 'loss' };

export interface Learned {
  readonly feedback: Feedback;
  readonly sentAgoMs: number;
  readonly headAgoMs: number;
}

/** Deterministic uniform numbers (mulberry32). */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** One history; the same seed gives the same. */
export function historyOf(seed: number): Step[] {
  const draw = new Draw(randomFrom(seed * 2_654_435_761));
  const nature: Nature = {
    replicas: draw.one(1, 2, 3),
    lanes: draw.one(1, 2, 5),
    tight: draw.chance(0.7),
    caps: draw.one<number | null>(null, null, 1, 2),
    probe: draw.one(0, 0, 1, 2),
    stated: draw.chance(0.75),
    crowd: draw.chance(0.12),
    calm: seed % 8 === 5,
    contested: seed % 8 === 3,
    silent: seed % 8 === 7,
    counts: seed % 16 === 1 ? 'rolling' : seed % 16 === 9 ? 'fixed' : null,
    hasWindows: seed % 16 === 12,
  };
  const length = draw.whole(8, 36);
  const steps = Array.from({ length }, (_, index) => step(draw, nature, index));
  return seed % 2 === 0 ? joined(steps, new Draw(randomFrom(seed))) : steps;
}

/** The same history with some steps in batches, each of one replica. */
function joined(steps: readonly Step[], draw: Draw): Step[] {
  const many = draw.one(0.3, 0.6, 0.9);
  let { replica } = steps[0] ?? { replica: '' };
  return steps.map((step, index) => {
    const joins = index > 0 && draw.chance(many);
    if (!joins) ({ replica } = step);
    return { ...step, joins, replica };
  });
}

interface Nature {
  readonly replicas: number;
  readonly lanes: number;
  readonly tight: boolean;
  readonly caps: number | null;
  readonly probe: number;
  readonly stated: boolean;
  readonly crowd: boolean;
  /** Calls come one by one, each a quiet gap behind the one before. */
  readonly calm: boolean;
  /** Somebody else drinks from the same meter. */
  readonly contested: boolean;
  /** The bucket is closed for long, again and again, while many wait. */
  readonly silent: boolean;
  /** The operator describes the window of requests. */
  readonly counts: 'rolling' | 'fixed' | null;
  /** The operator describes up to three windows of requests, now and then others. */
  readonly hasWindows: boolean;
}

export class Draw {
  readonly #next: () => number;
  constructor(next: () => number) {
    this.#next = next;
  }
  chance(share: number): boolean {
    return this.#next() < share;
  }
  whole(from: number, to: number): number {
    return from + Math.floor(this.#next() * (to - from + 1));
  }
  fraction(from: number, to: number): number {
    return from + this.#next() * (to - from);
  }
  one<T>(first: T, ...others: readonly T[]): T {
    const at = this.whole(0, others.length);
    return at === 0 ? first : (others[at - 1] ?? first);
  }
}

function step(draw: Draw, nature: Nature, index: number): Step {
  if (nature.contested) return contestedStep(draw, index);
  if (nature.silent) return silentStep(draw, index);
  const common = {
    afterMs: draw.chance(0.05) ? slow(draw) : nature.calm ? calm(draw) : quick(draw),
    replica: `r${draw.whole(1, nature.replicas)}`,
    twice: draw.chance(0.08),
    joins: false,
  };
  const lease = draw.chance(0.8) ? draw.whole(0, 1) : draw.whole(0, 30);
  const ticket = draw.chance(0.75) ? draw.whole(0, 2) : draw.whole(0, index + 2);
  const kind = index < 2 ? 'admit' : draw.one('admit', ...kinds);
  switch (kind) {
    case 'settle':
      return { ...common, kind, lease, ...ending(draw) };
    case 'learn':
      return { ...common, kind, lease, lesson: learned(draw, null) };
    case 'slot_taken':
      return { ...common, kind, lease, edge: draw.chance(0.15) ? null : edgeOf(draw) };
    case 'reconfigure':
      return { ...common, kind, ...changed(draw, nature) };
    case 'wake':
      return { ...common, kind, lane: draw.one(0, 1, 2, 3) };
    case 'open':
      return { ...common, kind, agoMs: draw.one(0, 0, 300, 5_000) };
    case 'cancel':
    case 'forecast':
      return { ...common, kind, ticket };
    case 'tick':
      draw.one(0, 1, 1, 2);
      return { ...common, kind };
    case 'loss':
      return { ...common, kind: draw.chance(0.3) ? kind : 'tick' };
    case 'admit':
      return { ...common, kind, ...admission(draw, nature, index) };
  }
}

// prettier-ignore
const kinds = [
  'admit', 'admit', 'admit', 'settle', 'settle', 'settle', 'settle', 'tick', 'tick',
  'learn', 'slot_taken', 'slot_taken', 'cancel', 'forecast', 'loss', 'reconfigure', 'open', 'wake',
] as const;

/** Often to the very millisecond at which something ends. */
const quick = (draw: Draw): number =>
  draw.one(0, 0, 0, 1, draw.fraction(0, 30), 20, 250, 300, 500, 700.5, draw.fraction(100, 1_500));

const calm = (draw: Draw): number => draw.one(20, 20, 35, 60, draw.fraction(20, 150));

const slow = (draw: Draw): number => draw.one(-40, 2_000, 6_000, 15_000, 40_000, draw.fraction(0, 90_000));

/** A call may wait this long where a history says any time: an event has no `Infinity`. Milliseconds. */
const anyTimeMs = 1e9;

/** Now and then more than any limit. */
const asked = (tokens: number): number => (tokens > 54 ? tokens * 40 : tokens);

function admission(draw: Draw, nature: Nature, index: number): Omit<AdmitStep, 'kind'> {
  const {
    callClass,
    costs,
    document = null,
  } = draw.one<Asked>(
    { callClass: 'plain', costs: { requests: 1 } },
    { callClass: 'plain', costs: { requests: 1 } },
    { callClass: 'worded', costs: { requests: 1, tokens: asked(draw.whole(1, 60)) } },
    { callClass: 'points', costs: { cost: draw.fraction(0.5, 30) } },
    { callClass: 'points', costs: { cost: 3 }, document: draw.one('d1', 'd2', 'd3') },
    { callClass: 'points', costs: { cost: 3 }, document: draw.one('d1', 'd2', 'd3') },
    { callClass: 'daily', costs: { requests_day: 1, requests: 1 } },
    { callClass: 'free', costs: {} },
  );
  const crowd = nature.crowd && draw.chance(0.3);
  const entering = {
    ticket: 100 * (draw.chance(0.75) ? index : draw.whole(0, Math.min(index, 3))),
    count: crowd ? draw.whole(20, 90) : nature.calm ? 1 : draw.one(1, 1, 1, 2, 4),
    spread: draw.chance(crowd ? 0.5 : 0.2),
    lane: draw.whole(1, nature.lanes),
    background: draw.chance(0.2),
  };
  const limits = {
    weight: draw.one(1, 1, 1, 2, 0.5, 3),
    maxInFlight: draw.chance(0.9) ? nature.caps : draw.one(null, 1, 3),
    ...ceilingOf(draw),
    maxQueued: draw.one(1_000, 1_000, 1_000, 3, 1, 0),
  };
  const urgency = draw.one(3, 3, 3, 0, 7, 1);
  const caller = draw.one(null, null, null, 1, 2, 3);
  const arrivedAgoMs = draw.one(0, 0, null, draw.fraction(0, 600), 700_000, -5, -2_000);
  const waits = {
    maxWaitMs: draw.one(1e6, 1e6, 45_000, 1_000, 0, anyTimeMs),
    leaseMs: draw.one(30_000, 5_000, 700.5),
  };
  const again = draw.chance(0.15);
  const setting = settingOf(draw, nature);
  const asks = { ...limits, urgency, callClass, costs, document, ...waits, setting };
  return { ...entering, caller, arrivedAgoMs, again, asked: asks };
}

interface Asked {
  readonly callClass: string;
  readonly costs: Costs;
  readonly document?: string;
}

const settingOf = (draw: Draw, nature: Nature): BucketSetting => ({
  learn: draw.chance(0.7),
  probe: nature.probe,
  meters: nature.stated ? statedMeters(draw, nature) : [],
  ...(draw.chance(0.2) ? { maxInFlightTotal: draw.one(1, 2, 5) } : {}),
});

/** Mostly the same; another one wakes lanes. */
const edgeOf = (draw: Draw): CeilingEdge => ({
  slots: draw.whole(0, 3),
  nextSlotMs: draw.fraction(0, 900),
  ...(draw.chance(0.3) ? { ceilingTag: ceilingOf(draw).ceilingTag } : {}),
});

function ceilingOf(draw: Draw): { readonly perMinute: number | null; readonly ceilingTag: string } {
  const perMinute = draw.one<number | null>(4, 4, 4, 1, null);
  return { perMinute, ceilingTag: `${perMinute ?? 'none'}.none` };
}

function changed(
  draw: Draw,
  nature: Nature,
): Pick<Extract<Step, { kind: 'reconfigure' }>, 'setting' | 'lanes'> {
  const meters = nature.stated ? statedMeters(draw, nature) : [];
  const setting = {
    ...settingOf(draw, nature),
    meters: draw.chance(0.3) ? meters.filter(() => draw.chance(0.6)) : meters,
  };
  const lanes = Array.from({ length: draw.whole(0, 3) }, () => ({
    lane: draw.whole(1, nature.lanes + 1),
    weight: draw.one(1, 2, 0.5),
    maxInFlight: draw.one(null, nature.caps, 1, 3),
    ...ceilingOf(draw),
  }));
  return { setting, lanes };
}

function statedMeters(draw: Draw, { tight, counts, hasWindows }: Nature): BucketSetting['meters'] {
  if (hasWindows) return describedWindows(draw, tight);
  const requests = tight ? draw.one(3, 3, 3, 4) : 200;
  const meters: BucketSetting['meters'] = [
    {
      meter: 'requests',
      limit: requests,
      windowMs: tight ? 1_500 : 60_000,
      ...(counts === null ? {} : describedWindow(draw, counts)),
    },
    { meter: 'tokens', limit: 100, windowMs: 7_000 },
    { meter: 'cost', limit: 50, windowMs: 1_000 },
    { meter: 'requests_day', limit: 12, windowMs: 86_400_000 },
  ];
  // Configuration is loaded again now and then.
  return draw.chance(0.9) ? meters : meters.filter(() => draw.chance(0.5));
}

/** As configuration names them. Mostly the same. */
function describedWindows(draw: Draw, tight: boolean): MeterSetting[] {
  const lengths = draw.chance(0.6)
    ? [1_500, 60_000]
    : draw.one([1_500], [60_000], [1_500, 9_000.25, 60_000], [60_000, 3_600_000], [9_000.25, 20_000, 60_000]);
  const meters = metersOf(
    lengths.map((windowMs) => ({
      requests: tight ? Math.ceil(windowMs / 1_000) : 200,
      windowMs,
      kind: draw.chance(0.8) ? 'rolling' : draw.one('fixed', 'leaky'),
    })),
  );
  return draw.chance(0.9) ? meters : meters.filter(() => draw.chance(0.5));
}

/** Mostly the same; now and then configuration describes a window of another length, or one that is counted otherwise. */
const describedWindow = (
  draw: Draw,
  counts: NonNullable<Nature['counts']>,
): Pick<MeterSetting, 'counts'> & Partial<MeterSetting> =>
  draw.chance(0.8)
    ? { counts }
    : { counts: draw.one('rolling', 'fixed'), windowMs: draw.one(1_000, 1_500, 9_000.25, 60_000) };

function ending(draw: Draw): { settlement: Settlement; lesson: Learned | null } {
  const closeMs = draw.one(0, 0, 300, draw.fraction(1, 3_000), 60_000);
  const settlement = draw.one<Settlement>(
    { kind: 'succeeded', spent: null },
    { kind: 'succeeded', spent: null },
    { kind: 'succeeded', spent: { tokens: draw.whole(0, 250), images: 2, cost: draw.fraction(0, 20) } },
    { kind: 'throttled', closeMs, requeue: draw.chance(0.7), sleepMs: draw.one(0, 0, 0, 500) },
    { kind: 'throttled', closeMs, requeue: draw.chance(0.7), sleepMs: 0 },
    { kind: 'throttled', closeMs, closesCredential: true, requeue: draw.chance(0.7), sleepMs: 0 },
    { kind: 'dropped' },
    {
      kind: 'returned',
      sleepMs: draw.one(0, draw.fraction(1, 800), 40_000),
      because: draw.one('ceiling_minute', 'ceiling_day'),
      ...(draw.chance(0.5) ? { ceilingTag: ceilingOf(draw).ceilingTag } : {}),
    },
    { kind: 'returned', sleepMs: draw.one(0, draw.fraction(1, 800)), because: 'backoff' },
    { kind: 'unknown' },
  );
  const throttle: Throttle | null = settlement.kind === 'throttled' ? throttleOf(draw) : null;
  return { settlement, lesson: draw.chance(0.6) ? learned(draw, throttle) : null };
}

const throttleOf = (draw: Draw): Throttle =>
  draw.one<Throttle>(
    { kind: 'rate', waitMs: 500, meter: 'requests' },
    { kind: 'rate', waitMs: null, meter: draw.one<MeterName>('tokens', 'cost', 'requests_day') },
    { kind: 'rate', waitMs: null, meter: null },
    { kind: 'overload', waitMs: 100 },
  );

function learned(draw: Draw, throttle: Throttle | null): Learned {
  // The replica's idea of the store's clock may be ahead of it.
  const headAgoMs = draw.one(0, draw.fraction(-2, 40));
  const meters = Array.from({ length: draw.whole(0, 3) }, () => report(draw));
  const asked = draw.one(
    {},
    { requestedCost: draw.one(0, 5, draw.fraction(0, 60)), requestedTokens: draw.whole(0, 200) },
  );
  return {
    feedback: { meters, throttle, ...asked },
    headAgoMs,
    sentAgoMs: headAgoMs + draw.fraction(0, 400),
  };
}

function report(draw: Draw): MeterReport {
  const limit = draw.one(3, 3, 5, 100, 0, draw.fraction(1, 60));
  const lowest = draw.fraction(0, limit * 1.2);
  return {
    meter: draw.one<MeterName>(
      'requests',
      'requests',
      'tokens',
      'cost',
      'requests_day',
      'images',
      'requests_burst',
      'requests_hour',
    ),
    limit,
    windowMs: draw.one(null, null, 1_500, 9_000.25, 0),
    ...draw.one({}, { resetMs: draw.one(0, 1_000, 700.5, 12_400, 61_000, 9_999_999) }),
    level: draw.chance(0.8) ? { lowest, highest: lowest + draw.one(0, 1, draw.fraction(0, 5)) } : null,
  };
}

/** The call of histories that are about something else than what a call asks for. */
const plainCall = (setting: BucketSetting): Omit<AdmitStep, 'kind' | 'ticket' | 'count'> => ({
  lane: 1,
  spread: false,
  background: false,
  caller: null,
  arrivedAgoMs: 0,
  again: false,
  asked: {
    weight: 1,
    maxInFlight: null,
    perMinute: null,
    ceilingTag: 'none.none',
    maxQueued: 1_000,
    urgency: 3,
    callClass: 'plain',
    costs: { requests: 1 },
    document: null,
    maxWaitMs: 1e6,
    leaseMs: 30_000,
    setting,
  },
});
const requestsOf = (limit: number, windowMs: number): BucketSetting => ({
  learn: true,
  probe: 0,
  meters: [{ meter: 'requests', limit, windowMs }],
});
const succeeded = { kind: 'succeeded', spent: null } as const;
const again = (closeMs: number, requeue: boolean): Settlement => ({
  kind: 'throttled',
  closeMs,
  requeue,
  sleepMs: 0,
});

const contestedLimit = 40;

/**
 * Somebody else drinks from a nearly full meter: calls that had room are refused for a moment, while others wait. Without these a
 * history hardly ever reaches what is kept free for others.
 */
function contestedStep(draw: Draw, index: number): Step {
  const common = {
    afterMs: draw.one(0, 20, 35, draw.fraction(0, 150)),
    replica: `r${draw.whole(1, 2)}`,
    twice: draw.chance(0.05),
    joins: false,
  };
  if (index < 2 || draw.chance(0.4)) {
    const plain = plainCall(requestsOf(contestedLimit, 4_000));
    return { ...common, kind: 'admit', ...plain, ticket: 100 * index, count: draw.one(1, 2, 12, 30) };
  }
  const lease = draw.whole(0, 1);
  if (draw.chance(0.4))
    return { ...common, kind: 'settle', lease, settlement: succeeded, lesson: contestedLesson(draw, null) };
  if (draw.chance(0.4)) {
    const closeMs = draw.one(1, 20, 100.5);
    const settlement = again(closeMs, draw.chance(0.8));
    return { ...common, kind: 'settle', lease, settlement, lesson: contestedLesson(draw, closeMs) };
  }
  return { ...common, kind: 'tick' };
}

/** @param closeMs of a refusal; now and then a guess of ours, as the upstream does not say. `null` = it was none. */
function contestedLesson(draw: Draw, closeMs: number | null): Learned {
  const limit = contestedLimit;
  const lowest = closeMs === null ? draw.fraction(limit * 0.7, limit) : limit;
  const meters = [{ meter: 'requests', limit, windowMs: 4_000, level: { lowest, highest: lowest } }] as const;
  const throttle: Throttle | null =
    closeMs === null ? null : { kind: 'rate', waitMs: draw.chance(0.8) ? closeMs : null, meter: 'requests' };
  return { feedback: { meters, throttle }, headAgoMs: 0, sentAgoMs: draw.fraction(0, 30) };
}

/**
 * A crowd waits while a bucket is closed for longer than a silence, and one call goes ahead of the others then; without these a history
 * hardly ever has both. Round by round: some calls go, the bucket closes, more come, it opens, and something becomes of the first of them.
 */
function silentStep(draw: Draw, index: number): Step {
  const common = { afterMs: 5, replica: 'r1', twice: draw.chance(0.05), joins: false };
  const lease = draw.whole(0, 1);
  const plain = { ...plainCall(requestsOf(200, 60_000)), ticket: 100 * index };
  switch (index % 6) {
    case 0:
      return { ...common, kind: 'admit', ...plain, count: draw.whole(1, 3) };
    case 1:
      return { ...common, kind: 'settle', lease, settlement: again(12_000, true), lesson: null };
    case 2:
      return { ...common, kind: 'admit', ...plain, count: draw.one(4, 7, 8, 9, 20) };
    case 3:
      return { ...common, afterMs: draw.one(9_000, 12_000, 13_000), kind: 'tick' };
    case 4:
      return { ...common, afterMs: draw.one(0, 20, 60, 100), ...silentEnding(draw) };
    default:
      return { ...common, afterMs: draw.one(0, 20, 40, 100), kind: 'tick' };
  }
}

/** What becomes of a lease. */
function silentEnding(draw: Draw): LeaseStep | Extract<BucketStep, { kind: 'tick' }> {
  const lease = draw.whole(0, 3);
  const ends = { kind: 'settle', lease, lesson: null } as const;
  const silence = { feedback: { meters: [], throttle: null }, sentAgoMs: 10, headAgoMs: 0 } as const;
  return draw.one<LeaseStep | Extract<BucketStep, { kind: 'tick' }>>(
    { ...ends, settlement: succeeded },
    { ...ends, settlement: { kind: 'returned', sleepMs: 30, because: 'ceiling_minute' } },
    { ...ends, settlement: { kind: 'dropped' } },
    { kind: 'learn', lease, lesson: silence },
    { kind: 'tick' },
  );
}
