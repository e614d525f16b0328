/**
 * Every recorded or documented response of test/fixtures/upstream-samples.json is read as its `expect` says. A key that is
 * not understood fails the test, so that no expectation is skipped unseen.
 */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import type { Feedback, MeterName, UpstreamKind } from '../../../src/call.ts';
import { callLimitOf } from '../../../src/dispatch/feedback/commerce.policy.ts';
import { quotasOf, unownedReadings } from '../../../src/dispatch/feedback/ietf.policy.ts';
import { refusedIn } from '../../../src/dispatch/feedback/language-model.policy.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { modelReadings } from '../../../src/dispatch/feedback/providers.policy.ts';
import { windowOf, type Reading } from '../../../src/dispatch/feedback/reading.policy.ts';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/stream-event.policy.ts';

type Json = Record<string, unknown>;
interface Sample {
  readonly id: string;
  readonly provider: string;
  readonly status: number | '200-sse';
  readonly headers: Record<string, string>;
  readonly body: Json | null;
  readonly expect: Json;
}

const { samples }: { samples: Sample[] } = JSON.parse(
  readFileSync(new URL('../../fixtures/upstream-samples.json', import.meta.url), 'utf8'),
);

const now = Date.UTC(2026, 0, 1);
const generic = new Set(['github', 'huggingface', 'generic']);

function kindOf({ provider }: Sample): UpstreamKind {
  return provider.startsWith('shopify') ? 'commerce' : generic.has(provider) ? 'generic' : 'language-model';
}

function seen(sample: Sample) {
  const fields = new Map(Object.entries(sample.headers).map(([name, value]) => [name.toLowerCase(), value]));
  const refused = refusedIn(sample.body, sample.status === '200-sse' ? 200 : sample.status);
  const at = { date: fields.get('date'), now };
  const own = modelReadings(fields, at);
  const readings = own.length > 0 ? own : unownedReadings(refused.error?.fields ?? fields, at);
  const body = sample.body === null ? null : JSON.stringify(sample.body);
  const feedback =
    sample.status === '200-sse'
      ? learnFromStreamEvent(body ?? '', now)
      : learnFrom(kindOf(sample), {
          status: sample.status,
          fields,
          body,
          callClass: sample.provider === 'shopify-graphql' ? 'graphql' : 'default',
          nowMs: now,
        });
  return { fields, readings, feedback, message: refused.message };
}

type Seen = ReturnType<typeof seen>;

const waitOf = ({ throttle }: Feedback): number | null => throttle?.waitMs ?? null;

const meterOfDimension: Record<string, MeterName> = { 'input-images': 'images', 'tokens-minute': 'tokens' };

function checkReading(name: string, wanted: Json | null, { readings, feedback }: Seen): void {
  const reading: Reading | undefined = readings.find(({ dimension }) => dimension === name);
  if (wanted === null) {
    expect(reading).toBeUndefined();
    expect(feedback.meters).toEqual([]);
    return;
  }
  if (reading === undefined) throw new Error(`no reading of ${name}`);
  for (const [key, value] of Object.entries(wanted)) {
    if (key === 'note') continue;
    if (key === 'limit' || key === 'remaining') expect(reading[key]).toBe(value);
    else if (key === 'fullInMs' || key === 'resetInMs') expect(reading.resetInMs).toBe(value);
    else if (key === 'windowMs') expect(windowOf(reading)).toBe(value);
    else if (key === 'resetAt') expect(new Date((reading.resetInMs ?? NaN) + now).toISOString()).toBe(value);
    else throw new Error(`unknown key ${name}.${key}`);
  }
  if (reading.limit === null || reading.meter === null) return;
  const base = meterOfDimension[name] ?? name;
  const report = feedback.meters.find(({ meter }) => meter === base || meter === `${base}_day`);
  expect(report?.limit).toBe(reading.limit);
  expect(report?.windowMs).toBe(windowOf(reading));
}

const reasons: Record<string, Partial<NonNullable<Feedback['throttle']>>> = {
  quota: { kind: 'permanent', reason: 'quota' },
  too_large: { kind: 'permanent', reason: 'too_large' },
  daily: { kind: 'permanent', reason: 'daily' },
  max_cost: { kind: 'permanent', reason: 'max_cost' },
  ramp: { kind: 'overload' },
};

