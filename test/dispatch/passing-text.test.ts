/** What is read of a body that passes, and of the start of a stream: bounded, by counts of how often and how much. */
import { PassThrough, Readable } from 'node:stream';
import { text as textOf } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import type { Feedback } from '../../src/call.ts';
import { systemClock, type Clock } from '../../src/clock.ts';
import { PassingText } from '../../src/dispatch/passing-text.ts';
import { streamStart } from '../../src/dispatch/stream-start.ts';

/** In pieces of these sizes, over and over. */
function pieces(bytes: Buffer, sizes: readonly number[]): Buffer[] {
  const all: Buffer[] = [];
  for (let from = 0; from < bytes.length;) {
    const size = sizes[all.length % sizes.length] ?? bytes.length;
    all.push(bytes.subarray(from, from + size));
    from += size;
  }
  return all;
}

/** What is found of `name` in a text that comes in pieces of these sizes. */
function found(text: string, sizes: readonly number[], { name = '"usage', isLine = false } = {}): string[] {
  const all: string[] = [];
  const passing = new PassingText({ name, isLine, onFound: (around) => all.push(around) });
  for (const piece of pieces(Buffer.from(text), sizes)) passing.read(piece);
  passing.flush();
  return all;
}

describe('a member that is sought in a passing text', () => {
  test('is found with all of its value, however the text is cut', () => {
    const usage = '"usage": {"prompt_tokens": 12, "completion_tokens": 34}';
    const filler = fc.stringMatching(/^[a-z{}:,\n \\]{0,40}$/).map((unit) => unit.repeat(200));
    const sizes = fc.array(fc.integer({ min: 1, max: 40_000 }), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(filler, filler, sizes, (head, tail, cut) => {
        expect(found(head + usage + tail, cut)).toEqual([expect.stringContaining(usage)]);
      }),
    );
  });

  test('is found as its whole line, where lines are sought', () => {
    const line = 'data: {"type":"error","error":{"code":429,"message":"later"}}';
    for (const end of ['\n', '\r', '\r\n\r\n']) {
      const text = `data: x${end}`.repeat(3_000) + line + end + `data: y${end}`.repeat(3_000);
      for (const size of [1, 2, 7, 64, 20_000])
        expect(found(text, [size], { name: '"error"', isLine: true })).toEqual([line]);
    }
  });

  test('is given out as soon as its line is over', () => {
    const all: string[] = [];
    const passing = new PassingText({ name: '"error"', isLine: true, onFound: (line) => all.push(line) });
    passing.read(Buffer.from('data: {"error":'));
    expect(all).toEqual([]);
    passing.read(Buffer.from('1}\n'));
    expect(all).toEqual(['data: {"error":1}']);
  });

  test('is read first and last, where a text is full of it', () => {
    const text = Array.from({ length: 50_000 }, (_, n) => `{"usage":{"total_tokens":${n}}}\n`).join('');
    const all = found(text, [65_536]);
    expect([all[0], all.at(-1)]).toEqual([
      expect.stringContaining('"total_tokens":0}'),
      expect.stringContaining('"total_tokens":49999}'),
    ]);
  });
});

describe('a text that says nothing costs next to nothing', () => {
  const mib = 1024 * 1024;
  test.each([
    ['lines of one letter', 'a\n'],
    ['empty lines', '\n'],
    ['comments', ': OPENROUTER PROCESSING\n\n'],
    ['fields without a name', ': \n'],
    ['unknown fields', 'x-y: "usag"\n'],
    ['one line without end', 'data: '],
    ['content', 'data: {"choices":[{"delta":{"content":"\\"error\\": 429, \\"usage\\": {"}}]}\n\n'],
    ['events without data', 'event: error\nid: 7\nretry: soon\n\n'],
    ['carriage returns', '\r'],
    ['zeros', '\0'],
  ])('%s: nothing is read of them', (_, unit) => {
    expect(found(unit.repeat(mib / unit.length), [65_536], { name: '"error"', isLine: true })).toEqual([]);
  });

  test.each([
    ['names alone', '"usage'],
    ['broken objects', '"usage":{x}'],
    ['small objects', '"usage":{}\n'],
    ['nulls', 'data: {"usage":null}\n\n'],
    ['open objects', '"usage":{'],
  ])('of a text full of %s a bounded part is read', (_, unit) => {
    const text = unit.repeat(mib / unit.length);
    for (const size of [unit.length, 4_099, 65_536]) {
      for (const isLine of [true, false]) {
        const all = found(text, [size], { isLine });
        expect(all.length).toBeLessThanOrEqual(32 + mib / 4_096 + 1);
        expect(all.join('').length).toBeLessThan(1.5 * mib);
      }
    }
  });
});

const patient: Clock = { ...systemClock, after: () => () => {} };
const refusal: Feedback = { meters: [], throttle: null, errorStatus: 429 };

/** The start of a text that comes in pieces of this size, and the texts that were judged. */
async function startOf(text: string, size: number, { encoding = '', isError = false } = {}) {
  const judged: string[] = [];
  const judge = (each: string): Feedback | null => {
    judged.push(each);
    return isError && each.endsWith('}') ? refusal : null;
  };
  const bytes = encoding === '' ? Buffer.from(text) : gzipSync(text);
  const body = Readable.from(pieces(bytes, [size]));
  return { ...(await streamStart(body, { encoding, judge }, patient)), judged };
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
  ])('%s is judged a few times, whatever its pieces, and delivered', async (_, text) => {
    for (const size of [1, 7, 4_096, text.length]) {
      const { judged, refusal: refused, body } = await startOf(text, size);
      expect(judged.length).toBeLessThanOrEqual(20);
      expect(judged.join('').length).toBeLessThanOrEqual(3 * 65_536);
      expect(refused).toBeNull();
      expect(await textOf(body)).toBe(text);
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
      for (const size of [1, 5, 1_000])
        expect(await startOf(text, size, { encoding, isError: true })).toMatchObject({ refusal });
    }
  });

  test('is over with the first content, with the end of the stream, and in time', async () => {
    const content = 'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n';
    for (const text of [content, `: x\n\n${content}`, ': x\n\n', ''])
      expect((await startOf(text, 5, { encoding })).refusal).toBeNull();
    const silent = new PassThrough();
    const start = await streamStart(silent, { encoding, judge: () => null }, systemClock);
    expect([start.refusal, start.body]).toEqual([null, silent]);
    silent.destroy();
  });
});
