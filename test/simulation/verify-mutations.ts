/**
 * `npm run verify:mutations [-- <words of a mutation's name, or of its file's>]`: applies every change of the tables in `mutations/` to a
 * copy of the product, and asks who finds it: histories, unit tests, the test or row of the gate that the row names. Prints a row for each:
 * the invariant that the line keeps, the change, its file, and who found it. Fails when a change is found by nobody and has no reason to
 * survive, and before the first run when a text that is to be changed is not in the sources once, or leaves no program. A table is a text:
 *
 *     == src/limiter/policy/lanes.policy.ts
 *
 *     3: one more in flight @ limiter/policy/scheduler
 *     - lane.inFlight < lane.maxInFlight
 *     + lane.inFlight <= lane.maxInFlight
 *     ! why nothing finds it, where that is right
 *
 * The number is that of the invariant which the line keeps. `-` is a text that the file above has once, `+` what is put in its place
 * (nothing: it goes). `&` begins a second change, of a line that keeps the same: only both together break the promise. `@` names the
 * test file that finds it, which is asked instead of the table's own finders; in the table of the gate, its row and what that prints.
 */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { stripTypeScriptTypes } from 'node:module';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { argv, execPath, stdout } from 'node:process';
import { promisify } from 'node:util';
import { describedFrom, levelsFrom, reservingFrom } from './chance.ts';
import type { Form } from './plan.ts';

const execute = promisify(execFile);
const root = resolve(import.meta.dirname, '../..');
const copied = ['src', 'presets', 'simulators', 'demo', 'tools', 'scripts', 'test', 'jest.config.mjs'];
const workers = 2;
/**
 * A run that needs more processor time than this does not end: five times as much as it takes on a slow machine. Wall time would say how
 * busy the machine is. Seconds.
 */
const maxProcessorSeconds = { histories: 300, tests: 1_200 };
/** What a test waits for that never comes costs no processor time. Milliseconds. */
const maxTestMs = 60_000;

interface Change {
  readonly file: string;
  readonly find: string;
  readonly put: string;
}

interface Mutation {
  readonly keeps: string;
  readonly what: string;
  readonly changes: readonly Change[];
  /** The test file that finds it, without `test/` and `.test.ts`, or words behind `@` as they are; `null`: the finders of its table do. */
  readonly test: string | null;
  /** Why nothing finds it, where that is right: the reason is printed. */
  readonly survives: string | null;
}

/** Says who found it; `null` = nobody. */
type Finder = (copy: string) => Promise<string | null>;

const limited = (
  run: keyof typeof maxProcessorSeconds,
  args: readonly string[],
  cwd: string,
): Promise<{ readonly stdout: string }> => {
  const limit = String(maxProcessorSeconds[run]);
  return execute('sh', ['-c', 'ulimit -t "$0"; exec "$@"', limit, execPath, ...args], { cwd });
};

/** The system ended the run at its limit. */
const isEndless = (failure: unknown): boolean =>
  failure instanceof Error && ['SIGXCPU', 'SIGKILL'].includes(String(Reflect.get(failure, 'signal')));

/** A run of so many histories takes some fifty seconds of a slow processor, so that one which is at its limit has met a history without end. */
const historiesPerRun = 100;

const histories =
  (form: Form) =>
  (first: number, count: number): Finder =>
  async (copy) => {
    for (let from = first; from < first + count; from += historiesPerRun) {
      const wanted = Math.min(historiesPerRun, first + count - from);
      try {
        const args = [join(copy, 'test/simulation/run.ts'), form, String(from), String(wanted)];
        const { stdout: reported } = await limited('histories', args, copy);
        const [, what = ''] = /^seed \d+, by [^:]*: (.*) \(\d+ in all\)$/m.exec(reported) ?? [];
        if (what !== '') return `${form}: ${what.slice(0, 90)}`;
      } catch (failure) {
        return `${form}: ${isEndless(failure) ? 'a history does not end' : 'the run breaks'}`;
      }
    }
    return null;
  };

