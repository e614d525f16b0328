/**
 * One sending of a call: fields out, response's head in, and what the response teaches. One throw-away exchange, no loop;
 * a resend goes through admission again.
 *
 * Owns: the order of sending and reading. Does not own: what is sent (`upstream-request.ts`), what of a response is read
 * (`read-response.ts`), whether to resend (`resend.policy.ts`), when (the ticket), what the client sees (the gateway).
 */
import type { Readable } from 'node:stream';
import type { Feedback, ResponseHead } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Lesson } from '../limiter/limiter.ts';
import { readForLearning, type BodyFeedback } from './read-response.ts';
import { bodyError } from './transport-error.ts';
import { TransportError, type Transport } from './transport.ts';
import type { AttemptRequest } from './upstream-request.ts';

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
  transport: Transport,
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
