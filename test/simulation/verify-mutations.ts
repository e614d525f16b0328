/**
 * `npm run verify:mutations [-- <words of a mutation's name>]`: applies every one-line change of `mutations.ts`,
 * `replicas/mutations.ts` and `guard-mutations.ts` to a copy of the product, and asks who finds it: the histories of one
 * process, those of several replicas, the unit tests of the policies, or those of the guards. Prints a row for each change: the
 * invariant that the line keeps, the change, its file, and who found it. Fails when a change is found by nobody and has no reason
 * to survive; and before the first run, when no change has the words, or a line that is to be changed is not in the sources.
 */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { argv, execPath, stdout } from 'node:process';
import { promisify } from 'node:util';
import { guardMutations } from './guard-mutations.ts';
import { mutations, type Mutation } from './mutations.ts';
import { describedFrom } from './plan-described.ts';
import { replicaMutations } from './replicas/mutations.ts';

const execute = promisify(execFile);
const root = resolve(import.meta.dirname, '../..');
const copied = ['src', 'presets', 'simulators', 'test', 'jest.config.mjs'];
/** Copies that are tried at the same time. */
const workers = 2;
/** A run that needs more processor time than this does not end. Wall time would say how busy the machine is. Seconds. */
const maxProcessorSeconds = 300;

interface Found {
  readonly mutation: Mutation;
  /** Who found it; `null` = nobody. */
  readonly by: string | null;
}

type Finder = (copy: string) => Promise<string | null>;

/** Runs Node in the copy with a limit of processor time. */
const limited = (args: readonly string[], cwd: string): Promise<{ readonly stdout: string }> =>
  execute('sh', ['-c', 'ulimit -t "$0"; exec "$@"', String(maxProcessorSeconds), execPath, ...args], { cwd });

/** The system ended the run at its limit. */
const isEndless = (failure: unknown): boolean =>
  failure instanceof Error && ['SIGXCPU', 'SIGKILL'].includes(String(Reflect.get(failure, 'signal')));

const histories =
  (name: string, script: string, first: number, count: number): Finder =>
  async (copy) => {
    try {
      const args = [join(copy, script), String(first), String(count)];
      const { stdout: reported } = await limited(args, copy);
      const [, what = ''] = /^seed \d+, by [^:]*: (.*) \(\d+ in all\)$/m.exec(reported) ?? [];
      return what === '' ? null : `${name}: ${plain(what)}`;
    } catch (failure) {
      return `${name}: ${isEndless(failure) ? 'a history does not end' : 'the run breaks'}`;
    }
  };

const one = (first: number, count: number): Finder =>
  histories('one process', 'test/simulation/run.ts', first, count);
const several = (first: number, count: number): Finder =>
  histories('several replicas', 'test/simulation/replicas/run.ts', first, count);

/** The tests whose paths match. */
const unitTests =
  (...paths: readonly string[]): Finder =>
  async (copy) => {
    const report = join(copy, 'report.json');
    const jest = join(root, 'node_modules/jest/bin/jest.js');
    const args = ['--experimental-vm-modules', jest, ...paths, '-w=1', '--json', `--outputFile=${report}`];
    await rm(report, { force: true });
    try {
      await limited(args, copy);
      return null;
    } catch (failure) {
      if (isEndless(failure)) return 'unit tests: they do not end';
      const { testResults }: Report = JSON.parse(await readFile(report, 'utf8')) as Report;
      for (const { name, assertionResults } of testResults) {
        const failed = assertionResults.find(({ status }) => status === 'failed');
        const file = name.replace(/^.*\/test\//, '');
        if (failed !== undefined) return `${file}: ${failed.title}`;
      }
      return 'unit tests: they break';
    }
  };

/**
 * The unit tests of the policies, of admission, of presence, a reload, kept grants, lost tickets and stalled replicas over Redis, of
 * the order and the overlaps of calls without it, and those of the guards.
 */
const unit = unitTests(
  'test/(admission/(admission|ceiling-edge|reload|slot-back|slots-ahead|unsent)|limiter/failover/(order|overlaps)|limiter/redis/(kept-grants|lost-tickets|presence|reload|stalled-replica)|limiter/policy/(ceiling|dead-replicas|first-calls|forecast|meter|scheduler|sorted|standstill|stated-limits|window))',
  // Of the long files, which run only where their paths are given.
  'test/limiter/policy/forecast.test.ts',
);
const guards = unitTests(
  'test/(ingress/(guard|framing)|target/(address|inside-addresses|target|route)).test',
);
const wire = unitTests('test/wire/(client-framing|egress-addresses|own-addresses)');

interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly assertionResults: readonly { readonly status: string; readonly title: string }[];
  }[];
}

