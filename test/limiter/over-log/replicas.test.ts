/** Which replicas live, as the log shows it: their leases go on, or end, and their waiting calls are passed over. */
import { expect, test } from '@jest/globals';
import { createState, upkeepMs } from '../../../src/limiter/over-log/fold.ts';
import { replicaLifeMs } from '../../../src/limiter/policy/pump.policy.ts';
import type { SharedState } from '../../../src/limiter/over-log/state.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, bucketOf, entryOf, foldOwn, granted, leaseMs, settle, tick } from './folding.ts';

const serial = { maxInFlight: 1 } as const;
const leasesOf = (state: SharedState): string[] =>
  [...(state.buckets.get(bucketOf('bucket'))?.leases.values() ?? [])].map(({ ticket }) => ticket.id);

atOrigins('of a replica', (instant) => {
  test('that is heard of, wherever it writes, leases go on for as long as it lives', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0), serial)]));
    for (let ms = 1_000; ms <= 4 * leaseMs; ms += 1_000)
      foldOwn(
        state,
        entryOf(instant(ms), 'r1', [admit(`n${ms}`, instant(ms), { bucket: `elsewhere${ms % 3}` })]),
      );
    expect(leasesOf(state)).toEqual(['a']);
    const end = foldOwn(state, entryOf(instant(4 * leaseMs + 1), 'r1', [settle(grants[0]?.lease ?? '')]));
    expect(end.replies).toEqual([{ kind: 'lease', known: true }]);
  });

  test('a lease is not renewed before it would end', () => {
    const state = createState(leaseMs);
    foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0), serial)]));
    const expiresAt = (): number | undefined =>
      state.buckets.get(bucketOf('bucket'))?.expiries.first()?.score;
    const first = expiresAt();
    const lastBefore = leaseMs - upkeepMs - 1;
    for (let ms = 1_000; ms <= lastBefore; ms += 1_000) {
      foldOwn(state, entryOf(instant(ms), 'r1', [tick]));
      expect(expiresAt()).toBe(first);
    }
    foldOwn(state, entryOf(instant(leaseMs), 'r1', [tick]));
    expect(expiresAt()).toBe(instant(leaseMs) + leaseMs);
  });

  test('that is not heard of any more, leases end one lease after its last entry', () => {
    const state = createState(leaseMs);
    const diedAt = 7_300;
    foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0), serial)]));
    foldOwn(state, entryOf(instant(diedAt), 'r1', [tick]));
    foldOwn(state, entryOf(instant(diedAt), 'r2', [admit('b', instant(diedAt), serial)]));
    for (let ms = diedAt + 500; ms < diedAt + leaseMs; ms += 500)
      expect(granted(foldOwn(state, entryOf(instant(ms), 'r2', [tick])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(instant(diedAt) + leaseMs, 'r2', [tick])))).toEqual(['b']);
  });

  test('that was last heard of before its call was granted, the lease lives as long as any', () => {
    const state = createState(leaseMs);
    foldOwn(state, entryOf(instant(0), 'r1', [admit('own', instant(0), { ...serial, lane: 'own' })]));
    const { grants } = foldOwn(state, entryOf(instant(0), 'r2', [admit('a', instant(0), serial)]));
    foldOwn(state, entryOf(instant(1), 'r1', [admit('b', instant(1), serial)]));
    const settled = entryOf(instant(4_000), 'r2', [
      settle(grants[0]?.lease ?? ''),
      admit('c', instant(2), serial),
    ]);
    expect(granted(foldOwn(state, settled))).toEqual(['b']);
    for (let ms = 5_000; ms < 4_000 + leaseMs; ms += 500)
      expect(granted(foldOwn(state, entryOf(instant(ms), 'r2', [tick])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(instant(4_000) + leaseMs, 'r2', [tick])))).toEqual(['c']);
  });

  test('that is not heard of any more, a lease is due though nothing else happens', () => {
    const state = createState(leaseMs);
    foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0), serial)]));
    const { nextAt } = foldOwn(state, entryOf(instant(10), 'r2', [admit('b', instant(10), serial)]));
    expect(nextAt).toBe(instant(0) + leaseMs);
  });

  test('a call of unknown fate keeps its place for one lease, however long its replica lives', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0), serial)]));
    const unknown = settle(grants[0]?.lease ?? '', { kind: 'unknown' });
    foldOwn(state, entryOf(instant(500), 'r1', [unknown, admit('b', instant(500), serial)]));
    for (let ms = 1_000; ms < 500 + leaseMs; ms += 1_000)
      expect(granted(foldOwn(state, entryOf(instant(ms), 'r1', [tick])))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(instant(500) + leaseMs, 'r1', [tick])))).toEqual(['b']);
  });

  test('that is not heard of for its life, waiting calls are passed over; those of others keep their places', () => {
    const state = createState(leaseMs);
    foldOwn(
      state,
      entryOf(instant(0), 'r1', [
        admit('dead', instant(0), { limit: 1 }),
        admit('d2', instant(1), { limit: 1 }),
      ]),
    );
    foldOwn(state, entryOf(instant(2), 'r2', [admit('alive', instant(2), { limit: 1 })]));
    for (let ms = 1_000; ms <= replicaLifeMs; ms += 1_000) foldOwn(state, entryOf(instant(ms), 'r2', [tick]));
    const waiting = (): string[] =>
      [...(state.buckets.get(bucketOf('bucket'))?.tickets.values() ?? [])]
        .filter(({ lease }) => lease === null)
        .map(({ id }) => id);
    expect(waiting()).toEqual(['d2', 'alive']);
    foldOwn(state, entryOf(instant(replicaLifeMs + upkeepMs), 'r2', [tick]));
    expect(waiting()).toEqual(['alive']);
  });

  test('that writes in another bucket alone, waiting calls keep their places', () => {
    const state = createState(leaseMs);
    foldOwn(
      state,
      entryOf(instant(0), 'r1', [admit('a', instant(0), { limit: 1 }), admit('b', instant(1), { limit: 1 })]),
    );
    let last: string[] = [];
    for (let ms = 1_000; ms <= 12_000; ms += 1_000) {
      const more = admit(`n${ms}`, instant(ms), { bucket: 'elsewhere', limit: 1_000 });
      last = [...last, ...granted(foldOwn(state, entryOf(instant(ms), 'r1', [more])))];
    }
    expect(last.filter((ticket) => ticket === 'b')).toEqual(['b']);
  });

  test('that comes back after a silence, a call that goes back to its place stays there', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [admit('a', instant(0))]));
    for (let ms = 1_000; ms <= replicaLifeMs + 3_000; ms += 1_000)
      foldOwn(state, entryOf(instant(ms), 'r2', [admit(`n${ms}`, instant(ms), { limit: 1_000 })]));
    const throttled = { kind: 'throttled', closeMs: 500, requeue: true, sleepMs: 0 } as const;
    const at = instant(replicaLifeMs + 3_500);
    foldOwn(state, entryOf(at, 'r1', [settle(grants[0]?.lease ?? '', throttled)]));
    expect(granted(foldOwn(state, entryOf(at + 500, 'r2', [tick])))).toEqual(['a']);
  });
});
