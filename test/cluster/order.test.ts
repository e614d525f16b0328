/** The order check of the cluster verification: which calls it counts as out of order. */
import { expect, test } from '@jest/globals';
import { noFacts } from '../../simulators/recorder.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { beyond, orderOf } from '../../scripts/cluster/order.ts';
import type { CallResponse } from '../support/redis-fleet.ts';

const sent = (times: Readonly<Record<string, number>>): CallResponse[] =>
  Object.entries(times).map(([nonce, sentAt]) => ({
    nonce,
    sentAt,
    status: 200,
    tookMs: 1,
    code: '',
    heldBy: '',
    retryAfterMs: null,
    ticket: null,
  }));

/** The upstream's log of these calls, one per millisecond. */
const arrived = (...nonces: readonly string[]): LogEntry[] =>
  nonces.map((nonce, position) => ({
    ...noFacts,
    decision: 'admitted',
    nonce,
    seq: position,
    t: position,
    at: position,
    arrivedT: position,
    method: 'POST',
    path: '/',
    key: '',
    inFlight: { key: 1, scope: 1 },
    insideRetryAfter: false,
    sinceRetryAfterMs: null,
    bodyHash: '',
    fault: '',
    status: 200,
    aborted: false,
    endedT: null,
  }));

test('the order check counts a call that two later ones overtake as behind the latest of them, and as two positions late', () => {
  const { behindMs, displacedMs } = orderOf(
    sent({ a: 0, b: 100, c: 200, d: 300 }),
    arrived('b', 'c', 'a', 'd'),
    0,
  );
  expect(behindMs).toEqual([0, 0, 200, 0]);
  expect(displacedMs).toEqual([100, 100, 200, 0]);
});

test('the order check leaves out calls that were granted at once, refused attempts and calls of others', () => {
  const entries = arrived('z', 'a', 'b', 'other', 'c');
  const refused = { ...arrived('c')[0], decision: 'throttled', arrivedT: -1 } as LogEntry;
  const { behindMs } = orderOf(sent({ z: 900, a: 0, b: 100, c: 50 }), [refused, ...entries], 1);
  expect(behindMs).toEqual([0, 0, 50]);
});

test('the order check states the share beyond a limit in percent', () => {
  expect(beyond([0, 50, 51, 80], 50)).toEqual({ count: 2, words: '2 of 4 (50.0 %)' });
});
