/**
 * Decodes compressed responses for our own eyes, within bounds: what is read beside a response must not cost more than the response.
 *
 * Owns: which codings are read, and what their decoding may take, of one response and of the process. Does not own: what is looked
 * for. Invariants: nothing is decoded on the event loop; a response that decodes to more than its bytes allow is passed on and not
 * read; a decoder ends with its response.
 */
import { Transform, type TransformCallback } from 'node:stream';
import {
  constants,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  createInflateRaw,
  createZstdDecompress,
} from 'node:zlib';
import type { Clock } from '../clock.ts';
import { codingsIn } from '../field-lines.policy.ts';

const kib = 1024;
const mib = 1024 * kib;

/**
 * What one response may decode to, bytes: text of events shrinks to a 90th at best, and a bomb to a 600,000th. The slowest decoder
 * (gzip of what hardly shrinks) needs 40 ms for the maximum.
 */
const maxOfOne = { base: 64 * kib, perByteReceived: 128, total: 8 * mib } as const;
/** Received bytes of one response that wait for its decoder. */
const backlogBytes = 256 * kib;
/** What all decoders of the process may take: how many there are, what they keep, and what they decode per second (about a tenth of a core). */
const maxOfProcess = { decoders: 100, heldBytes: 32 * mib, bytesPerSecond: 32 * mib } as const;
/** Longest text that is decoded as a whole, bytes. */
const maxTextBytes = 256 * kib;
/** How long a judgement waits for the text of a response. Milliseconds; decoding takes about one, unless zlib's threads are busy. */
const maxTextMs = 1_000;
/** How long the end of a response waits for what was decoded beside it. Milliseconds. */
export const maxEndMs = 50;
/** What a decoder gives out at once, bytes. */
const chunkSize = 16 * kib;

interface Coding {
  /** What its decoder keeps of the decoded text at most: its window. */
  readonly windowBytes: number;
  /** For a text that begins with these bytes. */
  readonly create: (first: Buffer) => Transform;
  /** False: these first bytes begin a text whose window is larger than that. */
  readonly isBounded: (first: Buffer) => boolean;
}

/** 4 MiB, which encoders use by default. A decoder of brotli fills its window before it gives anything out. */
const maxBrotliBits = 22;
/** The largest window that RFC 8878 asks decoders to support: 8 MiB. */
const maxZstdBits = 23;

/** Binary logarithm of the window of a text in brotli (RFC 7932 §9.1). */
function brotliWindowBits(first: number): number {
  if ((first & 1) === 0) return 16;
  const high = (first >> 1) & 7;
  if (high > 0) return 17 + high;
  const low = (first >> 4) & 7;
  if (low === 1) return Infinity; // beyond the RFC: a "large window"
  return low === 0 ? 17 : 8 + low;
}

const gzip: Coding = {
  windowBytes: 32 * kib,
  create: () => createGunzip({ chunkSize }),
  isBounded: () => true,
};
const deflate: Coding = {
  ...gzip,
  // Some servers leave out the header of RFC 1950, whose first byte has a low half of 8.
  create: (first) =>
    ((first[0] ?? 0) & 0x0f) === 8 ? createInflate({ chunkSize }) : createInflateRaw({ chunkSize }),
};
const brotli: Coding = {
  windowBytes: 2 ** maxBrotliBits,
  create: () => createBrotliDecompress({ chunkSize }),
  isBounded: (first) => brotliWindowBits(first[0] ?? 0) <= maxBrotliBits,
};
const zstdParams = { [constants.ZSTD_d_windowLogMax]: maxZstdBits };

/** Frames of one response that are read at most: a frame of nine bytes costs 80 µs. */
const maxFrames = 1_000;

