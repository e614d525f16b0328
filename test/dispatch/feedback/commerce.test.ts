import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../../src/call.ts';
import { costFromTail } from '../../../src/dispatch/feedback/commerce.policy.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';

const learn = (
  callClass: string,
  status: number,
  fields: Record<string, string>,
  body: unknown = null,
): Feedback =>
  learnFrom('commerce', {
    status,
    fields: new Map(Object.entries(fields)),
    body: body === null || typeof body === 'string' ? body : JSON.stringify(body),
    callClass,
    nowMs: 0,
  });
const rest = (status: number, fields: Record<string, string> = {}): Feedback => learn('rest', status, fields);
const graphql = (body: unknown, status = 200): Feedback => learn('graphql', status, {}, body);

describe('the call-limit field', () => {
  test.each([
    'x-commerce-shop-api-call-limit',
    'x-shopify-shop-api-call-limit',
    'http_x_shopify_shop_api_call_limit',
    'shop-api-call-limit',
  ])('is read under the name %s', (name) => {
    expect(rest(200, { [name]: '32/40' }).meters).toEqual([
      { meter: 'requests', limit: 40, windowMs: 20_000, level: { lowest: 31, highest: 32 } },
    ]);
  });

  test('the denominator is the capacity, the leak is a twentieth of it per second', () => {
    expect(rest(200, { 'x-shopify-shop-api-call-limit': '1/400' }).meters).toMatchObject([
      { limit: 400, windowMs: 20_000 },
    ]);
  });

  test('is read once when it comes twice in one line, and the fuller value is believed', () => {
    expect(rest(200, { 'x-shopify-shop-api-call-limit': '3/40, 5/40' }).meters).toMatchObject([
      { level: { lowest: 4, highest: 5 } },
    ]);
  });

  test.each(['', '40', '1/0', 'a/b', '-1/40', '1/40/2', '1.5/40'])(
    'teaches nothing when it says %p',
    (value) => {
      expect(rest(200, { 'x-shopify-shop-api-call-limit': value }).meters).toEqual([]);
    },
  );
});

describe('a REST refusal', () => {
  test('of a full bucket waits for the time that it names', () => {
    const fields = { 'x-shopify-shop-api-call-limit': '40/40', 'retry-after': '2.0' };
    expect(rest(429, fields).throttle).toEqual({ kind: 'rate', waitMs: 2000, meter: 'requests' });
  });

  test('of a full bucket without Retry-After waits until one unit has drained', () => {
    expect(rest(429, { 'x-shopify-shop-api-call-limit': '40/40' }).throttle).toEqual({
      kind: 'rate',
      waitMs: 500,
      meter: 'requests',
    });
  });

  test('of a bucket with room and without Retry-After is attributed to another limit', () => {
    expect(rest(429, { 'x-shopify-shop-api-call-limit': '1/40' }).throttle).toEqual({
      kind: 'secondary',
      waitMs: null,
    });
  });

  test('of a bucket with room and Retry-After is an ordinary rate refusal', () => {
    const fields = { 'x-shopify-shop-api-call-limit': '1/40', 'retry-after': '5' };
    expect(rest(429, fields).throttle).toMatchObject({ kind: 'rate', waitMs: 5000 });
  });

  test('without any hint states no wait', () => {
    expect(rest(429).throttle).toEqual({ kind: 'rate', waitMs: null, meter: null });
  });

  test.each([402, 423, 430, 540])(
    'with status %d is about the state of the shop, in REST and GraphQL',
    (status) => {
      const permanent = { kind: 'permanent', reason: 'store_state', waitMs: null };
      expect(rest(status).throttle).toEqual(permanent);
      expect(graphql(null, status).throttle).toEqual(permanent);
    },
  );

  test.each([503, 529])('with status %d is overload', (status) => {
    expect(rest(status).throttle).toEqual({ kind: 'overload', waitMs: null });
  });

  test.each([200, 303, 400, 404, 422, 500, 502, 504])(
    'is not seen in a response with status %d',
    (status) => {
      expect(rest(status).throttle).toBeNull();
    },
  );
});

const cost = (available: number, actual: number | null = 46) => ({
  cost: {
    requestedQueryCost: 452.0,
    actualQueryCost: actual,
    throttleStatus: { maximumAvailable: 1000.0, currentlyAvailable: available, restoreRate: 50.0 },
  },
});