const plan = [
  ...mutations.map((mutation) => ({
    mutation,
    finders:
      mutation.isDescribed === true
        ? [one(describedFrom, 2_000), unit]
        : [one(1, 700), unit, several(1, 400), one(701, 2_300)],
  })),
  ...replicaMutations.map((mutation) => ({
    mutation,
    finders:
      mutation.isDescribed === true
        ? [several(describedFrom, 1_200), unit]
        : [several(1, 1_200), unit, several(1_201, 2_000)],
  })),
  ...guardMutations.map((mutation) => ({ mutation, finders: [guards, wire] })),
];

const wanted = argv.slice(2).join(' ');
const chosen = plan.filter(({ mutation }) => mutation.what.includes(wanted));
if (chosen.length === 0) throw new Error(`no mutation has "${wanted}" in its name`);
const rewritten = chosen.filter(
  ({ mutation: { file, find } }) => !readFileSync(join(root, file), 'utf8').includes(find),
);
if (rewritten.length > 0) {
  const rows = rewritten.map(
    ({ mutation: { what, file } }) => `"${what}": ${file} has no such line any more`,
  );
  throw new Error(`${rewritten.length} mutations change nothing:\n${rows.join('\n')}`);
}
const queue = [...chosen];
const found: Found[] = [];

const unchanged = { keeps: '0', what: 'nothing', file: 'src/call.ts', find: '/**', put: '/**' };
if (wanted === '')
  queue.unshift({ mutation: unchanged, finders: [one(1, 200), unit, several(1, 200), guards, wire] });
await Promise.all(Array.from({ length: workers }, work));
const wrong = found.findIndex(({ mutation }) => mutation === unchanged);
const [asItStands] = wrong < 0 ? [] : found.splice(wrong, 1);
if (asItStands !== undefined && asItStands.by !== null) {
  throw new Error(`the product as it stands is found wrong: ${asItStands.by}`);
}
const survivors = found.filter(({ by, mutation }) => by === null && mutation.survives === undefined);
const known = found.filter(({ by, mutation }) => by === null && mutation.survives !== undefined);
stdout.write(
  `mutations: ${found.filter(({ by }) => by !== null).length} found, ${known.length} survive for a reason, ${survivors.length} found by nobody\n`,
);
process.exitCode = survivors.length === 0 ? 0 : 1;

async function work(): Promise<void> {
  const copy = await mkdtemp(join(tmpdir(), 'sluice-mutations-'));
  try {
    await writeFile(join(copy, 'package.json'), '{ "type": "module" }');
    await symlink(join(root, 'node_modules'), join(copy, 'node_modules'));
    for (const path of copied) {
      await mkdir(join(copy, path, '..'), { recursive: true });
      await cp(join(root, path), join(copy, path), { recursive: true });
    }
    for (let next = queue.shift(); next !== undefined; next = queue.shift()) {
      const by = await withMutation(copy, next.mutation, next.finders);
      found.push({ mutation: next.mutation, by });
      const { keeps, what, file, survives } = next.mutation;
      stdout.write(
        `${keeps.padStart(2)} | ${what} | ${file} | ${by ?? (survives === undefined ? 'NOBODY' : `nobody: ${survives}`)}\n`,
      );
    }
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}

async function withMutation(
  copy: string,
  { file, find, put }: Mutation,
  finders: readonly Finder[],
): Promise<string | null> {
  const path = join(copy, file);
  const source = await readFile(join(root, file), 'utf8');
  await writeFile(
    path,
    source.replace(find, () => put),
  );
  try {
    for (const finder of finders) {
      const by = await finder(copy);
      if (by !== null) return by;
    }
    return null;
  } finally {
    await writeFile(path, source);
  }
}

/** Names and times of a history say nothing outside it. */
function plain(what: string): string {
  const text = what
    .replace(/^(\d+) at [\d.]+: /, '')
    .replaceAll(/\b[cbws]\d+(?:g\d+|-b\d+)?(?:\.\d+)?/g, (name) => {
      const kinds = { c: 'a call', b: 'a bucket', w: 'a workspace', s: 'a replica' } as const;
      return name.includes('-') ? 'a lane' : (kinds[name.charAt(0) as keyof typeof kinds] ?? name);
    });
  return text.replaceAll(/\d+\.\d+/g, 'n').slice(0, 90);
}
