import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import {
  afterRefusal,
  afterSilence,
  ask,
  concernOf,
  firstPauseMs,
  isForgotten,
  maxPauseMs,
  memoryMs,
  observationOf,
  partsOf,
  probeLifeMs,
  silentPauseMs,
  type Breaker,
} from '../../src/breaker/breaker.policy.ts';
import type { Throttle } from '../../src/call.ts';
import { bucketKey } from '../../src/ids.ts';

const said = { type: 'insufficient_quota', code: null } as const;
const since = Date.UTC(2026, 5, 1);
const refusal = { status: 402, said, statedMs: null, at: since, isProbe: false };

describe('a breaker', () => {
  test('opens with the first refusal, and answers with its status until its pause ends', () => {
    const open = afterRefusal(null, refusal, 1_000);
    expect(open).toEqual({
      kind: 'open',
      status: 402,
      said,
      refusals: 1,
      since,
      until: 1_000 + firstPauseMs,
    });
    expect(ask(open, 1_000)).toEqual({ kind: 'refused', status: 402, said, retryInMs: firstPauseMs });
    expect(ask(open, 60_000)).toEqual({ kind: 'refused', status: 402, said, retryInMs: 1_000 });
    expect(ask(open, 61_000)).toMatchObject({
      kind: 'probe',
      next: { kind: 'probing', until: 61_000 + probeLifeMs },
    });
  });

  test('doubles its pause after each refused probe, up to 15 minutes', () => {
    const pauses: number[] = [];
    let breaker: Breaker | null = null;
    for (let n = 0; n < 7; n += 1) {
      breaker = afterRefusal(breaker, { ...refusal, at: since + n, isProbe: n > 0 }, 0);
      expect(breaker.since).toBe(since);
      pauses.push(breaker.until / 60_000);
    }
    expect(pauses).toEqual([1, 2, 4, 8, 15, 15, 15]);
  });

  test('ignores refusals of calls that were sent before it opened', () => {
    const open = afterRefusal(null, refusal, 0);
    expect(afterRefusal(open, refusal, 5_000)).toBe(open);
  });

  test('lets one probe through, and another one when the first gets no response', () => {
    const asked = ask(afterRefusal(null, refusal, 0), firstPauseMs);
    if (asked.kind !== 'probe') throw new Error('no probe is let through');
    expect(ask(asked.next, firstPauseMs + 1).kind).toBe('refused');
    expect(ask(asked.next, firstPauseMs + probeLifeMs).kind).toBe('probe');
  });

  test('lets another probe through soon after an inconclusive one, without a longer pause', () => {
    const silent = afterSilence(afterRefusal(null, refusal, 0), 100_000);
    expect(silent).toMatchObject({ kind: 'open', refusals: 1, until: 100_000 + silentPauseMs });
  });

  test('lets no probe through before the time that the upstream named', () => {
    const open = afterRefusal(null, { ...refusal, statedMs: 3_000_000 }, 0);
    expect(ask(open, maxPauseMs)).toMatchObject({
      kind: 'refused',
      retryInMs: 3_000_000 - maxPauseMs,
    });
  });

  test('is forgotten an hour after its pause ended', () => {
    const open = afterRefusal(null, refusal, 0);
    expect(isForgotten(open, firstPauseMs + memoryMs)).toBe(false);
    expect(isForgotten(open, firstPauseMs + memoryMs + 1)).toBe(true);
  });

  test('lets at most one call through in any pause, whatever the responses', () => {
    const event = fc.record({
      afterMs: fc.integer({ min: 0, max: 400_000 }),
      response: fc.constantFrom('refused', 'silent', 'none'),
    });
    fc.assert(
      fc.property(fc.array(event, { maxLength: 60 }), (events) => {
        let now = 0;
        let breaker = afterRefusal(null, refusal, now);
        let lastProbe: number | null = null;
        for (const { afterMs, response } of events) {
          now += afterMs;
          const asked = ask(breaker, now);
          if (asked.kind === 'refused') {
            expect(asked.retryInMs).toBeGreaterThan(0);
            continue;
          }
          if (lastProbe !== null) expect(now - lastProbe).toBeGreaterThan(silentPauseMs - 1_000);
          lastProbe = now;
          breaker = asked.next;
          if (response === 'refused') breaker = afterRefusal(breaker, { ...refusal, isProbe: true }, now);
          if (response === 'silent') breaker = afterSilence(breaker, now);
        }
      }),
    );
  });
});

describe('the scope of a refusal', () => {
  const permanent = (reason: Extract<Throttle, { kind: 'permanent' }>['reason']): Throttle => ({
    kind: 'permanent',
    reason,
    waitMs: null,
  });

  test.each([
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
  ] as const)('is %s', (_title, throttle, concern) => {
    expect(concernOf(throttle)).toBe(concern);
  });

  test('has no breaker per model for a call without a model', () => {
    const bucket = bucketKey('b');
    const subject = { upstream: 'u', credential: 'c', bucket, host: 'h', model: null, operation: 'POST /a' };
    expect(partsOf(subject, 'bucket')).toEqual(['b']);
    expect(partsOf(subject, 'model')).toBeNull();
    expect(partsOf({ ...subject, model: 'm' }, 'model')).toEqual(['m']);
    expect(partsOf(subject, 'path')).toEqual(['h', 'POST /a']);
  });
});

describe('what an attempt reports to a breaker', () => {
  const answered = (status: number, throttle: Throttle | null = null) =>
    observationOf({ kind: 'answered', head: { status }, feedback: { throttle } }).kind;

  test.each([
    [200, 'succeeded'],
    [302, 'succeeded'],
    [400, 'silent'],
    [401, 'silent'],
    [500, 'silent'],
  ])('is, for a %i response, %s', (status, kind) => expect(answered(status)).toBe(kind));

  test('is no refusal when the upstream asks to slow down', () => {
    expect(answered(429, { kind: 'rate', waitMs: 1, meter: null })).toBe('succeeded');
    expect(answered(503, { kind: 'overload', waitMs: 1 })).toBe('silent');
  });

  test('is a refusal with a refused status, and silent with a server error of the same code', () => {
    const quota: Throttle = { kind: 'permanent', reason: 'quota', waitMs: null };
    expect(answered(429, quota)).toBe('refused');
    expect(answered(400, quota)).toBe('refused');
    expect(answered(500, quota)).toBe('silent');
    expect(answered(540, { kind: 'permanent', reason: 'store_state', waitMs: null })).toBe('refused');
  });

  test('is silent when the attempt failed or was not made', () => {
    expect(observationOf({ kind: 'failed' }).kind).toBe('silent');
    expect(observationOf(null).kind).toBe('silent');
  });
});
