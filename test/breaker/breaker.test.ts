/** When a breaker opens, whom it concerns, and when it lets a probe through. */
import { describe, expect, test } from '@jest/globals';
import {
  afterRefusal,
  afterSilence,
  asProbe,
  createBreakers,
  concernOf,
  firstPauseMs,
  isForgotten,
  maxPauseMs,
  memoryMs,
  observationOf,
  probeLifeMs,
  silentPauseMs,
  type Breaker,
} from '../../src/breaker/breakers.ts';
import type { BreakerSubject, Throttle } from '../../src/call.ts';
import { systemRandom } from '../../src/clock.ts';
import { bucketKey } from '../../src/ids.ts';
import { MemoryMap } from '../../src/replicated/shared-map.ts';
import { FakeClock } from '../support/fake-clock.ts';

const said = { type: 'insufficient_quota', code: null } as const;
const since = Date.UTC(2026, 5, 1);
const permanent = (
  reason: Extract<Throttle, { kind: 'permanent' }>['reason'],
  waitMs: number | null = null,
) => ({ kind: 'permanent', reason, waitMs }) as const;
const refusal = { kind: 'refused', status: 402, said, throttle: permanent('quota'), isProbe: false } as const;
const at = (ms: number, unixMs = since) => ({ ms, unixMs });
const open = afterRefusal(null, refusal, at(0));

describe('a breaker', () => {
  test('opens with the first refusal, and lets one probe through when its pause ends', () => {
    expect(open).toEqual({ kind: 'open', status: 402, said, refusals: 1, since, until: firstPauseMs });
    expect([asProbe(open, 0), asProbe(open, 59_000)]).toEqual([null, null]);
    const probing = asProbe(open, 60_000) ?? open;
    expect(probing).toMatchObject({ kind: 'probing', until: 60_000 + probeLifeMs });
    expect(asProbe(probing, firstPauseMs + 1)).toBeNull();
    expect(asProbe(probing, firstPauseMs + probeLifeMs)).not.toBeNull();
  });

  test('doubles its pause after each refused probe, up to 15 minutes', () => {
    const pauses: number[] = [];
    let breaker: Breaker | null = null;
    for (let n = 0; n < 7; n += 1) {
      breaker = afterRefusal(breaker, { ...refusal, isProbe: n > 0 }, at(0, since + n));
      expect(breaker.since).toBe(since);
      pauses.push(breaker.until / 60_000);
    }
    expect(pauses).toEqual([1, 2, 4, 8, 15, 15, 15]);
  });

  test('ignores refusals of calls that were sent before it opened', () => {
    expect(afterRefusal(open, refusal, at(5_000))).toBe(open);
  });

  test('lets another probe through soon after an inconclusive one, without a longer pause', () => {
    const until = 100_000 + silentPauseMs;
    expect(afterSilence(open, 100_000)).toMatchObject({ kind: 'open', refusals: 1, until });
  });

  test('lets no probe through before the time that the upstream named', () => {
    const stated = afterRefusal(null, { ...refusal, throttle: permanent('quota', 3_000_000) }, at(0));
    expect([stated.until, asProbe(stated, maxPauseMs)]).toEqual([3_000_000, null]);
  });

  test('is forgotten an hour after its pause ended', () => {
    const endsAt = firstPauseMs + memoryMs;
    expect([isForgotten(open, endsAt), isForgotten(open, endsAt + 1)]).toEqual([false, true]);
  });
});

test.each<[string, Throttle, ReturnType<typeof concernOf>]>([
  ['all calls with the credential, for an exhausted quota', permanent('quota'), 'credential'],
  ['one host, for the state of a shop', permanent('store_state'), 'host'],
  ['one model, for a used-up daily limit', permanent('daily'), 'model'],
  ['one path, for a limit that is not the shop’s bucket', { kind: 'secondary', waitMs: null }, 'path'],
  ['only the call, for one that is too large', permanent('too_large'), null],
  ['only the call, for a query that costs too much', permanent('max_cost'), null],
  ['only the call, for a rate limit', { kind: 'rate', waitMs: 1_000, meter: null }, null],
  ['only the call, for overload', { kind: 'overload', waitMs: null }, null],
  ['only the call, where that is said', { ...permanent('quota'), scope: 'call' }, null],
  ['the bucket, where that is said', { ...permanent('quota'), scope: 'bucket' }, 'bucket'],
])('a refusal concerns %s', (_, throttle, concern) => {
  expect(concernOf(throttle)).toBe(concern);
});

test.each<[number, Throttle | null, string]>([
  [200, null, 'succeeded'],
  [302, null, 'succeeded'],
  [400, null, 'silent'],
  [401, null, 'silent'],
  [500, null, 'silent'],
  // It asks to slow down.
  [429, { kind: 'rate', waitMs: 1, meter: null }, 'succeeded'],
  [503, { kind: 'overload', waitMs: 1 }, 'silent'],
  [429, permanent('quota'), 'refused'],
  [400, permanent('quota'), 'refused'],
  [500, permanent('quota'), 'silent'],
  [540, permanent('store_state'), 'refused'],
])('an attempt with status %d and %j reports to a breaker that it is %s', (status, throttle, kind) => {
  expect(observationOf({ kind: 'answered', head: { status }, feedback: { throttle } }).kind).toBe(kind);
});

test('an attempt that failed or was not made reports nothing to a breaker', () => {
  expect([observationOf({ kind: 'failed' }).kind, observationOf(null).kind]).toEqual(['silent', 'silent']);
});

test('a replica that has missed an open breaker takes it over with its first refusal, with the pause that it has', async () => {
  const clock = new FakeClock();
  const pass = async (ms: number): Promise<void> => {
    const until = clock.monotonic() + ms;
    clock.outside(until, () => {});
    await clock.run(until);
  };
  const map = new MemoryMap<never>(clock);
  const replica = () =>
    createBreakers({
      clock,
      random: systemRandom,
      labelKey: 'of a test',
      createMap: () => map as never,
      onBreakerOpened() {},
      onRefused() {},
      onFailure(failure) {
        throw failure;
      },
    });
  const subject: BreakerSubject = {
    upstream: 'api',
    credential: 'credential',
    bucket: bucketKey('b_1'),
    host: 'api.example.com',
    model: null,
    operation: 'POST /v1',
  };
  const first = replica();
  first.observe(subject, [], refusal);
  for (let probes = 0; probes < 2; probes += 1) {
    await pass(maxPauseMs);
    first.observe(subject, await first.pass(subject), refusal);
  }
  const late = replica();
  late.observe(subject, [], refusal);
  await pass(1);
  for (const each of [first, late]) expect(each.observed('api')).toMatchObject([{ retryInMs: 239_999 }]);
});
