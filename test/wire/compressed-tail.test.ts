/** What is read beside a response, of whatever it decodes to, is bounded by counts: bytes decoded, decoders at work. */
import { randomBytes } from 'node:crypto';
import { PassThrough, Readable } from 'node:stream';
import {
  brotliCompressSync,
  constants,
  deflateRawSync,
  deflateSync,
  gzipSync,
  zstdCompressSync,
} from 'node:zlib';
import { afterEach, describe, expect, test } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { decoded, decoderFor, decodingNow } from '../../src/dispatch/decoding.ts';
import { readInPassing } from '../../src/dispatch/inspect.ts';
import { until } from '../support/until.ts';

/** The threads of a busy machine may be late: nobody gives up waiting for them here. */
const clock: Clock = { ...systemClock, after: () => () => {} };
const mib = 1024 * 1024;

async function bytesOf(body: Readable): Promise<number> {
  let bytes = 0;
  for await (const chunk of body) if (Buffer.isBuffer(chunk)) bytes += chunk.length;
  return bytes;
}

interface Reading {
  text: string;
  ends: number;
}
/** Reads a body in passing; what of it was decoded is in `read` afterwards. */
function passing(chunks: readonly Buffer[] | Readable, encoding: string): { body: Readable; read: Reading } {
  const read: Reading = { text: '', ends: 0 };
  const source = chunks instanceof Readable ? chunks : Readable.from(chunks);
  const reader = {
    read: (bytes: Buffer): void => void (read.text += bytes.toString()),
    flush: (): void => void (read.ends += 1),
  };
  return { body: readInPassing(source, encoding, reader, clock), read };
}

const piecesOf = (bytes: Buffer, size: number): Buffer[] =>
  Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) =>
    bytes.subarray(at * size, (at + 1) * size),
  );

const zeros = (bytes: number): Buffer => Buffer.alloc(bytes, ' ');
const brotli = (bits: number) => ({
  params: { [constants.BROTLI_PARAM_LGWIN]: bits, [constants.BROTLI_PARAM_QUALITY]: 3 },
});
const codings: readonly [string, (bytes: Buffer) => Buffer][] = [
  ['gzip', (bytes) => gzipSync(bytes)],
  ['x-gzip', (bytes) => gzipSync(bytes)],
  ['deflate', (bytes) => deflateSync(bytes)],
  ['deflate', (bytes) => deflateRawSync(bytes)],
  ['br', (bytes) => brotliCompressSync(bytes, brotli(22))],
  ['zstd', (bytes) => zstdCompressSync(bytes)],
];

afterEach(() => until(() => decodingNow().alive === 0));