/** Decodes frame after frame (RFC 8878 §3.1). Node's decoder ends with the first, and drops what is written with its end. */
class ZstdFrames extends Transform {
  #frame: ReturnType<typeof createZstdDecompress> | null = null;
  #frames = 0;
  /** The frame takes no more. */
  #onEnd = (): void => {};

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    if (this.#frame === null && this.#frames === maxFrames) return done(new Error('too many frames'));
    const frame = (this.#frame ??= this.#begin());
    const before = frame.bytesWritten;
    this.#onEnd = () => {
      const rest = chunk.subarray(frame.bytesWritten - before);
      this.#frame = null;
      frame.destroy();
      // No rest is as long as its chunk: a frame takes its first bytes at least.
      if (rest.length > 0 && rest.length < chunk.length) this._transform(rest, _encoding, done);
      else done();
    };
    frame.write(chunk, (error) => {
      if (this.#frame === frame && !error) done();
    });
  }

  override _flush(done: TransformCallback): void {
    this.#onEnd = () => done();
    if (this.#frame === null) done();
    else this.#frame.end();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#frame?.destroy();
    done(error);
  }

  #begin(): ReturnType<typeof createZstdDecompress> {
    this.#frames += 1;
    return createZstdDecompress({ chunkSize, params: zstdParams })
      .on('data', (bytes: Buffer) => this.push(bytes))
      .on('end', () => this.#onEnd())
      .on('error', (error) => this.destroy(error));
  }
}

const zstd: Coding = {
  windowBytes: 2 ** maxZstdBits,
  create: () => new ZstdFrames(),
  isBounded: () => true,
};
const codings: ReadonlyMap<string, Coding> = new Map([
  ['gzip', gzip],
  ['x-gzip', gzip],
  ['deflate', deflate],
  ['br', brotli],
  ['zstd', zstd],
]);

/** Codings on each other that are read. */
const maxCodings = 2;

/** True for a body that is sent as it is. */
export const isPlain = (encoding: string): boolean => encoding === '' || codingsIn(encoding).length === 0;

/** What the decoders of the process take together. */
const all = {
  /** Decoders that have begun and have not ended. */
  alive: 0,
  /** Bytes decoded since the process began. */
  decodedBytes: 0,
  /** What they keep. */
  heldBytes: 0,
  /** What may still be decoded now, at a monotonic time. */
  left: maxOfProcess.bytesPerSecond as number,
  at: 0,
};

/** `held`: by how much the memory of a decoder grows. False: the process has decoded enough for now. */
function take(bytes: number, held: number, now: number): boolean {
  const { bytesPerSecond, heldBytes } = maxOfProcess;
  const regained = (Math.max(0, now - all.at) / 1000) * bytesPerSecond;
  all.at = now;
  all.left = Math.min(bytesPerSecond, all.left + regained) - bytes;
  all.decodedBytes += bytes;
  all.heldBytes += held;
  return all.left >= 0 && all.heldBytes <= heldBytes;
}

/** What decoding takes of this process: decoders that have begun and not ended, and bytes decoded so far. */
export const decodingNow = (): Readonly<Pick<typeof all, 'alive' | 'decodedBytes'>> => ({ ...all });

/** Reads one body while it passes, in whatever coding. */
export interface Decoder {
  write(chunk: Buffer): void;
  /** Nothing follows. Calls back when all is decoded (`isWhole`), or when the decoding was given up before. */
  end(onOver: (isWhole: boolean) => void): void;
  /** Ends the decoding, wherever it is. */
  stop(): void;
}

/** A decoder that hands on what it decodes; `null`: the coding is not known, or enough other bodies are being decoded. */
export function decoderFor(encoding: string, onBytes: (bytes: Buffer) => void, clock: Clock): Decoder | null {
  let decoder: Decoder = { write: onBytes, end: (onOver) => onOver(true), stop: () => {} };
  const named = codingsIn(encoding).map((name) => codings.get(name) ?? null);
  if (named.length > maxCodings || all.alive + named.length > maxOfProcess.decoders) return null;
  if (named.includes(null)) return null;
  for (const coding of named.filter((one) => one !== null))
    decoder = new PassingDecoder(coding, decoder, clock);
  return decoder;
}

/** Decodes in zlib's threads, for the next decoder. Whatever exceeds a bound ends the decoding, and nothing else. */
class PassingDecoder implements Decoder {
  /** `null` before the first bytes. */
  #stream: Transform | null = null;
  readonly #next: Decoder;
  readonly #coding: Coding;
  readonly #clock: Clock;
  #receivedBytes = 0;
  #decodedBytes = 0;
  #isOver = false;
  #onOver: (isWhole: boolean) => void = () => {};

  constructor(coding: Coding, next: Decoder, clock: Clock) {
    all.alive += 1;
    this.#coding = coding;
    this.#next = next;
    this.#clock = clock;
  }

  write(chunk: Buffer): void {
    if (this.#isOver || chunk.length === 0) return;
    if (this.#receivedBytes === 0 && !this.#coding.isBounded(chunk)) return this.stop();
    this.#receivedBytes += chunk.length;
    const stream = (this.#stream ??= this.#begin(chunk));
    stream.write(chunk);
    if (stream.writableLength > backlogBytes) this.stop();
  }

  end(onOver: (isWhole: boolean) => void): void {
    if (this.#isOver) return onOver(false);
    this.#onOver = onOver;
    if (this.#stream === null) this.#over(true);
    else this.#stream.end();
  }

  stop(): void {
    this.#over(false);
  }

  #begin(first: Buffer): Transform {
    const stream = this.#coding.create(first);
    stream.on('data', (bytes: Buffer) => {
      if (this.#mayRead(bytes.length)) this.#next.write(bytes);
      else this.stop();
    });
    return stream.on('end', () => this.#over(true)).on('error', () => this.stop());
  }

  #mayRead(bytes: number): boolean {
    if (this.#isOver) return false;
    const heldBefore = this.#held;
    this.#decodedBytes += bytes;
    const ofProcess = take(bytes, this.#held - heldBefore, this.#clock.monotonic());
    const { base, perByteReceived, total } = maxOfOne;
    return ofProcess && this.#decodedBytes <= Math.min(total, base + perByteReceived * this.#receivedBytes);
  }

  get #held(): number {
    return Math.min(this.#decodedBytes, this.#coding.windowBytes);
  }

  #over(isWhole: boolean): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#stream?.destroy();
    all.alive -= 1;
    all.heldBytes -= this.#held;
    if (isWhole) return this.#next.end(this.#onOver);
    this.#next.stop();
    this.#onOver(false);
  }
}

/** The text of a body whose bytes are all at hand; `null` when it is not text we can read, too long, or not decoded in time. */
export function decoded(bytes: Buffer, encoding: string, clock: Clock): Promise<string | null> {
  if (isPlain(encoding)) return Promise.resolve(bytes.toString('utf8'));
  return new Promise((resolve) => {
    const parts: Buffer[] = [];
    let length = 0;
    const onBytes = (part: Buffer): void => {
      length += part.length;
      parts.push(part);
      if (length > maxTextBytes) decoder?.stop();
    };
    const decoder = decoderFor(encoding, onBytes, clock);
    if (decoder === null) return resolve(null);
    const cancel = clock.after(maxTextMs, () => decoder.stop());
    decoder.write(bytes);
    decoder.end((isWhole) => {
      cancel();
      resolve(isWhole ? Buffer.concat(parts, length).toString('utf8') : null);
    });
  });
}
