/** How responses are framed: the length announced is the length sent, or there is none. */
import { describe, expect, test } from '@jest/globals';
import { Readable } from 'node:stream';
import { framingOf } from '../../src/ingress/respond.ts';

type Framed = Parameters<typeof framingOf>[1] & { readonly method: string };
const framed = ({ method = 'GET', ...changes }: Partial<Framed>) =>
  framingOf(method, { status: 200, fields: [], body: Readable.from([]), shouldRetry: null, ...changes });
const three = Buffer.alloc(3);
const five = { fields: ['content-length', '5'] };
const length = (bytes: number): string[] => ['Content-Length', String(bytes)];
const others = ['Set-Cookie', 'a=1', 'X-a', 'b', 'set-cookie', 'c=2'];

describe('the framing of a response', () => {
  test.each<[string, Partial<Framed>, boolean, number | null, readonly string[]]>([
    ['keeps the length of a stream', five, false, 5, length(5)],
    ['announces no length that is not a number', { fields: ['content-length', '+5'] }, false, null, []],
    ['announces no length that is a list', { fields: ['Content-Length', '7, 7'] }, false, null, []],
    ['counts a body that is all there', { ...five, body: three }, false, 3, length(3)],
    [
      'of HEAD keeps the length of what is not sent',
      { method: 'HEAD', ...five, body: null },
      true,
      5,
      length(5),
    ],
    ['of 304 keeps the length of what is not sent', { status: 304, ...five, body: null }, true, 5, length(5)],
    ['of 204 has no length', { status: 204, ...five, body: null }, true, null, []],
    ['of 205 has an empty body', { status: 205, ...five, body: three }, true, 0, length(0)],
    [
      'copies no framing',
      { fields: ['Connection', 'x', 'Transfer-Encoding', 'gzip', 'A', 'b'] },
      false,
      null,
      ['A', 'b'],
    ],
    [
      'leaves out what is set here',
      { fields: ['X-Should-Retry', 'x', 'A', 'b'], shouldRetry: true },
      false,
      null,
      ['A', 'b'],
    ],
    ['keeps repeats, order and spelling of all else', { fields: others }, false, null, others],
  ])('%s', (_, changes, bodiless, declaredBytes, fields) => {
    expect(framed(changes)).toEqual({ bodiless, declaredBytes, fields });
  });

  test.each([0, 99, 101, 199, 600, 999, 200.5, Number.NaN])('has no response for status %p', (status) => {
    expect(framed({ status })).toBeNull();
  });
});
