/** A new term of the log: what was granted before may be unknown, so replicas say what they have under way before others may go. */
import { expect, test } from '@jest/globals';
import { bucketKey, laneKey, leaseToken, ticketId } from '../../../src/ids.ts';
import {
  fold,
  holdMs,
  type LogEvent,
  restore,
  type SentCall,
  snapshot,
  type UsedUnits,
} from '../../../src/limiter/over-log/fold.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { admit, entryOf, Folded, granted, inBucket, leaseMs, settle, tick } from './folding.ts';

const setting = {
  meters: [{ meter: 'requests', limit: 4, windowMs: 8_000 }],
  learn: true,
  probe: 0,
} as const;
const uncapped = { weight: 1, maxInFlight: null, perMinute: null, ceilingTag: '' } as const;
const serial = { lane: 'serial', maxInFlight: 1 };
const inCapped = { setting: { ...setting, maxInFlightTotal: 1 } };

const here = (term: number): LogEvent => ({ kind: 'here', term });
const leave: LogEvent = { kind: 'leave' };
const report = (sent: readonly SentCall[], used: readonly UsedUnits[] = []): LogEvent => ({
  kind: 'report',
  sent,
  used,
});
const bucket = bucketKey('bucket');
const heldCall = (ticket: string, more: AdmissionOptions = { maxInFlight: 1 }): SentCall => {
  const { bucket, ...entering } = admission(ticket, { setting, ceilingTag: '', ...more });
  const position = { kind: 'kept', order: 3 * 2 ** 48 } as const;
  return { bucket, lease: leaseToken(`${ticket}.lost`), admission: { ...entering, position } };
};

