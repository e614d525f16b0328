/**
 * The oracle of stated waits (invariant 13). A refusal of a calm history that states a time is followed up by living the same history again,
 * up to the refusal, and then otherwise (`counterfactual.ts`): equal seeds give equal histories. What the product said of itself plays no
 * part; what counts is when a call was really sent, and whether the upstream itself had room (`isVacant`).
 *
 * - (a) Who comes again at the stated time is admitted, and sent within its wait; or somebody who stood behind it took the room meanwhile:
 *   then it would have been sent by the stated time if it had stayed in its line.
 * - (b) Who was refused for its wait could not have been sent within it, nor would the upstream have taken it sooner.
 * - (c) No refusal states a time that is later than the truth.
 *
 * Each may be wrong by so much, milliseconds, too short (`early`) or too long (`late`):
 *
 * - rest: 1 s and 2 % of the wait. A meter that leaves empty rests for up to a second, or a sixtieth of its window, once per drain.
 * - turns: the largest call of each lane that waits, twice. Fair queueing is fair within one call of each lane, and which of two calls the
 *   upstream counts first is known only afterwards.
 * - ways: twelve ways of a command to the store. What was stated is of the past.
 * - order, late: the calls under way that may have been counted in what responses state of others that left with them, or come on top of it.
 */
import type { Costs, MeterName } from '../../src/call.ts';
import type { Chance } from './chance.ts';
import { againOf, callOf, patient, returning } from './counterfactual.ts';
import type { BucketPlan, MeterPlan, Plan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';
import { follow } from './replicas/simulate.ts';
import { keyed } from './rules.ts';

export type Verdict =
  { readonly kind: 'true' | 'taken meanwhile' } | { readonly kind: 'false'; readonly text: string };

const codes = new Set(['wait_too_long', 'wait_expired', 'queue_full']);
/** The shortest time that is stated, where it is only expected. Milliseconds. */
const minStatedMs = 1_000;

/** Of the refusals of a calm history that can be judged: the one with the longest stated wait, and any other. */
export function sampleOf(
  plan: Plan,
  refused: readonly RefusedCall[],
  chance: Chance,
): readonly RefusedCall[] {
  const [longest, ...others] = refused
    .filter((each) => canBeJudged(plan, each))
    .toSorted((one, other) => other.retryInMs - one.retryInMs);
  const [first, ...more] = others;
  if (longest === undefined) return [];
  return first === undefined ? [longest] : [longest, chance.pick([first, ...more])];
}

export function canBeJudged(
  { calls, workspaces }: Plan,
  { id, code, isSure, isArriving }: RefusedCall,
): boolean {
  const call = calls.find((each) => each.id === id);
  if (call === undefined || !codes.has(code) || !isSure) return false;
  const { key, workspace } = call.lane;
  // Whoever waits for a ceiling is told what is left of a window of it.
  const isLimited = workspaces.some(({ name, perMinute }) => name === workspace && perMinute !== null);
  if (isLimited && !isArriving) return false;
  // A call of another caller that stands in the full line may have to leave first, which no position in the line stands for.
  return code !== 'queue_full' || !calls.some(({ lane, caller }) => lane.key === key && caller !== undefined);
}

export async function judge(plan: Plan, refused: RefusedCall): Promise<Verdict> {
  const { id, code, at, retryInMs } = refused;
  const { early, late } = toleranceOf(plan, refused);
  const { at: cameAt, maxWaitMs } = callOf(plan, id);
  const leftMs = cameAt + maxWaitMs - at;
  const maxMs = Math.max(leftMs, retryInMs);
  const until = at + maxMs + late(maxMs) + 1_000;
  const stayed = await follow(patient(plan, refused), id, { after: at, until });
  const couldMs = after(at, stayed.vacantAt ?? stayed.sentAt);
  const said = `${id} was refused with ${code} ${ms(retryInMs)} at ${at.toFixed(2)}`;
  if (couldMs !== null && code !== 'queue_full' && couldMs + late(Math.max(0, leftMs)) < leftMs)
    return wrong(`${said}, with ${ms(leftMs)} of its wait left, and could have gone after ${ms(couldMs)}`);
  if (couldMs !== null && retryInMs > Math.max(minStatedMs, couldMs) + late(retryInMs))
    return wrong(`${said}, and could have gone after ${ms(couldMs)}`);
  const grace = early(retryInMs);
  // A full line lets nobody wait in it: whoever was refused for it uses the tolerance to come later.
  const later = { ...refused, retryInMs: retryInMs + (code === 'queue_full' ? grace : 0) };
  const plans = returning(plan, later, Math.max(maxWaitMs, grace));
  const again = await follow(plans, againOf(id), { after: at, until: null });
  if (again.sentAt !== null) return { kind: 'true' };
  const stayedMs = after(at, stayed.sentAt);
  if (stayedMs !== null && stayedMs <= retryInMs + grace) return { kind: 'taken meanwhile' };
  const then =
    again.refused === null ? 'not sent' : `refused (${again.refused.code} ${ms(again.refused.retryInMs)})`;
  return wrong(
    `${said}, came then and was ${then}; it would have gone after ${stayedMs === null ? 'no time' : ms(stayedMs)}`,
  );
}

const wrong = (text: string): Verdict => ({ kind: 'false', text });
const after = (at: number, then: number | null): number | null => (then === null ? null : then - at);
const ms = (value: number): string => `${value.toFixed(0)} ms`;

const restMs = 1_000;
const restShare = 0.02;
const commandWays = 12;

function toleranceOf({ calls, buckets, network }: Plan, { id: refused, known, uncounted }: RefusedCall) {
  const largest = new Map<string, number>();
  let orderMs = 0;
  for (const { id, lane, costs } of calls) {
    const serviceMs = serviceMsOf(costs, keyed(buckets, lane.bucket));
    if (uncounted.has(id)) orderMs += serviceMs;
    if (!known.has(id) && id !== refused) continue;
    largest.set(lane.key, Math.max(largest.get(lane.key) ?? 0, serviceMs));
  }
  const turnsMs = [...largest.values()].reduce((sum, ms) => sum + 2 * ms, 0);
  const early = (waitMs: number): number =>
    restMs + restShare * waitMs + turnsMs + commandWays * network.meanMs;
  return { early, late: (waitMs: number) => early(waitMs) + orderMs };
}

/** For how long the call keeps the slowest of its meters busy. */
function serviceMsOf(costs: Costs, { requests, tokens, cost }: BucketPlan): number {
  const busyMs = (meter: MeterPlan | null, name: MeterName): number =>
    meter === null ? 0 : meter.windowMs * Math.min(1, (costs[name] ?? 0) / meter.limit);
  return Math.max(busyMs(requests, 'requests'), busyMs(tokens, 'tokens'), busyMs(cost, 'cost'));
}
