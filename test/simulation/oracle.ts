/**
 * The oracle of told waits (invariant 13). A refusal that tells a time is followed up by living the same history again,
 * up to the moment of the refusal, and then otherwise (`counterfactual.ts`): equal seeds give equal histories, so that the
 * only difference is the one that is asked about. What the product said of itself plays no part; what counts is when a
 * call was really sent, and whether the upstream itself had room (`vacancy.ts`).
 *
 * - (a) Who comes again at the time told is let in, and sent within its wait. A returning call that is refused has not been
 *   lied to where somebody who stood behind it took the room meanwhile: that shows where the call would have been sent by
 *   the time told if it had stayed in its line, and the refusal of the returning call is itself followed up by (b).
 * - (b) Who was refused for its wait could not have been sent within it: if it had waited without limit it would have been
 *   sent later, and the upstream would not have taken it sooner.
 * - (c) Nor is a time told that is later than the truth.
 *
 * Each within the tolerance of `tolerance.ts`, which says why it is needed. Not judged is what nobody could know: upstreams
 * that do something else than they tell, or that others use (`isReliable`), and calls whose fate was open at that moment.
 *
 * Owns: the judgement. Refuses to own: running histories (`Lives`). To follow one refusal costs two or three histories,
 * so that long runs follow a sample (`sampleOf`).
 */
import type { Chance } from './chance.ts';
import type { CallPlan } from './plan.ts';
import { clientWayMs, patienceMs } from './counterfactual.ts';
import { find, toleranceOf, type Tolerance, type World } from './tolerance.ts';
import type { Told } from './told.ts';

/** What became of the followed call in another course of the history. */
export interface Followed {
  /** When it was first sent after the refusal; `null` = it was not. Milliseconds, as all times here. */
  readonly sentAt: number | null;
  /** Since when the upstream would have taken it; `null` = not before it was sent. */
  readonly vacantAt: number | null;
  /** Its refusal; `null` = it was not refused. */
  readonly told: Told | null;
}

/** Other courses of one history. */
export interface Lives {
  /** As everybody knew it then. */
  worldAt(at: number): World;
  /** The call waits without limit where it stood, at most until then. */
  stay(told: Told, until: number): Promise<Followed>;
  /** The call comes again when it was told to, with so much patience. */
  comeAgain(told: Told, maxWaitMs: number): Promise<Followed>;
}

export type Verdict =
  | { readonly kind: 'true' | 'taken meanwhile' | 'not judged' }
  | { readonly kind: 'false'; readonly text: string };

/** Codes that tell when to come again because of a wait. */
const codes = new Set(['wait_too_long', 'wait_expired', 'queue_full', 'day_quota_exhausted']);
/** Longer than anybody comes again in a history. */
const maxReturnMs = 2 * 3_600_000;
/** The gateway gives up on an answer after this, and the call's fate is open (`driver.ts`). Milliseconds. */
const answerLimitMs = 4_900;
/** The least that is told, where a time is only expected. Milliseconds. */
const minToldMs = 1_000;

/** Of the refusals of a history that can be judged: the one that was told the longest wait, and any other. */
export function sampleOf({ worldAt }: Lives, told: readonly Told[], chance: Chance): readonly Told[] {
  const [longest, ...others] = told
    .filter((each) => canBeJudged(worldAt(each.at), each))
    .toSorted((one, other) => other.retryInMs - one.retryInMs);
  const [first, ...more] = others;
  if (longest === undefined) return [];
  return first === undefined ? [longest] : [longest, chance.pick([first, ...more])];
}

export function canBeJudged({ calls, buckets, workspaces, isDisturbed }: World, told: Told): boolean {
  if (!codes.has(told.code) || isDisturbed) return false;
  const call = find(calls, ({ id }) => id === told.id);
  const bucket = find(buckets, ({ key }) => key === call.lane.bucket);
  const { revokedAt, perDay } = find(workspaces, ({ name }) => name === call.lane.workspace);
  if (!bucket.isReliable || revokedAt <= told.at) return false;
  if (isDayContended(calls, told, call, { ofBucket: bucket.perDay, ofWorkspace: perDay })) return false;
  const about = calls.filter(
    ({ id, lane }) =>
      (told.known.has(id) || told.left.has(id)) &&
      (lane.bucket === bucket.key || lane.workspace === call.lane.workspace),
  );
  const unreliable = new Set(buckets.filter(({ isReliable }) => !isReliable).map(({ key }) => key));
  return about.every((each) => !isOpen(each, told) && !unreliable.has(each.lane.bucket));
}

/** On its way, and what becomes of it shows only later. */
const isOpen = ({ id, fate, serviceMs, leavesAt }: CallPlan, { sent, at }: Told): boolean =>
  serviceMs >= answerLimitMs || (sent.has(id) && (fate !== 'answered' || leavesAt === at));

