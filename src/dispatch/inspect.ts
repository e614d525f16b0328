/**
 * Looks into a response's body without taking it away: its start, the whole of a small one, and whatever passes of a larger one.
 * What was looked at is still delivered, byte for byte. An endless or slow body delays the response by at most the given time.
 */
import { PassThrough, pipeline, Readable, Transform } from 'node:stream';
import type { Clock } from '../clock.ts';
import { decoderFor, isPlain } from './decoding.ts';

/** The start of a body. */
export interface BodyStart {
  readonly bytes: Buffer;
  /** Nothing follows. */
  readonly whole: boolean;
  /** Delivers everything, including what was read, and then the body's own end or failure. */
  readonly body: Buffer | Readable;
  /** What the body broke with; `null` = it has not. */
  readonly error: Error | null;
}

interface PeekLimits {
  readonly maxBytes: number;
  readonly maxMs: number;
  /** How long is waited from the first byte on; `maxMs` then holds for a body without any. Default: `maxMs` in all. */
  readonly maxMsWithBytes?: number;
  /** Sees each chunk, and calls `enough` at once or later when more need not be waited for. */
  readonly onChunk?: (chunk: Buffer, enough: () => void) => void;
  /** Calls `done` when what was seen of a body that is whole has been judged. Default: at once. */
  readonly onEnd?: (done: () => void) => void;
}

/** Reads the start of a body: up to `maxBytes`, for `maxMs`, until it is enough, or to the body's end or failure. */
export function peek(body: Readable, limits: PeekLimits, clock: Clock): Promise<BodyStart> {
  return new Promise((resolve) => {
    const { maxBytes, maxMs, maxMsWithBytes = null, onChunk, onEnd = (done): void => done() } = limits;
    const chunks: Buffer[] = [];
    let size = 0;
    let isOver = false;
    const finish = (error: Error | null): void => {
      if (isOver) return;
      isOver = true;
      cancel();
      body.off('data', onData).off('end', onBodyEnd).off('error', finish).off('close', onClose);
      const bytes = Buffer.concat(chunks, size);
      const whole = error === null && body.readableEnded;
      if (whole) return resolve({ bytes, whole, body: bytes, error });
      if (error !== null) return resolve({ bytes, whole, body: streamOf(broken(bytes, error)), error });
      body.pause();
      if (size > 0) body.unshift(bytes);
      resolve({ bytes, whole, body, error });
    };
    const enough = (): void => finish(null);
    const onData = (chunk: Buffer): void => {
      if (maxMsWithBytes !== null && size === 0) {
        cancel();
        cancel = clock.after(maxMsWithBytes, enough);
      }
      chunks.push(chunk);
      size += chunk.length;
      onChunk?.(chunk, enough);
      if (size >= maxBytes) enough();
    };
    const onBodyEnd = (): void => onEnd(enough);
    const onClose = (): void => {
      if (!body.readableEnded) finish(new Error('the body closed before its end'));
    };
    let cancel = clock.after(maxMs, enough);
    body.on('end', onBodyEnd).on('error', finish).on('close', onClose).on('data', onData);
  });
}

/** A stream of bytes. */
export const streamOf = (chunks: Iterable<Buffer> | AsyncIterable<Buffer>): Readable =>
  Readable.from(chunks, { objectMode: false });

async function* broken(held: Buffer, error: Error): AsyncGenerator<Buffer> {
  if (held.length > 0) yield held;
  throw error;
}

/**
 * The whole body, when its last byte has arrived already; `null` when there is more to come. A small response comes in
 * one packet with its head, and neither a stream nor a lease has to be kept open for it then. Only bodies of a stated
 * length are taken: how the others are framed is passed on. Resolves when the connection is free again, so that the
 * next call of a serialized lane finds it instead of opening another one.
 */
export async function arrived(
  body: Readable & { readonly complete?: boolean },
  contentLength: string,
): Promise<Buffer | null> {
  if (body.complete !== true || body.destroyed || body.readableLength === 0) return null;
  if (String(body.readableLength) !== contentLength) return null;
  const bytes: unknown = body.on('error', () => {}).read();
  if (!Buffer.isBuffer(bytes)) return null;
  // Cut after its last byte it is whole all the same: then it closes without an end.
  await new Promise((resolve) => body.on('end', resolve).on('close', resolve));
  return bytes;
}

/** Longest text that is decoded as a whole, bytes. */
const maxTextBytes = 256 * 1024;
/** How long a judgement waits for the text of a response. Milliseconds; decoding takes about one, unless zlib's threads are busy. */
const maxTextMs = 1_000;

/** The text of a body whose bytes are all at hand; `null` when it is not text we can read, too long, or not decoded in time. */
export async function decoded(bytes: Buffer, encoding: string, clock: Clock): Promise<string | null> {
  if (isPlain(encoding)) return bytes.toString('utf8');
  const parts: Buffer[] = [];
  let length = 0;
  const decoder = decoderFor(
    encoding,
    (part) => {
      length += part.length;
      parts.push(part);
      if (length > maxTextBytes) decoder?.stop();
    },
    clock,
  );
  if (decoder === null) return null;
  const cancel = clock.after(maxTextMs, () => decoder.stop());
  decoder.write(bytes);
  const isWhole = await new Promise((resolve) => decoder.end(resolve));
  cancel();
  return isWhole === true ? Buffer.concat(parts, length).toString('utf8') : null;
}

/** A passing text is read in parts of at least so many characters. */
const partLength = 32 * 1024;
/** The end of a part is read again with the next one: an object of usage, or an error, is shorter. */
const overlap = 8 * 1024;
/** How long the end of a response waits for what was decoded beside it. Milliseconds. */
const maxEndMs = 50;

/** A body that passes, and a function that has all read that has passed. */
export interface Passing {
  readonly body: Readable;
  readonly flush: () => void;
}

/**
 * Passes every byte on as it comes and reads it meanwhile, in large parts that overlap. The end of a compressed body waits until the last
 * bytes are decoded.
 */
export function readInPassing(
  body: Readable,
  { encoding, onText }: { readonly encoding: string; readonly onText: (text: string) => void },
  clock: Clock,
): Passing {
  const utf8 = new TextDecoder();
  let text = '';
  const flush = (): void => {
    if (text !== '') onText(text);
    text = text.slice(-overlap);
  };
  const decoder = decoderFor(
    encoding,
    (bytes) => {
      text += utf8.decode(bytes, { stream: true });
      if (text.length >= partLength) flush();
    },
    clock,
  );
  if (decoder === null) return { body, flush };
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      decoder.write(chunk);
      done(null, chunk);
    },
    flush(done) {
      const cancel = clock.after(maxEndMs, () => decoder.stop());
      decoder.end(() => {
        cancel();
        done();
      });
    },
  });
  // Whether the body broke, its client left or all is well: the decoder does not outlive the response. The reader of `passing` sees
  // an error there.
  pipeline(body, passing, () => decoder.stop());
  return { body: passing, flush };
}

/** What is read ahead of a slow client, bytes. */
const readAheadBytes = 1024 * 1024;

/**
 * Reads a body ahead of its reader, so that the upstream can finish while the client is still reading. `onRead` is called
 * once, when nothing more will come from the upstream.
 */
export function readAhead(body: Readable, onRead: () => void): Readable {
  const ahead = new PassThrough({ highWaterMark: readAheadBytes });
  body.once('end', onRead);
  pipeline(body, ahead, onRead);
  return ahead;
}
