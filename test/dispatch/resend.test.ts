/** Every cell of the table in src/dispatch/resend.policy.ts: which call is sent again after which outcome, when, and how often. */
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Throttle, UpstreamKind } from '../../src/call.ts';
import {
  resend,
  type AttemptOutcome,
  type ResendCall,
  type ResendDecision,
  type ResendHistory,
  type ResendInput,
} from '../../src/dispatch/resend.policy.ts';

const hour = 3_600_000;
const plain: ResendCall = {
  idempotent: false,
  replayable: true,
  callClass: 'default',
  hasOwnIdempotency: false,
  makesImages: false,
  onlyCosts: false,
};
const repeatable = { idempotent: true };
const keyed = { hasOwnIdempotency: true };
const rest = { callClass: 'rest' };
const graphql = { callClass: 'graphql' };
const model = { onlyCosts: true };
const images = { onlyCosts: true, makesImages: true };
const [once, twice, never] = [[1_000], [1_000, 2_000], []] as const;

/** Each caller: what it is, its waits after overload, and whether it is sent again after an unknown fate. */
const table = {
  'model GET': ['language-model', repeatable, twice, true],
  'model POST': ['language-model', model, twice, false],
  'image POST': ['language-model', images, once, false],
  'creating model POST': ['language-model', {}, twice, false],
  'commerce GET': ['commerce', { ...rest, ...repeatable }, twice, true],
  'commerce POST': ['commerce', rest, never, false],
  'keyed commerce POST': ['commerce', { ...rest, ...keyed }, twice, true],
  'commerce query': ['commerce', { ...graphql, ...repeatable }, twice, true],
  'commerce mutation': ['commerce', graphql, never, false],
  'keyed mutation': ['commerce', { ...graphql, ...keyed }, twice, true],
  'generic PUT': ['generic', repeatable, twice, true],
  'generic POST': ['generic', {}, never, false],
} as const satisfies Record<string, [UpstreamKind, Partial<ResendCall>, readonly number[], boolean]>;
type Name = keyof typeof table;
const names = Object.keys(table) as Name[];
const caller = (name: Name) => ({ kind: table[name][0], call: { ...plain, ...table[name][1] } });
const withoutBody = (name: Name) => ({ call: { ...caller(name).call, replayable: false } });

const answered = (status: number, throttle: Throttle | null = null): AttemptOutcome => ({
  kind: 'answered',
  status,
  throttle,
  isCredentialRenewed: false,
});
const rate = (waitMs: number | null): AttemptOutcome => answered(429, { kind: 'rate', waitMs, meter: null });
const overload = (status = 503, waitMs: number | null = null): AttemptOutcome =>
  answered(status, { kind: 'overload', waitMs });
const neverSent: AttemptOutcome = { kind: 'never_sent' };
const stale: AttemptOutcome = { kind: 'stale' };
const lost: AttemptOutcome = { kind: 'fate_unknown' };
const renewed: AttemptOutcome = { kind: 'answered', status: 401, throttle: null, isCredentialRenewed: true };

const decide = (name: Name, outcome: AttemptOutcome, more: Partial<ResendInput> = {}): ResendDecision =>
  resend({ ...caller(name), outcome, history: {}, remainingMs: hour, ...more });

/** The same outcome again and again: the waits between the attempts, and the decision that ends it. */
function chain(name: Name, outcome: AttemptOutcome, most = 50) {
  const waits: number[] = [];
  let history: ResendHistory = {};
  while (waits.length < most) {
    const decision = decide(name, outcome, { history });
    if (decision.kind === 'pass') return { waits, last: decision };
    waits.push(decision.notBeforeMs);
    ({ history } = decision);
  }
  return { waits, last: null };
}

const passed = (shouldRetry: false | null) => ({ kind: 'pass', shouldRetry, closes: 'none', closeMs: 0 });
const closing = (closeMs: number) => ({ closes: 'bucket', closeMs });

