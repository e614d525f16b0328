import { expect, test } from '@jest/globals';
import { upstreamIdOf } from '../../src/dispatch/response-fields.policy.ts';

test.each([
  [['X-Request-Id', 'req_0123abcd'], 'req_0123abcd'],
  [['request-id', 'req_011CSHoEeqs5C35K2UUqR7Fy'], 'req_011CSHoEeqs5C35K2UUqR7Fy'],
  [['apim-request-id', '6b0e-42'], '6b0e-42'],
  [['Request-Id', 'b', 'X-Request-Id', 'a'], 'a'],
  [['x-request-id', 'a b', 'request-id', 'c'], 'c'],
  [['x-request-id', 'x'.repeat(129)], null],
  [['x-request-id', ''], null],
  [['content-type', 'text/plain'], null],
  [['x-request-id'], null],
])('the request id of an upstream is read from the fields %j as %p', (rawFields, id) => {
  expect(upstreamIdOf(rawFields)).toBe(id);
});
