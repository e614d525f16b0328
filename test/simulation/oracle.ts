/**
 * The oracle of stated waits (invariant 13). A refusal that states a time is followed up by living the same history again,
 * up to the moment of the refusal, and then otherwise (`counterfactual.ts`): equal seeds give equal histories, so that the
 * only difference is the one that is asked about. What the product said of itself plays no part; what counts is when a
 * call was really sent, and whether the upstream itself had room (`vacancy.ts`).
 *
 * - (a) Who comes again at the stated time is admitted, and sent within its wait. A returning call that is refused has not been
 *   lied to where somebody who stood behind it took the room meanwhile: that shows where the call would have been sent by
 *   the stated time if it had stayed in its line, and the refusal of the returning call is itself followed up by (b).
 * - (b) Who was refused for its wait could not have been sent within it: if it had waited without limit it would have been
 *   sent later, and the upstream would not have taken it sooner.
 * - (c) No refusal states a time that is later than the truth.
 *
 * Each within the tolerance of `tolerance.ts`, which says why it is needed. Not judged is what nobody could know: upstreams
 * that do something else than they tell, or that others use (`isReliable`), a quota that the operator states too low before any
 * response has said what it is, calls whose fate was open at that moment, and those that came elsewhere within the time in which a
 * replica that refuses by its own copy hears of them.
 *
 * Owns: the judgement. Does not own: running histories (`Lives`). To follow one refusal costs two or three histories,
 * so that long runs follow a sample (`sampleOf`).
 */
import type { Chance } from './chance.ts';
import type { BucketPlan, CallPlan } from './plan.ts';
import { isBackground, isStatedAlone } from './rules.ts';
import { clientWayMs, patienceMs } from './counterfactual.ts';
import { find, toleranceOf, type Tolerance, type World } from './tolerance.ts';
import type { RefusedCall } from './refused-call.ts';

/** What became of the followed call in another course of the history. */
export interface Followed {
  /** When it was first sent after the refusal; `null` = it was not. Milliseconds, as all times here. */
  readonly sentAt: number | null;
  /** Since when the upstream would have taken it; `null` = not before it was sent. */
  readonly vacantAt: number | null;
  /** Its refusal; `null` = it was not refused. */
  readonly refused: RefusedCall | null;
}

/** Other courses of one history. */
export interface Lives {
  /** What the replicas knew at that instant. */
  worldAt(at: number): World;
  /** The refused call waits on at its position instead, at most until then. */
  stay(refused: RefusedCall, until: number): Promise<Followed>;
  /** The refused call is made again at the stated time, and waits at most `maxWaitMs` then. */
  returnLater(refused: RefusedCall, maxWaitMs: number): Promise<Followed>;
}

export type Verdict =
  | { readonly kind: 'true' | 'taken meanwhile' | 'not judged' }
  | { readonly kind: 'false'; readonly text: string };

/** Codes of refusals for a wait: they state when to try again. */
const codes = new Set(['wait_too_long', 'wait_expired', 'queue_full', 'day_quota_exhausted']);
/** Longer than any refused call of a history stays away before it is made again. Milliseconds. */
const maxReturnMs = 2 * 3_600_000;
/** The gateway gives up on a response after this, and the call's fate is open (`driver.ts`). Milliseconds. */
const responseLimitMs = 4_900;
/** One background call a minute leaves before all others, which is not foretold: it may leave earlier than it was told. Milliseconds. */
const backgroundMinuteMs = 60_000;
/** The shortest time that is stated, where it is only expected. Milliseconds. */
const minStatedMs = 1_000;

/** Of the refusals of a history that can be judged: the one with the longest stated wait, and any other. */
export function sampleOf(
  { worldAt }: Lives,
  refused: readonly RefusedCall[],
  chance: Chance,
): readonly RefusedCall[] {
  const [longest, ...others] = refused
    .filter((each) => canBeJudged(worldAt(each.at), each))
    .toSorted((one, other) => other.retryInMs - one.retryInMs);
  const [first, ...more] = others;
  if (longest === undefined) return [];
  return first === undefined ? [longest] : [longest, chance.pick([first, ...more])];
}

