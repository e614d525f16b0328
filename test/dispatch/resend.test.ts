/** Every cell of the table in src/dispatch/resend.policy.ts. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Throttle, UpstreamKind } from '../../src/call.ts';
import {
  resend,
  type AttemptOutcome,
  type ResendCall,
  type ResendDecision,
  type ResendHistory,
} from '../../src/dispatch/resend.policy.ts';

interface Caller {
  readonly kind: UpstreamKind;
  readonly call: ResendCall;
}

const caller = (kind: UpstreamKind, traits: Partial<ResendCall> = {}): Caller => ({
  kind,
  call: {
    idempotent: false,
    replayable: true,
    callClass: kind === 'commerce' ? 'rest' : 'default',
    hasOwnIdempotency: false,
    makesImages: false,
    onlyCosts: false,
    ...traits,
  },
});

const safe = { idempotent: true };
const callers = {
  'model GET': caller('language-model', safe),
  'commerce GET': caller('commerce', safe),
  'generic PUT': caller('generic', { idempotent: true }),
  'model POST': caller('language-model', { onlyCosts: true }),
  'image POST': caller('language-model', { makesImages: true, onlyCosts: true }),
  'creating model POST': caller('language-model'),
  'commerce POST': caller('commerce'),
  'commerce mutation': caller('commerce', { callClass: 'graphql' }),
  'commerce query': caller('commerce', { ...safe, callClass: 'graphql' }),
  'keyed commerce POST': caller('commerce', { hasOwnIdempotency: true }),
  'keyed mutation': caller('commerce', { callClass: 'graphql', hasOwnIdempotency: true }),
  'generic POST': caller('generic'),
} as const;
type Name = keyof typeof callers;
const names = Object.keys(callers) as Name[];
const hour = 3_600_000;
const isSlow = (name: Name): boolean =>
  name === 'commerce GET' || name === 'commerce POST' || name === 'keyed commerce POST';
const isModelPost = (name: Name): boolean => name === 'model POST' || name === 'image POST';

const answered = (status: number, throttle: Throttle | null = null): AttemptOutcome => ({
  kind: 'answered',
  status,
  throttle,
  isCredentialRenewed: false,
});
const rate = (waitMs: number | null): AttemptOutcome => answered(429, { kind: 'rate', waitMs, meter: null });
const overload = (status = 503, waitMs: number | null = null): AttemptOutcome =>
  answered(status, { kind: 'overload', waitMs });
const permanent = (reason: Extract<Throttle, { kind: 'permanent' }>['reason']): AttemptOutcome =>
  answered(429, { kind: 'permanent', reason, waitMs: null });
const neverSent: AttemptOutcome = { kind: 'never_sent' };
const stale: AttemptOutcome = { kind: 'stale' };
const lost: AttemptOutcome = { kind: 'fate_unknown' };

function decide(name: Name, outcome: AttemptOutcome, remainingMs = hour, traits: Partial<ResendCall> = {}) {
  const { kind, call } = callers[name];
  return resend({ kind, call: { ...call, ...traits }, outcome, history: {}, remainingMs });
}

/** A call that was sent again `n` times for each cause. */
const historyOf = (n: number): ResendHistory => ({
  credential: n,
  rate: n,
  hintless: n,
  overload: n,
  never_sent: n,
  stale: n,
  unknown: n,
});

/** The same outcome again and again: the waits between the attempts, and the decision that ends it. */
function chain(name: Name, outcome: AttemptOutcome, most = 50) {
  const waits: number[] = [];
  let history: ResendHistory = {};
  let decision: ResendDecision = decide(name, outcome);
  for (let attempts = 1; attempts <= most; attempts++) {
    decision = resend({ ...callers[name], outcome, history, remainingMs: hour });
    if (decision.kind === 'pass') return { waits, last: decision };
    waits.push(decision.notBeforeMs);
    history = decision.history;
  }
  return { waits, last: null };
}

