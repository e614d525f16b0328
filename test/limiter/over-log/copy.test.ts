/** What a replica makes of the log's time and of its events, and whose turn it is to tick. */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';
import { Copy, rankOf } from '../../../src/limiter/over-log/copy.ts';
import { manualClock } from '../../support/manual-clock.ts';

test('arrivals keep their order when the replica learns that the log’s time is earlier', () => {
  const clock = manualClock(1_000);
  let aheadMs = 50;
  const log = {
    mayLose: true,
    follow() {},
    append() {},
    now: () => clock.now() + aheadMs,
    close: () => Promise.resolve(),
  };
  const user = { onApplied() {}, onJoined() {}, onAway() {}, awaitsOthers: () => false };
  const copy = new Copy({ clock, replica: replicaId('r1'), leaseMs: 15_000 }, log, user);
  const first = copy.arrivalAt(clock.monotonic());
  clock.advance(10);
  aheadMs = 0;
  const second = copy.arrivalAt(clock.monotonic());
  expect(second).toBeGreaterThan(first);
  expect(copy.arrivalAt(clock.monotonic() - 5)).toBeLessThan(second);
});

test('a replica that has been silent is not waited for when a grant is due', () => {
  const [silent, self] = [replicaId('a'), replicaId('b')];
  const replicas = new SortedNames<typeof self>();
  replicas.set(silent, 0);
  replicas.set(self, 3_000);
  expect([rankOf(self, replicas, 1_000), rankOf(self, replicas, 3_000)]).toEqual([1, 0]);
});
