/**
 * What each provider says in its own words: every file of `test/fixtures/providers/` holds responses of one, in their published
 * form, and what is to be made of them.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { MeterReport, Throttle, UpstreamKind } from '../../../src/call.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { learnFromStreamEvent } from '../../../src/dispatch/feedback/stream-event.policy.ts';
import { providers } from '../../../src/dispatch/feedback/providers.policy.ts';

interface Sample {
  readonly says: string;
  readonly kind: UpstreamKind;
  readonly status: number;
  readonly fields: Readonly<Record<string, string>>;
  readonly body: unknown;
  readonly throttle: Throttle | null;
  readonly meters?: readonly MeterReport[];
}

const folder = new URL('../../fixtures/providers/', import.meta.url);
const files = readdirSync(folder).map((file) => ({
  name: file.replace(/\.json$/, ''),
  samples: JSON.parse(readFileSync(new URL(file, folder), 'utf8')) as Sample[],
}));
const all = files.flatMap(({ samples }) => samples);
const nowMs = Date.UTC(2026, 10, 22);

const learn = ({ kind, status }: Sample, fields: ReadonlyMap<string, string>, body: string | null) =>
  learnFrom(kind, { status, fields, body, callClass: 'default', nowMs });
const textOf = ({ body }: Sample): string | null => (body === null ? null : JSON.stringify(body));

describe.each(files)('what is learned from $name', ({ samples }) => {
  test.each(samples)('reads $says in a response with status $status', (sample) => {
    const feedback = learn(sample, new Map(Object.entries(sample.fields)), textOf(sample));
    expect(feedback.throttle).toEqual(sample.throttle);
    if (sample.meters !== undefined) expect(feedback.meters).toEqual(sample.meters);
  });
});

test('every provider has samples', () => {
  expect(files.map(({ name }) => name)).toEqual(expect.arrayContaining(Object.keys(providers)));
});

test('every refusal that a provider states in a response is understood in a stream, too', () => {
  const inStreams = all.filter(
    ({ kind, fields, body }) =>
      kind === 'language-model' && body !== null && Object.keys(fields).length === 0,
  );
  expect(inStreams.length).toBeGreaterThan(8);
  for (const sample of inStreams) {
    const reported = learnFromStreamEvent(JSON.stringify(sample.body), nowMs).throttle;
    // A status is all that some of them have; an event has none.
    if (reported !== null) expect([sample.says, reported.kind]).toEqual([sample.says, sample.throttle?.kind]);
  }
});

describe('broken values from a provider', () => {
  const junk = fc.oneof(
    fc.constantFrom(
      '',
      '-1',
      'NaN',
      'Infinity',
      '1e309',
      '0',
      '9'.repeat(400),
      '0x10',
      '1,5',
      '٣',
      '5s;',
      '\u0000',
      '1'.repeat(40),
    ),
    fc.string({ maxLength: 40 }),
    fc.integer().map(String),
    fc.double().map(String),
  );
  const withJunk = (text: string): fc.Arbitrary<string> =>
    fc.tuple(junk, fc.nat(), fc.nat(20)).map(([what, at, length]) => {
      const from = at % (text.length + 1);
      return text.slice(0, from) + what + text.slice(from + length);
    });
  const spoiled = fc.constantFrom(...all).chain((sample) =>
    fc.record({
      sample: fc.constant(sample),
      fields: fc
        .tuple(
          ...Object.entries(sample.fields).map(([name, value]) =>
            fc.oneof(junk, withJunk(value), fc.constant(value)).map((reported) => [name, reported] as const),
          ),
        )
        .map((entries) => new Map<string, string>(entries)),
      body: fc.oneof(withJunk(textOf(sample) ?? ''), fc.constant(textOf(sample))),
    }),
  );

  test('never throw, and never become a wait or a level that no limiter has', () => {
    fc.assert(
      fc.property(spoiled, ({ sample, fields, body }) => {
        const { throttle, meters } = learn(sample, fields, body);
        const waitMs = throttle?.waitMs ?? null;
        if (waitMs !== null) {
          expect(waitMs).toBeGreaterThanOrEqual(0);
          expect(waitMs).toBeLessThanOrEqual(86_400_000);
        }
        for (const { limit, windowMs, level } of meters) {
          expect(Number.isFinite(limit) && limit > 0).toBe(true);
          expect(windowMs === null || (windowMs >= 1 && windowMs <= 86_400_000)).toBe(true);
          if (level !== null)
            expect(level.lowest >= 0 && level.lowest <= level.highest && level.highest <= limit).toBe(true);
        }
      }),
      { numRuns: 3_000 },
    );
  });
});