describe.each(names)('the decision to resend a %s', (name) => {
  test('sends it again after the wait of a refusal, and closes the bucket until then', () => {
    expect(decide(name, rate(1234))).toMatchObject({ kind: 'resend', notBeforeMs: 1234, closes: 'bucket' });
  });

  test('passes a refusal whose wait is longer than the call has, and closes the bucket all the same', () => {
    expect(decide(name, rate(5000), 4999)).toEqual({
      kind: 'pass',
      shouldRetry: null,
      closes: 'bucket',
      closeMs: 5000,
    });
    expect(decide(name, rate(5000), 5000)).toMatchObject({ kind: 'resend' });
    expect(decide(name, rate(60_000), 59_999)).toMatchObject({
      kind: 'pass',
      shouldRetry: false,
      closeMs: 60_000,
    });
    expect(decide(name, rate(59_999), 1)).toMatchObject({ kind: 'pass', shouldRetry: null });
  });

  test('spaces out a series of refusals without a hint over the wait of the call', () => {
    const { waits, last } = chain(name, rate(null), 8);
    expect(waits).toEqual(
      isSlow(name) ? [60_000, 60_000] : [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000],
    );
    if (isSlow(name)) expect(last).toMatchObject({ kind: 'pass', closes: 'bucket' });
    expect(chain(name, answered(429), 8).waits).toEqual(waits);
    expect(chain(name, rate(0), 8).waits).toEqual(waits);
  });

  test('closes the bucket for others no longer than the first refusal without a hint shows', () => {
    const { kind, call } = callers[name];
    const asked = (n: number, remainingMs: number): ResendDecision =>
      resend({ kind, call, outcome: rate(null), history: { hintless: n }, remainingMs });
    const closeMs = isSlow(name) ? 60_000 : 1000;
    expect(asked(0, hour)).toMatchObject({ kind: 'resend', closes: 'bucket', closeMs });
    expect(asked(4, 1)).toMatchObject({ kind: 'pass', closes: 'bucket', closeMs });
    if (!isSlow(name)) expect(asked(4, hour)).toMatchObject({ notBeforeMs: 16_000, closeMs: 1000 });
  });

  test('waits after each refusal without a hint as long as the dialect says', () => {
    const { kind, call } = callers[name];
    const asked = (n: number): ResendDecision =>
      resend({
        kind,
        call,
        outcome: rate(null),

        history: { hintless: n },
        remainingMs: hour,
        hintlessMs: 5000,
      });
    for (const n of isSlow(name) ? [0, 1] : [0, 1, 7])
      expect(asked(n)).toMatchObject({ notBeforeMs: 5000, closeMs: 5000 });
  });

  test('leaves the bucket open for the others where a refusal without a hint meets this call alone', () => {
    const { kind, call } = callers[name];
    for (const outcome of [rate(null), rate(0), answered(429)]) {
      const asked = (n: number, othersPass: boolean): ResendDecision =>
        resend({
          kind,
          call,
          outcome,

          history: { hintless: n },
          othersPass,
          remainingMs: hour,
        });
      expect(asked(0, true)).toMatchObject({ closes: 'bucket' });
      expect(asked(1, false)).toMatchObject({ closes: 'bucket' });
      expect(asked(1, true)).toMatchObject({ closes: 'call' });
      expect(asked(99, true)).toMatchObject({ kind: 'pass', closes: 'call' });
    }
    const stated = { kind, call, outcome: rate(500), history: { rate: 1 }, remainingMs: hour };
    expect(resend({ ...stated, othersPass: true })).toMatchObject({ closes: 'bucket' });
  });

  test('passes on a limit that is not the bucket’s own, and neither lane nor bucket waits for it', () => {
    expect(decide(name, answered(429, { kind: 'secondary', waitMs: 5000 }))).toEqual({
      kind: 'pass',
      shouldRetry: false,
      closes: 'none',
      closeMs: 0,
    });
  });

  test.each(['quota', 'daily', 'store_state', 'too_large', 'max_cost'] as const)(
    'never sends it again after the refusal %s',
    (reason) => {
      expect(decide(name, permanent(reason))).toEqual({
        kind: 'pass',
        shouldRetry: false,
        closes: 'none',
        closeMs: 0,
      });
    },
  );

  test('sends it again twice when it was never sent, whatever the method', () => {
    const { waits, last } = chain(name, neverSent);
    expect(waits).toEqual([100, 200]);
    expect(last).toMatchObject({ shouldRetry: null, closes: 'none' });
  });

  test.each([200, 201, 303, 304, 400, 401, 404, 408, 409, 422, 501, 525])(
    'passes a response with status %d',
    (status) => {
      expect(decide(name, answered(status))).toEqual({
        kind: 'pass',
        shouldRetry: null,
        closes: 'none',
        closeMs: 0,
      });
    },
  );

  test('never sends it again when its body is no longer there', () => {
    for (const outcome of [rate(1), rate(null), overload(), lost, answered(500)]) {
      const costsMoneyOnly =
        isModelPost(name) && (outcome === lost || (outcome.kind === 'answered' && outcome.status === 500));
      expect(decide(name, outcome, hour, { replayable: false })).toMatchObject({
        kind: 'pass',
        shouldRetry: costsMoneyOnly ? null : false,
      });
    }
    expect(decide(name, neverSent, hour, { replayable: false })).toMatchObject({
      kind: 'pass',
      shouldRetry: null,
    });
    expect(decide(name, rate(1500), hour, { replayable: false })).toMatchObject({
      closes: 'bucket',
      closeMs: 1500,
    });
  });
});

