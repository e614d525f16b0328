/**
 * Comments in a silent event stream (`keepAliveComments`): a client, or a proxy before it, that hears nothing for long gives the response
 * up, and a comment (a line that begins with a colon) is no event to anybody.
 */
import type { CancelTimer, Clock } from '../clock.ts';
import { fieldMap } from '../field-lines.policy.ts';

const comment = ': waiting\n\n';
/** A comment may stand before the first event and after an empty line, which ends one; within an event it would be part of a line. */
const endsEvent = /(?:\n\n|\r\r|\r\n\r\n)$/;

export interface StreamComments {
  /** These bytes of the stream were written. */
  passed(bytes: Buffer): void;
  end(): void;
}

/** Writes a comment whenever the stream was silent for `everyMs` milliseconds, unless it stopped within an event. */
export function startComments(
  everyMs: number,
  write: (text: string) => void,
  clock: Pick<Clock, 'after'>,
): StreamComments {
  let tail = '';
  let cancel: CancelTimer;
  const wait = (): void => {
    cancel = clock.after(everyMs, () => {
      if (tail === '' || endsEvent.test(tail)) write(comment);
      wait();
    });
  };
  wait();
  return {
    passed(bytes) {
      tail = (tail + bytes.toString('latin1', Math.max(0, bytes.length - 4))).slice(-4);
      cancel();
      wait();
    },
    end: () => cancel(),
  };
}

/** True for an event stream that anybody can read as it passes. `rawFields`: name and value alternating. */
export function isPlainEventStream(rawFields: readonly string[]): boolean {
  const fields = fieldMap(rawFields);
  const isEncoded = !/^\s*(?:identity)?\s*$/i.test(fields.get('content-encoding') ?? '');
  return !isEncoded && /^\s*text\/event-stream\b/i.test(fields.get('content-type') ?? '');
}