export function canBeJudged(
  { calls, buckets, workspaces, isDisturbed }: World,
  refused: RefusedCall,
): boolean {
  if (!codes.has(refused.code) || isDisturbed) return false;
  const call = find(calls, ({ id }) => id === refused.id);
  const bucket = find(buckets, ({ key }) => key === call.lane.bucket);
  const { revokedAt, perDay } = find(workspaces, ({ name }) => name === call.lane.workspace);
  const isKnown = (one: BucketPlan): boolean => one.isReliable && !isUnderstated(one, calls, refused);
  if (!isKnown(bucket) || revokedAt <= refused.at) return false;
  // A call of another caller that stands in the full line may have to leave first, which no position in the line stands for.
  if (
    refused.code === 'queue_full' &&
    calls.some(({ lane, caller }) => lane.key === call.lane.key && caller !== undefined)
  )
    return false;
  if (isBackground(call.lane) && refused.retryInMs > backgroundMinuteMs) return false;
  if (isDayContended(calls, refused, call, { ofBucket: bucket.perDay, ofWorkspace: perDay })) return false;
  const about = calls.filter(
    ({ id, lane }) =>
      (refused.known.has(id) || refused.left.has(id)) &&
      (lane.bucket === bucket.key || lane.workspace === call.lane.workspace),
  );
  if (about.some(({ id }) => refused.unheard.has(id))) return false;
  const unknown = new Set(buckets.filter((one) => !isKnown(one)).map(({ key }) => key));
  return about.every((each) => !isOpen(each, refused) && !unknown.has(each.lane.bucket));
}

/** The operator states less than the upstream has, and no response that would raise the limit has come yet. */
function isUnderstated(bucket: BucketPlan, calls: readonly CallPlan[], { answered }: RefusedCall): boolean {
  const isLess = bucket.statedShare !== null && bucket.statedShare < 1;
  if (!isLess || !bucket.learn || isStatedAlone(bucket)) return false;
  return !calls.some(({ id, lane }) => lane.bucket === bucket.key && answered.has(id));
}

/** On its way, and what becomes of it shows only later. */
const isOpen = ({ id, fate, serviceMs, leavesAt }: CallPlan, { sent, at }: RefusedCall): boolean =>
  serviceMs >= responseLimitMs || (sent.has(id) && (fate !== 'answered' || leavesAt === at));

/** Those who wait may use up what is left of a day, and who of several lanes is the last that gets something is not known. */
function isDayContended(
  calls: readonly CallPlan[],
  { sent, known }: RefusedCall,
  { lane }: CallPlan,
  perDay: { readonly ofBucket: number | null; readonly ofWorkspace: number | null },
): boolean {
  const about = calls.filter(({ id }) => sent.has(id) || known.has(id));
  const ofBucket = about.filter((each) => each.lane.bucket === lane.bucket).length;
  const ofWorkspace = about.filter((each) => each.lane.workspace === lane.workspace).length;
  return (
    (perDay.ofBucket !== null && ofBucket >= perDay.ofBucket) ||
    (perDay.ofWorkspace !== null && ofWorkspace >= perDay.ofWorkspace)
  );
}

export async function judge(lives: Lives, refused: RefusedCall): Promise<Verdict> {
  const world = lives.worldAt(refused.at);
  if (!canBeJudged(world, refused)) return { kind: 'not judged' };
  const call = find(world.calls, ({ id }) => id === refused.id);
  const tolerance = toleranceOf(world, refused);
  const leftMs = call.at + call.maxWaitMs - refused.at;
  const maxMs = Math.max(leftMs, Math.min(refused.retryInMs, maxReturnMs));
  const stayed = await lives.stay(refused, refused.at + maxMs + tolerance.early(maxMs) + 1_000);
  return (
    tooSoon(refused, stayed, tolerance, leftMs) ??
    (isBackground(call.lane) && !refused.isArriving ? null : tooLate(refused, stayed, tolerance)) ??
    (await returned(lives, refused, stayed, { tolerance, call }))
  );
}

