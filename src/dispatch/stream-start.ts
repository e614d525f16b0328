/**
 * Holds the start of an event stream back until its first content, because an error before that is a refusal like any other: the
 * call can still be sent again, and its client need not know.
 *
 * Owns: how long. Does not own: what an event means (`feedback/`), and resending. Bounds: 250 ms and 64 KiB. Invariant: every byte that
 * was held back is delivered, in order, and so is the stream's own end or failure behind it.
 */
import { Readable } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { isContent } from './feedback/stream-content.policy.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';

const maxHoldMs = 250;
const maxHeldBytes = 64 * 1024;

export interface StreamStart {
  /** Delivers everything, from the first byte. */
  readonly body: Readable;
  /** What an error before the first content says; `null` = there was none. */
  readonly refusal: Feedback | null;
}

/** Resolves with the first content or error, when the bounds are reached, or with the stream's end or failure. */
export function streamStart(body: Readable, clock: Clock): Promise<StreamStart> {
  return new Promise((resolve) => {
    const reader = new StartReader();
    const chunks: Buffer[] = [];
    let size = 0;
    const finish = (rest: (held: Buffer) => Readable): void => {
      cancel();
      body.off('data', onData).off('end', onEnd).off('error', onError).off('close', onClose);
      resolve({ body: rest(Buffer.concat(chunks, size)), refusal: reader.refusal });
    };
    const goesOn = (held: Buffer): Readable => {
      body.pause();
      if (held.length > 0) body.unshift(held);
      return body;
    };
    const onData = (chunk: Buffer): void => {
      chunks.push(chunk);
      size += chunk.length;
      if (reader.isOver(chunk) || size >= maxHeldBytes) finish(goesOn);
    };
    const onEnd = (): void =>
      finish((held) => Readable.from(held.length > 0 ? [held] : [], { objectMode: false }));
    const onError = (error: Error): void =>
      finish((held) => Readable.from(broken(held, error), { objectMode: false }));
    const onClose = (): void => onError(new Error('the body closed before its end'));
    const cancel = clock.after(maxHoldMs, () => finish(goesOn));
    body.on('end', onEnd).on('error', onError).on('close', onClose).on('data', onData);
  });
}

async function* broken(held: Buffer, error: Error): AsyncGenerator<Buffer> {
  if (held.length > 0) yield held;
  throw error;
}

/** Looks for the first content or error. */
class StartReader {
  refusal: Feedback | null = null;
  readonly #decoder = new TextDecoder();
  readonly #parser;
  #text = '';
  #isOver = false;

  constructor() {
    this.#parser = createParser({ maxBufferSize: maxHeldBytes, onEvent: ({ data }) => this.#judge(data) });
  }

  isOver(chunk: Buffer): boolean {
    const text = this.#decoder.decode(chunk, { stream: true });
    this.#text += text;
    this.#parser.feed(text);
    // Gemini writes an error as it is, without `data:`.
    if (!this.#isOver && /^\s*[[{]/.test(this.#text)) this.#judgeError(this.#text);
    return this.#isOver;
  }

  #judge(data: string): void {
    if (this.#isOver) return;
    this.#judgeError(data);
    this.#isOver ||= isContent(data);
  }

  #judgeError(text: string): void {
    const feedback = learnFromStreamEvent(text);
    if (feedback.throttle === null) return;
    this.refusal = feedback;
    this.#isOver = true;
  }
}
