/** One history of a seed, and its refusals followed up in other courses of it. */
import { Chance } from './chance.ts';
import { againOf, patient, returning } from './counterfactual.ts';
import { judge, sampleOf, type Lives, type Verdict } from './oracle.ts';
import { reservingFrom } from './plan-levels.ts';
import { planOf, type Fault, type Form, type NetworkPlan, type Plan } from './plan.ts';
import type { RefusedCall } from './refused-call.ts';
import { follow, run, type History } from './replicas/simulate.ts';
import { isTakingOver, knownAt } from './rules.ts';

export interface Lived {
  readonly history: History;
  /** What broke an invariant, told waits among them. */
  readonly wrong: readonly string[];
  /** How often each verdict on a refusal was given. */
  readonly verdicts: ReadonlyMap<Verdict['kind'], number>;
}

/** Which of the refusals are followed up; some are two. */
export type Followed = 'none' | 'some' | 'all';

/** After a fault replicas find Redis again, tell what they did, and enter their tickets again. Milliseconds. */
const recoveryMs = 6_000;
/** How long a stall of a process alone shows in how long calls seem to take. Milliseconds. */
const afterStallMs = 1_000;
/** A tick makes up for a message or a wake-up that was lost. Milliseconds. */
const messageMs = 1_500;
const wakeMs = 1_010;

export async function live(
  form: Form,
  seed: number,
  { keepsLog = false, followed = 'some' }: { readonly keepsLog?: boolean; readonly followed?: Followed } = {},
): Promise<Lived> {
  const plan = planOf(form, seed);
  const history = await run(plan, keepsLog);
  const wrong = [...history.violations];
  const verdicts = new Map<Verdict['kind'], number>();
  const lives = livesOf(plan);
  // Who comes when depends in such histories on what was told: another course is another history.
  const isFollowed = followed !== 'none' && (form === 'upstreams' || seed < reservingFrom);
  const sample = (): readonly RefusedCall[] =>
    followed === 'all' ? history.refused : sampleOf(lives, history.refused, new Chance(seed));
  for (const refused of isFollowed ? sample() : []) {
    const verdict = await judge(lives, refused);
    verdicts.set(verdict.kind, (verdicts.get(verdict.kind) ?? 0) + 1);
    if (verdict.kind === 'false') wrong.push(`13 at ${refused.at.toFixed(2)}: ${verdict.text}`);
  }
  return { history, wrong, verdicts };
}

/**
 * Other courses of a history: the same up to a refusal, and then quiet. What is not judged: refusals while a fault lasts or is being
 * got over, and while replicas differ in what they go by; and histories in which commands get lost or are carried out twice, for
 * nobody knows then what they did.
 */
export const livesOf = (plan: Plan): Lives => ({
  worldAt: (at) => ({
    ...knownAt(plan, at),
    wayMs: plan.network.meanMs,
    slackMs: plan.network.lostMessages > 0 ? messageMs : (plan.lostWakes ?? 0) > 0 ? wakeMs : 0,
    isDisturbed:
      isLossy(plan.network) ||
      plan.faults.some((fault) => fault.at <= at && at <= endOf(fault) + recoveryOf(plan)) ||
      plan.frozenWrites > 0 ||
      plan.reloads.some((reload) => isTakingOver(reload, plan.network.meanMs, at)),
  }),
  stay: (refused, until) => follow(patient(plan, refused), refused.id, { after: refused.at, until }),
  returnLater: (refused, maxWaitMs) =>
    follow(returning(plan, refused, maxWaitMs), againOf(refused.id), { after: refused.at, until: null }),
});

const recoveryOf = ({ isAlone, leaseMs }: Plan): number =>
  isAlone === true ? afterStallMs : leaseMs + recoveryMs;

const endOf = (fault: Fault): number =>
  fault.at + ('ms' in fault && fault.kind !== 'step' && fault.ms < Infinity ? fault.ms : 0);

const isLossy = ({ lostRequests, lostReplies, late, repeated, disorder }: NetworkPlan): boolean =>
  lostRequests + lostReplies + late + repeated > 0 || disorder;
