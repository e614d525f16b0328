/**
 * One sending of a call: fields out, response's head in, and what the response teaches. Whether and when the call is sent again is
 * decided elsewhere.
 */
import type { Readable } from 'node:stream';
import type { Feedback, ResponseHead } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { readForLearning, type AttemptFacts, type BodyFeedback } from './read-response.ts';
import { bodyError, TransportError } from './transport-error.ts';
import type { Transport, TransportAttempt } from './transport.ts';

/** What is sent and how its response is read. */
export interface AttemptRequest extends TransportAttempt, AttemptFacts {
  readonly onReady: () => void;
  /** When the request's bytes went out, monotonic milliseconds; the start of the attempt before that. */
  readonly sentAt: number;
}

export type AttemptResult =
  | {
      readonly kind: 'answered';
      readonly head: ResponseHead;
      /** Complete bytes, or the stream that delivers them. */
      readonly body: Buffer | Readable;
      readonly feedback: Feedback;
      /** The lesson with its ages as of now. */
      readonly lesson: () => Lesson;
      /** What the rest of the body teaches; `null` = all is known. */
      readonly bodyFeedback: BodyFeedback | null;
    }
  | {
      readonly kind: 'failed';
      readonly error: TransportError;
    };

/** The status as which a response counts: its own, or that of an error inside it. */
export const statusOf = ({
  head,
  feedback,
}: {
  readonly head: Pick<ResponseHead, 'status'>;
  readonly feedback: Pick<Feedback, 'errorStatus'>;
}): number => feedback.errorStatus ?? head.status;

/** Sends once. Never rejects with anything but a bug. */
export async function attempt(
  transport: Pick<Transport, 'send'>,
  request: AttemptRequest,
  clock: Clock,
): Promise<AttemptResult> {
  try {
    const response = await transport.send(request);
    // A body that broke in the packet of its head: nothing of the response has gone on to the client yet.
    if (response.body.errored !== null) throw bodyError(response.body.errored);
    const headAt = clock.monotonic();
    const read = await readForLearning(response, request, clock);
    const lesson = (): Lesson => {
      const now = clock.monotonic();
      return { feedback: read.feedback, sentAgoMs: now - request.sentAt, headAgoMs: now - headAt };
    };
    return {
      kind: 'answered',
      head: response.head,
      body: read.body,
      feedback: read.feedback,
      lesson,
      bodyFeedback: read.bodyFeedback,
    };
  } catch (error) {
    if (error instanceof TransportError) return { kind: 'failed', error };
    throw error;
  } finally {
    // A request that was never ready must not hold back those behind it.
    request.onReady();
  }
}