describe.each(names)('a %s', (name) => {
  const { kind, call } = caller(name);
  const isSlow = kind === 'commerce' && call.callClass === 'rest';
  const [, , overloaded, isRepeated] = table[name];
  /** Repeating a model's call costs money, but changes nothing: its client decides. */
  const ofUnknownFate = isRepeated || call.onlyCosts ? null : false;

  test('is sent again after the wait of a refusal, which closes the bucket until then', () => {
    for (const outcome of [rate(1_234), overload(429, 1_234)]) {
      const expected = { kind: 'resend', notBeforeMs: 1_234, ...closing(1_234) };
      expect(decide(name, outcome)).toMatchObject(expected);
    }
  });

  test('is passed on where it has not that long, and the bucket is closed all the same', () => {
    expect(decide(name, rate(5_000), { remainingMs: 4_999 })).toEqual({ ...passed(null), ...closing(5_000) });
    expect(decide(name, rate(5_000), { remainingMs: 5_000 })).toMatchObject({ kind: 'resend' });
    expect(decide(name, rate(59_999), { remainingMs: 1 })).toMatchObject({ kind: 'pass', shouldRetry: null });
    const long = decide(name, rate(60_000), { remainingMs: 59_999 });
    expect(long).toEqual({ ...passed(false), ...closing(60_000) });
  });

  test('backs off from refusals without a hint, which close the bucket no longer than the first one shows', () => {
    const waits = isSlow ? [60_000, 60_000] : [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000];
    for (const outcome of [rate(null), rate(0), answered(429), overload(429)]) {
      const { waits: made, last } = chain(name, outcome, 8);
      expect(made).toEqual(waits);
      if (isSlow) expect(last).toMatchObject({ kind: 'pass', closes: 'bucket' });
    }
    const asked = (hintless: number, remainingMs: number) =>
      decide(name, rate(null), { history: { hintless }, remainingMs });
    const closed = closing(isSlow ? 60_000 : 1_000);
    expect(asked(0, hour)).toMatchObject({ kind: 'resend', ...closed });
    expect(asked(4, 1)).toMatchObject({ kind: 'pass', ...closed });
    if (!isSlow) expect(asked(4, hour)).toMatchObject({ notBeforeMs: 16_000, ...closed });
  });

  test('waits after refusals without a hint as long as the dialect says', () => {
    for (const hintless of isSlow ? [0, 1] : [0, 1, 7]) {
      const decision = decide(name, rate(null), { history: { hintless }, hintlessMs: 5_000 });
      expect(decision).toMatchObject({ notBeforeMs: 5_000, closeMs: 5_000 });
    }
  });

  test('leaves the bucket open for others where a refusal without a hint meets this call alone', () => {
    for (const outcome of [rate(null), rate(0), answered(429)]) {
      const asked = (hintless: number, othersPass: boolean) =>
        decide(name, outcome, { history: { hintless }, othersPass });
      expect(asked(0, true)).toMatchObject({ closes: 'bucket' });
      expect(asked(1, false)).toMatchObject({ closes: 'bucket' });
      expect(asked(1, true)).toMatchObject({ closes: 'call' });
      expect(asked(99, true)).toMatchObject({ kind: 'pass', closes: 'call' });
    }
    const stated = decide(name, rate(500), { history: { rate: 1 }, othersPass: true });
    expect(stated).toMatchObject({ closes: 'bucket' });
  });

  const permanent = (['quota', 'daily', 'store_state', 'too_large', 'max_cost'] as const).map((reason) =>
    answered(429, { kind: 'permanent', reason, waitMs: null }),
  );
  test('is never sent again after a permanent refusal, or one of another limit, which close nothing', () => {
    for (const outcome of [...permanent, answered(429, { kind: 'secondary', waitMs: 5_000 })])
      expect(decide(name, outcome)).toEqual(passed(false));
  });

  test('is sent again twice when nothing of it was sent, or its credential is renewed', () => {
    const last = { shouldRetry: null, closes: 'none' };
    expect(chain(name, neverSent)).toMatchObject({ waits: [100, 200], last });
    expect(chain(name, renewed)).toMatchObject({ waits: [0, 0], last: { kind: 'pass', closes: 'none' } });
  });

  test('is passed on with any other status', () => {
    for (const status of [200, 201, 303, 304, 400, 401, 404, 408, 409, 422, 501, 525])
      expect(decide(name, answered(status))).toEqual(passed(null));
  });

  test('is sent again to an overloaded upstream where that may be', () => {
    for (const outcome of [overload(503), overload(529), answered(503), answered(529)]) {
      const { waits, last } = chain(name, outcome);
      expect(waits).toEqual(overloaded);
      expect(last?.shouldRetry).toBe(overloaded.length === 0 ? false : null);
    }
    const mayBe = overloaded.length > 0;
    expect(chain(name, overload(503, 3_000), 5).waits).toEqual(
      mayBe ? [3_000, 3_000, 4_000, 8_000, 8_000] : [],
    );
  });

  test('is sent again once after an unknown fate where that may be', () => {
    const statuses = [500, 502, 504, 520, 521, 522, 523, 524].map((status) => answered(status));
    for (const outcome of [lost, ...statuses]) {
      const { waits, last } = chain(name, outcome);
      expect(waits).toEqual(isRepeated ? [500] : []);
      expect(last).toMatchObject({ shouldRetry: ofUnknownFate, closes: 'none' });
    }
  });

  test('is sent again at once, and then once more, after a stale connection where that may be', () => {
    const { waits, last } = chain(name, stale);
    expect([waits, last?.shouldRetry]).toEqual([isRepeated ? [0, 500] : [], ofUnknownFate]);
  });

  test('is never sent again when its body is no longer there', () => {
    for (const outcome of [rate(1), rate(null), overload(), lost, answered(500)]) {
      const isFateUnknown = outcome === lost || (outcome.kind === 'answered' && outcome.status === 500);
      const shouldRetry = isFateUnknown && call.onlyCosts ? null : false;
      expect(decide(name, outcome, withoutBody(name))).toMatchObject({ kind: 'pass', shouldRetry });
    }
    expect(decide(name, neverSent, withoutBody(name))).toMatchObject({ kind: 'pass', shouldRetry: null });
    expect(decide(name, renewed, withoutBody(name)).kind).toBe('pass');
    expect(decide(name, stale, withoutBody(name)).kind).toBe('pass');
    expect(decide(name, rate(1_500), withoutBody(name))).toMatchObject(closing(1_500));
  });
});