const checks: Record<string, (value: never, all: Seen) => void> = {
  waitMs: (value: number | null, { feedback }) => expect(waitOf(feedback)).toBe(value),
  waitMsMin: (value: number, { feedback }) => expect(waitOf(feedback)).toBeGreaterThanOrEqual(value),
  waitMsMax: (value: number, { feedback }) => expect(waitOf(feedback)).toBeLessThanOrEqual(value),
  retryable: (value: boolean, { feedback }) => {
    expect(feedback.throttle).not.toBeNull();
    expect(feedback.throttle?.kind !== 'permanent').toBe(value);
  },
  reason: (value: string, { feedback }) =>
    expect(feedback.throttle).toMatchObject(reasons[value] ?? { kind: '?' }),
  kind: (value: string, { feedback }) => expect(`${feedback.throttle?.kind}-limit`).toBe(value),
  metric: (value: string, { message }) => expect(message.metric).toBe(value),
  limit: (value: number, { message }) => expect(message.limit).toBe(value),
  used: (value: number, { message }) => expect(message.used).toBe(value),
  requested: (value: number, { message }) => expect(message.requested).toBe(value),
  scope: (value: { org: string; project: string }, { feedback }) =>
    expect(feedback.scope).toEqual({ organization: value.org, project: value.project }),
  calls: (value: Json, { fields, feedback }) => {
    expect(callLimitOf(fields)).toEqual(value);
    expect(feedback.meters).toMatchObject([
      { meter: 'requests', limit: value['limit'], level: { highest: value['used'] } },
    ]);
  },
  leakPerSecond: (value: number, { feedback }) => {
    const [report] = feedback.meters;
    expect(((report?.limit ?? NaN) / (report?.windowMs ?? NaN)) * 1000).toBe(value);
  },
  policies: (value: Json[], { fields }) =>
    expect(quotasOf(fields).filter(({ r }) => r !== undefined)).toEqual(
      value.map((item) => expect.objectContaining(item)),
    ),
  policyTolerant: (value: Json, { fields }) =>
    expect(quotasOf(fields)).toContainEqual(expect.objectContaining(value)),
  available: (value: number, { feedback }) => {
    const [report] = feedback.meters;
    expect((report?.limit ?? NaN) - (report?.level?.highest ?? NaN)).toBe(value);
  },
  max: (value: number, { feedback }) => expect(feedback.meters[0]?.limit).toBe(value),
  restore: (value: number, { feedback }) => {
    const [report] = feedback.meters;
    expect(((report?.limit ?? NaN) / (report?.windowMs ?? NaN)) * 1000).toBe(value);
  },
  throttled: (value: boolean, { feedback }) => expect(feedback.throttle?.kind === 'rate').toBe(value),
  note: () => {},
};

const dimensions = new Set(['requests', 'tokens', 'input-images', 'output-tokens', 'tokens-minute']);

describe('the feedback of recorded responses', () => {
  test('has a check for each of the thirty-seven recorded samples', () => {
    expect(samples.map(({ id }) => id)).toEqual(
      Array.from({ length: 37 }, (_, at) => `U${String(at + 1).padStart(2, '0')}`),
    );
  });

  describe.each(samples.map((sample) => [sample.id, sample.provider, sample] as const))(
    'sample %s, of %s,',
    (_, __, sample) => {
      const all = seen(sample);
      test.each(Object.entries(sample.expect))('reads %s as %j', (key, value) => {
        if (dimensions.has(key)) checkReading(key, value as Json | null, all);
        else {
          const check = checks[key];
          if (check === undefined) throw new Error(`unknown key ${key}`);
          check(value as never, all);
        }
      });

      test('is a throttle for a refusal and none for a success', () => {
        const refusesInside = sample.status === '200-sse' || sample.expect['throttled'] === true;
        const refuses = refusesInside || sample.expect['retryable'] === false || Number(sample.status) >= 400;
        expect(all.feedback.throttle !== null).toBe(refuses);
      });
    },
  );
});
