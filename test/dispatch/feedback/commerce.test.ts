/** What a shop's call-limit field, GraphQL cost and refusals teach. */
import { describe, expect, test } from '@jest/globals';
import { costFromTail } from '../../../src/dispatch/feedback/commerce.policy.ts';
import { dayMs, learn, throttleOf } from './learning.ts';

const field = 'x-shopify-shop-api-call-limit';
const rest = (status: number, fields = {}) => learn('commerce', { status, fields, callClass: 'rest' });
const graphql = (body: unknown, status = 200) => learn('commerce', { status, body, callClass: 'graphql' });
const rate = (waitMs: number | null, meter: string | null) => ({ kind: 'rate', waitMs, meter });
const permanent = (reason: string) => ({ kind: 'permanent', reason, waitMs: null });

describe('the call-limit field', () => {
  test.each([
    field,
    'x-commerce-shop-api-call-limit',
    'http_x_shopify_shop_api_call_limit',
    'shop-api-call-limit',
  ])('states how much of the bucket is used, which drains in 20 s: %s', (name) => {
    expect(rest(200, { [name]: '32/40' }).meters).toEqual([
      { meter: 'requests', limit: 40, windowMs: 20_000, level: { lowest: 31, highest: 32 } },
    ]);
  });

  test.each([
    ['1/400', 400, 0, 1],
    ['3/40, 5/40', 40, 4, 5],
    ['41/40', 40, 40, 40],
    ['9999999/1', 1, 1, 1],
  ])('that says %s means a limit of %d and from %d to %d calls', (said, limit, lowest, highest) => {
    const expected = { limit, windowMs: 20_000, level: { lowest, highest } };
    expect(rest(200, { [field]: said }).meters).toMatchObject([expected]);
  });

  test.each(['', '40', '1/0', 'a/b', '-1/40', '1/40/2', '1.5/40'])(
    'teaches nothing when it says %p',
    (said) => expect(rest(200, { [field]: said }).meters).toEqual([]),
  );
});

describe('a refusal', () => {
  test.each([
    ['of a full bucket waits until one unit has drained', '40/40', null, rate(500, 'requests')],
    ['of a bucket with room waits for the time that it names', '1/40', '5', rate(5_000, 'requests')],
    ['without any hint states no wait', null, null, rate(null, null)],
  ])('%s', (_, limit, seconds, throttle) => {
    const fields = { ...(limit && { [field]: limit }), ...(seconds && { 'retry-after': seconds }) };
    expect(rest(429, fields).throttle).toMatchObject(throttle);
  });

  test.each([402, 423, 430, 540])('with status %d is about the state of the shop', (status) => {
    expect(rest(status).throttle).toEqual(permanent('store_state'));
    expect(graphql(null, status).throttle).toEqual(permanent('store_state'));
  });

  test.each([503, 529])('with status %d is overload', (status) => {
    expect(rest(status).throttle).toEqual({ kind: 'overload', waitMs: null });
  });

  test.each([200, 303, 400, 404, 422, 500, 502, 504])('is not seen in a response with status %d', (status) =>
    expect(rest(status).throttle).toBeNull(),
  );
});

const status = (maximumAvailable: unknown, currentlyAvailable: number, restoreRate: number, more = {}) => ({
  cost: { ...more, throttleStatus: { maximumAvailable, currentlyAvailable, restoreRate } },
});
const asked = (available: number, actual: number | null = 46) =>
  status(1_000, available, 50, { requestedQueryCost: 452, actualQueryCost: actual });

describe('GraphQL cost', () => {
  test('is found at the end of a body that was cut', () => {
    const body = JSON.stringify({ data: { text: '"cost":{"a":1} }'.repeat(900) } }, null, 1).slice(0, -1);
    const whole = `${body}, "extensions": ${JSON.stringify(asked(900), null, 2)} }`;
    const found = { meters: [{ limit: 1_000 }], requestedCost: 452 };
    expect(costFromTail(whole.slice(-8_192))).toMatchObject(found);
    expect(graphql(whole.slice(-8_192)).meters).toEqual(graphql(whole).meters);
  });

  test.each(['a \\" } {', 'say "}'])('is read whole although its strings hold %s', (note) => {
    const cut = JSON.stringify({ extensions: { cost: { note, ...asked(900).cost } } }).slice(5);
    expect(costFromTail(cut).meters).toHaveLength(1);
  });

  test.each(['', '"cost":', '"cost":{', '"cost":{"throttleStatus":{}}', '"cost"'.repeat(5_000)])(
    'teaches nothing when the body ends in %.20p',
    (text) => expect(costFromTail(text)).toEqual({ meters: [], throttle: null }),
  );

  test.each([
    status(0, 1, 50),
    status(-5, 1, 50),
    status(null, 1, 50),
    status('1000', 1, 50),
    status(Number.MIN_VALUE, 0, Number.MAX_VALUE),
    status(Number.MAX_VALUE, 0, 1e-10),
  ])('teaches nothing of a bucket that cannot be: %j', (extensions) => {
    expect(graphql({ data: { shop: {} }, extensions }).meters).toEqual([]);
  });

  test.each([1e-9, Number.MIN_VALUE])('drains within a day, even where %d a second is restored', (rate) =>
    expect(graphql({ extensions: status(1_000, 0, rate) }).meters).toMatchObject([{ windowMs: dayMs }]),
  );

  test('is no more than a full bucket', () => {
    const costs = { requestedQueryCost: 1e308, actualQueryCost: 1e300 };
    const body = JSON.stringify({ extensions: status(1_000, 990, 50, costs) });
    expect(graphql(body)).toMatchObject({ requestedCost: 1_000, actualCost: 1_000 });
    expect(costFromTail(body)).toMatchObject({ requestedCost: 1_000, actualCost: 1_000 });
  });
});

describe('a GraphQL refusal', () => {
  const coded = { message: 'Slow', extensions: { code: 'THROTTLED' } };
  const tooMuch = 'Query cost is 2003, which exceeds the single query max cost limit (1000).';
  const tooMuchByCode = { extensions: { code: 'MAX_COST_EXCEEDED' } };
  const extensions = asked(202, null);
  const tooSmall = status(400, 400, 50, { requestedQueryCost: 452, actualQueryCost: null });
  test.each<[string, object, object | null]>([
    ['waits for the whole requested cost', { errors: [coded], extensions }, rate(5_000, 'cost')],
    ['rounds its wait up', { errors: [coded], extensions: asked(451.9995, null) }, rate(1, 'cost')],
    ['beside real data ran', { data: { a: { id: 1 }, b: null }, errors: [coded] }, null],
    ['beside empty data did not run', { data: { cartCreate: null }, errors: [coded] }, rate(null, 'cost')],
    ['beside no data did not run', { data: null, errors: [coded] }, rate(null, 'cost')],
    ['of too great a cost is permanent', { errors: [{ message: tooMuch }] }, permanent('max_cost')],
    ['has a code for that', { errors: [tooMuchByCode] }, permanent('max_cost')],
    ['of more than a whole bucket, too', { errors: [coded], extensions: tooSmall }, permanent('max_cost')],
    ['is no other error', { errors: [{ message: 'Field does not exist' }] }, null],
  ])('%s: %j', (_, body, throttle) => expect(graphql(body).throttle).toEqual(throttle));

  test.each<[unknown, number | null]>([
    [{ extensions }, 5_000],
    ['<html>', null],
  ])('may come with HTTP 429 too: %j', (body, waitMs) => {
    expect(throttleOf('commerce', { body, callClass: 'graphql' })).toMatchObject({ kind: 'rate', waitMs });
  });
});
