/**
 * Histories of many seeds, and what came of them. `inProcesses` lives them in plain Node, many of them in two processes at a time: under
 * Jest each reading of a global goes through the context of the test file, which takes a third more time.
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { execPath } from 'node:process';
import { promisify } from 'node:util';
import { live } from './live.ts';
import type { Form } from './plan.ts';

export interface Range {
  readonly first: number;
  readonly count: number;
}

export interface Tally {
  /** Histories that took place. */
  readonly histories: number;
  /** Histories with a reload. */
  readonly reloaded: number;
  /** Situations that some history has been in. */
  readonly reached: readonly string[];
  /** How often each verdict on a refusal was given. */
  readonly verdicts: Readonly<Record<string, number>>;
  /** Histories that went wrong, in words. */
  readonly wrong: readonly string[];
}

/** So many histories are lived in one process: a second one takes almost a second to load the product. */
const maxUnshared = 200;
/** After so many wrong histories a process stops. */
const maxWrong = 3;
const nothing: Tally = { histories: 0, reloaded: 0, reached: [], verdicts: {}, wrong: [] };
const run = promisify(execFile);

/** Lives so many histories here, one after the other. */
export async function tallyOf(form: Form, { first, count }: Range): Promise<Tally> {
  let tally = nothing;
  for (let seed = first; seed < first + count && tally.wrong.length < maxWrong; seed += 1) {
    const { history, wrong, verdicts } = await live(form, seed);
    const { origin, reached } = history;
    tally = sum(tally, {
      histories: 1,
      reloaded: reached.has('reconfigured') ? 1 : 0,
      reached: [...reached.keys()],
      verdicts: Object.fromEntries(verdicts),
      wrong: wrong.length > 0 ? [`${form}, SEED=${seed}, by ${origin}: ${wrong.slice(0, 5).join('\n')}`] : [],
    });
  }
  return tally;
}

export async function inProcesses(form: Form, { first, count }: Range): Promise<Tally> {
  const processes = count > maxUnshared ? 2 : 1;
  const share = Math.ceil(count / processes);
  const shares = Array.from({ length: processes }, async (_, at) => {
    const from = first + at * share;
    const left = Math.max(0, Math.min(share, first + count - from));
    const script = join(import.meta.dirname, 'run.ts');
    // Refusals are errors, whose stacks take a tenth of the time; `SEED` runs a history again with stacks.
    const flags = ['--max-semi-space-size=16', '--stack-trace-limit=0'];
    const args = [...flags, script, form, String(from), String(left), 'tally'];
    const { stdout } = await run(execPath, args, { maxBuffer: 2 ** 26 });
    return JSON.parse(stdout) as Tally;
  });
  return (await Promise.all(shares)).reduce(sum, nothing);
}

function sum(one: Tally, other: Tally): Tally {
  const verdicts = { ...one.verdicts };
  for (const [kind, times] of Object.entries(other.verdicts)) verdicts[kind] = (verdicts[kind] ?? 0) + times;
  return {
    histories: one.histories + other.histories,
    reloaded: one.reloaded + other.reloaded,
    reached: [...new Set([...one.reached, ...other.reached])],
    verdicts,
    wrong: [...one.wrong, ...other.wrong],
  };
}
