/**
 * Watches an event stream on its way to the client: a 200 can still turn into a throttle (chat `{"error":…}`, Responses
 * `response.failed`). The client gets every byte as it comes; we learn that the bucket is closed.
 *
 * Owns: reading events beside the stream. Refuses to own: what an event means, and resending: bytes have been forwarded.
 */
import { PassThrough, pipeline, type Readable } from 'node:stream';
import { createParser } from 'eventsource-parser';
import type { Feedback } from '../call.ts';
import { learnFromStreamEvent } from './feedback/stream-event.policy.ts';

/** Events longer than this are not read (pictures inside a stream); characters. */
const longestEvent = 64 * 1024;

/** Passes the body on; `onThrottle` is told of each event that says a limit was met. */
export function watchEvents(body: Readable, onThrottle: (feedback: Feedback) => void): Readable {
  const decoder = new TextDecoder();
  let readable = true;
  const parser = createParser({
    maxBufferSize: longestEvent,
    onEvent({ data }) {
      const feedback = learnFromStreamEvent(data);
      if (feedback.throttle !== null) onThrottle(feedback);
    },
    onError({ type }) {
      // An unknown field is none of our business; behind an event too long to read nothing is read any more.
      if (type === 'max-buffer-size-exceeded') readable = false;
    },
  });
  const passing = new PassThrough();
  body.on('data', (chunk: Buffer) => {
    if (readable) parser.feed(decoder.decode(chunk, { stream: true }));
  });
  pipeline(body, passing, () => {});
  return passing;
}