const one = histories('upstreams');
const several = histories('faults');

interface Report {
  readonly testResults: readonly {
    readonly name: string;
    readonly assertionResults: readonly { readonly status: string; readonly title: string }[];
  }[];
}

const unitTests =
  (...paths: readonly string[]): Finder =>
  async (copy) => {
    const report = join(copy, 'report.json');
    const jest = join(root, 'node_modules/jest/bin/jest.js');
    const options = ['-w=1', `--testTimeout=${maxTestMs}`, '--json', `--outputFile=${report}`];
    const args = ['--experimental-vm-modules', jest, ...paths, ...options];
    await rm(report, { force: true });
    try {
      await limited('tests', args, copy);
      return null;
    } catch (failure) {
      if (isEndless(failure)) return 'unit tests: they do not end';
      const { testResults } = JSON.parse(await readFile(report, 'utf8')) as Report;
      for (const { name, assertionResults } of testResults) {
        const failed = assertionResults.find(({ status }) => status === 'failed');
        const file = name.replace(/^.*\/test\//, '');
        if (failed !== undefined) return `${file}: ${failed.title}`;
      }
      return 'unit tests: they break';
    }
  };

/** Unit tests of the policies, of admission, of presence, of what becomes of calls without Redis, and of the replicas of a log. */
const unit = unitTests(
  'test/(admission/(admission|many|over-redis|reload)|limiter/failover/failover|limiter/redis/presence|limiter/over-log/(faults|limiter|replicas|terms)|limiter/policy/(ceiling|first-calls|forecast|meter|scheduler|standstill|stated-limits|window-log))',
  // Of the long files, which run only where their paths are given.
  'test/limiter/policy/forecast.test.ts',
);
const levels = unitTests('test/limiter/policy/(background|callers)');
const guards = unitTests('test/(ingress/(guard|routes)|target/(address|target|route)).test');
const wire = unitTests('test/wire/(client-framing|egress-addresses)');

/** A row of the gate, by words of its name, that has to print what stands behind the arrow: another failure is no proof. */
const gate =
  (words: string): Finder =>
  async (copy) => {
    const [row = '', prints = ''] = words.split(' → ');
    try {
      await execute(execPath, ['scripts/verify-gate.ts', row], { cwd: copy, maxBuffer: 1 << 26 });
      return null;
    } catch (failure) {
      const printed = String(Reflect.get(Object(failure), 'stdout'));
      const line = printed.split('\n').find((one) => new RegExp(prints).test(one));
      if (line !== undefined) return `the gate: ${line.trim().slice(0, 90)}`;
      if (/did not run to its end/.test(printed)) throw new Error(`${row}: ${printed}`);
      return null;
    }
  };

/**
 * Who is asked for the changes of a table, one after the other, where their rows name no test. Without history 385 with faults, which is
 * wrong without any change: after a failover that loses all, another replica alone knows two of the calls, and is away.
 */
const findersOf: Readonly<Record<string, readonly Finder[]>> = {
  'one-process': [one(1, 100), unit, one(101, 600), several(1, 384), one(701, 2_300)],
  'one-process-described': [one(describedFrom, 2_000), unit],
  replicas: [several(1, 100), unit, several(101, 284), several(386, 2_800)],
  'replicas-described': [several(describedFrom, 1_200), unit],
  levels: [one(levelsFrom, 400), levels, several(levelsFrom, 300)],
  reservations: [several(reservingFrom, 400)],
  log: [],
  guards: [guards, wire],
  observed: [],
  gate: [],
};

const plan = Object.entries(findersOf).flatMap(([table, finders]) =>
  readTable(table).map((mutation) => {
    const { test } = mutation;
    if (test === null) return { mutation, finders };
    return { mutation, finders: [table === 'gate' ? gate(test) : unitTests(`test/${test}.test.ts`)] };
  }),
);

const wanted = argv.slice(2).join(' ');
const chosen = plan.filter(({ mutation: { what, changes } }) =>
  [what, ...changes.map(({ file }) => file)].some((name) => name.includes(wanted)),
);
if (chosen.length === 0) throw new Error(`no mutation has "${wanted}" in its name or file`);
/** Why the change cannot be made; empty = it can. */
function problemOf({ file, find, put }: Change): string {
  const parts = readFileSync(join(root, file), 'utf8').split(find);
  // Another place would be changed instead of the one that is meant.
  if (parts.length !== 2) return ` has the text ${parts.length - 1} times`;
  try {
    // What is no program would be found by whatever imports it.
    if (file.endsWith('.ts')) stripTypeScriptTypes(parts.join(put));
    return '';
  } catch {
    return ' is no program with the change';
  }
}
const bad = chosen.flatMap(({ mutation: { what, changes } }) =>
  changes
    .filter((change) => problemOf(change) !== '')
    .map((one) => `"${what}": ${one.file}${problemOf(one)}`),
);
if (bad.length > 0) throw new Error(`${bad.length} changes cannot be made:\n${bad.join('\n')}`);
const queue = [...chosen];
const counts = { found: 0, survive: 0, nobody: 0 };

const unchanged: Mutation = { keeps: '0', what: 'nothing', changes: [], test: null, survives: null };
if (wanted === '')
  queue.unshift({ mutation: unchanged, finders: [one(1, 200), unit, several(1, 200), guards, wire] });
await Promise.all(Array.from({ length: workers }, work));
stdout.write(
  `mutations: ${counts.found} found, ${counts.survive} survive for a reason, ${counts.nobody} found by nobody\n`,
);
process.exitCode = counts.nobody === 0 ? 0 : 1;

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
      const { keeps, what, changes, survives } = next.mutation;
      if (next.mutation === unchanged) {
        if (by !== null) throw new Error(`the product as it stands is found wrong: ${by}`);
        continue;
      }
      counts[by !== null ? 'found' : survives === null ? 'nobody' : 'survive'] += 1;
      const files = changes.map(({ file }) => file).join(', ');
      const found = by ?? (survives === null ? 'NOBODY' : `nobody: ${survives}`);
      stdout.write(`${keeps.padStart(2)} | ${what} | ${files} | ${found}\n`);
    }
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}

