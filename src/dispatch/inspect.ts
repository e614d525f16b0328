/**
 * Looks into a response's body without taking it away: the first bytes of a refusal, the whole of a small GraphQL
 * response, the last bytes of a large one. What was looked at is still delivered, byte for byte.
 *
 * Owns: bounded reading and decoding for our own eyes. Does not own: what the text means (`feedback/`).
 * Bounds: an endless or slow body delays the response by at most the given time, a compressed one cannot grow beyond the
 * given size in memory.
 */
import { PassThrough, pipeline, Transform, type Readable } from 'node:stream';
import {
  brotliDecompressSync,
  createBrotliDecompress,
  createGunzip,
  createInflate,
  gunzipSync,
  inflateSync,
} from 'node:zlib';
import type { Clock } from '../clock.ts';

/** Largest decoded text that is looked at, bytes. */
const maxDecodedBytes = 256 * 1024;
/** What is kept of the end of a large body, bytes. */
const tailBytes = 8 * 1024;
/** Compressed bytes that wait for our decoder at most. */
const decoderBacklogBytes = 1024 * 1024;

/** The start of a body. `whole`: nothing follows. `body` delivers everything, including what was read. */
export interface BodyStart {
  readonly bytes: Buffer;
  readonly whole: boolean;
  readonly body: Buffer | Readable;
}

/**
 * Reads up to `maxBytes` or for `maxMs`, whichever comes first. Rejects with the body's own error when it breaks
 * before that.
 */
export function peek(
  body: Readable,
  limits: { readonly maxBytes: number; readonly maxMs: number },
  clock: Clock,
): Promise<BodyStart> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    const finish = (whole: boolean): void => {
      cancel();
      body.off('data', onData).off('end', onEnd).off('error', onError).off('close', onClose);
      const bytes = Buffer.concat(chunks, size);
      if (whole) return resolve({ bytes, whole, body: bytes });
      body.pause();
      if (size > 0) body.unshift(bytes);
      resolve({ bytes, whole, body });
    };
    const onData = (chunk: Buffer): void => {
      chunks.push(chunk);
      size += chunk.length;
      if (size >= limits.maxBytes) finish(false);
    };
    const onEnd = (): void => finish(true);
    const onError = (error: Error): void => {
      cancel();
      reject(error);
    };
    const onClose = (): void => onError(new Error('the body closed before its end'));
    const cancel = clock.after(limits.maxMs, () => finish(false));
    body.on('end', onEnd).on('error', onError).on('close', onClose).on('data', onData);
  });
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

/** Decodes what was peeked for reading; `null` when it is not text we can read. */
export function decoded(bytes: Buffer, encoding: string): string | null {
  const bound = { maxOutputLength: maxDecodedBytes };
  try {
    switch (encoding.trim().toLowerCase()) {
      case '':
      case 'identity':
        return bytes.toString('utf8');
      case 'gzip':
      case 'x-gzip':
        return gunzipSync(bytes, bound).toString('utf8');
      case 'deflate':
        return inflateSync(bytes, bound).toString('utf8');
      case 'br':
        return brotliDecompressSync(bytes, bound).toString('utf8');
      default:
        return null;
    }
  } catch {
    // Broken or oversized compression: there is nothing to learn, and the client gets the bytes as they are.
    return null;
  }
}

/**
 * Passes a body on and hands its last decoded bytes to `onTail` when it ended well. Backpressure and errors pass
 * through; a broken compression only means that there is no tail, and so does one that grows faster than we decode: the
 * client does not wait for our eyes, and we keep no more than a backlog for them.
 */
export function withTail(body: Readable, encoding: string, onTail: (text: string) => void): Readable {
  let tail = Buffer.alloc(0);
  const keep = (chunk: Buffer): void => {
    const joined = Buffer.concat([tail, chunk]);
    tail = joined.subarray(Math.max(0, joined.length - tailBytes));
  };
  const decoder = decoderFor(encoding);
  decoder?.on('data', keep).on('error', () => {});
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      if (decoder === null) keep(chunk);
      else if (!decoder.destroyed) {
        decoder.write(chunk);
        if (decoder.writableLength > decoderBacklogBytes) decoder.destroy();
      }
      done(null, chunk);
    },
    flush(done) {
      if (decoder === null) onTail(tail.toString('utf8'));
      else if (!decoder.destroyed) decoder.end(() => onTail(tail.toString('utf8')));
      done();
    },
  });
  pipeline(body, passing, (error) => {
    // The reader of `passing` sees the error there; the decoder must not outlive it, nor a reader who left.
    if (error !== undefined) decoder?.destroy();
  });
  return passing;
}

/** What is read ahead of a slow client, bytes. */
const readAheadBytes = 1024 * 1024;

/**
 * Reads a body ahead of its reader, so that the upstream can finish while the client is still reading. `onRead` is called with
 * once, when nothing more will come from the upstream.
 */
export function readAhead(body: Readable, onRead: () => void): Readable {
  const ahead = new PassThrough({ highWaterMark: readAheadBytes });
  body.once('end', onRead);
  pipeline(body, ahead, onRead);
  return ahead;
}

function decoderFor(encoding: string): Transform | null {
  switch (encoding.trim().toLowerCase()) {
    case 'gzip':
    case 'x-gzip':
      return createGunzip();
    case 'deflate':
      return createInflate();
    case 'br':
      return createBrotliDecompress();
    default:
      return null;
  }
}
