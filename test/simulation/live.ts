/** One history of a seed, and refusals of its calm twin followed up in other courses of that. */
import { Chance } from './chance.ts';
import { calmOf } from './counterfactual.ts';
import { canBeJudged, judge, sampleOf, type Verdict } from './oracle.ts';
import { reservingFrom } from './plan-levels.ts';
import { planOf, type Form } from './plan.ts';
import { run, type History } from './replicas/simulate.ts';

export interface Lived {
  readonly history: History;
  /** What broke an invariant, told waits among them. */
  readonly wrong: readonly string[];
  /** How often each verdict on a refusal was given. */
  readonly verdicts: ReadonlyMap<Verdict['kind'], number>;
}

/** Which of the refusals are followed up; some are two. */
export type Followed = 'none' | 'some' | 'all';

export async function live(
  form: Form,
  seed: number,
  { keepsLog = false, followed = 'some' }: { readonly keepsLog?: boolean; readonly followed?: Followed } = {},
): Promise<Lived> {
  const plan = planOf(form, seed);
  const history = await run(plan, keepsLog);
  const wrong = [...history.violations];
  const verdicts = new Map<Verdict['kind'], number>();
  // Who comes when depends in histories of clients that return on what was told, and a described window lets all its calls go at once.
  const isJudged = followed !== 'none' && (form === 'upstreams' || seed < reservingFrom);
  if (!isJudged || plan.buckets.some(({ windows }) => windows !== undefined))
    return { history, wrong, verdicts };
  const calm = calmOf(plan);
  const { refused, violations } = await run(calm);
  wrong.push(...violations.map((text) => `${text} (calm)`));
  const sample =
    followed === 'all'
      ? refused.filter((each) => canBeJudged(calm, each))
      : sampleOf(calm, refused, new Chance(seed));
  for (const each of sample) {
    const verdict = await judge(calm, each);
    verdicts.set(verdict.kind, (verdicts.get(verdict.kind) ?? 0) + 1);
    if (verdict.kind === 'false') wrong.push(`13 at ${each.at.toFixed(2)}: ${verdict.text}`);
  }
  return { history, wrong, verdicts };
}