describe('the decision to resend after overload', () => {
  const expected: Record<Name, readonly number[]> = {
    'model GET': [1000, 2000],
    'commerce GET': [1000, 2000],
    'generic PUT': [1000, 2000],
    'model POST': [1000, 2000],
    'creating model POST': [1000, 2000],
    'image POST': [1000],
    'commerce POST': [],
    'commerce mutation': [],
    'commerce query': [1000, 2000],
    'keyed commerce POST': [1000, 2000],
    'keyed mutation': [1000, 2000],
    'generic POST': [],
  };

  test.each(names)('depends on the kind of the call: %s', (name) => {
    for (const outcome of [overload(503), overload(529), answered(503), answered(529), overload(429)]) {
      const { waits, last } = chain(name, outcome);
      expect(waits).toEqual(expected[name]);
      expect(last?.shouldRetry).toBe(expected[name].length === 0 ? false : null);
    }
  });

  test('keeps a stated wait and closes the bucket, or backs off and closes only the call', () => {
    expect(decide('model POST', overload(503, 7000))).toMatchObject({ notBeforeMs: 7000, closes: 'bucket' });
    expect(decide('model POST', overload(503, 10))).toMatchObject({ notBeforeMs: 1000 });
    expect(decide('model POST', overload())).toMatchObject({ closes: 'call' });
    expect(decide('commerce POST', overload(503, 7000))).toMatchObject({
      kind: 'pass',
      closes: 'bucket',
      closeMs: 7000,
    });
  });
});

describe('the decision to resend a call of unknown fate', () => {
  const repeats: Record<Name, boolean> = {
    'model GET': true,
    'commerce GET': true,
    'generic PUT': true,
    'model POST': false,
    'image POST': false,
    'creating model POST': false,
    'commerce POST': false,
    'commerce mutation': false,
    'commerce query': true,
    'keyed commerce POST': true,
    'keyed mutation': true,
    'generic POST': false,
  };

  /** Repeating a model's call costs money, but changes nothing: its client decides. */
  const advice = (name: Name): false | null => (repeats[name] || isModelPost(name) ? null : false);

  test.each(names)('depends on the kind of the call: %s', (name) => {
    const statuses = [500, 502, 504, 520, 521, 522, 523, 524].map((status) => answered(status));
    for (const outcome of [lost, ...statuses]) {
      const { waits, last } = chain(name, outcome);
      expect(waits).toEqual(repeats[name] ? [500] : []);
      expect(last).toMatchObject({ shouldRetry: advice(name), closes: 'none' });
    }
  });

  test.each(names)(
    'allows two more attempts after a stale connection, the first at once, only for a repeatable call: %s',
    (name) => {
      expect(chain(name, stale).waits).toEqual(repeats[name] ? [0, 500] : []);
      expect(chain(name, stale).last).toMatchObject({ shouldRetry: advice(name) });
    },
  );

  test('needs, after a stale connection, no time but a body', () => {
    const { kind, call } = callers['generic PUT'];
    const asked = { kind, call, outcome: stale, history: {}, remainingMs: -5 };
    expect(resend(asked)).toMatchObject({ kind: 'resend', notBeforeMs: 0, cause: 'stale' });
    expect(resend({ ...asked, call: { ...call, replayable: false } })).toMatchObject({ kind: 'pass' });
  });
});

