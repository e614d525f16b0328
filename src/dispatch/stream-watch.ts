/**
 * Watches a language model's response on its way to the client: it reports what the call has used, and a 200 can still turn into a
 * throttle (chat `{"error":…}`, Responses `response.failed`). The client gets every byte as it comes.
 *
 * Owns: what is sought beside the stream. Does not own: what an event means, and resending: bytes have been forwarded.
 */
import type { Readable } from 'node:stream';
import type { Feedback } from '../call.ts';
import type { Clock } from '../clock.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';
import { noUsage, withUsageIn, type UsageMembers } from './feedback/usage.policy.ts';
import { readInPassing } from './inspect.ts';
import { PassingText } from './passing-text.ts';

/** Passes the body on; `onError` is called for each error inside it. */
export class WatchedBody {
  /** Delivers every byte. */
  readonly body: Readable;
  readonly #text: PassingText;
  #usage = noUsage;

  constructor(body: Readable, encoding: string, onError: (feedback: Feedback) => void, clock: Clock) {
    this.#text = new PassingText(
      {
        name: '"usage',
        isLine: false,
        onFound: (text) => (this.#usage = withUsageIn(this.#usage, text)),
      },
      {
        name: '"error"',
        isLine: true,
        onFound: (line) => {
          const feedback = learnFromStreamEvent(line, clock.now());
          if (feedback.errorStatus !== undefined) onError(feedback);
        },
      },
    );
    const reader = {
      read: (bytes: Buffer): void => this.#text.read(bytes),
      end: (): void => this.#text.flush(),
    };
    this.body = readInPassing(body, encoding, reader, clock);
  }

  /** What the body has reported of `usage` so far. */
  usage(): UsageMembers {
    this.#text.flush();
    return this.#usage;
  }
}