describe('GraphQL cost', () => {
  test('states the capacity of the bucket, its drain, the requested and the actual cost', () => {
    const reported = graphql({ data: {}, extensions: cost(954) });
    expect(reported).toEqual({
      meters: [{ meter: 'cost', limit: 1000, windowMs: 20_000, level: { lowest: 46, highest: 46 } }],
      throttle: null,
      requestedCost: 452,
      actualCost: 46,
    });
  });

  test('has no actual cost where the response says null', () => {
    expect(graphql({ extensions: cost(202, null) })).not.toHaveProperty('actualCost');
  });

  test('is found at the end of a body that was cut', () => {
    const body = JSON.stringify({ data: { text: '"cost":{"a":1} }'.repeat(900) } }, null, 1).slice(0, -1);
    const whole = `${body}, "extensions": ${JSON.stringify(cost(900), null, 2)} }`;
    expect(costFromTail(whole.slice(-8192))).toMatchObject({ meters: [{ limit: 1000 }], requestedCost: 452 });
    expect(graphql(whole.slice(-8192)).meters).toEqual(graphql(whole).meters);
  });

  test('is read whole although braces and quotes stand inside its strings', () => {
    const whole = JSON.stringify({ extensions: { cost: { note: 'a \\" } {', ...cost(900).cost } } });
    expect(costFromTail(whole.slice(5)).meters).toHaveLength(1);
    expect(
      costFromTail(JSON.stringify({ x: { cost: { note: 'say "}', ...cost(900).cost } } }).slice(5)).meters,
    ).toHaveLength(1);
  });

  test.each(['', '"cost":', '"cost":{', '"cost":{"throttleStatus":{}}', '"cost"'.repeat(5000)])(
    'teaches nothing when the body ends in %.20p',
    (text) => {
      expect(costFromTail(text)).toEqual({ meters: [], throttle: null });
    },
  );

  test.each([0, -5, null, '1000', Infinity])(
    'teaches nothing when the bucket is said to have the size %p',
    (maximumAvailable) => {
      const throttleStatus = { maximumAvailable, currentlyAvailable: 1, restoreRate: 50 };
      expect(graphql({ extensions: { cost: { throttleStatus } } }).meters).toEqual([]);
    },
  );
});

describe('a GraphQL refusal', () => {
  const coded = { message: 'Slow', extensions: { code: 'THROTTLED' } };
  const legacy = { message: 'Throttled' };

  test.each([coded, legacy])('of %j waits for the whole requested cost', (error) => {
    const reported = graphql({ errors: [error], extensions: cost(202, null) });
    expect(reported.throttle).toEqual({ kind: 'rate', waitMs: 5000, meter: 'cost' });
  });

  test('states no wait without a cost', () => {
    expect(graphql({ errors: [coded] }).throttle).toEqual({ kind: 'rate', waitMs: null, meter: 'cost' });
  });

  test('rounds its wait up', () => {
    expect(graphql({ errors: [coded], extensions: cost(451.9995, null) }).throttle?.waitMs).toBe(1);
  });

  test('is not seen in an error beside real data, because the operation ran', () => {
    expect(graphql({ data: { a: { id: 1 }, b: null }, errors: [coded] }).throttle).toBeNull();
    expect(graphql({ data: { cartCreate: null }, errors: [coded] }).throttle).not.toBeNull();
    expect(graphql({ data: null, errors: [coded] }).throttle).not.toBeNull();
  });

  test('of a query that costs too much is permanent, with and without its code', () => {
    const message = 'Query cost is 2003, which exceeds the single query max cost limit (1000).';
    const permanent = { kind: 'permanent', reason: 'max_cost', waitMs: null };
    expect(graphql({ errors: [{ message }] }).throttle).toEqual(permanent);
    expect(graphql({ errors: [{ extensions: { code: 'MAX_COST_EXCEEDED' } }] }).throttle).toEqual(permanent);
  });

  test('is not seen in other errors, which are the client’s', () => {
    expect(graphql({ errors: [{ message: 'Field does not exist' }] }).throttle).toBeNull();
  });

  test('may come with HTTP 429 too', () => {
    expect(graphql({ extensions: cost(202, null) }, 429).throttle).toMatchObject({
      kind: 'rate',
      waitMs: 5000,
    });
    expect(graphql('<html>', 429).throttle).toMatchObject({ kind: 'rate', waitMs: null });
  });
});
