/** What of a call tells its quota from others: each word of `bucketBy`. */
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import { dialectOf } from '../../src/config/speaks.ts';
import { callFormOf, separatorsOf } from '../../src/journey/separators.policy.ts';
import type { CallRequest } from '../../src/dispatch/estimate.policy.ts';

interface Sent extends Partial<Omit<CallRequest, 'body'>> {
  readonly body?: string | Buffer;
}

function valueOf(word: string, { body = '', ...sent }: Sent): string | undefined {
  const { separators } = dialectOf({ bucketBy: ['credential', word] }).dialect;
  const call = { method: 'GET', path: '/', contentType: null, rawFields: [], ...sent };
  return separatorsOf(separators, { ...call, body: Buffer.from(body) })[0];
}

test.each([
  ['/orders/v0/orders/17/orderItems', '/orders/v0/orders/{}/orderItems'],
  ['/orders/v0/orders/18/orderItems?next=1', '/orders/v0/orders/{}/orderItems'],
  ['/orders/v0/orders/18/orderItems/more', '/orders/v0/orders/{}/orderItems'],
  ['/orders/v0/orders/18/address', ''],
  ['/orders/v0/orders//orderItems', ''],
  ['/orders/v0/orders/18', ''],
])('a segment of a path that does not separate stands for any: %s', (path, value) => {
  expect(valueOf('path:/orders/v0/orders/{}/orderItems', { path })).toBe(value);
});

test('a path has segments that separate and others that do not', () => {
  const at = (path: string) => valueOf('path:/api/{}/channels/{*}', { path });
  expect([at('/api/v9/channels/1/messages'), at('/api/v10/channels/1')]).toEqual([
    '/api/{}/channels/1',
    '/api/{}/channels/1',
  ]);
  expect(at('/api/v10/channels/2')).toBe('/api/{}/channels/2');
});

test('a method, a header, and what a call does not have', () => {
  expect(valueOf('method', { method: 'PATCH' })).toBe('PATCH');
  expect(valueOf('header:x-org', { rawFields: ['X-Org', 'acme'] })).toBe('acme');
  expect([valueOf('header:x-org', {}), valueOf('form:channel', {}), valueOf('body:/a', {})]).toEqual([
    '',
    '',
    '',
  ]);
});

describe('a field of a form', () => {
  const urlencoded = 'application/x-www-form-urlencoded; charset=utf-8';
  const multipart = 'multipart/form-data; boundary=b';
  const parts = (...fields: readonly (readonly [string, string])[]): string =>
    `${fields.map(([head, value]) => `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${value}\r\n`).join('')}--b--\r\n`;

  test.each<readonly [string, Sent, string]>([
    ['of a query', { contentType: urlencoded, body: 'text=a%20b&channel=C%2F1&channel=C2' }, 'C/1'],
    [
      'of several parts',
      { contentType: multipart, body: parts(['name="text"', 'a'], ['name="channel"', 'C1']) },
      'C1',
    ],
    ['that is a file', { contentType: multipart, body: parts(['name="channel"; filename="f"', 'C1']) }, ''],
    ['in a body of another type', { contentType: 'text/plain', body: 'channel=C1' }, ''],
  ])('%s', (_, sent, value) => {
    expect(valueOf('form:channel', sent)).toBe(value);
  });
});

describe('a member of a body', () => {
  const json = (channel: unknown, more = ''): string => JSON.stringify({ more, message: { channel } });

  test.each<readonly [string, Sent, string]>([
    ['that is a text', { body: json('C1') }, 'C1'],
    ['that is a number', { body: json(7) }, '7'],
    ['that is an object', { body: json({ id: 1 }) }, ''],
    ['of half a megabyte', { body: json('C1', 'x'.repeat(500_000)) }, 'C1'],
    ['that is compressed', { body: gzipSync(json('C1')), rawFields: ['Content-Encoding', 'gzip'] }, 'C1'],
    ['that is no JSON', { body: '{"message":' }, ''],
    [
      'below a form, which has none',
      { contentType: 'application/x-www-form-urlencoded', body: 'message=a&channel=C1' },
      '',
    ],
  ])('%s', (_, sent, value) => {
    expect(valueOf('body:/message/channel', sent)).toBe(value);
  });
});

test('a member of the first level, in a form', () => {
  const contentType = 'application/x-www-form-urlencoded';
  expect(valueOf('body:/channel', { contentType, body: 'text=a&channel=C1' })).toBe('C1');
});

test.each([
  ['GET', '/repos/acme/shop/issues/17?state=open', 'GET/repos/acme/shop/issues/{}'],
  ['POST', '/v1/runs/7f9c24e8-3b12-4fa0-91c0-0f2d6f0a1b2c', 'POST/v1/runs/{}'],
  ['GET', '/v2/search/code', 'GET/v2/search/code'],
])('calls of one form do the same to other things: %s %s', (method, path, form) => {
  expect(callFormOf({ method, path })).toBe(form);
});

test('a form has a bound', () => {
  expect(callFormOf({ method: 'GET', path: `/${'a/'.repeat(5_000)}` })).toHaveLength(256);
});

test.each([
  ['path:/v1/{x}', 'tells no quotas apart'],
  ['path:/v1/a{}', 'tells no quotas apart'],
  ['form:', 'tells no quotas apart'],
  ['answer:', 'tells no quotas apart'],
  ['methods', 'tells no quotas apart'],
])('%s is refused', (word, message) => {
  expect(() => dialectOf({ bucketBy: ['credential', word] })).toThrow(message);
});

test('responses name the quota in one field at most', () => {
  expect(() => dialectOf({ bucketBy: ['credential', 'answer:x-a', 'answer:x-b'] })).toThrow(
    'several fields of responses',
  );
});
