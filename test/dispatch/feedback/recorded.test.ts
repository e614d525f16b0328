/** What is learned from recorded and documented responses: `upstream-samples.yaml`, `providers/` and `presets/` of `test/fixtures/`. */
import { readdirSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { MeterReport, Throttle } from '../../../src/call.ts';
import { presetNames } from '../../../src/config/speaks.ts';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/language-model.policy.ts';
import { fixtures, recorded, samples } from '../../support/recorded.ts';
import { dayMs, learn } from './learning.ts';

describe('what is learned from a recorded response', () => {
  const recordedAt = Date.UTC(2026, 0, 1);
  const toThousandths = (_: string, value: unknown): unknown =>
    typeof value === 'number' ? Math.round(value * 1_000) / 1_000 : value;

  test.each(samples)(
    'is as it was: $id, of $provider',
    ({ kind, status, body, provider, learned, ...of }) => {
      const fields = Object.fromEntries(
        Object.entries(of.fields).map(([name, value]) => [name.toLowerCase(), value]),
      );
      const callClass = provider === 'shopify-graphql' ? 'graphql' : 'default';
      const feedback =
        status === '200-sse'
          ? learnFromStreamEvent(JSON.stringify(body), recordedAt)
          : learn(kind, { status, fields, body, callClass, at: recordedAt });
      expect(JSON.parse(JSON.stringify(feedback, toThousandths))).toEqual(learned);
    },
  );
});

interface OfProvider {
  readonly says: string;
  readonly throttle: Throttle | null;
  readonly meters?: readonly MeterReport[];
}

const files = readdirSync(new URL('providers/', fixtures)).map((file) => ({
  name: file.replace('.yaml', ''),
  samples: recorded<OfProvider>(`providers/${file}`),
}));
const ofProviders = files.flatMap(({ samples }) => samples);
const at = Date.UTC(2026, 10, 22);

describe.each(files)('what is learned from $name', ({ samples }) => {
  test.each(samples)('reads $says in a response with status $status', (sample) => {
    const { throttle, meters } = learn(sample.kind, { ...sample, at });
    expect(throttle).toEqual(sample.throttle);
    if (sample.meters !== undefined) expect(meters).toEqual(sample.meters);
  });
});

test('every refusal that a provider states in a response is understood in a stream, too', () => {
  const inStreams = ofProviders.filter(
    ({ kind, fields, body }) =>
      kind === 'language-model' && body !== null && Object.keys(fields).length === 0,
  );
  expect(inStreams.length).toBeGreaterThan(8);
  for (const { says, body, throttle } of inStreams) {
    const reported = learnFromStreamEvent(JSON.stringify(body), 0).throttle;
    // A status is all that some of them have; an event has none.
    if (reported !== null) expect([says, reported.kind]).toEqual([says, throttle?.kind]);
  }
});

test('broken values from a provider never throw, and never become a wait or a level that no limiter has', () => {
  const odd = '|-1|NaN|Infinity|1e309|0|0x10|1,5|٣|5s;|\u0000'.split('|');
  const junk = fc.oneof(
    fc.constantFrom(...odd, '1'.repeat(40), '9'.repeat(400)),
    fc.string({ maxLength: 40 }),
    fc.integer().map(String),
    fc.double().map(String),
  );
  const withJunk = (text: string): fc.Arbitrary<string> =>
    fc.tuple(junk, fc.nat(), fc.nat(20)).map(([what, at, length]) => {
      const from = at % (text.length + 1);
      return text.slice(0, from) + what + text.slice(from + length);
    });
  const spoiled = fc.constantFrom(...ofProviders).chain((sample) => {
    const fields = Object.entries(sample.fields).map(([name, value]) =>
      fc.oneof(junk, withJunk(value), fc.constant(value)).map((said) => [name, said] as const),
    );
    const text = sample.body === null ? null : JSON.stringify(sample.body);
    return fc.record({
      kind: fc.constant(sample.kind),
      status: fc.constant(sample.status),
      fields: fc.tuple(...fields).map((entries) => Object.fromEntries(entries)),
      body: fc.oneof(withJunk(text ?? ''), fc.constant(text)),
    });
  });
  fc.assert(
    fc.property(spoiled, ({ kind, ...response }) => {
      const { throttle, meters } = learn(kind, { ...response, at });
      const waitMs = throttle?.waitMs ?? 0;
      expect(waitMs >= 0 && waitMs <= dayMs).toBe(true);
      for (const { limit, windowMs, level } of meters) {
        expect(Number.isFinite(limit) && limit > 0).toBe(true);
        expect(windowMs === null || (windowMs >= 1 && windowMs <= dayMs)).toBe(true);
        if (level === null) continue;
        expect(level.lowest >= 0 && level.lowest <= level.highest && level.highest <= limit).toBe(true);
      }
    }),
    { numRuns: 3_000 },
  );
});

interface OfPreset {
  readonly expects: {
    readonly throttle?: string | null;
    readonly waitMs?: number | null;
    readonly expired?: boolean;
    /** Whom the refusal concerns; left out, its bucket. */
    readonly scope?: string;
    /** The name that the response gives to the quota. */
    readonly quota?: string;
    readonly meters?: readonly { meter: string; limit: number; used: number | null; windowMs?: number }[];
  };
}

const ofPresets = presetNames.flatMap((name) =>
  recorded<OfPreset>(`presets/${name}.yaml`).map((sample, at) => [name, at + 1, sample] as const),
);

test.each(ofPresets)('%s reads its recorded response %i', (name, _, { expects, ...response }) => {
  const learned = learn({ speaks: name }, { ...response, at: 1_800_000_000_000 });
  const { throttle, meters, scope } = learned;
  expect(learned.refusesCredential ?? false).toBe(expects.expired ?? false);
  if (expects.throttle !== undefined) {
    expect(throttle?.kind ?? null).toBe(expects.throttle);
    expect(throttle !== null && 'scope' in throttle ? throttle.scope : undefined).toBe(expects.scope);
  }
  if (expects.waitMs !== undefined) expect(throttle?.waitMs).toBe(expects.waitMs);
  if (expects.quota !== undefined) expect(scope?.name).toBe(expects.quota);
  if (expects.meters === undefined) return;
  const found = meters.map(({ meter, limit, windowMs, level }) => ({
    meter,
    limit,
    used: level === null ? null : level.highest,
    ...(windowMs === null ? {} : { windowMs }),
  }));
  expect(found).toEqual(expects.meters);
});
