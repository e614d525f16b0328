/** Which replicas live, as the log shows it: their leases go on, or end, and their waiting calls are passed over. */
import { expect, test } from '@jest/globals';
import { upkeepMs } from '../../../src/limiter/over-log/fold.ts';
import { replicaLifeMs } from '../../../src/limiter/policy/scheduler.policy.ts';
import { atOrigins } from '../../support/at-origins.ts';
import { Folded, leaseMs, tick } from './folding.ts';

const serial = { maxInFlight: 1 } as const;

atOrigins('of a replica', (instant) => {
  /** A log into which these calls of `r1` came. */
  function logWith(tickets: readonly string[], options: object = serial): Folded {
    const log = new Folded(instant);
    for (const ticket of tickets) log.say(0, 'r1', log.call(ticket, 0, options));
    return log;
  }
  /** Somebody ticks now and then until just before this; nothing leaves. */
  function nothingLeaves(log: Folded, by: string, fromMs: number, untilMs: number): void {
    for (let ms = fromMs; ms < untilMs; ms += 500) expect(log.grants(ms, by, tick)).toEqual([]);
  }

  test('that is heard of, wherever it writes, leases go on for as long as it lives', () => {
    const log = logWith(['a']);
    for (let ms = 1_000; ms <= 4 * leaseMs; ms += 1_000)
      log.say(ms, 'r1', log.call(`n${ms}`, ms, { bucket: `elsewhere${ms % 3}` }));
    expect([...log.bucket().leases.values()].map(({ ticket }) => ticket.id)).toEqual(['a']);
    expect(log.say(4 * leaseMs + 1, 'r1', log.end('a')).replies).toEqual([{ kind: 'lease', known: true }]);
  });

  test('that is not heard of any more, leases end one lease after its last entry', () => {
    const log = logWith(['a']);
    const diedMs = 7_300;
    log.say(diedMs, 'r1', tick);
    log.say(diedMs, 'r2', log.call('b', diedMs, serial));
    nothingLeaves(log, 'r2', 8_000, diedMs + leaseMs);
    expect(log.grants(diedMs + leaseMs, 'r2', tick)).toEqual(['b']);
  });

  test('a call of unknown fate keeps its place for one lease, however long its replica lives', () => {
    const log = logWith(['a']);
    log.say(500, 'r1', log.end('a', { kind: 'unknown' }), log.call('b', 500, serial));
    nothingLeaves(log, 'r1', 1_000, 500 + leaseMs);
    expect(log.grants(500 + leaseMs, 'r1', tick)).toEqual(['b']);
  });

  test('that is not heard of for its life, waiting calls are passed over; those of others keep their places', () => {
    const log = logWith(['dead', 'd2'], { limit: 1 });
    log.say(2, 'r2', log.call('alive', 2, { limit: 1 }));
    const waiting = (): string[] =>
      [...log.bucket().tickets.values()].filter(({ lease }) => lease === null).map(({ id }) => id);
    for (let ms = 1_000; ms <= replicaLifeMs; ms += 1_000) log.say(ms, 'r2', tick);
    expect(waiting()).toEqual(['d2', 'alive']);
    log.say(replicaLifeMs + upkeepMs, 'r2', tick);
    expect(waiting()).toEqual(['alive']);
  });

  test('that writes in another bucket alone, waiting calls keep their places', () => {
    const log = logWith(['a', 'b'], { limit: 1 });
    const left: string[] = [];
    for (let ms = 1_000; ms <= 12_000; ms += 1_000)
      left.push(...log.grants(ms, 'r1', log.call(`n${ms}`, ms, { bucket: 'elsewhere', limit: 1_000 })));
    expect(left).toContain('b');
  });

  test('that comes back after a silence, a call that goes back to its place stays there', () => {
    const log = logWith(['a'], {});
    for (let ms = 1_000; ms <= replicaLifeMs + 3_000; ms += 1_000)
      log.say(ms, 'r2', log.call(`n${ms}`, ms, { limit: 1_000 }));
    const throttled = { kind: 'throttled', closeMs: 500, requeue: true, sleepMs: 0 } as const;
    log.say(replicaLifeMs + 3_500, 'r1', log.end('a', throttled));
    expect(log.grants(replicaLifeMs + 4_000, 'r2', tick)).toEqual(['a']);
  });
});
