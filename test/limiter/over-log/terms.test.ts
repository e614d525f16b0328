/** A new term of the log: what was granted before may be unknown, so replicas say what they have under way before others may go. */
import { describe, expect, test } from '@jest/globals';
import { laneKey, leaseToken, ticketId } from '../../../src/ids.ts';
import { createState, holdMs } from '../../../src/limiter/over-log/fold.ts';
import { restore, snapshot } from '../../../src/limiter/over-log/snapshot.ts';
import type {
  EntryEffects,
  SentCall,
  LogEvent,
  SharedState,
  UsedUnits,
} from '../../../src/limiter/over-log/state.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { admit, bucketOf, entryOf, foldOwn, granted, leaseMs, settle, tick } from './folding.ts';

const setting = {
  meters: [{ meter: 'requests', limit: 4, windowMs: 8_000 }],
  learn: true,
  probe: 0,
} as const;
const uncapped = { weight: 1, maxInFlight: null, perMinute: null, ceilingTag: '' } as const;
const capped = { ...uncapped, maxInFlight: 1 } as const;

const here = (term: number): LogEvent => ({ kind: 'here', term });
const report = (held: readonly SentCall[], used: readonly UsedUnits[] = []): LogEvent => ({
  kind: 'report',
  sent: held,
  used,
});
const heldCall = (ticket: string, laneSetting: SentCall['laneSetting'] = capped): SentCall => ({
  bucket: bucketOf('bucket'),
  lane: laneKey('lane'),
  ticket: ticketId(ticket),
  lease: leaseToken(`${ticket}.lost`),
  order: 3 * 2 ** 48,
  callClass: 'default',
  costs: { requests: 1 },
  setting,
  laneSetting,
});

/** A state that knows these replicas, and entries of its second term. */
function secondTerm(
  instant: Instant,
  replicas: readonly string[],
): {
  readonly state: SharedState;
  readonly say: (afterMs: number, replica: string, ...events: LogEvent[]) => EntryEffects;
} {
  const state = createState(leaseMs);
  for (const name of replicas) foldOwn(state, entryOf(instant(0), name, [tick]));
  return {
    state,
    say: (afterMs, name, ...events) => foldOwn(state, entryOf(instant(afterMs), name, events, 2)),
  };
}

