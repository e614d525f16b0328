import { describe, expect, test } from '@jest/globals';
import { parseDictionary, parseList, serializeDictionary, serializeList } from 'structured-headers';
import { admissionField, rateLimitField, rateLimitPolicyField } from '../../src/ingress/ratelimit-fields.ts';
import { outcomeFraming } from '../../src/ingress/framing.policy.ts';
import { rateLimitOf } from '../../src/journey/response.ts';

describe('the structured fields of Sluice', () => {
  test('are spelt as documented', () => {
    const state = { limit: 500, windowSeconds: 60, remaining: 412, resetSeconds: 1 };
    expect(rateLimitPolicyField(state)).toBe('"workspace";q=500;w=60');
    expect(rateLimitField(state)).toBe('"workspace";r=412;t=1');
    expect(admissionField({ waitedMs: 12, attempts: 1, absorbed: 0, held: [] })).toBe(
      'waited=12, attempts=1, absorbed=0',
    );
  });

  test('name what held a call as an inner list, in whole milliseconds', () => {
    const held = [
      { cause: 'requests', ms: 1_200.4 },
      { cause: 'ceiling_minute', ms: 299.6 },
    ] as const;
    const field = admissionField({ waitedMs: 1_500, attempts: 2, absorbed: 1, held, ahead: 3 });
    expect(field).toBe(
      'waited=1500, attempts=2, absorbed=1, held=(requests;ms=1200 ceiling_minute;ms=300), ahead=3',
    );
    expect(serializeDictionary(parseDictionary(field))).toBe(field);
  });

  test.each([-1, 0, 0.4, 1.6, 1e20, Number.NaN, Number.POSITIVE_INFINITY])(
    'stay parsable integers for %p, and never state more than there is',
    (value) => {
      const state = { limit: value, windowSeconds: value, remaining: value, resetSeconds: value };
      for (const field of [rateLimitPolicyField(state), rateLimitField(state)])
        for (const number of parseList(field)[0]?.[1].values() ?? [])
          expect(Number.isSafeInteger(number)).toBe(true);
      if (value === 1.6) expect(rateLimitField(state)).toBe('"workspace";r=1;t=2');
      expect(
        parseDictionary(admissionField({ waitedMs: value, attempts: value, absorbed: value, held: [] })).size,
      ).toBe(3);
    },
  );

  test.each([
    [60_000, 60],
    [60_001, 61],
    [60_150, 61],
  ])('never state a slot before it is free: in %d ms is t=%d', (nextSlotMs, seconds) => {
    const state = rateLimitOf({ limit: 500, remaining: 0, nextSlotMs });
    expect(state && rateLimitField(state)).toBe(`"workspace";r=0;t=${seconds}`);
  });
});

describe('the numbers in structured fields', () => {
  test.each([0, 1, 59, 500, 10_000, 999_999_999_999_999])(
    'are written as by a general serializer (%d)',
    (n) => {
      const state = { limit: n, windowSeconds: n, remaining: n, resetSeconds: n };
      const list = (first: string, second: string): string =>
        serializeList([
          [
            'workspace',
            new Map([
              [first, n],
              [second, n],
            ]),
          ],
        ]);
      expect(rateLimitPolicyField(state)).toBe(list('q', 'w'));
      expect(rateLimitField(state)).toBe(list('r', 't'));
      expect(admissionField({ waitedMs: n, attempts: n, absorbed: n, held: [] })).toBe(
        serializeDictionary({ waited: n, attempts: n, absorbed: n }),
      );
    },
  );
});

describe('the framing of a response', () => {
  const frame = (status: number, fields: string[], body: number | 'stream', method = 'GET') =>
    outcomeFraming({ method, status, fields, body, replaced: [] });

  test('keeps repeats, order and spelling of the other fields', () => {
    const fields = ['Set-Cookie', 'a=1', 'X-a', 'b', 'set-cookie', 'c=2'];
    expect(frame(200, fields, 'stream')?.fields).toEqual(fields);
  });

  test('replaces the length by that of the bytes in hand', () => {
    expect(frame(200, ['content-length', '99'], 4)).toEqual({
      fields: ['Content-Length', '4'],
      bodiless: false,
      declaredBytes: 4,
    });
  });

  test("keeps a stream's length, and drops one that is no number", () => {
    expect(frame(200, ['Content-Length', '7'], 'stream')?.declaredBytes).toBe(7);
    expect(frame(200, ['Content-Length', '7, 7'], 'stream')).toMatchObject({
      fields: [],
      declaredBytes: null,
    });
  });

  test.each([
    ['HEAD', 200, ['Content-Length', '7']],
    ['GET', 304, ['Content-Length', '7']],
    ['GET', 204, []],
    ['GET', 205, ['Content-Length', '0']],
  ])('has no body for %s with status %d', (method, status, fields) => {
    expect(frame(status, ['Content-Length', '7'], 'stream', method)).toMatchObject({
      bodiless: true,
      fields,
    });
  });

  test('never copies fields that would frame the response a second time', () => {
    expect(frame(200, ['Transfer-Encoding', 'chunked', 'Connection', 'x'], 'stream')?.fields).toEqual([]);
  });

  test.each([0, 99, 101, 199, 600, 999, 200.5, Number.NaN])('refuses status %p', (status) => {
    expect(frame(status, [], 0)).toBeNull();
  });
});
