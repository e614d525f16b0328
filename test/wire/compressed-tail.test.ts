/** What is read beside a response, of whatever it decodes to, is bounded by counts: bytes decoded, decoders at work. */
import { randomBytes } from 'node:crypto';
import { PassThrough, Readable } from 'node:stream';
import * as zlib from 'node:zlib';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { afterEach, describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { systemClock, type Clock } from '../../src/clock.ts';
import { decodersNow, readInPassing } from '../../src/dispatch/read-response.ts';
import { textOf } from '../../src/dispatch/request-body.policy.ts';
import { until } from '../support/until.ts';

/** The threads of a busy machine may be late: nobody gives up waiting for them here. */
const clock: Clock = { ...systemClock, after: () => () => {} };
const mib = 1024 * 1024;

/** Delivers a body and reads it in passing: bytes that were delivered, and the texts that were read of them. */
async function deliver(
  body: readonly Buffer[] | Readable,
  encoding: string,
): Promise<{ bytes: number; texts: string[] }> {
  const texts: string[] = [];
  let bytes = 0;
  const source = body instanceof Readable ? body : Readable.from(body);
  const passing = readInPassing(source, { encoding, onText: (text) => texts.push(text) }, clock);
  for await (const chunk of passing.body) if (Buffer.isBuffer(chunk)) bytes += chunk.length;
  passing.flush();
  return { bytes, texts };
}

const piecesOf = (bytes: Buffer, size: number): Buffer[] =>
  Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) =>
    bytes.subarray(at * size, (at + 1) * size),
  );
const zeros = (bytes: number): Buffer => Buffer.alloc(bytes, ' ');
const hex = (bytes: number): string => randomBytes(bytes).toString('hex');
const brotli = (bytes: Buffer | string): Buffer =>
  zlib.brotliCompressSync(bytes, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 3 } });
type Pack = (bytes: Buffer | string) => Buffer;
const codings: readonly (readonly [string, Pack])[] = [
  ['gzip', gzipSync],
  ['x-gzip', gzipSync],
  ['deflate', zlib.deflateSync],
  ['deflate', zlib.deflateRawSync],
  ['br', brotli],
  ['zstd', zstdCompressSync],
];

afterEach(() => until(() => decodersNow() === 0));

test('what is sought in a passing text is whole in one of the texts that are read, however it is cut', () => {
  const sizes = fc.integer({ min: 1, max: 40_000 });
  const filler = fc.integer({ min: 0, max: 100_000 }).map((length) => 'é{"\n'.repeat(length / 4));
  return fc.assert(
    fc.asyncProperty(filler, filler, sizes, async (head, tail, size) => {
      const sought = `"usage": {"prompt_tokens": 12, "more": "${'x'.repeat(4_000)}"}`;
      const { texts } = await deliver(piecesOf(Buffer.from(head + sought + tail), size), '');
      expect(texts.some((text) => text.includes(sought))).toBe(true);
    }),
    { numRuns: 30 },
  );
});

describe.each(codings)('a body in %s', (encoding, pack) => {
  test('is decoded while it is delivered, and has been decoded when its end is', async () => {
    const text = `${hex(50_000)}the end`;
    const packed = pack(text);
    const { bytes, texts } = await deliver(piecesOf(packed, 1_000), encoding.toUpperCase());
    expect([bytes, texts.at(-1)?.endsWith('the end')]).toEqual([packed.length, true]);
  });

  test('is given up where it decodes to far more than was received, and is delivered all the same', async () => {
    const bomb = pack(zeros(2 * mib));
    const { bytes, texts } = await deliver([bomb], encoding);
    expect(bytes).toBe(bomb.length);
    expect(texts.join('').length).toBeLessThan(mib);
  });

  test('is given up with its client', async () => {
    const source = new PassThrough();
    const { body } = readInPassing(source, { encoding, onText: () => {} }, clock);
    body.resume();
    source.write(pack('x'.repeat(1_000)).subarray(0, 10));
    await until(() => decodersNow() === 1);
    body.destroy();
    await until(() => decodersNow() === 0);
    expect(source.destroyed).toBe(true);
  });

  test('that breaks off is delivered as far as it came', async () => {
    const packed = pack(randomBytes(1_000));
    expect((await deliver([packed.subarray(0, 900)], encoding)).bytes).toBe(900);
  });

  test('is read as a whole up to 256 KiB', () => {
    expect(textOf(pack('a small text'), encoding)).toBe('a small text');
    for (const packed of [pack(hex(140_000)), pack('a text').subarray(0, 5), pack(zeros(mib))])
      expect(textOf(packed, encoding)).toBeNull();
  });
});

test.each([
  [' Identity ', ['as it is']],
  ['compress', []],
  ['gzip, gzip', []],
  ['constructor', []],
])('a body in the coding %j is delivered without a decoder', async (encoding, texts) => {
  expect(await deliver([Buffer.from('as it is')], encoding)).toEqual({ bytes: 8, texts });
});

test('a body whose decoding is late ends without it', async () => {
  const packed = gzipSync('x'.repeat(1_000));
  const late: Clock = {
    ...systemClock,
    after: (_ms, run) => {
      run();
      return () => {};
    },
  };
  const source = new PassThrough();
  const { body } = readInPassing(source, { encoding: 'gzip', onText: () => {} }, late);
  source.end(packed);
  expect(Buffer.concat((await body.toArray()) as Buffer[])).toEqual(packed);
});

test('very many bodies at once have a bounded number of decoders, and all are delivered', async () => {
  const sources = Array.from({ length: 300 }, () => new PassThrough());
  const bodies = sources.map((source) => deliver(source, 'gzip'));
  const packed = gzipSync('x'.repeat(1_000));
  for (const source of sources) source.write(packed.subarray(0, 10));
  expect(decodersNow()).toBe(100);
  for (const source of sources) source.end(packed.subarray(10));
  const lengths = (await Promise.all(bodies)).map(({ bytes }) => bytes);
  expect(new Set(lengths)).toEqual(new Set([packed.length]));
});
