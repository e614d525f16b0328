/**
 * Reading an answer's body that is not streamed to the client: to learn from it, or to get rid of it.
 *
 * Keeps: memory and time are bounded, and a body is afterwards either read to its end, still readable from its first
 * byte, or destroyed.
 */
import type { Readable } from 'node:stream';
import type { UpstreamAnswer } from '../call.ts';
import type { Clock } from '../clock.ts';
import { TransportError, bodyError } from './transport-error.ts';

export interface BoundedBody {
  readonly bytes: Buffer;
  /** False: there is more. The body then still gives everything, `bytes` first, to the next reader. */
  readonly complete: boolean;
}

export interface ReadLimits {
  readonly clock: Clock;
  readonly maxBytes: number;
  /** Time for the whole reading, milliseconds. */
  readonly withinMs: number;
}

/** What is read of an unwanted body so that its connection can be used again. */
const discardLimits = { maxBytes: 64 * 1024, withinMs: 250 } as const;

/**
 * Reads a body up to a bound. The rest of a longer or slower one is not lost: see {@link BoundedBody.complete}.
 *
 * @throws TransportError when the body was cut
 */
export function readBounded(body: Readable, { clock, maxBytes, withinMs }: ReadLimits): Promise<BoundedBody> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let size = 0;
    const settle = (): void => {
      cancel();
      body.off('data', onData).off('end', onEnd).off('error', onError).off('close', onClose);
    };
    const stopEarly = (): void => {
      settle();
      body.pause();
      const bytes = Buffer.concat(chunks);
      if (size > 0) body.unshift(bytes);
      resolve({ bytes, complete: false });
    };
    const onData = (chunk: Buffer): void => {
      chunks.push(chunk);
      size += chunk.length;
      if (size > maxBytes) stopEarly();
    };
    const onEnd = (): void => {
      settle();
      resolve({ bytes: Buffer.concat(chunks), complete: true });
    };
    const onError = (error: unknown): void => {
      settle();
      reject(bodyError(error));
    };
    // Without `end` or `error` before it, a close is a cut too.
    const onClose = (): void => onError(body.errored);
    const cancel = clock.after(withinMs, stopEarly);
    body.on('data', onData).on('end', onEnd).on('error', onError).on('close', onClose);
    if (body.readableEnded) onEnd();
    else if (body.destroyed) onError(body.errored);
    else body.resume();
  });
}

/**
 * Gets rid of an answer: a small body is read so that the connection can be used again, anything else is destroyed.
 * Never rejects. Resolves with true when the connection survived.
 */
export async function discard(answer: UpstreamAnswer, clock: Clock): Promise<boolean> {
  const { body } = answer;
  try {
    const { complete } = await readBounded(body, { clock, ...discardLimits });
    if (!complete) body.destroy();
    return complete;
  } catch (error) {
    if (!(error instanceof TransportError)) throw error;
    return false;
  }
}