atOrigins('in a new term', (instant) => {
  const call = (ticket: string, options: object = {}): LogEvent =>
    admit(ticket, instant(1), { setting, ...options });

  /** A log that knows these replicas, and has got these calls of `r1`, at the end of its first term. */
  function known(replicas: readonly string[], ...calls: LogEvent[]): Folded {
    const log = new Folded(instant);
    for (const [at, name] of replicas.entries()) log.say(0, name, ...(at === 0 ? calls : []), tick);
    return log;
  }
  /** The same, in its second term. */
  function secondTerm(replicas: readonly string[], ...calls: LogEvent[]): Folded {
    const log = known(replicas, ...calls);
    log.term = 2;
    return log;
  }
  /** Nothing is granted before the leases of silent replicas have ended, and then this. */
  function waitsOneLease(log: Folded, ticket: string): void {
    for (let ms = 2_000; ms < leaseMs; ms += 1_000) expect(log.grants(ms, 'r1', tick)).toEqual([]);
    expect(log.grants(10 + leaseMs, 'r1', tick)).toEqual([ticket]);
  }

  test('each entry that begins one tells so, and the first one of a log withholds nothing', () => {
    const log = new Folded(instant);
    const [first, second] = [log.say(0, 'r1', call('a')), log.say(1, 'r2', call('b'))];
    expect([first.beginsTerm, second.beginsTerm]).toEqual([true, false]);
    expect([...granted(first), ...granted(second)]).toEqual(['a', 'b']);
    log.term = 2;
    expect(log.say(2, 'r2', tick).beginsTerm).toBe(true);
  });

  test('nothing is granted until each known replica has said here', () => {
    const log = secondTerm(['r1', 'r2']);
    const first = log.say(10, 'r1', call('a'), call('b', serial), here(2));
    expect([granted(first), first.nextAt]).toEqual([[], instant(10) + holdMs]);
    expect(log.grants(20, 'r3', tick, here(2))).toEqual([]);
    // Nor does it count what a replica said in the term before.
    expect(log.grants(25, 'r2', here(1))).toEqual([]);
    expect(log.grants(30, 'r2', here(2))).toEqual(['a', 'b']);
  });

  test('what waited before is withheld too, also where it has become due', () => {
    const log = known(['r1', 'r2'], ...['t0', 't1', 't2', 't3', 't4'].map((ticket) => call(ticket)));
    const dueMs = (log.say(1, 'r1', tick).nextAt ?? NaN) - instant(0);
    log.term = 2;
    expect(log.grants(dueMs - 1, 'r1', here(2))).toEqual([]);
    expect(log.grants(dueMs + 1, 'r1', tick)).toEqual([]);
    expect(log.grants(dueMs + 2, 'r2', here(2))).toEqual(['t4']);
  });

  test.each([
    ['lanes with a cap', [call('a'), call('b', serial)], ['a'], 'b'],
    [
      'each lane of a bucket with a cap',
      [call('b', inCapped), call('c', { ...inCapped, lane: 'other' })],
      [],
      'b',
    ],
  ])('a silent replica holds others up for a moment, and %s for one lease', (_what, calls, atOnce, then) => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', ...calls, here(2));
    expect(log.grants(9 + holdMs, 'r1', tick)).toEqual([]);
    const held = log.say(10 + holdMs, 'r1', tick);
    expect([granted(held), held.nextAt]).toEqual([atOnce, instant(10) + leaseMs]);
    waitsOneLease(log, then);
  });

  const lanes = [{ ...uncapped, lane: laneKey('serial') }];
  test.each<[what: string, held: LogEvent, by: string, then: LogEvent]>([
    [
      'a bucket goes on when it loses its cap',
      call('a', inCapped),
      'r1',
      inBucket({ kind: 'reconfigure', setting, lanes: [] }),
    ],
    ['a bucket with a cap goes on when the silent replica has said here', call('a', inCapped), 'r2', here(2)],
    [
      'a lane goes on when it loses its cap',
      call('a', serial),
      'r1',
      inBucket({ kind: 'reconfigure', setting, lanes }),
    ],
    ['a lane with a cap goes on when the silent replica has said here', call('a', serial), 'r2', here(2)],
  ])('%s', (_what, held, by, then) => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', held, here(2));
    expect(log.grants(10 + holdMs, 'r1', tick)).toEqual([]);
    expect(log.grants(20 + holdMs, 'r1', call('c', { bucket: 'other' }))).toEqual(['c']);
    expect(log.grants(2_000, by, then)).toEqual(['a']);
  });

  test('after an absence of any length replicas are waited for: each may have used units alone', () => {
    const log = secondTerm(['r1', 'r2']);
    expect(log.grants(leaseMs + 1, 'r1', call('a'), here(2))).toEqual([]);
    expect(log.grants(leaseMs + 10, 'r2', here(2))).toEqual(['a']);
  });

  test('a replica that was silent for longer than a lease within a term is not waited for in the next', () => {
    const log = known(['r1', 'r2']);
    log.say(leaseMs + 1, 'r1', tick);
    log.term = 2;
    expect(log.grants(leaseMs + 2, 'r1', call('a'), here(2))).toEqual(['a']);
  });

  test('a replica that has left is not waited for', () => {
    const log = known(['r1', 'r2', 'r3']);
    log.say(5, 'r3', leave);
    log.term = 2;
    expect(log.grants(10, 'r1', call('a', serial), here(2))).toEqual([]);
    expect(log.grants(20, 'r2', leave)).toEqual(['a']);
  });

  test('neither an operator who opens the bucket nor a call that ends grants anything', () => {
    const log = secondTerm(['r1', 'r2'], call('a', serial), call('b', serial));
    expect(log.grants(10, 'r1', inBucket({ kind: 'open', agoMs: 0 }), log.end('a'), here(2))).toEqual([]);
    expect(log.grants(20, 'r2', here(2))).toEqual(['b']);
  });

  test('a call under way that the state does not know takes its place in the lane until it is settled', () => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', call('waiting', { maxInFlight: 1 }), here(2));
    expect(log.grants(20, 'r2', report([heldCall('under way')]), here(2))).toEqual([]);
    const end = log.say(500, 'r2', settle('under way.lost'));
    expect([end.replies, granted(end)]).toEqual([[{ kind: 'lease', known: true }], ['waiting']]);
  });

  test('a call under way that the state has as waiting is not granted again', () => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', call('a', { maxInFlight: 1 }), report([heldCall('a')]), here(2));
    expect(log.grants(20, 'r2', call('b', { maxInFlight: 1 }), here(2))).toEqual([]);
    expect(log.bucket().tickets.get(ticketId('a'))?.lease).toBe('a.lost');
  });

  test('a call that was granted anew before its replica was heard of has one lease, that of the grant', () => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', call('a', { maxInFlight: null }));
    const { grants } = log.say(10 + holdMs, 'r2', tick);
    log.say(20 + holdMs, 'r1', report([heldCall('a', {})]), here(2));
    expect([...log.bucket().leases.keys()]).toEqual(grants.map(({ lease }) => lease));
  });

  test('a call under way has taken its slot of the ceiling, so that it keeps no other from the last one', () => {
    const log = secondTerm(['r1']);
    const { grants } = log.say(10, 'r1', here(2), call('a'));
    const edge = { slots: 1, nextSlotMs: 1_000 };
    const taken = inBucket({ kind: 'slot_taken', lease: grants[0]?.lease ?? leaseToken('none'), edge });
    log.say(20, 'r1', taken, report([heldCall('b', { ceilingTag: 'none.none' })]), here(2));
    expect(log.grants(30, 'r1', call('c'))).toEqual(['c']);
  });

  test('what is reported keeps no waiting call from being looked at', () => {
    const log = secondTerm(['r1']);
    const { nextAt } = log.say(10, 'r1', here(2), ...['a', 'b', 'c', 'd', 'e'].map((ticket) => call(ticket)));
    expect(nextAt).not.toBeNull();
    expect(log.say(20, 'r1', report([], [{ bucket, setting, costs: {}, closeMs: 0 }])).nextAt).toBe(nextAt);
  });

  test('units of a call that has ended and is not known count', () => {
    const log = secondTerm(['r1', 'r2']);
    log.say(10, 'r1', report([], [{ bucket, setting, costs: { requests: 3 }, closeMs: 0 }]), here(2));
    expect(log.bucket().meters.get('requests')).toMatchObject({ granted: 3, answered: 3 });
    const { replies } = log.say(20, 'r2', here(2), call('a'), call('b'));
    expect(replies.slice(1).map((reply) => reply?.kind)).toEqual(['granted', 'queued']);
  });

  test('what an ended call has closed for all buckets is closed for all', () => {
    const log = secondTerm(['r1']);
    const used = { bucket, setting, costs: {}, closeMs: 700, closesCredential: true } as const;
    log.say(10, 'r1', report([], [used]), here(2));
    expect(log.grants(20, 'r1', call('a', { bucket: 'other' }))).toEqual([]);
    expect(log.grants(710, 'r1', tick)).toEqual(['a']);
  });

  test('no lease has the token of one that was lost', () => {
    const log = known(['r1'], call('first'));
    const before = snapshot(log.state);
    const lost = log.say(0, 'r1', call('a'));
    const again = fold(restore(before), entryOf(instant(5), 'r1', [here(2), call('a')], 2));
    expect([granted(lost), granted(again)]).toEqual([['a'], ['a']]);
    expect(again.grants[0]?.lease).not.toBe(lost.grants[0]?.lease);
  });
});
