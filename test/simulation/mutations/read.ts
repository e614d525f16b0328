/**
 * The tables of mutations: changes of the product, a line or two each, which its proofs must find wrong. A table is a text:
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
import { readFileSync } from 'node:fs';

export interface Change {
  readonly file: string;
  readonly find: string;
  readonly put: string;
}

export interface Mutation {
  readonly keeps: string;
  readonly what: string;
  readonly changes: readonly Change[];
  /** The test file that finds it, without `test/` and `.test.ts`, or words behind `@` as they are; `null`: the finders of its table do. */
  readonly test: string | null;
  /** Why nothing finds it, where that is right: the reason is printed. */
  readonly survives: string | null;
}

export type Table =
  | 'one-process'
  | 'one-process-described'
  | 'replicas'
  | 'replicas-described'
  | 'levels'
  | 'reservations'
  | 'log'
  | 'guards'
  | 'observed'
  | 'gate';

/** @throws for a table that is not of this form */
export function readTable(name: Table): readonly Mutation[] {
  const text = readFileSync(new URL(`${name}.txt`, import.meta.url), 'utf8').replaceAll(/^#.*\n/gm, '');
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
