import { createHmac } from 'node:crypto';
import { describe, expect, test } from '@jest/globals';
import { digest, workspaceLabel } from '../../src/identity.ts';
import { createLabels } from '../../src/telemetry/labels.ts';
import { settableClock } from './drive.ts';

describe('a workspace label', () => {
  test('is w_ and the first 16 hex digits of the keyed digest of the id', () => {
    const expected = createHmac('sha256', 'key').update('acme').digest('hex').slice(0, 16);
    expect(workspaceLabel('key', 'acme')).toBe(`w_${expected}`);
  });

  test('is kept while the workspace is active, at most 100 of them, and 10,000 further workspaces fold into other', () => {
    const labels = createLabels('key', settableClock());
    const first = Array.from({ length: 100 }, (_, i) => labels.of(`ws-${i}`));
    expect(new Set(first).size).toBe(100);
    expect(new Set(Array.from({ length: 10_000 }, (_, i) => labels.of(`late-${i}`)))).toEqual(
      new Set(['other']),
    );
    expect(labels.of('ws-0')).toBe(first[0]);
    expect(first.every((_, i) => labels.holds(`ws-${i}`))).toBe(true);
  });

  /** Labels for so many workspaces, which are idle after a minute. */
  function few(limit: number) {
    const clock = settableClock();
    const released: string[] = [];
    const onRelease = (label: string): void => void released.push(label);
    return { clock, released, labels: createLabels('key', clock, { limit, idleMs: 60_000, onRelease }) };
  }

  test('is taken back only from an idle workspace, with its series', () => {
    const { clock, released, labels } = few(2);
    const idle = labels.of('idle');
    clock.advance(30_000);
    labels.of('busy');
    expect(labels.of('late')).toBe('other');
    clock.advance(30_000);
    expect(labels.of('late')).toMatch(/^w_[0-9a-f]{16}$/);
    expect(released).toEqual([idle]);
    expect(labels.of('idle')).toBe('other');
  });

  const prefer = (labels: ReturnType<typeof createLabels>, busy: Readonly<Record<string, number>>) => {
    labels.prefer(new Map(Object.entries(busy)));
    return ['holder', 'first', 'least', 'late', 'a', 'b', 'c', 'd'].filter((id) => labels.holds(id));
  };

  test('goes from the least busy workspace to a clearly busier one, without the old series', () => {
    const { released, labels } = few(2);
    const [, least] = ['first', 'least'].map((id) => labels.of(id));
    expect(prefer(labels, { first: 20, least: 9, late: 20 })).toEqual(['first', 'late']);
    expect([released, labels.of('least')]).toEqual([[least], 'other']);
  });

  test('does not change hands between workspaces that are about as busy, nor between those with next to no calls', () => {
    const { labels } = few(1);
    labels.of('holder');
    for (const [holder, other] of [
      [100, 150],
      [0, 1],
      [1, 3],
    ])
      expect(prefer(labels, { holder: holder ?? 0, other: other ?? 0 })).toEqual(['holder']);
  });

  test('is given to the busiest first while there are labels left', () =>
    expect(prefer(few(2).labels, { a: 1, b: 8, c: 3, d: 9 })).toEqual(['b', 'd']));
});

test('a digest for shared keys differs by purpose, key and boundary between parts, and by nothing else', () => {
  const made = [
    ['key', 'bucket', 'a', 'bc'],
    ['key', 'bucket', 'ab', 'c'],
    ['key', 'bucket', 'abc'],
    ['key', 'lane', 'a', 'bc'],
    ['key2', 'bucket', 'a', 'bc'],
    ['key', 'bucket', 'a', 'bc', ''],
  ] as const;
  const digests = made.map((parts) => digest(...(parts as readonly [string, string, ...string[]])));
  expect(new Set(digests).size).toBe(made.length);
  for (const each of digests) expect(each).toMatch(/^[0-9a-f]{32}$/);
  expect(digest('key', 'bucket', 'a', 'bc')).toBe(digests[0]);
});