atOrigins('in a new term', (instant) => {
  const call = (ticket: string, options: object = {}): LogEvent =>
    admit(ticket, instant(1), { setting, ...options });
  const serial = { lane: 'serial', maxInFlight: 1 };

  test('each entry that begins one tells so, and the first one of a log withholds nothing', () => {
    const state = createState(leaseMs);
    const first = foldOwn(state, entryOf(instant(0), 'r1', [call('a')]));
    const second = foldOwn(state, entryOf(instant(1), 'r2', [call('b')]));
    expect([first.beginsTerm, second.beginsTerm]).toEqual([true, false]);
    expect([...granted(first), ...granted(second)]).toEqual(['a', 'b']);
    expect(foldOwn(state, entryOf(instant(2), 'r2', [tick], 2)).beginsTerm).toBe(true);
  });

  test('nothing is granted until each known replica has said here', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    const first = say(10, 'r1', call('a'), call('b', serial), here(2));
    expect([granted(first), first.nextAt]).toEqual([[], instant(10) + holdMs]);
    expect(granted(say(20, 'r3', tick, here(2)))).toEqual([]);
    expect(granted(say(30, 'r2', here(2)))).toEqual(['a', 'b']);
  });

  test('a replica that said here in the term before is waited for', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a'), here(2));
    expect(granted(say(20, 'r2', here(1)))).toEqual([]);
    expect(granted(say(30, 'r2', here(2)))).toEqual(['a']);
  });

  test('what waited before is withheld too, also where it has become due', () => {
    const state = createState(leaseMs);
    const calls = Array.from({ length: 5 }, (_, n) => call(`t${n}`));
    const { nextAt } = foldOwn(state, entryOf(instant(1), 'r1', calls));
    foldOwn(state, entryOf(instant(1), 'r2', [tick]));
    if (nextAt === null) throw new Error('nothing waits');
    const began = foldOwn(state, entryOf(nextAt - 1, 'r1', [here(2)], 2));
    expect(granted(began)).toEqual([]);
    expect(granted(foldOwn(state, entryOf(nextAt + 1, 'r1', [tick], 2)))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(nextAt + 2, 'r2', [here(2)], 2)))).toEqual(['t4']);
  });

  test('a silent replica holds others up for a moment, and lanes with a cap for one lease', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a'), call('b', serial), here(2));
    expect(granted(say(9 + holdMs, 'r1', tick))).toEqual([]);
    const then = say(10 + holdMs, 'r1', tick);
    expect([granted(then), then.nextAt]).toEqual([['a'], instant(10) + leaseMs]);
    for (let ms = 2_000; ms < leaseMs; ms += 1_000) expect(granted(say(ms, 'r1', tick))).toEqual([]);
    expect(granted(say(10 + leaseMs, 'r1', tick))).toEqual(['b']);
  });

  test('in a bucket with a cap every lane waits like a lane with one', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    const capped = { setting: { ...setting, maxInFlightTotal: 1 } };
    say(10, 'r1', call('a', capped), call('b', { ...capped, lane: 'other' }), here(2));
    const then = say(10 + holdMs, 'r1', tick);
    expect([granted(then), then.nextAt]).toEqual([[], instant(10) + leaseMs]);
    for (let ms = 2_000; ms < leaseMs; ms += 1_000) expect(granted(say(ms, 'r1', tick))).toEqual([]);
    expect(granted(say(10 + leaseMs, 'r1', tick))).toEqual(['a']);
  });

  test('a bucket that loses its cap goes on at once, and one with a cap as soon as the silent replica has said here', () => {
    for (const losesCap of [true, false]) {
      const { say } = secondTerm(instant, ['r1', 'r2']);
      say(10, 'r1', call('a', { setting: { ...setting, maxInFlightTotal: 1 } }), here(2));
      expect(granted(say(10 + holdMs, 'r1', tick))).toEqual([]);
      const event = { kind: 'reconfigure', setting, lanes: [] } as const;
      const change: LogEvent = { kind: 'in', bucket: bucketOf('bucket'), event };
      const end = losesCap ? say(11 + holdMs, 'r1', change) : say(11 + holdMs, 'r2', here(2));
      expect(granted(end)).toEqual(['a']);
    }
  });

  test('a lane that loses its cap goes on at once', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('b', serial), here(2));
    expect(granted(say(10 + holdMs, 'r1', tick))).toEqual([]);
    const lanes = [{ ...uncapped, lane: laneKey('serial') }];
    const event = { kind: 'reconfigure', setting, lanes } as const;
    const change: LogEvent = { kind: 'in', bucket: bucketOf('bucket'), event };
    expect(granted(say(11 + holdMs, 'r1', change))).toEqual(['b']);
  });

  test('lanes with a cap go on as soon as the silent replica has said here', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a', serial), call('b', { ...serial, lane: 'other', bucket: 'other' }), here(2));
    say(10 + holdMs, 'r1', tick);
    expect(granted(say(20 + holdMs, 'r1', call('c')))).toEqual(['c']);
    expect(granted(say(2_000, 'r2', here(2)))).toEqual(['a', 'b']);
  });

  test('after an absence of any length replicas are waited for: each may have used units alone', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    expect(granted(say(leaseMs + 1, 'r1', call('a'), here(2)))).toEqual([]);
    expect(granted(say(leaseMs + 10, 'r2', here(2)))).toEqual(['a']);
  });

  test('a replica that was silent for longer than a lease within a term is not waited for in the next', () => {
    const { state } = secondTerm(instant, ['r1', 'r2']);
    foldOwn(state, entryOf(instant(leaseMs + 1), 'r1', [tick]));
    expect(granted(foldOwn(state, entryOf(instant(leaseMs + 2), 'r1', [call('a'), here(2)], 2)))).toEqual([
      'a',
    ]);
  });

  test('a replica that has left is not waited for', () => {
    const { state, say } = secondTerm(instant, ['r1', 'r2', 'r3']);
    foldOwn(state, entryOf(instant(5), 'r3', [{ kind: 'leave' }]));
    expect(granted(say(10, 'r1', call('a', serial), here(2)))).toEqual([]);
    expect(granted(say(20, 'r2', { kind: 'leave' }))).toEqual(['a']);
  });

  test('a term within a term begins the hold anew, and ends both', () => {
    const { state, say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a', serial), here(2));
    say(10 + holdMs, 'r1', tick);
    const third = (ms: number, name: string, ...events: LogEvent[]): string[] =>
      granted(foldOwn(state, entryOf(instant(ms), name, events, 3)));
    expect(third(2_000, 'r1', call('b'), here(3))).toEqual([]);
    expect(third(2_010, 'r2', here(3))).toEqual(['b', 'a']);
  });

  test('neither an operator who opens the bucket nor a call that ends grants anything', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [call('a', serial), call('b', serial)]));
    foldOwn(state, entryOf(instant(0), 'r2', [tick]));
    const open: LogEvent = { kind: 'in', bucket: bucketOf('bucket'), event: { kind: 'open', agoMs: 0 } };
    const entry = entryOf(instant(10), 'r1', [open, settle(grants[0]?.lease ?? ''), here(2)], 2);
    expect(granted(foldOwn(state, entry))).toEqual([]);
    expect(granted(foldOwn(state, entryOf(instant(20), 'r2', [here(2)], 2)))).toEqual(['b']);
  });

  test('a bucket that a response closed meanwhile stays closed when the hold ends', () => {
    const state = createState(leaseMs);
    const { grants } = foldOwn(state, entryOf(instant(0), 'r1', [call('a')]));
    foldOwn(state, entryOf(instant(0), 'r2', [tick]));
    const throttled = { kind: 'throttled', closeMs: 600, requeue: true, sleepMs: 0 } as const;
    foldOwn(state, entryOf(instant(10), 'r1', [settle(grants[0]?.lease ?? '', throttled), here(2)], 2));
    const end = foldOwn(state, entryOf(instant(20), 'r2', [here(2)], 2));
    expect([granted(end), end.nextAt]).toEqual([[], instant(610)]);
    expect(granted(foldOwn(state, entryOf(instant(610), 'r1', [tick], 2)))).toEqual(['a']);
  });

  test('a call under way that the state does not know takes its place in the lane until it is settled', () => {
    const { say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('waiting', { maxInFlight: 1 }), here(2));
    expect(granted(say(20, 'r2', report([heldCall('under way')]), here(2)))).toEqual([]);
    const { replies, grants } = say(500, 'r2', settle('under way.lost'));
    expect(replies).toEqual([{ kind: 'lease', known: true }]);
    expect(grants.map(({ ticket }) => ticket)).toEqual(['waiting']);
  });

  test('a call under way that the state has as waiting is not granted again', () => {
    const { state, say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a', { maxInFlight: 1 }), report([heldCall('a')]), here(2));
    const end = say(20, 'r2', call('b', { maxInFlight: 1 }), here(2));
    expect(granted(end)).toEqual([]);
    expect(state.buckets.get(bucketOf('bucket'))?.tickets.get(ticketId('a'))?.lease).toBe('a.lost');
  });

  test('a call that was granted anew before its replica was heard of has one lease, that of the grant', () => {
    const { state, say } = secondTerm(instant, ['r1', 'r2']);
    say(10, 'r1', call('a', { maxInFlight: null }));
    const { grants } = say(10 + holdMs, 'r2', tick);
    say(20 + holdMs, 'r1', report([heldCall('a', uncapped)]), here(2));
    const bucket = state.buckets.get(bucketOf('bucket'));
    expect([...(bucket?.leases.keys() ?? [])]).toEqual(grants.map(({ lease }) => lease));
  });

  test('a call under way has taken its slot of the ceiling, so that it keeps no other from the last one', () => {
    const { say } = secondTerm(instant, ['r1']);
    const { grants } = say(10, 'r1', here(2), call('a'));
    const lease = grants[0]?.lease ?? leaseToken('none');
    const edge = { slots: 1, nextSlotMs: 1_000 };
    const charge: LogEvent = {
      kind: 'in',
      bucket: bucketOf('bucket'),
      event: { kind: 'slot_taken', lease, edge },
    };
    say(20, 'r1', charge, report([heldCall('b', { ...uncapped, ceilingTag: 'none.none' })]), here(2));
    expect(granted(say(30, 'r1', call('c')))).toEqual(['c']);
  });

  test('what is reported keeps no waiting call from being looked at', () => {
    const { say } = secondTerm(instant, ['r1']);
    const calls = Array.from({ length: 5 }, (_, n) => call(`t${n}`));
    const { nextAt } = say(10, 'r1', here(2), ...calls);
    const used = { bucket: bucketOf('bucket'), setting, costs: {}, closedMs: 0 };
    expect(nextAt).not.toBeNull();
    expect(say(20, 'r1', report([], [used])).nextAt).toBe(nextAt);
  });

  test('units of a call that has ended and is not known count', () => {
    const { state, say } = secondTerm(instant, ['r1', 'r2']);
    const used = { bucket: bucketOf('bucket'), setting, costs: { requests: 3 }, closedMs: 0 };
    say(10, 'r1', report([], [used]), here(2));
    const meter = state.buckets.get(bucketOf('bucket'))?.meters.get('requests');
    expect([meter?.granted, meter?.answered]).toEqual([3, 3]);
    const { grants, replies } = say(20, 'r2', here(2), call('a'), call('b'));
    expect(grants.map(({ ticket }) => ticket)).toEqual(['a']);
    expect(replies[2]?.kind).toBe('queued');
  });
});

describe('after a loss of entries', () => {
  test('no lease has the token of a lost one', () => {
    const state = createState(leaseMs);
    foldOwn(state, entryOf(0, 'r1', [admit('first', 0, { setting })]));
    const before = [...snapshot(state)];
    const call = admit('a', 0, { setting });
    const lost = foldOwn(state, entryOf(0, 'r1', [call]));
    const again = foldOwn(restore(before), entryOf(5, 'r1', [here(2), call], 2));
    expect([granted(lost), granted(again)]).toEqual([['a'], ['a']]);
    expect(again.grants[0]?.lease).not.toBe(lost.grants[0]?.lease);
  });
});
