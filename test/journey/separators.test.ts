/** What of a call tells its quota from others: each word of `bucketBy`. */
import { gzipSync } from 'node:zlib';
import { expect, jest, test } from '@jest/globals';
import { buildDialect, speaks } from '../../src/config/speaks.ts';
import type { CallRequest } from '../../src/dispatch/estimate.policy.ts';
import { callFormOf, separatorsOf } from '../../src/journey/call-bucket.ts';

interface Sent extends Partial<Omit<CallRequest, 'body'>> {
  readonly body?: string | Buffer;
}

function valueOf(word: string, { body = '', ...sent }: Sent): string | undefined {
  const { separators } = buildDialect(speaks.parse({ bucketBy: ['credential', word] })).dialect;
  const call = { method: 'GET', path: '/', contentType: null, rawFields: [], ...sent };
  return separatorsOf(separators, { ...call, body: Buffer.from(body) })[0];
}

const urlencoded = 'application/x-www-form-urlencoded; charset=utf-8';
const multipart = 'multipart/form-data; boundary=b';
const parts = (...fields: readonly (readonly [string, string])[]): string =>
  `${fields.map(([head, value]) => `--b\r\ncontent-disposition: form-data; ${head}\r\n\r\n${value}\r\n`).join('')}--b--\r\n`;
const json = (channel: unknown, more = ''): string => JSON.stringify({ more, message: { channel } });
const gzipped = { body: gzipSync(json('C1')), rawFields: ['Content-Encoding', 'gzip'] };

const items = 'path:/orders/v0/orders/{}/orderItems';
const channels = 'path:/api/{}/channels/{*}';
const member = 'body:/message/channel';
test.each<[what: string, word: string, Sent, value: string]>([
  ['a path with any segment', items, { path: '/orders/v0/orders/17/orderItems' }, items.slice(5)],
  ['a path with a query', items, { path: '/orders/v0/orders/18/orderItems?next=1' }, items.slice(5)],
  ['a longer path', items, { path: '/orders/v0/orders/18/orderItems/more' }, items.slice(5)],
  ['a path with another segment', items, { path: '/orders/v0/orders/18/address' }, ''],
  ['a path with an empty segment', items, { path: '/orders/v0/orders//orderItems' }, ''],
  ['a shorter path', items, { path: '/orders/v0/orders/18' }, ''],
  ['a segment that separates', channels, { path: '/api/v9/channels/1/messages' }, '/api/{}/channels/1'],
  ['the same, elsewhere', channels, { path: '/api/v10/channels/1' }, '/api/{}/channels/1'],
  ['another one', channels, { path: '/api/v10/channels/2' }, '/api/{}/channels/2'],
  ['a method', 'method', { method: 'PATCH' }, 'PATCH'],
  ['a header', 'header:x-org', { rawFields: ['X-Org', 'acme'] }, 'acme'],
  ['a header that is not there', 'header:x-org', {}, ''],
  ['a form that is not there', 'form:channel', {}, ''],
  ['a body that is not there', 'body:/a', {}, ''],
  ['a form', 'form:channel', { contentType: urlencoded, body: 'text=a%20b&channel=C%2F1&channel=C2' }, 'C/1'],
  [
    'a part',
    'form:channel',
    { contentType: multipart, body: parts(['name="a"', 'a'], ['name="channel"', 'C1']) },
    'C1',
  ],
  [
    'a file',
    'form:channel',
    { contentType: multipart, body: parts(['name="channel"; filename="f"', 'C1']) },
    '',
  ],
  ['another type', 'form:channel', { contentType: 'text/plain', body: 'channel=C1' }, ''],
  ['a text of a body', member, { body: json('C1') }, 'C1'],
  ['a number of a body', member, { body: json(7) }, '7'],
  ['an object of a body', member, { body: json({ id: 1 }) }, ''],
  ['half a megabyte', member, { body: json('C1', 'x'.repeat(500_000)) }, 'C1'],
  ['a compressed body', member, gzipped, 'C1'],
  ['a body that is no JSON', member, { body: '{"message":' }, ''],
  [
    'a member below a form, which has none',
    member,
    { contentType: urlencoded, body: 'message=a&channel=C1' },
    '',
  ],
  [
    'a member of the first level, in a form',
    'body:/channel',
    { contentType: urlencoded, body: 'a=a&channel=C1' },
    'C1',
  ],
])('%s has a value, or none: %s', (_what, word, sent, value) => expect(valueOf(word, sent)).toBe(value));

test.each([
  ['GET', '/repos/acme/shop/issues/17?state=open', 'GET/repos/acme/shop/issues/{}'],
  ['POST', '/v1/runs/7f9c24e8-3b12-4fa0-91c0-0f2d6f0a1b2c', 'POST/v1/runs/{}'],
  ['GET', '/v2/search/code', 'GET/v2/search/code'],
  ['GET', `/${'a/'.repeat(5_000)}`, `GET/${'a/'.repeat(126)}`],
])('calls of one form do the same to other things: %s %s', (method, path, form) => {
  expect(callFormOf({ method, path })).toBe(form);
});

test.each([
  [['path:/v1/{x}'], 'tells no quotas apart'],
  [['path:/v1/a{}'], 'tells no quotas apart'],
  [['form:'], 'tells no quotas apart'],
  [['answer:'], 'tells no quotas apart'],
  [['methods'], 'tells no quotas apart'],
  [['answer:x-a', 'answer:x-b'], 'several fields of responses'],
])('%j is refused', (words, message) => {
  expect(() => buildDialect(speaks.parse({ bucketBy: ['credential', ...words] }))).toThrow(message);
});

test('a body is read once, however many of its members separate', () => {
  const bucketBy = ['credential', 'body:/a', 'body:/b', 'form:c', 'form:d'];
  const { separators } = buildDialect(speaks.parse({ bucketBy })).dialect;
  const body = gzipSync('{"a":1,"b":"x"}');
  const read = jest.spyOn(JSON, 'parse');
  const rawFields = ['Content-Encoding', 'gzip'];
  const call = { method: 'POST', path: '/', contentType: null, rawFields, body };
  expect(separatorsOf(separators, call)).toEqual(['1', 'x', '', '']);
  expect(read).toHaveBeenCalledTimes(1);
  read.mockRestore();
});
