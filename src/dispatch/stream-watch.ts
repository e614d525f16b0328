/**
 * Watches an event stream on its way to the client: it reports what the call has used, and a 200 can still turn into a
 * throttle (chat `{"error":…}`, Responses `response.failed`). The client gets every byte as it comes.
 *
 * Owns: reading events beside the stream. Does not own: what an event means, and resending: bytes have been forwarded.
 * Bounds: one event of 64 KiB, and the last 8 KiB of a stream with longer ones.
 */
import { PassThrough, pipeline, type Readable } from 'node:stream';
import { createParser, type EventSourceParser } from 'eventsource-parser';
import type { Feedback } from '../call.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';
import { noUsage, withUsageIn, type UsageMembers } from './feedback/usage.policy.ts';

/** Events longer than this are not read (pictures inside a stream); characters. */
const maxEvent = 64 * 1024;
/** What is kept of the end of a stream whose events are too long to be read; characters. */
const tailLength = 8 * 1024;

/** Passes the body on; `onThrottle` is called for each event that says a limit was met. */
export class WatchedEvents {
  /** Delivers every byte. */
  readonly body = new PassThrough();
  readonly #decoder = new TextDecoder();
  readonly #parser: EventSourceParser;
  #usage = noUsage;
  /** `null` while events are read. */
  #tail: string | null = null;

  constructor(body: Readable, onThrottle: (feedback: Feedback) => void) {
    this.#parser = createParser({
      maxBufferSize: maxEvent,
      onEvent: ({ data }) => {
        this.#usage = withUsageIn(this.#usage, data);
        const feedback = learnFromStreamEvent(data);
        if (feedback.throttle !== null) onThrottle(feedback);
      },
      onError: ({ type }) => {
        // An unknown field is none of our business; behind an event too long to read only the end is looked at.
        if (type === 'max-buffer-size-exceeded') this.#tail ??= '';
      },
    });
    body.on('data', (chunk: Buffer) => this.#read(chunk));
    pipeline(body, this.body, () => {});
  }

  /** What the events have reported of `usage` so far. */
  usage(): UsageMembers {
    return this.#tail === null ? this.#usage : withUsageIn(this.#usage, this.#tail);
  }

  #read(chunk: Buffer): void {
    const text = this.#decoder.decode(chunk, { stream: true });
    if (this.#tail === null) this.#parser.feed(text);
    // Feeding may have met an event that is too long.
    if (this.#tail !== null) this.#tail = (this.#tail + text).slice(-tailLength);
  }
}
