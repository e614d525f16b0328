/** Histories of seeds, and refusals of their calm twins followed up in other courses of those. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { execPath } from 'node:process';
import { promisify } from 'node:util';
import { Chance } from './chance.ts';
import { calmOf } from './counterfactual.ts';
import { canBeJudged, judge, sampleOf, type Verdict } from './oracle.ts';
import { reservingFrom } from './plan-levels.ts';
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
    verdicts.push(verdict.kind);
    if (verdict.kind === 'false') wrong.push(`13 at ${each.at.toFixed(2)}: ${verdict.text}`);
  }
  return { history, wrong, verdicts };
}

/** What one of many histories came to. */
interface Told extends Pick<Lived, 'wrong' | 'verdicts'> {
  readonly reached: readonly string[];
}

/** So many histories are lived in one process: a second one takes almost a second to load the product. */
const maxUnshared = 200;
/** After so many wrong histories a process stops. */
const maxWrong = 3;

export async function liveMany(form: Form, first: number, count: number): Promise<readonly Told[]> {
  const told: Told[] = [];
  let left = maxWrong;
  for (let seed = first; seed < first + count && left > 0; seed += 1) {
    const { history, wrong, verdicts } = await live(form, seed);
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

/** The same in plain Node, many in two processes: Jest takes a third more time. */
export async function liveInProcesses(form: Form, first: number, count: number): Promise<readonly Told[]> {
  const share = count > maxUnshared ? Math.ceil(count / 2) : count;
  const shares = [share, count - share]
    .filter((wanted) => wanted > 0)
    .map(async (wanted, at) => {
      // Refusals are errors, whose stacks take a tenth of the time.
      const flags = ['--max-semi-space-size=16', '--stack-trace-limit=0'];
      const script = join(import.meta.dirname, 'run.ts');
      const args = [...flags, script, form, String(first + at * share), String(wanted), 'many'];
      const { stdout } = await promisify(execFile)(execPath, args, { maxBuffer: 2 ** 28 });
      return JSON.parse(stdout) as readonly Told[];
    });
  return (await Promise.all(shares)).flat();
}
