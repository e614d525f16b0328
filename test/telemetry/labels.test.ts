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

  test('cannot be recomputed without the key', () => {
    expect(workspaceLabel('key', 'acme')).not.toBe(workspaceLabel('other key', 'acme'));
  });

  test('is kept while the workspace is active, and the 101st workspace folds into other', () => {
    const labels = createLabels('key', settableClock());
    const first = Array.from({ length: 100 }, (_, i) => labels.of(`ws-${i}`));
    expect(new Set(first).size).toBe(100);
    expect(labels.of('late')).toBe('other');
    expect(labels.of('ws-0')).toBe(first[0]);
    expect([...labels.holders()]).toHaveLength(100);
  });

  test('is taken back only from an idle workspace, with its series', () => {
    const clock = settableClock();
    const released: string[] = [];
    const labels = createLabels('key', clock, {
      limit: 2,
      idleMs: 60_000,
      onRelease: (l) => released.push(l),
    });
    const idle = labels.of('idle');
    clock.advance(30_000);
    labels.of('busy');
    expect(labels.of('late')).toBe('other');
    clock.advance(30_000);
    expect(labels.of('late')).toMatch(/^w_[0-9a-f]{16}$/);
    expect(released).toEqual([idle]);
    expect(labels.of('idle')).toBe('other');
  });

  test('keeps its age when it is read', () => {
    const clock = settableClock();
    const labels = createLabels('key', clock, { limit: 1, idleMs: 60_000 });
    const idle = labels.of('idle');
    clock.advance(59_000);
    expect(labels.peek('idle')).toBe(idle);
    clock.advance(1_000);
    expect(labels.of('late')).not.toBe('other');
    expect(labels.peek('idle')).toBe('other');
  });

  test('is kept as long as its workspace keeps calling', () => {
    const clock = settableClock();
    const labels = createLabels('key', clock, { limit: 2, idleMs: 60_000 });
    const steady = labels.of('steady');
    labels.of('second');
    for (let i = 0; i < 10; i++) {
      clock.advance(20_000);
      labels.of(`churn-${i}`);
      expect(labels.of('steady')).toBe(steady);
    }
  });

  test('goes from the least busy workspace to a clearly busier one, without the old series', () => {
    const released: string[] = [];
    const labels = createLabels('key', settableClock(), { limit: 2, onRelease: (l) => released.push(l) });
    const [, least] = ['first', 'least'].map((id) => labels.of(id));
    labels.prefer(
      new Map([
        ['first', 20],
        ['least', 9],
        ['late', 20],
      ]),
    );
    expect(released).toEqual([least]);
    expect([...labels.holders()]).toEqual(['first', 'late']);
    expect(labels.of('least')).toBe('other');
  });

  test('does not change hands between workspaces that are about as busy, nor between those with next to no calls', () => {
    const labels = createLabels('key', settableClock(), { limit: 1 });
    labels.of('holder');
    for (const [holder, other] of [
      [100, 150],
      [0, 1],
      [1, 3],
    ] as const) {
      labels.prefer(
        new Map([
          ['holder', holder],
          ['other', other],
        ]),
      );
      expect([...labels.holders()]).toEqual(['holder']);
    }
  });

  test('is given to the busiest first while there are labels left', () => {
    const labels = createLabels('key', settableClock(), { limit: 2 });
    labels.prefer(new Map(Array.from({ length: 10 }, (_, n) => [`ws-${n}`, n])));
    expect([...labels.holders()]).toEqual(['ws-9', 'ws-8']);
  });

  test('holds at most 100 labels over 10,000 workspaces', () => {
    const labels = createLabels('key', settableClock());
    const seen = new Set(Array.from({ length: 10_000 }, (_, i) => labels.of(`ws-${i}`)));
    expect(seen.size).toBe(101);
    expect([...labels.holders()]).toHaveLength(100);
  });
});

describe('a digest for shared keys', () => {
  test('is 32 hex digits and the same on every replica with the same key', () => {
    expect(digest('key', 'bucket', 'lm', 'cred')).toMatch(/^[0-9a-f]{32}$/);
    expect(digest('key', 'bucket', 'lm', 'cred')).toBe(digest('key', 'bucket', 'lm', 'cred'));
  });

  test('differs by purpose, key and boundary between parts', () => {
    const values = [
      digest('key', 'bucket', 'a', 'bc'),
      digest('key', 'bucket', 'ab', 'c'),
      digest('key', 'bucket', 'abc'),
      digest('key', 'lane', 'a', 'bc'),
      digest('key2', 'bucket', 'a', 'bc'),
      digest('key', 'bucket', 'a', 'bc', ''),
    ];
    expect(new Set(values).size).toBe(values.length);
  });
});
