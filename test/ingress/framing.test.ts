/** How responses are framed: the length announced is the length sent, or there is none. */
import { describe, expect, test } from '@jest/globals';
import { outcomeFraming, type Framed, type Framing } from '../../src/ingress/framing.policy.ts';

const framed = (changes: Partial<Framed>): Framing | null =>
  outcomeFraming({ method: 'GET', status: 200, fields: [], body: 'stream', replaced: [], ...changes });
function lengths(changes: Partial<Framed>): readonly [boolean, number | null, readonly string[]] | null {
  const framing = framed(changes);
  return framing === null ? null : [framing.bodiless, framing.declaredBytes, framing.fields];
}
const long = ['content-length', '5'];

describe('the framing of a response', () => {
  test.each([
    ['keeps the length of a stream', { fields: long }, [false, 5, ['Content-Length', '5']]],
    ['announces no length that is not a number', { fields: ['content-length', '+5'] }, [false, null, []]],
    ['counts a body that is all there', { fields: long, body: 3 }, [false, 3, ['Content-Length', '3']]],
    [
      'of HEAD keeps the length of what is not sent',
      { method: 'HEAD', fields: long, body: 0 },
      [true, 5, ['Content-Length', '5']],
    ],
    [
      'of 304 keeps the length of what is not sent',
      { status: 304, fields: long, body: 0 },
      [true, 5, ['Content-Length', '5']],
    ],
    ['of 204 has no length', { status: 204, fields: long, body: 0 }, [true, null, []]],
    ['of 205 has an empty body', { status: 205, fields: long, body: 3 }, [true, 0, ['Content-Length', '0']]],
    [
      'copies no framing',
      { fields: ['Connection', 'x', 'Transfer-Encoding', 'gzip', 'A', 'b'] },
      [false, null, ['A', 'b']],
    ],
    [
      'leaves out what is set here',
      { fields: ['Via', 'x', 'A', 'b'], replaced: ['via'] },
      [false, null, ['A', 'b']],
    ],
  ] as const)('%s', (_what, changes, expected) => {
    expect(lengths(changes)).toEqual(expected);
  });

  test.each([101, 199, 600, 200.5])('has no response for status %d', (status) => {
    expect(framed({ status })).toBeNull();
  });
});
