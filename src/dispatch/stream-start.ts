/**
 * Holds the start of an event stream back until its first content, because an error before that is a refusal like any other: the
 * call can still be sent again, and its client need not know.
 *
 * Owns: how long. Does not own: what an event means (`feedback/`), and resending. Bounds: 250 ms from the first byte on, a second
 * without any, and 64 KiB, of the stream and of what it decodes to. Invariant: every byte that was held back is delivered, in order,
 * and so is the stream's own end or failure behind it.
 */
import type { Readable } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { decoderFor } from './decoding.ts';
import { isErrorText } from './feedback/model-error.policy.ts';
import { isContent, namedError } from './feedback/stream-event.policy.ts';
import { peek, streamOf } from './inspect.ts';

const maxHoldMs = 250;
/** A head alone says nothing to its client, and an overloaded upstream may need a moment to find its error. */
const maxSilentMs = 1_000;
const maxHeldBytes = 64 * 1024;
/** Events before the content in which an error is looked for. */
const maxJudged = 16;

export interface StreamStart {
  /** Delivers everything, from the first byte. */
  readonly body: Readable;
  /** What an error before the first content says; `null` = there was none. */
  readonly refusal: Feedback | null;
}

/** What an error in the text of an event says; `null`: the text holds none. */
type JudgeError = (text: string) => Feedback | null;

/** Resolves with the first content or error, when the bounds are reached, or with the stream's end or failure. */
export async function streamStart(
  body: Readable,
  { encoding, judge }: { readonly encoding: string; readonly judge: JudgeError },
  clock: Clock,
): Promise<StreamStart> {
  const reader = new StartReader(judge);
  let enough = (): void => {};
  const read = (bytes: Buffer): void => {
    reader.read(bytes);
    if (reader.isOver) enough();
  };
  const decoder = decoderFor(encoding, read, clock);
  if (decoder === null) return { body, refusal: null };
  const limits = {
    maxBytes: maxHeldBytes,
    maxMs: maxSilentMs,
    maxMsWithBytes: maxHoldMs,
    onChunk(chunk: Buffer, isEnough: () => void): void {
      enough = isEnough;
      decoder.write(chunk);
    },
    onEnd(done: () => void): void {
      decoder.end(() => {
        reader.endOfStream();
        done();
      });
    },
  };
  const start = await peek(body, limits, clock);
  decoder.stop();
  reader.end();
  const { refusal } = reader;
  return { body: Buffer.isBuffer(start.body) ? streamOf([start.body]) : start.body, refusal };
}

/** Looks for the first content or error. */
class StartReader {
  refusal: Feedback | null = null;
  isOver = false;
  readonly #judgeError: JudgeError;
  readonly #decoder = new TextDecoder();
  readonly #parser;
  /** What has come. */
  #text = '';
  #judged = 0;
  /** Length of the text when it was last judged as a whole. */
  #triedAt = 0;

  constructor(judge: JudgeError) {
    this.#judgeError = judge;
    this.#parser = createParser({ onEvent: ({ data, event }) => this.#judge(data, event) });
  }

  read(bytes: Buffer): void {
    if (this.isOver) return;
    const text = this.#decoder.decode(bytes, { stream: true }).slice(0, maxHeldBytes - this.#text.length);
    this.#text += text;
    this.#parser.feed(text);
    // Tried again where the text is twice as long, so that the work is in proportion to it, however small its pieces are.
    if (this.#text.length >= 2 * this.#triedAt) this.#judgeDocument();
    this.isOver ||= this.#text.length >= maxHeldBytes;
  }

  /** All has come. Some upstreams leave out the empty line behind their last event, and some clients read it all the same. */
  endOfStream(): void {
    if (!this.isOver) this.#parser.feed('\n\n');
  }

  /** Nothing more is waited for. */
  end(): void {
    this.#judgeDocument();
    this.isOver = true;
  }

  #judge(data: string, event: string | undefined): void {
    if (this.isOver) return;
    const text = namedError(data, event);
    if (isErrorText(text)) this.#refuse(this.#judgeError(text));
    this.#judged += 1;
    this.isOver ||= this.#judged >= maxJudged || isContent(data);
  }

  /** Gemini writes an error as it is, without `data:`. */
  #judgeDocument(): void {
    this.#triedAt = this.#text.length;
    const isDocument = !this.isOver && /^\s*[[{]/.test(this.#text);
    if (isDocument && isErrorText(this.#text)) this.#refuse(this.#judgeError(this.#text));
  }

  #refuse(feedback: Feedback | null): void {
    if (feedback === null) return;
    this.refusal = feedback;
    this.isOver = true;
  }
}
