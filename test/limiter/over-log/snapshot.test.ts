/**
 * A state that was restored from a snapshot does what the state itself does, at every later entry.
 *
 * `SLUICE_LOG_HISTORIES` (20) asks for more histories.
 */
import { expect, test } from '@jest/globals';
import { replicaId } from '../../../src/ids.ts';
import { Copy, rankOf } from '../../../src/limiter/over-log/copy.ts';
import {
  createState,
  fold,
  restore,
  type SharedState,
  snapshot,
} from '../../../src/limiter/over-log/fold.ts';
import { SortedNames } from '../../../src/limiter/policy/sorted.policy.ts';
import { Chance } from '../../simulation/chance.ts';
import { manualClock } from '../../support/manual-clock.ts';
import { originOf } from '../../support/origins.ts';
import { entriesOf, leaseMs } from '../bucket-history.ts';
import { entryOf, Folded, settle } from './folding.ts';

const histories = Number(process.env['SLUICE_LOG_HISTORIES'] ?? 20);

test(
  `a state restored at any entry stays equal to the live one over ${histories} random histories`,
  () => {
    for (let seed = 1; seed <= histories; seed += 1) {
      const entries = entriesOf(seed, originOf(seed, seed / histories).ms);
      const restoredAt = new Chance(seed).whole(0, entries.length - 1);
      const live = createState(leaseMs);
      let copy: SharedState | null = null;
      for (const [n, entry] of entries.entries()) {
        const effects = fold(live, entry);
        const same = copy === null ? effects : fold(copy, entry);
        if (n === restoredAt) copy = restore(snapshot(live));
        if (copy === null) continue;
        const found = [JSON.stringify(same), snapshot(copy)];
        expect({ seed, n, found }).toEqual({ seed, n, found: [JSON.stringify(effects), snapshot(live)] });
      }
    }
  },
  60_000 + histories * 1_000,
);

test('a call in flight of a restored state goes back to its place in the line', () => {
  const log = new Folded((afterMs) => afterMs);
  log.say(1_000, 'r1', ...['a', 'b', 'c'].map((ticket, n) => log.call(ticket, n, { limit: 2 })));
  const state = restore(snapshot(log.state));
  const [bucket] = state.buckets.values();
  const [lease] = bucket?.leases.values() ?? [];
  if (lease === undefined) throw new Error('nothing is in flight');
  const returned = { kind: 'returned', because: 'backoff', sleepMs: 500 } as const;
  fold(state, entryOf(1_001, 'r1', [settle(lease.token, returned)]));
  expect(bucket?.tickets.get(lease.ticket.id)).toBe(lease.ticket);
  expect(lease.ticket.lease).toBeNull();
});

test.each(['', '{', 'nobody wrote this', '{}'])('what is no snapshot is refused: %j', (text) => {
  expect(() => restore(text)).toThrow();
});

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