/** (b) */
function tooSoon(
  refused: RefusedCall,
  stayed: Followed,
  { late }: Tolerance,
  leftMs: number,
): Verdict | null {
  const waitMs = waitOf(refused, stayed);
  if (refused.code === 'queue_full' || waitMs === null || waitMs + late(Math.max(0, leftMs)) >= leftMs)
    return null;
  const text = `${said(refused)}, with ${ms(leftMs)} of its wait left, and could have gone after ${ms(waitMs)}`;
  return { kind: 'false', text };
}

/**
 * (c). Not of a background call that has waited: it may have been the one that is due, and would have left before all others then. Who comes
 * back is not, because the turn is that of the next background call by then, or a minute away. So the time is told without it.
 */
function tooLate(refused: RefusedCall, stayed: Followed, { late }: Tolerance): Verdict | null {
  const waitMs = waitOf(refused, stayed);
  if (waitMs === null || refused.retryInMs <= Math.max(minStatedMs, waitMs) + late(refused.retryInMs))
    return null;
  return { kind: 'false', text: `${said(refused)}, and could have gone after ${ms(waitMs)}` };
}

/** (a) */
async function returned(
  lives: Lives,
  refused: RefusedCall,
  stayed: Followed,
  { tolerance, call }: { readonly tolerance: Tolerance; readonly call: CallPlan },
): Promise<Verdict> {
  if (refused.retryInMs > maxReturnMs) return { kind: 'true' };
  const grace = tolerance.early(refused.retryInMs);
  const patience = Math.max(call.maxWaitMs, grace);
  // A full line lets nobody wait in it: whoever was refused for it uses the tolerance to come later.
  const laterMs = refused.code === 'queue_full' ? grace : 0;
  const later = { ...refused, retryInMs: refused.retryInMs + laterMs };
  const again = await lives.returnLater(later, patience);
  if (again.sentAt !== null) return { kind: 'true' };
  const stayedMs = stayed.sentAt === null ? null : stayed.sentAt - refused.at;
  if (stayedMs !== null && stayedMs <= refused.retryInMs + grace) {
    return (
      (await refusedForNothing(lives, later, again.refused, { tolerance, patience })) ?? {
        kind: 'taken meanwhile',
      }
    );
  }
  const then =
    again.refused === null
      ? 'was not sent'
      : `was refused (${again.refused.code} ${ms(again.refused.retryInMs)})`;
  const truth = stayedMs === null ? 'would not have gone at all' : `would have gone after ${ms(stayedMs)}`;
  return { kind: 'false', text: `${said(refused)}, came then and ${then}; it ${truth}` };
}

/** (b) of the call that came again; `refused`: with the time after which it came, which may be later than stated. */
async function refusedForNothing(
  lives: Lives,
  refused: RefusedCall,
  again: RefusedCall | null,
  { tolerance, patience }: { readonly tolerance: Tolerance; readonly patience: number },
): Promise<Verdict | null> {
  // Where wake-ups get lost it is the returning call itself that wakes the others.
  if (again === null || again.code === 'queue_full' || lives.worldAt(refused.at).slackMs > 0) return null;
  const stayed = await lives.returnLater(refused, patienceMs);
  const waitMs = waitOf({ ...refused, at: refused.at + refused.retryInMs + clientWayMs }, stayed);
  if (waitMs === null || waitMs + tolerance.late(patience) >= patience) return null;
  const text = `${said(again)} when it came again with ${ms(patience)}, and could have gone after ${ms(waitMs)}`;
  return { kind: 'false', text };
}

/** After what time it could have been sent. */
function waitOf({ at }: RefusedCall, { sentAt, vacantAt }: Followed): number | null {
  const couldAt = vacantAt ?? sentAt;
  return couldAt === null ? null : couldAt - at;
}

const said = ({ id, code, at, retryInMs }: RefusedCall): string =>
  `${id} was refused with ${code} ${ms(retryInMs)} at ${at.toFixed(2)}`;
const ms = (value: number): string => `${value.toFixed(0)} ms`;
