/**
 * By how much a stated wait may be wrong, and why. Everything is computed from what the history really was, so that it is
 * narrow wherever the truth could be known. Two bounds, in milliseconds: a call may be sent so much later than
 * stated (`early`: the stated wait was too short), or so much earlier (`late`).
 *
 * | part | how much | why it is needed |
 * |---|---|---|
 * | rest | 1 s and 2 % of the wait | a meter that leaves empty rests for up to a second, or a sixtieth of its window, once per drain; a probe waits for its response |
 * | ways | six ways of a command to the store; a tick where wake-ups get lost | what was stated is of the past |
 * | turns | the largest call of each other lane that waits, and one of the call's own; behind a wire each call that has just left its line | start-time fair queueing is fair within one call of each lane |
 * | crossing | two of the call's own turns where other calls wait or were sent | which of two calls the upstream counts first is known only afterwards (`burstToleranceCalls`) |
 * | service | capped lanes; early: every round at its longest; late: at its longest instead of its shortest; in the slots that calls of unknown fate leave | how long calls take is learned, slowly, and never known of the next one; a call of unknown fate keeps its slot until its lease ends |
 * | charges | what known calls reserve and are not charged, or the other way round; of documents only before a response stated their cost, and of calls that left before that; of calls refused for another reason than their bucket all that they reserved | only responses tell |
 * | ceiling | a window of the ceiling for each call that waits in another lane of the workspace; behind a wire also in its own | lanes take turns under a ceiling, on average; a grant on its way to the ceiling stands in no line, and a slot that was just taken is not in a read of a moment ago |
 * | line | under a ceiling: the turns of all calls in the line; of a full line: its largest turn; of a mixed line: as often the difference of its calls as calls stand in it | what waits for a ceiling together stands before the bucket together when it opens; a full line waits for whoever is first in it; of a line whose calls differ only the sum is known |
 * | standstill | early, where something else than the line decides (a closing, a ceiling, a day): the turns of all who wait; of a call that was refused while it waited also a window of its ceiling; not where described windows alone hold calls up | those before it go first when the bucket opens or the lane wakes |
 * | together | late: the turns of those who were refused in the same moment | each is forecast as if the others went |
 * | reload | what configuration said when the call was refused holds; of a bucket that the operator states to be smaller than it is, its limits | the course that is followed has no later reload |
 * | ticks | over replicas, 1.5 s where messages get lost | a tick makes up for a message |
 * | described | where the windows of the upstream are described: the longest of them where a turn may go to others; early: all but the longest, and in each round how much longer than the fastest a response takes, a twentieth of the window at least; only windows that can hold somebody count | a window lets all its calls go at once, so that the next call waits for a whole one; each window is forecast alone; a call counts from when it may have been counted, which its response says; a round that begins late, for its wake-up was lost, makes all rounds behind it late |
 * | window | a window where only limit, remaining and reset tell of it; under a ceiling also a window of that | it is learned from several responses, and the model of a meter drains continuously where the upstream may give all back at once; what it refuses until then has used a slot of the ceiling |
 * | rounding | late: a second for each window that the calls ahead need, where only limit, remaining and reset tell of windows of up to ten seconds | upstreams state whole seconds, and some one more, so that a window of one second may be taken for one of two |
 *
 * Pure.
 */
