/**
 * A state that was restored from a snapshot does what the state itself does, at every later entry.
 *
 * `SLUICE_LOG_HISTORIES` (20) asks for more histories.
 */
import { describe, expect, jest, test } from '@jest/globals';
import { createState, fold } from '../../../src/limiter/over-log/fold.ts';
import {
  digest,
  maxPartBytes,
  restore,
  snapshot,
  SnapshotError,
} from '../../../src/limiter/over-log/snapshot.ts';
import type { SharedState } from '../../../src/limiter/over-log/state.ts';
import { originOf } from '../../support/origins.ts';
import { Draw, randomFrom } from '../bucket-history.ts';
import { entryOf, Folded, foldOwn, inBucket, settle } from './folding.ts';
import { entriesOf, leaseMs } from './history.ts';

const histories = Number(process.env['SLUICE_LOG_HISTORIES'] ?? 20);

test(
  `a state restored at any entry stays equal to the live one over ${histories} random histories`,
  () => {
    for (let seed = 1; seed <= histories; seed += 1) {
      const entries = entriesOf(seed, originOf(seed, seed / histories).ms);
      const restoredAt = new Draw(randomFrom(seed)).whole(0, entries.length - 1);
      const live = createState(leaseMs);
      let copy: SharedState | null = null;
      for (const [n, entry] of entries.entries()) {
        const effects = fold(live, entry, entry.replica);
        const same = copy === null ? effects : fold(copy, entry, entry.replica);
        if (n === restoredAt) copy = restore([...snapshot(live)]);
        if (copy === null) continue;
        const found = [JSON.stringify(same), digest(copy)];
        expect({ seed, n, found }).toEqual({ seed, n, found: [JSON.stringify(effects), digest(live)] });
      }
    }
  },
  60_000 + histories * 1_000,
);

test(`a snapshot that is read later is that of its own entry, over ${2 * histories} random histories`, () => {
  for (let seed = 1; seed <= 2 * histories; seed += 1) {
    const entries = entriesOf(seed, 0);
    const at = new Draw(randomFrom(seed)).whole(0, entries.length - 1);
    const state = createState(leaseMs);
    for (const entry of entries.slice(0, at)) fold(state, entry, entry.replica);
    const then = digest(state);
    const parts = snapshot(state);
    for (const entry of entries.slice(at)) fold(state, entry, entry.replica);
    expect({ seed, digest: digest(restore([...parts])) }).toEqual({ seed, digest: then });
  }
});

/** A state with so many calls that wait. */
function crowd(calls: number): Folded {
  const log = new Folded((afterMs) => afterMs);
  log.say(
    1_000,
    'r1',
    ...Array.from({ length: calls }, (_, n) => log.call(`call-${n}`, n, { lane: `lane-${n % 7}` })),
  );
  return log;
}

test('a snapshot of a crowd is the same when its calls leave while it is read', () => {
  const log = crowd(1_000);
  const then = digest(log.state);
  const parts: string[] = [];
  for (const part of snapshot(log.state)) {
    parts.push(part);
    for (const ticket of [...log.bucket().tickets.keys()].slice(0, 100))
      log.say(1_001, 'r1', inBucket({ kind: 'cancel', ticket }));
  }
  expect(parts.length).toBeGreaterThan(1);
  expect(digest(restore(parts))).toBe(then);
});

test('a part is made when it is read', () => {
  const stringify = jest.spyOn(JSON, 'stringify');
  const parts = snapshot(crowd(5_000).state)[Symbol.iterator]();
  parts.next();
  const first = stringify.mock.calls.length;
  while (parts.next().done !== true);
  const all = stringify.mock.calls.length;
  stringify.mockRestore();
  expect(first).toBeLessThan(all / 2);
});

test('a snapshot comes in ASCII parts of a bounded size, wherever its lines end', () => {
  const log = crowd(1_000);
  log.say(2_000, 'r2', log.call('größer 🙂', 2_000, { lane: 'straße' }));
  const parts = [...snapshot(log.state)];
  expect(parts.length).toBeGreaterThan(2);
  for (const part of parts) {
    expect(part).toMatch(/^[\n -~]+$/);
    expect(part.length).toBeLessThanOrEqual(maxPartBytes);
  }
  expect(digest(restore(parts))).toBe(digest(log.state));
});

test('numbers that JSON has no form for come back as they were', () => {
  const log = crowd(1);
  const numbers = { virtual: -0, closedAt: NaN, probe: Infinity, lastGrantAt: -Infinity };
  Object.assign(log.bucket(), numbers);
  const [copy] = restore([...snapshot(log.state)]).buckets.values();
  for (const [name, value] of Object.entries(numbers)) expect(Reflect.get(copy ?? {}, name)).toBe(value);
});

test('a call in flight of a restored state goes back to its place in the line', () => {
  const state = restore([...snapshot(crowd(11).state)]);
  const [bucket] = state.buckets.values();
  const [lease] = bucket?.leases.values() ?? [];
  if (lease === undefined) throw new Error('nothing is in flight');
  const returned = { kind: 'returned', because: 'backoff', sleepMs: 500 } as const;
  foldOwn(state, entryOf(1_001, 'r1', [settle(lease.token, returned)]));
  expect(bucket?.tickets.get(lease.ticket.id)).toBe(lease.ticket);
  expect(lease.ticket.lease).toBeNull();
});

describe('what is no whole snapshot is refused:', () => {
  const parts = [...snapshot(crowd(1_000).state)];
  const [first = '', second = '', ...rest] = parts;
  test.each([
    ['nothing', []],
    ['a part that is missing', [first, ...rest]],
    ['the last part is missing', parts.slice(0, -1)],
    ['parts in another order', [second, first, ...rest]],
    ['a part twice', [first, first, second, ...rest]],
    ['a part that was changed', [first, second.replace(/\d/, 'x'), ...rest]],
    ['another text', ['{}\n']],
  ])('%s', (_what, some) => {
    expect(() => restore(some)).toThrow(SnapshotError);
  });
});
