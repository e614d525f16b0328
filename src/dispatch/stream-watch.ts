/**
 * Watches an event stream on its way to the client: it reports what the call has used, and a 200 can still turn into a
 * throttle (chat `{"error":…}`, Responses `response.failed`). The client gets every byte as it comes.
 *
 * Owns: reading events beside the stream. Refuses to own: what an event means, and resending: bytes have been forwarded.
 * Bounds: one event of 64 KiB, and the last 8 KiB of a stream with longer ones.
 */
import { PassThrough, pipeline, type Readable } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback } from '../call.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';
import { noUsage, withUsageIn, type UsageMembers } from './feedback/usage.policy.ts';

/** Events longer than this are not read (pictures inside a stream); characters. */
const maxEvent = 64 * 1024;
/** What is kept of the end of a stream whose events are too long to be read; characters. */
const tailLength = 8 * 1024;

export interface WatchedEvents {
  /** Delivers every byte. */
  readonly body: Readable;
  /** What the events have reported of `usage` so far. */
  readonly usage: () => UsageMembers;
}

/** Passes the body on; `onThrottle` is called for each event that says a limit was met. */
export function watchEvents(body: Readable, onThrottle: (feedback: Feedback) => void): WatchedEvents {
  const decoder = new TextDecoder();
  let usage = noUsage;
  /** `null` while events are read. */
  let tail: string | null = null;
  const parser = createParser({
    maxBufferSize: maxEvent,
    onEvent({ data }) {
      usage = withUsageIn(usage, data);
      const feedback = learnFromStreamEvent(data);
      if (feedback.throttle !== null) onThrottle(feedback);
    },
    onError({ type }) {
      // An unknown field is none of our business; behind an event too long to read only the end is looked at.
      if (type === 'max-buffer-size-exceeded') tail ??= '';
    },
  });
  const passing = new PassThrough();
  body.on('data', (chunk: Buffer) => {
    const text = decoder.decode(chunk, { stream: true });
    if (tail === null) parser.feed(text);
    if (tail !== null) tail = (tail + text).slice(-tailLength);
  });
  pipeline(body, passing, () => {});
  return { body: passing, usage: () => (tail === null ? usage : withUsageIn(usage, tail)) };
}