async function withMutation(
  copy: string,
  { changes }: Mutation,
  finders: readonly Finder[],
): Promise<string | null> {
  for (const { file, find, put } of changes) {
    const source = await readFile(join(copy, file), 'utf8');
    const changed = source.replace(find, () => put);
    await writeFile(join(copy, file), changed);
  }
  try {
    for (const finder of finders) {
      const by = await finder(copy);
      if (by !== null) return by;
    }
    return null;
  } finally {
    for (const { file } of changes) await cp(join(root, file), join(copy, file));
  }
}

/** @throws for a table that is not of this form */
function readTable(name: string): readonly Mutation[] {
  const text = readFileSync(new URL(`mutations/${name}.txt`, import.meta.url), 'utf8').replaceAll(
    /^#.*\n/gm,
    '',
  );
  return text
    .split(/^== /m)
    .slice(1)
    .flatMap((section) => {
      const [file = '', ...rows] = section.trimEnd().split(/\n\n+/);
      return rows.map((row) => readRow(file, row));
    });
}

function readRow(file: string, row: string): Mutation {
  const [title = '', ...lines] = row.split('\n');
  const [, keeps, what, test = null] = /^(\d+): (.*?)(?: @ (.+))?$/.exec(title) ?? [];
  if (keeps === undefined || what === undefined) throw new Error(`no row of a mutation: ${row}`);
  const marked = (mark: string, from: readonly string[]): string =>
    from.flatMap((line) => (line.startsWith(mark) ? [line.slice(2)] : [])).join('\n');
  const changes = lines
    .join('\n')
    .split(/^&\n/m)
    .map((change): Change => {
      const part = change.trimEnd().split('\n');
      return { file, find: marked('-', part), put: marked('+', part) };
    });
  return { keeps, what, changes, test, survives: marked('!', lines) || null };
}