test.each<[Name, AttemptOutcome, object]>([
  ['model POST', overload(503, 7_000), { notBeforeMs: 7_000, closes: 'bucket' }],
  ['model POST', overload(503, 10), { notBeforeMs: 1_000 }],
  ['model POST', overload(), { closes: 'call' }],
  ['commerce POST', overload(503, 7_000), { kind: 'pass', ...closing(7_000) }],
])('an overload closes the bucket as long as it states: %s %j %j', (name, outcome, expected) => {
  expect(decide(name, outcome)).toMatchObject(expected);
});

test('a stale connection needs no time', () => {
  const again = decide('generic PUT', stale, { remainingMs: -5 });
  expect(again).toMatchObject({ kind: 'resend', notBeforeMs: 0, cause: 'stale' });
});

test('the number of attempts has a bound of its own for each cause', () => {
  const after = decide('model POST', overload(), { history: { rate: 1 } });
  expect(after).toMatchObject({ notBeforeMs: 1_000, history: { rate: 1, overload: 1 } });
  expect(decide('model POST', rate(100))).toMatchObject({ history: { rate: 1 } });
});

test('attempts are spaced out when refusals state tiny waits', () => {
  const { waits, last } = chain('model POST', rate(1), 10);
  expect(waits).toEqual([1, 1, 250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000]);
  expect(last).toBeNull();
});

test('a throttle of an upstream that is only observed is passed on untouched, and closes nothing', () => {
  const spent = answered(429, { kind: 'permanent', reason: 'quota', waitMs: null });
  for (const outcome of [rate(2_000), rate(null), overload(429, 2_000), spent, answered(429)])
    expect(decide('creating model POST', outcome, { passesThrottles: true })).toEqual(passed(null));
  expect(decide('creating model POST', neverSent, { passesThrottles: true }).kind).toBe('resend');
});

test('the decision undercuts no stated wait, exceeds no remaining wait and repeats nothing that may have run', () => {
  const waits = fc.option(fc.nat({ max: 200_000 }));
  const throttles: fc.Arbitrary<Throttle | null> = fc.oneof(
    fc.constant(null),
    waits.map((waitMs): Throttle => ({ kind: 'rate', waitMs, meter: null })),
    waits.map((waitMs): Throttle => ({ kind: 'secondary', waitMs })),
    waits.map((waitMs): Throttle => ({ kind: 'overload', waitMs })),
    waits.map((waitMs): Throttle => ({ kind: 'permanent', reason: 'quota', waitMs })),
  );
  const statuses = fc.integer({ min: 200, max: 599 });
  const outcomes = fc.oneof(
    fc.constantFrom(neverSent, lost, stale),
    fc.tuple(statuses, throttles).map(([status, throttle]) => answered(status, throttle)),
  );
  const asked = fc.tuple(fc.constantFrom(...names), outcomes, fc.nat({ max: 100_000 }), fc.nat({ max: 9 }));
  fc.assert(
    fc.property(asked, ([name, outcome, remainingMs, n]) => {
      const all = { credential: n, rate: n, hintless: n, overload: n, never_sent: n, stale: n, unknown: n };
      const decision = decide(name, outcome, { history: all, remainingMs });
      const statedMs = outcome.kind === 'answered' ? (outcome.throttle?.waitMs ?? 0) : 0;
      if (decision.kind === 'pass') {
        if (decision.closes === 'bucket') expect(decision.closeMs).toBeGreaterThanOrEqual(statedMs);
        return;
      }
      expect(decision.notBeforeMs).toBeGreaterThanOrEqual(statedMs);
      expect(decision.notBeforeMs).toBeLessThanOrEqual(remainingMs);
      const { call, kind } = caller(name);
      const refused = outcome.kind === 'answered' && (outcome.status === 429 || outcome.throttle !== null);
      const overloaded = outcome.kind === 'answered' && outcome.status >= 503 && kind === 'language-model';
      const mayResend = call.idempotent || call.hasOwnIdempotency || refused || overloaded;
      expect(mayResend || outcome.kind === 'never_sent').toBe(true);
    }),
    { numRuns: 2_000 },
  );
});