describe.each<[string, (bytes: Buffer) => Buffer]>([
  ['gzip', (bytes) => gzipSync(bytes)],
  ['zstd', (bytes) => zstdCompressSync(bytes)],
])('a body in several parts of %s', (encoding, pack) => {
  const texts = ['one ', randomBytes(300).toString('hex'), ' three', ' four'];
  const packed = Buffer.concat(texts.map((text) => pack(Buffer.from(text))));

  test.each([1, 7, 1_000])('is decoded to its end, in pieces of %d bytes', async (size) => {
    const { body, read } = passing(piecesOf(packed, size), encoding);
    expect(await bytesOf(body)).toBe(packed.length);
    expect([read.text === texts.join(''), read.ends]).toEqual([true, 1]);
  });

  test('is decoded as a whole', async () => {
    expect((await decoded(packed, encoding, clock)) === texts.join('')).toBe(true);
  });

  test('is not read to its end where the last is cut', async () => {
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

describe.each(codings)('a body in %s', (encoding, pack) => {
  test('is decoded while it is delivered, and has been decoded when its end is', async () => {
    const text = randomBytes(50_000).toString('hex') + 'the end';
    const packed = pack(Buffer.from(text));
    const { body, read } = passing(piecesOf(packed, 1_000), encoding.toUpperCase());
    expect(await bytesOf(body)).toBe(packed.length);
    expect([read.text === text, read.ends]).toEqual([true, 1]);
  });

  test('is given up where it decodes to far more than was received, and is delivered all the same', async () => {
    const bomb = pack(zeros(2 * mib));
    const before = decodingNow().decodedBytes;
    const { body, read } = passing([bomb], encoding);
    expect([await bytesOf(body), read.ends]).toEqual([bomb.length, 0]);
    expect(decodingNow().decodedBytes - before).toBeLessThan(128 * 1024 + 129 * bomb.length);
  });

  test('is given up with its client', async () => {
    const source = new PassThrough();
    const { body } = passing(source, encoding);
    body.resume();
    source.write(pack(Buffer.from('x'.repeat(1_000))).subarray(0, 10));
    await until(() => decodingNow().alive === 1);
    body.destroy();
    await until(() => decodingNow().alive === 0);
    expect(source.destroyed).toBe(true);
  });

  test('that breaks off is delivered as far as it came, and ends no reading', async () => {
    const packed = pack(randomBytes(1_000));
    const { body, read } = passing([packed.subarray(0, 900)], encoding);
    expect([await bytesOf(body), read.ends]).toEqual([900, 0]);
  });

  test('is read as a whole up to 256 KiB', async () => {
    expect(await decoded(pack(Buffer.from('a small text')), encoding, clock)).toBe('a small text');
    expect(
      await decoded(pack(Buffer.from(randomBytes(140_000).toString('hex'))), encoding, clock),
    ).toBeNull();
    expect(await decoded(pack(Buffer.from('a text')).subarray(0, 5), encoding, clock)).toBeNull();
    expect(await decoded(pack(zeros(mib)), encoding, clock)).toBeNull();
  });
});

test('a body is given up behind its first 8 MiB', async () => {
  // Shrinks to a hundredth or so: neither what waits for the decoder nor what its bytes allow ends the reading before.
  const packed = zstdCompressSync(randomBytes(100_000).toString('hex').repeat(60));
  const before = decodingNow().decodedBytes;
  const { body, read } = passing([packed], 'zstd');
  expect([await bytesOf(body), read.ends]).toEqual([packed.length, 0]);
  expect(decodingNow().decodedBytes - before).toBeLessThan(9 * mib);
});

test('a body in no coding, or an unknown one, is delivered without a decoder', async () => {
  const { body, read } = passing([Buffer.from('as it is')], ' Identity ');
  expect([await bytesOf(body), read]).toEqual([8, { text: 'as it is', ends: 1 }]);
  for (const encoding of ['compress', 'compress, gzip', 'gzip, gzip, gzip', 'constructor']) {
    const unread = passing([Buffer.from('packed')], encoding);
    expect([await bytesOf(unread.body), unread.read]).toEqual([6, { text: '', ends: 0 }]);
  }
});

test('a body in two codings is read like one in the first of them, with the bounds of both', async () => {
  const pack = (bytes: Buffer): Buffer => brotliCompressSync(gzipSync(bytes), brotli(22));
  const text = randomBytes(50_000).toString('hex');
  const packed = pack(Buffer.from(text));
  const { body, read } = passing(piecesOf(packed, 1_000), 'gzip, identity, br');
  expect([await bytesOf(body), read]).toEqual([packed.length, { text, ends: 1 }]);
  const cut = passing([packed.subarray(0, 900)], 'gzip, br');
  expect([await bytesOf(cut.body), cut.read.ends]).toEqual([900, 0]);
  const broken = brotliCompressSync(gzipSync(Buffer.from(text)).subarray(0, 900), brotli(22));
  const inner = passing([broken], 'gzip, br');
  expect([await bytesOf(inner.body), inner.read.ends]).toEqual([broken.length, 0]);
  const before = decodingNow().decodedBytes;
  const bomb = passing([pack(zeros(4 * mib))], 'gzip, br');
  await bytesOf(bomb.body);
  expect(bomb.read.ends).toBe(0);
  expect(decodingNow().decodedBytes - before).toBeLessThan(mib);
  const source = new PassThrough();
  const left = passing(source, 'gzip, br').body.resume();
  source.write(packed.subarray(0, 10));
  await until(() => decodingNow().alive === 2);
  left.destroy();
  await until(() => decodingNow().alive === 0);
});

test.each([10, 11, 15, 16, 17, 18, 19, 21, 22, 23, 24])(
  'brotli with a window of 2^%i bytes is read unless the window is larger than 4 MiB',
  async (bits) => {
    const before = decodingNow().decodedBytes;
    const text = await decoded(brotliCompressSync(Buffer.from('a text'), brotli(bits)), 'br', clock);
    expect(text).toBe(bits > 22 ? null : 'a text');
    expect(decodingNow().decodedBytes - before).toBe(bits > 22 ? 0 : 6);
  },
);

test('a body whose decoding is late ends without it', async () => {
  const packed = gzipSync('x'.repeat(1_000));
  const source = new PassThrough();
  const late: Clock = {
    ...systemClock,
    after: (_ms, run) => {
      run();
      return () => {};
    },
  };
  const reader = {
    read: () => {},
    flush: () => {
      throw new Error('it was waited for');
    },
  };
  const body = bytesOf(readInPassing(source, 'gzip', reader, late));
  source.end(packed);
  expect(await body).toBe(packed.length);
  expect(await decoded(packed, 'gzip', late)).toBeNull();
});

test('very many bodies at once have a bounded number of decoders, and all are delivered', async () => {
  const sources = Array.from({ length: 300 }, () => new PassThrough());
  const bodies = sources.map((source) => bytesOf(passing(source, 'gzip').body));
  const packed = gzipSync('x'.repeat(1_000));
  for (const source of sources) source.write(packed.subarray(0, 10));
  expect(decodingNow().alive).toBe(100);
  for (const source of sources) source.end(packed.subarray(10));
  expect(new Set(await Promise.all(bodies))).toEqual(new Set([packed.length]));
});

test('many bombs at once decode no more than the process allows in that time', async () => {
  const bomb = brotliCompressSync(zeros(8 * mib), brotli(22));
  const before = decodingNow().decodedBytes;
  const startedAt = clock.monotonic();
  // Padding that the decoder does not see lets each of them decode as much as one body may.
  const padding = Buffer.alloc(128 * 1024);
  await Promise.all(Array.from({ length: 20 }, () => bytesOf(passing([bomb, padding], 'br').body)));
  const seconds = (clock.monotonic() - startedAt) / 1_000;
  // 32 MiB a second and as much at the start; each of the decoders may notice one piece too late.
  expect(decodingNow().decodedBytes - before).toBeLessThan((1 + seconds) * 32 * mib + 20 * 65_536);
});
