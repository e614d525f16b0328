/** What is read of the start of a stream is bounded, by counts: how often it is judged, and how much of it is held. */
import { PassThrough, Readable } from 'node:stream';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import type { Feedback } from '../../src/call.ts';
import { systemClock, type Clock } from '../../src/clock.ts';
import { streamStart, type StreamStart } from '../../src/dispatch/stream-start.ts';

const patient: Clock = { ...systemClock, after: () => () => {} };
const refusal: Feedback = { meters: [], throttle: null, errorStatus: 429 };

/** The start of a text that comes in pieces of this size, and the texts that were judged. */
async function startOf(
  text: string,
  size: number,
  { encoding = '', isError = false, clock = patient } = {},
): Promise<StreamStart & { readonly judged: readonly string[] }> {
  const judged: string[] = [];
  const judge = (each: string): Feedback | null => {
    judged.push(each);
    return isError && each.endsWith('}') ? refusal : null;
  };
  const bytes = encoding === '' ? Buffer.from(text) : gzipSync(text);
  const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) =>
    bytes.subarray(at * size, (at + 1) * size),
  );
  return { ...(await streamStart(Readable.from(pieces), { encoding, judge }, clock)), judged };
}

async function textOf(body: Readable): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of body) chunks.push(Buffer.from(chunk));
  return Buffer.concat(chunks).toString();
}

describe('the start of a stream of junk', () => {
  test.each([
    ['a document in many pieces', `{"error":${' '.repeat(60_000)}`],
    ['an endless list', `[${'{"error":1},'.repeat(4_000)}`],
    ['errors that are none', 'data: {"type":"ping","error":1}\n\n'.repeat(2_000)],
    ['blanks', ' '.repeat(60_000)],
    ['lines of one letter', 'a\n'.repeat(30_000)],
    ['comments', ': x\n\n'.repeat(12_000)],
    ['one line', `data: ${'"error"'.repeat(8_000)}`],
  ])('%s is judged a few times, whatever its pieces, and delivered', async (_name, text) => {
    for (const size of [1, 7, 4_096, text.length]) {
      const start = await startOf(text, size);
      expect(start.judged.length).toBeLessThanOrEqual(20);
      expect(start.judged.join('').length).toBeLessThanOrEqual(3 * 65_536);
      expect(start.refusal).toBeNull();
      expect(await textOf(start.body)).toBe(text);
    }
  });

  test('is held up to 64 KiB', async () => {
    const body = new PassThrough({ highWaterMark: 1 << 20 });
    const held = streamStart(body, { encoding: '', judge: () => null }, patient);
    body.write(': x\n'.repeat(16_384));
    expect((await held).refusal).toBeNull();
    body.destroy();
  });
});

describe.each(['', 'gzip'])('the start of a stream in the coding %j', (encoding) => {
  test('is refused with an error in any pieces', async () => {
    for (const text of ['data: {"error":{"code":429}}\n\n', '{"error":\n{"code":429}}']) {
      for (const size of [1, 5, 1_000]) {
        expect(await startOf(text, size, { encoding, isError: true })).toMatchObject({ refusal });
      }
    }
  });

  test('is over with the first content, with the end of the stream, and in time', async () => {
    const content = 'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n';
    for (const text of [content, `: x\n\n${content}`, ': x\n\n', '']) {
      expect((await startOf(text, 5, { encoding })).refusal).toBeNull();
    }
    const silent = new PassThrough();
    const start = await streamStart(silent, { encoding, judge: () => null }, systemClock);
    expect([start.refusal, start.body]).toEqual([null, silent]);
    silent.destroy();
  });
});
