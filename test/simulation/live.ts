/** Histories of seeds, and refusals of their calm twins followed up in other courses of those. */
import { Chance, reservingFrom } from './chance.ts';
import { calmOf } from './counterfactual.ts';
import { canBeJudged, judge, sampleOf, type Verdict } from './oracle.ts';
import { planOf, type Form } from './plan.ts';
import { run, type History } from './replicas/simulate.ts';

export interface Lived {
  readonly history: History;
  readonly wrong: readonly string[];
  readonly verdicts: readonly Verdict['kind'][];
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
  const verdicts: Verdict['kind'][] = [];
  // Who comes when depends in histories of clients that return on what was told, and a described window lets all its calls go at once.
  const isJudged =
    followed !== 'none' && (form === 'upstreams' || (form === 'faults' && seed < reservingFrom));
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
    verdicts.push(verdict.kind);
    if (verdict.kind === 'false') wrong.push(`13 at ${each.at.toFixed(2)}: ${verdict.text}`);
  }
  return { history, wrong, verdicts };
}

/** What one of many histories came to. */
export interface Told extends Pick<Lived, 'wrong' | 'verdicts'> {
  readonly reached: readonly string[];
}

/** After so many wrong histories no more are lived. */
const maxWrong = 3;

export type Job = readonly [form: Form, first: number, count: number, followed: Followed];
export async function liveMany([form, first, count, followed]: Job): Promise<readonly Told[]> {
  const told: Told[] = [];
  let left = maxWrong;
  for (let seed = first; seed < first + count && left > 0; seed += 1) {
    const { history, wrong, verdicts } = await live(form, seed, { followed });
    const which = `${form} ${seed}, by ${history.origin}`;
    told.push({
      wrong: wrong.map((what) => `${which}: ${what}`),
      verdicts,
      reached: [...history.reached.keys()],
    });
    if (wrong.length > 0) left -= 1;
  }
  return told;
}
