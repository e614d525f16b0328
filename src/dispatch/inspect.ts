/**
 * Looks into a response's body without taking it away: its start, the whole of a small one, and whatever passes of a larger one.
 * What was looked at is still delivered, byte for byte.
 *
 * Owns: reading beside the client. Does not own: decoding (`decoding.ts`), and what the text means (`feedback/`).
 * Bounds: an endless or slow body delays the response by at most the given time.
 */
import { PassThrough, pipeline, Readable, Transform } from 'node:stream';
import type { Clock } from '../clock.ts';
import { decoderFor, maxEndMs } from './decoding.ts';

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

const ignored = (): void => {};

/**
 * The whole body, when its last byte has arrived already; `null` when there is more to come. A small response comes in
 * one packet with its head, and neither a stream nor a lease has to be kept open for it then. Only bodies of a stated
 * length are taken: how the others are framed is passed on. Resolves when the connection is free again, so that the
 * next call of a serialized lane finds it instead of opening another one.
 */
export function arrived(
  body: Readable & { readonly complete?: boolean },
  contentLength: string,
): Promise<Buffer> | null {
  if (body.complete !== true || body.destroyed || body.readableLength === 0) return null;
  if (String(body.readableLength) !== contentLength) return null;
  const bytes: unknown = body.on('error', ignored).read();
  if (!Buffer.isBuffer(bytes)) return null;
  return new Promise((resolve) => {
    // Cut after its last byte it is whole all the same: then it closes without an end.
    const done = (): void => resolve(bytes);
    body.on('end', done).on('close', done);
  });
}

/** Reads a body that passes. */
export interface PassingReader {
  /** The next decoded bytes. */
  read(bytes: Buffer): void;
  /** All of the body has been read. Not called when it broke, or was given up. */
  flush(): void;
}

/** Passes every byte on as it comes and reads it meanwhile. The end of a compressed body waits until the last bytes are decoded. */
export function readInPassing(
  body: Readable,
  encoding: string,
  reader: PassingReader,
  clock: Clock,
): Readable {
  const decoder = decoderFor(encoding, (bytes) => reader.read(bytes), clock);
  if (decoder === null) return body;
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      decoder.write(chunk);
      done(null, chunk);
    },
    flush(done) {
      const cancel = clock.after(maxEndMs, () => decoder.stop());
      decoder.end((isWhole) => {
        cancel();
        if (isWhole) reader.flush();
        done();
      });
    },
  });
  // Whether the body broke, its client left or all is well: the decoder does not outlive the response. The reader of `passing` sees
  // an error there.
  pipeline(body, passing, () => decoder.stop());
  return passing;
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
