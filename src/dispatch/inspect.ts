/**
 * Looks into a response's body without taking it away: the first bytes of a refusal, the whole of a small response, and whatever
 * passes of a larger one. What was looked at is still delivered, byte for byte.
 *
 * Owns: reading beside the client. Does not own: decoding (`decoding.ts`), and what the text means (`feedback/`).
 * Bounds: an endless or slow body delays the response by at most the given time.
 */
import { PassThrough, pipeline, Transform, type Readable } from 'node:stream';
import type { Clock } from '../clock.ts';
import { isPlain, maxEndMs, PassingDecoder } from './decoding.ts';

/** The start of a body. `whole`: nothing follows. `body` delivers everything, including what was read. */
export interface BodyStart {
  readonly bytes: Buffer;
  readonly whole: boolean;
  readonly body: Buffer | Readable;
}

interface PeekLimits {
  readonly maxBytes: number;
  readonly maxMs: number;
  /** True when this first chunk shows that more need not be waited for. */
  readonly isEnough?: (first: Buffer) => boolean;
}

/**
 * Reads up to `maxBytes` or for `maxMs`, whichever comes first. Rejects with the body's own error when it breaks
 * before that.
 */
export function peek(body: Readable, limits: PeekLimits, clock: Clock): Promise<BodyStart> {
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
      if (size >= limits.maxBytes) return finish(false);
      if (chunks.length === 1 && limits.isEnough?.(chunk) === true) finish(false);
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

/** Reads a body that passes. */
export interface PassingReader {
  /** The next decoded bytes. */
  readonly read: (bytes: Buffer) => void;
  /** All of the body has been read. Not called when it broke, or was given up. */
  readonly end: () => void;
}

/**
 * Passes a body on and lets `reader` read what it decodes to. Backpressure and errors pass through. A body that cannot be decoded,
 * or only at too high a cost, is not read to its end: the client does not wait for our eyes. It gets each byte as it comes; only the
 * end of a compressed body waits until the last bytes are decoded.
 */
export function readInPassing(
  body: Readable,
  encoding: string,
  reader: PassingReader,
  clock: Clock,
): Readable {
  if (isPlain(encoding)) return passOn(body, reader);
  const decoder = PassingDecoder.begin(encoding, reader.read, clock);
  return decoder === null ? body : passDecoding(body, decoder, reader, clock);
}

function passOn(body: Readable, { read, end }: PassingReader): Readable {
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      read(chunk);
      done(null, chunk);
    },
    flush(done) {
      end();
      done();
    },
  });
  // The reader of `passing` sees an error there.
  pipeline(body, passing, ignored);
  return passing;
}

function passDecoding(
  body: Readable,
  decoder: PassingDecoder,
  { end }: PassingReader,
  clock: Clock,
): Readable {
  const passing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      decoder.write(chunk);
      done(null, chunk);
    },
    flush(done) {
      const cancel = clock.after(maxEndMs, () => decoder.stop());
      decoder.end((isWhole) => {
        cancel();
        if (isWhole) end();
        done();
      });
    },
  });
  // Whether the body broke, its client left or all is well: the decoder does not outlive the response.
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
