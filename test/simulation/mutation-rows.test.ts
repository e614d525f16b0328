/**
 * Every row of the mutation tables names a line that exists, so that a long run does not fail for a rewritten line; and
 * docs/invariants.md says of each where it stands.
 */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { declarationOf } from './declaration-of.ts';
import { guardMutations } from './guard-mutations.ts';
import { foundNow, pageFile, pageWith, rowsOf } from './invariants-page.ts';
import { mutations, statedWaits } from './mutations.ts';
import { replicaMutations } from './replicas/mutations.ts';

const all = [...mutations, ...statedWaits, ...replicaMutations, ...guardMutations];

test.each(all.map(({ what, file, find }) => ({ what, file, find })))(
  'mutation "$what" changes a line that exists in $file',
  ({ file, find }) => {
    expect(readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')).toContain(find);
  },
);

describe('docs/invariants.md', () => {
  const page = readFileSync(pageFile, 'utf8');

  test('has the declaration of every mutation (`npm run verify:mutations -- --page` renews them)', () => {
    const wanted = pageWith(new Map(), page).split('\n');
    expect(wanted.filter((line) => !page.includes(line))).toEqual([]);
    expect(page.split('\n')).toHaveLength(wanted.length);
  });

  test('keeps the finder of each change that was not run, and replaces the finder of each that was', () => {
    const [first, second] = rowsOf();
    const after = pageWith(new Map(first === undefined ? [] : [[first.mutation, 'a | b']]), page);
    expect(after).toContain(`${first?.start} a \\| b |`);
    expect(foundNow(after).get(`1 ${second?.mutation.what}`)).toBe(
      foundNow(page).get(`1 ${second?.mutation.what}`),
    );
  });
});

test('docs/invariants.md stays as it is when what found a change was cut off behind a blank', () => {
  const page = readFileSync(pageFile, 'utf8');
  const after = pageWith(
    new Map(rowsOf().map(({ mutation }) => [mutation, 'nobody was granted since '])),
    page,
  );
  expect(pageWith(new Map(), after)).toBe(after);
});

describe('the declaration of a line', () => {
  const source = `
const limit = 3;
export async function* numbers(
  from: number,
): AsyncGenerator<number> {
  for (;;) {
    yield from;
  }
}
export abstract class Gate<T> {
  readonly #size = 4;
  readonly onGrant = (grant: T): void => this.take(grant);

  take(
    grant: T,
  ): void {
    if (grant === null) {
      return;
    }
  }
}
`;
  test.each([
    ['limit', '= 3'],
    ['numbers', 'from: number,'],
    ['numbers', '    yield from;\n  }'],
    ['Gate', 'class Gate'],
    ['Gate.#size', '#size = 4'],
    ['Gate.onGrant', 'this.take(grant)'],
    ['Gate.take', '    if (grant'],
    ['Gate.take', '      return;'],
  ])('is %s for %j', (name, find) => expect(declarationOf(source, find)).toBe(name));

  test('is asked for by words that the source has', () => {
    expect(() => declarationOf(source, 'absent')).toThrow('there is no such line');
  });
});
