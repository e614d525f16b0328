/** What an entry does to the state of the shared limiter, beyond what the policy does to one bucket. */
import { expect, jest, test } from '@jest/globals';
import {
  blankMemoryMs,
  bucketMemoryMs,
  createState,
  fold,
  maxWorkPerEntry,
  memoryMsOf,
  unansweredMemoryMs,
  upkeepMs,
} from '../../../src/limiter/over-log/fold.ts';
import type { LogEvent, SharedState } from '../../../src/limiter/over-log/state.ts';
import { digest } from '../../../src/limiter/over-log/snapshot.ts';
import { maxPerPump } from '../../../src/limiter/policy/pump.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, bucketOf, entryOf, foldOwn, granted, leaseMs, replica, settle, tick } from './folding.ts';

const unlimited = { setting: { meters: [], learn: true, probe: 0 } } as const;
const probing = { setting: { meters: [], learn: true, probe: 1 } } as const;

atOrigins('an entry of the log', (instant) => {
  test('grants calls while there is room, and names the time of the next one', () => {
    const state = createState(leaseMs);
    const calls = ['a', 'b', 'c'].map((name, n) => admit(name, instant(n), { limit: 2 }));
    const effects = foldOwn(state, entryOf(instant(10), 'r1', calls));
    expect(effects.replies.map((reply) => reply?.kind)).toEqual(['granted', 'granted', 'queued']);
    expect(granted(effects)).toEqual(['a', 'b']);
    const { nextAt } = effects;
    if (nextAt === null) throw new Error('nothing is due');
    expect(granted(foldOwn(state, entryOf(nextAt - 1, 'r1', [tick])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(nextAt, 'r1', [tick])))).toEqual(['c']);
  });

  test('is answered to its author alone, and has the same state for all', () => {
    const states = ['r1', 'r2'].map(() => createState(leaseMs));
    const entry = entryOf(instant(0), 'r1', [
      admit('a', instant(0)),
      admit('b', instant(1), { limit: 1 }),
      tick,
    ]);
    const [own, other] = states.map((state, n) => fold(state, entry, replica(`r${n + 1}`)));
    expect(own?.replies.map((reply) => reply?.kind ?? null)).toEqual(['granted', 'queued', null]);
    expect(other).toEqual({ ...own, replies: [] });
    const [one = '', another] = states.map(digest);
    expect(one).toBe(another);
  });

  test('says nothing to a bucket that nobody has entered', () => {
    const state = createState(leaseMs);
    const effects = foldOwn(state, entryOf(instant(0), 'r1', [settle('a.1')]));
    expect([effects.replies, state.buckets.size]).toEqual([[null], 0]);
  });

  test('closes a bucket, and tells for how long', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0))]));
    const throttled = { kind: 'throttled', closeMs: 700, requeue: true, sleepMs: 0 } as const;
    const effects = foldOwn(state, entryOf(instant(10), 'r1', [settle(grants[0]?.lease ?? '', throttled)]));
    expect(effects.closed).toEqual([{ bucket: grants[0]?.bucket, closedMs: 700 }]);
    expect(effects.nextAt).toBe(instant(710));
  });

  const closesAll = {
    kind: 'throttled',
    closeMs: 700,
    closesCredential: true,
    requeue: false,
    sleepMs: 0,
  } as const;

  /** Two buckets, in the second of which a call waits, and what closes both. */
  function closedTogether(): SharedState {
    const state = createState(leaseMs);
    const calls = [admit('a', instant(0)), admit('b1', instant(0), { limit: 1, bucket: 'other' })];
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', calls));
    foldOwn(state, entryOf(instant(10), 'r1', [settle(grants[0]?.lease ?? '', closesAll)]));
    return state;
  }

  test('closes all buckets of the log, those that begin later too, and tells each when something happens in it', () => {
    const state = closedTogether();
    const admitted = [
      admit('c', instant(20), { bucket: 'new' }),
      admit('b2', instant(20), { bucket: 'other' }),
    ];
    const effects = foldOwn(state, entryOf(instant(20), 'r1', admitted));
    expect(granted(effects)).toEqual([]);
    expect(effects.closed).toEqual([
      { bucket: 'new', closedMs: 690 },
      { bucket: 'other', closedMs: 690 },
    ]);
    expect(granted(foldOwn(state, entryOf(instant(709), 'r1', [tick])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(instant(710), 'r1', [tick])))).toEqual(['c', 'b2']);
  });

  test('opens what all buckets were closed by, as each of them is opened', () => {
    const state = closedTogether();
    foldOwn(state, entryOf(instant(20), 'r1', [admit('c', instant(20), { bucket: 'new' })]));
    const open = (bucket: string): LogEvent => ({
      kind: 'in',
      bucket: bucketOf(bucket),
      event: { kind: 'open', agoMs: 0 },
    });
    expect(granted(foldOwn(state, entryOf(instant(30), 'r1', [open('new')])))).toEqual(['c']);
    const later = foldOwn(state, entryOf(instant(40), 'r1', [admit('d', instant(40), { bucket: 'newer' })]));
    expect(granted(later)).toEqual(['d']);
  });

  test('keeps a log of which all buckets are closed for as long as they are', () => {
    const state = closedTogether();
    state.buckets.clear();
    expect(memoryMsOf(state, instant(10))).toBe(700);
  });

  test('grants more than one pump does, and what is left is due at once', () => {
    const state = createState(leaseMs);
    const count = maxWorkPerEntry + 500;
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('first', instant(0), unlimited)]));
    const throttled = { kind: 'throttled', closeMs: 500, requeue: false, sleepMs: 0 } as const;
    foldOwn(state, entryOf(instant(1), 'r1', [settle(grants[0]?.lease ?? '', throttled)]));
    const more = { ...unlimited, maxQueued: count };
    const calls = Array.from({ length: count }, (_, n) => admit(`t${n}`, instant(2), more));
    foldOwn(state, entryOf(instant(2), 'r1', calls));
    const first = foldOwn(state, entryOf(instant(501), 'r1', [tick]));
    expect(first.grants.length).toBeGreaterThan(maxWorkPerEntry / 2);
    expect(first.grants.length).toBeLessThanOrEqual(maxWorkPerEntry + maxPerPump);
    expect(first.nextAt).toBe(instant(501));
    const then = foldOwn(state, entryOf(instant(501), 'r1', [tick]));
    expect(first.grants.length + then.grants.length).toBe(count);
    expect(then.nextAt).toBeNull();
  });

  test('forgets buckets that nobody has used for as long as they have to be kept', () => {
    const state = createState(leaseMs);
    const names = ['unanswered', 'answered', 'waiting'];
    const calls = names.map((bucket) => admit(bucket, instant(0), { ...probing, bucket }));
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', calls));
    const serial = { ...unlimited, maxInFlight: 1 };
    const more = admit('more', instant(0), { ...serial, bucket: 'waiting' });
    foldOwn(state, entryOf(instant(0), 'r1', [more]));
    const endings = [
      settle(grants[0]?.lease ?? '', { kind: 'dropped' }, 'unanswered'),
      settle(grants[1]?.lease ?? '', { kind: 'succeeded', spent: null }, 'answered'),
    ];
    foldOwn(state, entryOf(instant(100), 'r1', endings));
    const left = (afterMs: number): string[] => {
      foldOwn(state, entryOf(instant(100) + afterMs, 'r1', [tick]));
      return [...state.buckets.keys()];
    };
    expect(left(unansweredMemoryMs - 1)).toEqual(names);
    expect(left(unansweredMemoryMs)).toEqual(['answered', 'waiting']);
    for (let ms = unansweredMemoryMs; ms < blankMemoryMs; ms += 4_000)
      expect(left(ms)).toEqual(['answered', 'waiting']);
    expect(left(blankMemoryMs)).toEqual(['waiting']);
  });

  test('keeps a bucket that a response closed, for as long as it is closed and has to be kept', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0))]));
    const closeMs = 2 * bucketMemoryMs;
    const throttled = { kind: 'throttled', closeMs, requeue: false, sleepMs: 0 } as const;
    foldOwn(state, entryOf(instant(0), 'r1', [settle(grants[0]?.lease ?? '', throttled)]));
    foldOwn(state, entryOf(instant(closeMs + bucketMemoryMs - 1), 'r1', [tick]));
    expect(state.buckets.size).toBe(1);
    foldOwn(state, entryOf(instant(closeMs + bucketMemoryMs + 1), 'r1', [tick]));
    expect(state.buckets.size).toBe(0);
  });

  test('that fails in a bucket empties that bucket at every replica alike, and the others go on', () => {
    const states = [createState(leaseMs), createState(leaseMs)];
    // A defect: no configuration has a meter of this kind.
    const setting = { meters: null as never, learn: true, probe: 0 };
    const failing = admit('c', instant(10), { setting });
    const entries = [
      entryOf(instant(0), 'r1', [admit('a', instant(0)), admit('b', instant(0), { bucket: 'other' })]),
      entryOf(instant(10), 'r2', [failing, admit('d', instant(10), { bucket: 'other' })]),
    ];
    const effects = states.map((state, n) =>
      entries.map((entry) => fold(state, entry, replica(`r${n + 1}`))),
    );
    for (const [, last] of effects) {
      expect(last?.emptied.map(({ bucket, event }) => ({ bucket, event }))).toEqual([
        { bucket: 'bucket', event: failing },
      ]);
      expect(last === undefined ? [] : granted(last)).toEqual(['d']);
    }
    expect(states.map((state) => [...state.buckets.keys()])).toEqual([['other'], ['other']]);
    const [one = '', another] = states.map(digest);
    expect(one).toBe(another);
    expect(effects[1]?.[1]?.replies.map((reply) => reply?.kind ?? null)).toEqual([null, 'granted']);
  });
});

test('an entry in one of ten thousand buckets visits none of the others, which are idle', () => {
  const state = createState(leaseMs);
  for (let n = 0; n < 10_000; n += 1) {
    const { grants } = foldOwn(state, entryOf(0, 'r1', [admit(`t${n}`, 0, { bucket: `b${n}` })]));
    foldOwn(state, entryOf(0, 'r1', [settle(grants[0]?.lease ?? '', undefined, `b${n}`)]));
  }
  expect(state.buckets.size).toBe(10_000);
  const get = jest.spyOn(state.buckets, 'get');
  const walks = [
    jest.spyOn(state.buckets, Symbol.iterator),
    jest.spyOn(state.buckets, 'values'),
    jest.spyOn(state.buckets, 'keys'),
    jest.spyOn(state.buckets, 'entries'),
    jest.spyOn(state.buckets, 'forEach'),
  ];
  foldOwn(state, entryOf(upkeepMs, 'r1', [admit('own', upkeepMs, { bucket: 'b77' }), tick]));
  expect(get.mock.calls.map(([name]) => String(name))).toEqual(['b77']);
  for (const walk of walks) expect(walk).not.toHaveBeenCalled();
});
