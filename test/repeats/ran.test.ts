import { brotliCompressSync, deflateSync, gzipSync, zstdCompressSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import { showsThatItRan } from '../../src/repeats/ran.ts';

const json = ['Content-Type', 'application/json; charset=utf-8'];
const stream = ['content-type', 'text/event-stream'];

interface Given {
  readonly status?: number;
  readonly throttled?: boolean;
  readonly rawFields?: readonly string[];
  readonly body?: string | Buffer | null;
}

const ran = ({ status = 200, throttled = false, rawFields = [], body = '' }: Given): boolean =>
  showsThatItRan({
    status,
    throttled,
    rawFields,
    body: body === null ? 'too_large' : Buffer.from(body),
  });

describe('a response shows that its call ran', () => {
  test.each<[string, Given]>([
    ['with any 2xx', { status: 204 }],
    ['when it is too large to be looked at', { body: null }],
    ['when a member `error` says nothing', { rawFields: json, body: '{"id":1,"error":null,"errors":[]}' }],
    [
      'when it has data beside errors',
      { rawFields: json, body: '{"data":{"a":1},"errors":[{"message":"x"}]}' },
    ],
    ['when it is not JSON, whatever it says', { body: '{"error":{"code":500}}' }],
    ['when it is broken JSON', { rawFields: json, body: '{"error":{"code":500}' }],
    [
      'when its stream ends without an error',
      { rawFields: stream, body: 'data: {"a":"error"}\n\ndata: [DONE]\n\n' },
    ],
  ])('%s', (_words, given) => {
    expect(ran(given)).toBe(true);
  });
});

describe('a response does not show that its call ran', () => {
  test.each<[string, Given]>([
    ['with a redirect', { status: 303 }],
    ['with 409', { status: 409 }],
    ['with 500', { status: 500 }],
    ['when it is throttled', { throttled: true }],
    ['when Stripe asks for another try', { rawFields: ['Stripe-Should-Retry', 'true'] }],
    ['when an SDK is asked for another try', { rawFields: ['x-should-retry', 'true'] }],
    ['when its body is an error', { rawFields: json, body: '{"error":{"message":"busy","code":503}}' }],
    ['when its body is an error in words', { rawFields: json, body: '{"error":"invalid_grant"}' }],
    ...(
      [
        ['gzip', gzipSync],
        ['deflate', deflateSync],
        ['br', brotliCompressSync],
        ['zstd', zstdCompressSync],
      ] as const
    ).map(([encoding, compress]): [string, Given] => [
      `when its body is an error, compressed with ${encoding}`,
      {
        rawFields: [...json, 'Content-Encoding', encoding],
        body: compress(Buffer.from('{"error":{"code":429}}')),
      },
    ]),
    ['when its body says that it is not ok', { rawFields: json, body: '{"ok":false}' }],
    [
      'when its body is a list that begins with an error',
      { rawFields: json, body: '[{"error":{"code":400}}]' },
    ],
    ['when it has errors and no data', { rawFields: json, body: '{"data":null,"errors":[{"message":"x"}]}' }],
    ['when its stream has an error event', { rawFields: stream, body: 'event: error\ndata: {}\n\n' }],
    [
      'when its stream breaks off with an error',
      {
        rawFields: stream,
        body: 'data: {"choices":[]}\n\ndata: {"error":{"message":"overloaded"}}\n\n',
      },
    ],
  ])('%s', (_words, given) => {
    expect(ran(given)).toBe(false);
  });
});
