import { describe, expect, test } from '@jest/globals';
import { describeCall } from '../../src/dispatch/estimate.policy.ts';

interface Asked {
  readonly method?: string;
  readonly path?: string;
  readonly fields?: readonly string[];
  readonly form?: string;
}

function described({ method = 'GET', path = '/a', fields = [], form }: Asked) {
  const contentType = form === undefined ? null : 'application/x-www-form-urlencoded';
  const { safe, idempotent } = describeCall('generic', {
    method,
    path,
    contentType,
    rawFields: fields,
    body: Buffer.from(form ?? ''),
  });
  return { safe, idempotent };
}

describe('a call that asks for another method than its own', () => {
  test.each<Asked>([
    { fields: ['X-HTTP-Method-Override', 'POST'] },
    { fields: ['x-http-method-override', 'post'] },
    { fields: ['X_HTTP_METHOD_OVERRIDE', ' POST '] },
    { fields: ['X-HTTP-Method', 'PATCH'] },
    { fields: ['X-Method-Override', 'MERGE'] },
    { fields: ['X-HTTP-Method-Override', 'GET', 'X-HTTP-Method-Override', 'POST'] },
    { fields: ['X-HTTP-Method-Override', 'GET, POST'] },
    { fields: ['X-HTTP-Method-Override', ''] },
    { path: '/a?_method=POST' },
    { path: '/a?x=1&_METHOD=patch' },
    { path: '/a?%5Fmethod=POST' },
    { path: '/a?%5f%6d%65%74%68%6f%64=POST' },
    { path: '/a?X-HTTP-Method-Override=POST' },
    { path: '/a?x=1;_method=POST' },
    { path: '/a?method=post' },
    { fields: ['HTTP-Method-Override', 'POST'] },
    { fields: ['X-Override-Method', 'POST'] },
    { form: 'a=1&_method=POST' },
    { method: 'DELETE', fields: ['X-HTTP-Method-Override', 'POST'] },
    { method: 'PUT', form: '_method=PATCH' },
    { method: 'HEAD', path: '/a?_method=POST' },
  ])('may not run twice where the other one may not: %j', (asked) => {
    expect(described(asked)).toEqual({ safe: false, idempotent: false });
  });

  test.each<[Asked, ReturnType<typeof described>]>([
    [{ fields: ['X-HTTP-Method-Override', 'HEAD'] }, { safe: true, idempotent: true }],
    [{ fields: ['X-HTTP-Method-Override', 'DELETE'] }, { safe: false, idempotent: true }],
    [
      { method: 'PUT', path: '/a?_method=GET' },
      { safe: false, idempotent: true },
    ],
    [
      { method: 'POST', fields: ['X-HTTP-Method-Override', 'GET'] },
      { safe: false, idempotent: false },
    ],
  ])('counts as both: %j', (asked, expected) => {
    expect(described(asked)).toEqual(expected);
  });

  test.each<Asked>([
    { path: '/a?payment_method=POST&method=flickr.photos.search' },
    { path: '/a_method=POST?x=%20' },
    { fields: ['X-Payment-Method', 'card', 'Access-Control-Request-Method', 'POST'] },
    { form: 'shipping_method=POST' },
  ])('is no call that only names some method: %j', (asked) => {
    expect(described(asked)).toEqual({ safe: true, idempotent: true });
  });
});
