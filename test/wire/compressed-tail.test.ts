/** What is read beside a response, of whatever it decodes to, is bounded by counts: bytes decoded, decoders at work. */
import { randomBytes } from 'node:crypto';
import { PassThrough, Readable } from 'node:stream';
import * as zlib from 'node:zlib';
import { brotliCompressSync, gzipSync, zstdCompressSync } from 'node:zlib';
import { afterEach, describe, expect, test } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { decoded, decoderFor, decodingNow } from '../../src/dispatch/decoding.ts';
import { readInPassing } from '../../src/dispatch/inspect.ts';
import { until } from '../support/until.ts';

/** The threads of a busy machine may be late: nobody gives up waiting for them here. */
const clock: Clock = { ...systemClock, after: () => () => {} };
const mib = 1024 * 1024;

interface Delivered {
  /** Bytes that were delivered. */
  readonly bytes: number;
  /** What was decoded of them, and how often its end was seen. */
  readonly text: string;
  readonly ends: number;
}
/** Delivers a body and reads it in passing. */
async function deliver(body: readonly Buffer[] | Readable, encoding: string): Promise<Delivered> {
  let [bytes, text, ends] = [0, '', 0];
  const reader = {
    read: (part: Buffer): void => void (text += part.toString()),
    flush: (): void => void (ends += 1),
  };
  const source = body instanceof Readable ? body : Readable.from(body);
  for await (const chunk of readInPassing(source, encoding, reader, clock))
    if (Buffer.isBuffer(chunk)) bytes += chunk.length;
  return { bytes, text, ends };
}
/** A body whose client leaves when the first bytes of it are being decoded by so many decoders. */
async function leaving(first: Buffer, encoding: string, decoders: number): Promise<void> {
  const source = new PassThrough();
  const body = readInPassing(source, encoding, { read: () => {}, flush: () => {} }, clock).resume();
  source.write(first);
  await until(() => decodingNow().alive === decoders);
  body.destroy();
  await until(() => decodingNow().alive === 0);
  expect(source.destroyed).toBe(true);
}

const piecesOf = (bytes: Buffer, size: number): Buffer[] =>
  Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) =>
    bytes.subarray(at * size, (at + 1) * size),
  );
const zeros = (bytes: number): Buffer => Buffer.alloc(bytes, ' ');
const hex = (bytes: number): string => randomBytes(bytes).toString('hex');
const brotli = (bytes: Buffer | string, bits = 22): Buffer =>
  brotliCompressSync(bytes, {
    params: { [zlib.constants.BROTLI_PARAM_LGWIN]: bits, [zlib.constants.BROTLI_PARAM_QUALITY]: 3 },
  });
/** What has been decoded since. */
function decodedSince(): () => number {
  const before = decodingNow().decodedBytes;
  return () => decodingNow().decodedBytes - before;
}
type Pack = (bytes: Buffer | string) => Buffer;
const codings: readonly (readonly [string, Pack, number])[] = [
  ['gzip', gzipSync, 1],
  ['x-gzip', gzipSync, 1],
  ['deflate', zlib.deflateSync, 1],
  ['deflate', zlib.deflateRawSync, 1],
  ['br', brotli, 1],
  ['zstd', zstdCompressSync, 1],
];

afterEach(() => until(() => decodingNow().alive === 0));

describe.each<[string, Pack]>([
  ['gzip', gzipSync],
  ['zstd', zstdCompressSync],
])('a body in several parts of %s', (encoding, pack) => {
  const texts = ['one ', hex(300), ' three', ' four'];
  const packed = Buffer.concat(texts.map((text) => pack(text)));

  test.each([1, 7, 1_000])('is decoded to its end, in pieces of %d bytes', async (size) => {
    const delivered = await deliver(piecesOf(packed, size), encoding);
    expect(delivered).toEqual({ bytes: packed.length, text: texts.join(''), ends: 1 });
  });

  test('is decoded as a whole, and not read to its end where the last is cut', async () => {
    expect(await decoded(packed, encoding, clock)).toBe(texts.join(''));
    expect(await decoded(packed.subarray(0, -3), encoding, clock)).toBeNull();
  });
});

test('a body of very many frames of zstd, each of which costs a decoder, is not read to its end', async () => {
  const isRead = (frames: number): Promise<boolean> => {
    const decoder = decoderFor('zstd', () => {}, clock);
    decoder?.write(Buffer.concat(Array<Buffer>(frames).fill(zstdCompressSync(''))));
    return new Promise((resolve) => decoder?.end(resolve));
  };
  expect([await isRead(1_000), await isRead(1_001)]).toEqual([true, false]);
});