/** Those who wait may use up what is left of a day, and who of several lanes is the last that gets something is not known. */
function isDayContended(
  calls: readonly CallPlan[],
  { sent, known }: Told,
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

export async function judge(lives: Lives, told: Told): Promise<Verdict> {
  const world = lives.worldAt(told.at);
  if (!canBeJudged(world, told)) return { kind: 'not judged' };
  const call = find(world.calls, ({ id }) => id === told.id);
  const tolerance = toleranceOf(world, told);
  const leftMs = call.at + call.maxWaitMs - told.at;
  const maxMs = Math.max(leftMs, Math.min(told.retryInMs, maxReturnMs));
  const stayed = await lives.stay(told, told.at + maxMs + tolerance.early(maxMs) + 1_000);
  return (
    tooSoon(told, stayed, tolerance, leftMs) ??
    tooLate(told, stayed, tolerance) ??
    (await returned(lives, told, stayed, { tolerance, call }))
  );
}

/** (b) */
function tooSoon(told: Told, stayed: Followed, { late }: Tolerance, leftMs: number): Verdict | null {
  const waitMs = waitOf(told, stayed);
  if (told.code === 'queue_full' || waitMs === null || waitMs + late(Math.max(0, leftMs)) >= leftMs)
    return null;
  const text = `${said(told)}, with ${ms(leftMs)} of its wait left, and could have gone after ${ms(waitMs)}`;
  return { kind: 'false', text };
}

/** (c) */
function tooLate(told: Told, stayed: Followed, { late }: Tolerance): Verdict | null {
  const waitMs = waitOf(told, stayed);
  if (waitMs === null || told.retryInMs <= Math.max(minToldMs, waitMs) + late(told.retryInMs)) return null;
  return { kind: 'false', text: `${said(told)}, and could have gone after ${ms(waitMs)}` };
}

/** (a) */
async function returned(
  lives: Lives,
  told: Told,
  stayed: Followed,
  { tolerance, call }: { readonly tolerance: Tolerance; readonly call: CallPlan },
): Promise<Verdict> {
  if (told.retryInMs > maxReturnMs) return { kind: 'true' };
  const grace = tolerance.early(told.retryInMs);
  const patience = Math.max(call.maxWaitMs, grace);
  // A full line lets nobody wait in it: whoever was told of it uses the tolerance to come later.
  const laterMs = told.code === 'queue_full' ? grace : 0;
  const again = await lives.comeAgain({ ...told, retryInMs: told.retryInMs + laterMs }, patience);
  if (again.sentAt !== null) return { kind: 'true' };
  const itsTurnMs = stayed.sentAt === null ? null : stayed.sentAt - told.at;
  if (itsTurnMs !== null && itsTurnMs <= told.retryInMs + grace) {
    return (
      (await refusedForNothing(lives, told, again.told, { tolerance, patience })) ?? {
        kind: 'taken meanwhile',
      }
    );
  }
  const then =
    again.told === null ? 'was not sent' : `was refused (${again.told.code} ${ms(again.told.retryInMs)})`;
  const truth = itsTurnMs === null ? 'would not have gone at all' : `would have gone after ${ms(itsTurnMs)}`;
  return { kind: 'false', text: `${said(told)}, came then and ${then}; it ${truth}` };
}

/** (b) of the call that came again. */
async function refusedForNothing(
  lives: Lives,
  told: Told,
  again: Told | null,
  { tolerance, patience }: { readonly tolerance: Tolerance; readonly patience: number },
): Promise<Verdict | null> {
  // Where wake-ups get lost it is the returning call itself that wakes the others.
  if (again === null || again.code === 'queue_full' || lives.worldAt(told.at).slackMs > 0) return null;
  const stayed = await lives.comeAgain(told, patienceMs);
  const waitMs = waitOf({ ...told, at: told.at + told.retryInMs + clientWayMs }, stayed);
  if (waitMs === null || waitMs + tolerance.late(patience) >= patience) return null;
  const text = `${said(again)} when it came again with ${ms(patience)}, and could have gone after ${ms(waitMs)}`;
  return { kind: 'false', text };
}

/** After what time it could have been sent. */
function waitOf({ at }: Told, { sentAt, vacantAt }: Followed): number | null {
  const couldAt = vacantAt ?? sentAt;
  return couldAt === null ? null : couldAt - at;
}

const said = ({ id, code, at, retryInMs }: Told): string =>
  `${id} was told ${code} ${ms(retryInMs)} at ${at.toFixed(2)}`;
const ms = (value: number): string => `${value.toFixed(0)} ms`;