import type { Costs, MeterName } from '../../src/call.ts';
import { roundedFromMs, roundingMs } from '../../src/limiter/policy/meter.policy.ts';
import type { BucketPlan, CallPlan, MeterPlan, WorkspacePlan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';

const restMs = 1_000;
const restShare = 0.02;
const commandWays = 6;
const ceilingWindowMs = 60_150;
const dayMs = 86_400_000;
/** A longer wait comes of the day, whose calls take turns of their own. Milliseconds. */
const maxWithoutDayMs = 600_000;
/** The ways of a call to the upstream and back, milliseconds. */
const callWaysMs = 40;
/** A call may have been counted this part of its window later than it was sent: one of the first of a window, and any other. */
const firstsPerWindow = 4;
const responsesPerWindow = 20;

export interface World {
  readonly calls: readonly CallPlan[];
  readonly buckets: readonly BucketPlan[];
  readonly workspaces: readonly WorkspacePlan[];
  /** Mean way of a command to the store; 0 = it is in the process. Milliseconds. */
  readonly wayMs: number;
  /** Further time that the world of this history needs. Milliseconds. */
  readonly slackMs: number;
  /** Something was broken then, which no forecast could take into account. */
  readonly isDisturbed: boolean;
}

export interface Tolerance {
  readonly early: (waitMs: number) => number;
  readonly late: (waitMs: number) => number;
}

export function toleranceOf(world: World, refused: RefusedCall): Tolerance {
  const call = find(world.calls, ({ id }) => id === refused.id);
  const bucket = find(world.buckets, ({ key }) => key === call.lane.bucket);
  const known = world.calls.filter(({ id, lane }) => refused.known.has(id) && lane.bucket === bucket.key);
  const isDay = refused.retryInMs > maxWithoutDayMs;
  const left = world.calls.filter(({ id, lane }) => refused.left.has(id) && lane.bucket === bucket.key);
  const about = [...known, ...left];
  const serviceMs = (each: CallPlan): number => serviceMsOf(each, bucket, isDay);
  // Any response to a call of a document, a refusal too, has stated what such calls cost; a call in flight may have left before that.
  const isKnownDocument = ({ id, document }: CallPlan): boolean =>
    !refused.inFlight.has(id) &&
    world.calls.some(
      (each) =>
        each.document?.name === document?.name &&
        each.lane.bucket === bucket.key &&
        refused.sent.has(each.id) &&
        !refused.inFlight.has(each.id),
    );
  const refusedOtherwise = world.calls.filter(
    ({ id, lane, fate }) => fate === 'secondary' && lane.bucket === bucket.key && refused.ended.has(id),
  );
  const service = servicesOf(world, call, refused);
  const togetherMs = left.reduce((sum, each) => sum + serviceMs(each), 0);
  const { perMinute } = find(world.workspaces, ({ name }) => name === call.lane.workspace);
  const waitingMs = known.reduce((sum, each) => sum + serviceMs(each), 0);
  const isStandstill =
    !isWindowsAlone(world, call, bucket) && (!refused.isArriving || refused.retryInMs > waitingMs);
  const ofCeilingMs = refused.isArriving || perMinute === null ? 0 : ceilingWindowMs;
  const standstillMs = isStandstill ? waitingMs + ofCeilingMs : 0;
  const windows = windowsMs(world, call, bucket, refused);
  const fixed =
    restMs +
    windows.orderMs +
    commandWays * world.wayMs +
    world.slackMs +
    servicesMs(call, known, refused, serviceMs) +
    (world.wayMs > 0 ? togetherMs : 0) +
    (bucket.windows === undefined ? crossingMs(world, call, refused, serviceMs) : 0) +
    about.reduce((sum, each) => sum + unchargedMs(each, bucket, isKnownDocument(each)), 0) +
    refusedOtherwise.reduce((sum, each) => sum + serviceMs(each), 0) +
    ceilingMs(world, call, refused) +
    lineMs(world, call, refused, serviceMs) +
    (bucket.reports === 'fields' ? bucket.requests.windowMs + (perMinute === null ? 0 : ceilingWindowMs) : 0);
  return {
    early: (waitMs) => fixed + windows.earlyMs + standstillMs + restShare * waitMs + service.earlyMs,
    late: (waitMs) =>
      fixed + togetherMs + restShare * waitMs + service.lateMs + roundingLateMs(bucket, known.length),
  };
}

/** See the table above: `rounding`. */
function roundingLateMs({ reports, requests: { limit, windowMs } }: BucketPlan, ahead: number): number {
  if (reports !== 'fields' || windowMs > roundedFromMs) return 0;
  return Math.ceil(ahead / limit) * roundingMs;
}

/** Nothing but its described windows holds the calls of the bucket up: no ceiling, no cap, and no response that closes it. */
function isWindowsAlone({ calls, workspaces }: World, call: CallPlan, bucket: BucketPlan): boolean {
  const { perMinute, perDay } = find(workspaces, ({ name }) => name === call.lane.workspace);
  const ofBucket = calls.filter(({ lane }) => lane.bucket === bucket.key);
  return (
    bucket.windows !== undefined &&
    perMinute === null &&
    perDay === null &&
    ofBucket.every(({ fate, lane }) => fate === 'answered' && lane.maxInFlight === null)
  );
}

/** See the table above: `described`. */
function windowsMs(
  { calls, wayMs, slackMs }: World,
  call: CallPlan,
  { windows: described = [], key }: BucketPlan,
  refused: RefusedCall,
): { readonly orderMs: number; readonly earlyMs: number } {
  // A window that takes all that ever came, even if each was sent twice, holds nobody up.
  const came = calls.filter(({ id, lane }) => lane.bucket === key && refused.came.has(id)).length;
  const windows = described.filter(({ requests }) => requests < 2 * came);
  const lengths = windows.map(({ windowMs }) => windowMs).toSorted((one, other) => one - other);
  const maxWindowMs = lengths.at(-1) ?? 0;
  const isAbout = ({ id, lane }: CallPlan): boolean =>
    id !== call.id &&
    lane.bucket === key &&
    (refused.left.has(id) ||
      (refused.known.has(id) && !refused.sent.has(id) && (wayMs > 0 || lane.key !== call.lane.key)));
  const shorterMs = lengths.slice(0, -1).reduce((sum, ms) => sum + ms, 0);
  const ofBucket = calls.filter(({ lane }) => lane.bucket === key);
  const services = ofBucket.map(({ serviceMs }) => serviceMs);
  const answeredMs = Math.max(...services) + callWaysMs;
  // By so much longer than the fastest a response takes; the first calls of a window may have been on their way for longer.
  const spreadMs = answeredMs - Math.min(...services);
  const ahead = ofBucket.filter(({ id }) => refused.known.has(id)).length;
  const laters = windows.map(({ requests, windowMs }) => {
    const laterMs = (part: number): number => Math.min(answeredMs, Math.max(windowMs / part, spreadMs));
    const rounds = Math.floor(ahead / requests);
    return laterMs(firstsPerWindow) + rounds * laterMs(responsesPerWindow) + (rounds + 1) * slackMs;
  });
  return {
    orderMs: calls.some(isAbout) ? maxWindowMs : 0,
    earlyMs: windows.length === 0 ? 0 : shorterMs + Math.max(...laters),
  };
}

/** One turn of each other lane that waits, and then one of the call's own lane. */
function servicesMs(
  call: CallPlan,
  known: readonly CallPlan[],
  { sent }: RefusedCall,
  serviceMs: (each: CallPlan) => number,
): number {
  const largest = new Map<string, number>();
  for (const each of known) {
    if (each.lane.key === call.lane.key || sent.has(each.id)) continue;
    largest.set(each.lane.key, Math.max(largest.get(each.lane.key) ?? 0, serviceMs(each)));
  }
  return largest.size === 0 ? 0 : serviceMs(call) + [...largest.values()].reduce((sum, ms) => sum + ms, 0);
}

/** Points are stated at the end of a call, and cannot cross. */
function crossingMs(
  world: World,
  call: CallPlan,
  refused: RefusedCall,
  serviceMs: (each: CallPlan) => number,
): number {
  const counted = { ...call, costs: { ...call.costs, cost: 0 }, document: null };
  const isAbout = ({ id, lane }: CallPlan): boolean =>
    id !== call.id && lane.bucket === call.lane.bucket && (refused.known.has(id) || refused.sent.has(id));
  return world.calls.some(isAbout) ? 2 * serviceMs(counted) : 0;
}

function ceilingMs({ calls, workspaces, wayMs }: World, call: CallPlan, refused: RefusedCall): number {
  const { perMinute } = find(workspaces, ({ name }) => name === call.lane.workspace);
  if (perMinute === null) return 0;
  const isAbout = ({ id, lane }: CallPlan): boolean =>
    wayMs > 0
      ? refused.came.has(id) && (!refused.ended.has(id) || refused.left.has(id))
      : refused.known.has(id) && lane.key !== call.lane.key;
  const others = calls.filter(
    (each) =>
      isAbout(each) &&
      each.lane.workspace === call.lane.workspace &&
      each.id !== call.id &&
      (!refused.sent.has(each.id) || (wayMs > 0 && refused.leaving.has(each.id))),
  );
  return others.length * ceilingWindowMs;
}

/** See the table above. */
function lineMs(
  world: World,
  call: CallPlan,
  refused: RefusedCall,
  serviceMs: (each: CallPlan) => number,
): number {
  const { perMinute } = find(world.workspaces, ({ name }) => name === call.lane.workspace);
  const line = world.calls.filter(
    ({ id, lane }) => lane.key === call.lane.key && refused.known.has(id) && !refused.sent.has(id),
  );
  if (perMinute !== null) return line.reduce((sum, each) => sum + serviceMs(each), 0);
  const isBehindOthers = line.some(
    ({ id, urgency, at }) =>
      id !== call.id && (urgency < call.urgency || (urgency === call.urgency && at <= call.at)),
  );
  const isMixed = isBehindOthers && new Set(line.map(serviceMs)).size > 1;
  const services = line.map(serviceMs);
  const largest = Math.max(0, ...services);
  const mixedMs = isMixed ? (largest - Math.min(largest, ...services)) * line.length : 0;
  return refused.code === 'queue_full' ? largest + mixedMs : mixedMs;
}

function servicesOf(
  { calls }: World,
  { lane }: CallPlan,
  { known, sent, ended, answered }: RefusedCall,
): { readonly earlyMs: number; readonly lateMs: number } {
  if (lane.maxInFlight === null) return { earlyMs: 0, lateMs: 0 };
  const ofLane = calls.filter((each) => each.lane.key === lane.key);
  const own = ofLane.filter(({ id }) => known.has(id)).length;
  const unknown = ofLane.filter(({ id }) => sent.has(id) && ended.has(id) && !answered.has(id)).length;
  const taken = ofLane.map(({ serviceMs, bodyMs }) => serviceMs + bodyMs);
  const rounds = Math.floor(own / Math.max(1, lane.maxInFlight - unknown)) + 1;
  const maxMs = Math.max(...taken) + callWaysMs;
  return { earlyMs: rounds * maxMs, lateMs: rounds * (maxMs - Math.min(...taken)) };
}

/** How long what the call reserves and is not charged, or the other way round, keeps the bucket busy. */
function unchargedMs(
  { costs, chargedShare, document }: CallPlan,
  bucket: BucketPlan,
  isKnown: boolean,
): number {
  const share = Math.abs(1 - chargedShare);
  const points = document?.points ?? costs.cost ?? 0;
  const guessed = document === null || isKnown ? 0 : document.points - (costs.cost ?? 0);
  return Math.max(
    busyMs(bucket.tokens, (costs.tokens ?? 0) * share),
    busyMs(bucket.cost, points * share + Math.max(0, guessed)),
  );
}

/** For how long the call keeps the slowest of its meters busy. */
function serviceMsOf({ costs, document }: CallPlan, bucket: BucketPlan, isDay: boolean): number {
  const wanted: Costs = document === null ? costs : { ...costs, cost: document.points };
  const of = (name: MeterName): number => wanted[name] ?? 0;
  const day = bucket.perDay === null ? null : { limit: bucket.perDay, windowMs: dayMs };
  return Math.max(
    busyMs(bucket.requests, of('requests')),
    busyMs(bucket.tokens, of('tokens')),
    busyMs(bucket.cost, of('cost')),
    isDay ? busyMs(day, of('requests_day')) : 0,
  );
}

const busyMs = (meter: MeterPlan | null, units: number): number =>
  meter === null ? 0 : meter.windowMs * Math.min(1, units / meter.limit);

export function find<T>(all: readonly T[], is: (one: T) => boolean): T {
  const found = all.find(is);
  if (found === undefined) throw new Error('the world lacks what the refusal names');
  return found;
}