const inTwo: Pack = (bytes) => brotli(gzipSync(bytes));
describe.each([...codings, ['gzip, identity, br', inTwo, 2] as const])(
  'a body in %s',
  (encoding, pack, decoders) => {
    test('is decoded while it is delivered, and has been decoded when its end is', async () => {
      const text = `${hex(50_000)}the end`;
      const packed = pack(text);
      const delivered = await deliver(piecesOf(packed, 1_000), encoding.toUpperCase());
      expect(delivered).toEqual({ bytes: packed.length, text, ends: 1 });
    });

    test('is given up where it decodes to far more than was received, and is delivered all the same', async () => {
      const bomb = pack(zeros(decoders * 2 * mib));
      const since = decodedSince();
      expect(await deliver([bomb], encoding)).toMatchObject({ bytes: bomb.length, ends: 0 });
      expect(since()).toBeLessThan(decoders === 1 ? 128 * 1024 + 129 * bomb.length : mib);
    });

    test('is given up with its client', () =>
      leaving(pack('x'.repeat(1_000)).subarray(0, 10), encoding, decoders));

    test('that breaks off is delivered as far as it came, and ends no reading', async () => {
      const packed = pack(randomBytes(1_000));
      expect(await deliver([packed.subarray(0, 900)], encoding)).toMatchObject({ bytes: 900, ends: 0 });
    });
  },
);

test.each(codings)('a body in %s is read as a whole up to 256 KiB', async (encoding, pack) => {
  expect(await decoded(pack('a small text'), encoding, clock)).toBe('a small text');
  for (const packed of [pack(hex(140_000)), pack('a text').subarray(0, 5), pack(zeros(mib))])
    expect(await decoded(packed, encoding, clock)).toBeNull();
});

test('a body is given up behind its first 8 MiB', async () => {
  // Shrinks to a hundredth or so: neither what waits for the decoder nor what its bytes allow ends the reading before.
  const packed = zstdCompressSync(hex(100_000).repeat(60));
  const since = decodedSince();
  expect(await deliver([packed], 'zstd')).toMatchObject({ bytes: packed.length, ends: 0 });
  expect(since()).toBeLessThan(9 * mib);
});

test('a body in two codings of which the inner one breaks off ends no reading', async () => {
  const broken = brotli(gzipSync(hex(50_000)).subarray(0, 900));
  expect(await deliver([broken], 'gzip, br')).toMatchObject({ bytes: broken.length, ends: 0 });
});

test.each([
  [' Identity ', 'as it is', 1],
  ['compress', '', 0],
  ['compress, gzip', '', 0],
  ['gzip, gzip, gzip', '', 0],
  ['constructor', '', 0],
])('a body in the coding %j is delivered without a decoder', async (encoding, text, ends) => {
  expect(await deliver([Buffer.from('as it is')], encoding)).toEqual({ bytes: 8, text, ends });
});

test.each([10, 11, 15, 16, 17, 18, 19, 21, 22, 23, 24])(
  'brotli with a window of 2^%i bytes is read unless the window is larger than 4 MiB',
  async (bits) => {
    const since = decodedSince();
    expect(await decoded(brotli('a text', bits), 'br', clock)).toBe(bits > 22 ? null : 'a text');
    expect(since()).toBe(bits > 22 ? 0 : 6);
  },
);

test('a body whose decoding is late ends without it', async () => {
  const packed = gzipSync('x'.repeat(1_000));
  const late: Clock = {
    ...systemClock,
    after: (_ms, run) => {
      run();
      return () => {};
    },
  };
  const flush = (): void => {
    throw new Error('it was waited for');
  };
  const source = new PassThrough();
  const body = readInPassing(source, 'gzip', { read: () => {}, flush }, late).toArray();
  source.end(packed);
  expect(Buffer.concat((await body) as Buffer[])).toEqual(packed);
  expect(await decoded(packed, 'gzip', late)).toBeNull();
});

test('very many bodies at once have a bounded number of decoders, and all are delivered', async () => {
  const sources = Array.from({ length: 300 }, () => new PassThrough());
  const bodies = sources.map((source) => deliver(source, 'gzip'));
  const packed = gzipSync('x'.repeat(1_000));
  for (const source of sources) source.write(packed.subarray(0, 10));
  expect(decodingNow().alive).toBe(100);
  for (const source of sources) source.end(packed.subarray(10));
  const lengths = (await Promise.all(bodies)).map(({ bytes }) => bytes);
  expect(new Set(lengths)).toEqual(new Set([packed.length]));
});

test('many bombs at once decode no more than the process allows in that time', async () => {
  // Padding that the decoder does not see lets each of them decode as much as one body may.
  const bomb = [brotli(zeros(8 * mib)), Buffer.alloc(128 * 1024)];
  const since = decodedSince();
  const startedAt = clock.monotonic();
  await Promise.all(Array.from({ length: 20 }, () => deliver(bomb, 'br')));
  const seconds = (clock.monotonic() - startedAt) / 1_000;
  // 32 MiB a second and as much at the start; each of the decoders may notice one piece too late.
  expect(since()).toBeLessThan((1 + seconds) * 32 * mib + 20 * 65_536);
});