describe('the number of attempts', () => {
  test('has a bound of its own for each cause', () => {
    const first = decide('model POST', rate(100));
    const history = first.kind === 'resend' ? first.history : {};
    const { kind, call } = callers['model POST'];
    const after = resend({ kind, call, outcome: overload(), history, remainingMs: hour });
    expect(after).toMatchObject({ kind: 'resend', notBeforeMs: 1000, history: { rate: 1, overload: 1 } });
  });

  test('is spaced out when refusals state tiny waits', () => {
    const { waits, last } = chain('model POST', rate(1), 10);
    expect(waits).toEqual([1, 1, 250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
    expect(last).toBeNull();
  });
});

test('the decision to resend undercuts no stated wait, exceeds no remaining wait and repeats nothing that may have run', () => {
  const waits = fc.option(fc.nat({ max: 200_000 }));
  const throttles: fc.Arbitrary<Throttle | null> = fc.oneof(
    fc.constant(null),
    waits.map((waitMs): Throttle => ({ kind: 'rate', waitMs, meter: null })),
    waits.map((waitMs): Throttle => ({ kind: 'secondary', waitMs })),
    waits.map((waitMs): Throttle => ({ kind: 'overload', waitMs })),
    waits.map((waitMs): Throttle => ({ kind: 'permanent', reason: 'quota', waitMs })),
  );
  const outcomes = fc.oneof(
    fc.constantFrom(neverSent, lost, stale),
    fc
      .tuple(fc.integer({ min: 200, max: 599 }), throttles)
      .map(([status, throttle]) => answered(status, throttle)),
  );
  fc.assert(
    fc.property(
      fc.constantFrom(...names),
      outcomes,
      fc.nat({ max: 100_000 }),
      fc.nat({ max: 9 }),
      (name, outcome, remainingMs, n) => {
        const decision = resend({ ...callers[name], outcome, history: historyOf(n), remainingMs });
        const statedMs = outcome.kind === 'answered' ? (outcome.throttle?.waitMs ?? 0) : 0;
        if (decision.kind === 'pass') {
          if (decision.closes === 'bucket') expect(decision.closeMs).toBeGreaterThanOrEqual(statedMs);
          return;
        }
        expect(decision.notBeforeMs).toBeGreaterThanOrEqual(statedMs);
        expect(decision.notBeforeMs).toBeLessThanOrEqual(remainingMs);
        const refused = outcome.kind === 'answered' && (outcome.status === 429 || outcome.throttle !== null);
        const { call, kind } = callers[name];
        const overloaded = outcome.kind === 'answered' && outcome.status >= 503 && kind === 'language-model';
        const mayResend = call.idempotent || call.hasOwnIdempotency || refused || overloaded;
        expect(mayResend || outcome.kind === 'never_sent').toBe(true);
      },
    ),
    { numRuns: 2000 },
  );
});

describe('a call whose credential was refused and is renewed', () => {
  const refused: AttemptOutcome = {
    kind: 'answered',
    status: 401,
    throttle: null,
    isCredentialRenewed: true,
  };

  test.each(names)('is sent again at once, whatever it does: %s', (name) => {
    expect(decide(name, refused)).toMatchObject({ kind: 'resend', notBeforeMs: 0, closes: 'none' });
  });

  test('is passed on the third time, and when its body is gone', () => {
    const { kind, call } = callers['generic POST'];
    const input = { kind, outcome: refused, remainingMs: hour };
    expect(resend({ ...input, call, history: { credential: 2 } }).kind).toBe('pass');
    expect(resend({ ...input, call: { ...call, replayable: false }, history: {} }).kind).toBe('pass');
  });
});

test('a throttle of an upstream that is only observed is passed on untouched, and closes nothing', () => {
  const outcome = (status: number, throttle: Throttle | null): AttemptOutcome => ({
    kind: 'answered',
    status,
    throttle,
    isCredentialRenewed: false,
  });
  const observed = { ...caller('language-model'), history: {}, passesThrottles: true, remainingMs: 60_000 };
  const untouched = { kind: 'pass', shouldRetry: null, closes: 'none', closeMs: 0 };
  const throttles: (Throttle | null)[] = [
    { kind: 'rate', waitMs: 2_000, meter: null },
    { kind: 'rate', waitMs: null, meter: null },
    { kind: 'overload', waitMs: 2_000 },
    { kind: 'permanent', reason: 'quota', waitMs: null },
    null,
  ];
  for (const throttle of throttles)
    expect(resend({ ...observed, outcome: outcome(429, throttle) })).toEqual(untouched);
  expect(resend({ ...observed, outcome: { kind: 'never_sent' } }).kind).toBe('resend');
});
