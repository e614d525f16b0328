/**
 * One call from its request to the end of its response.
 *
 * Owns: that every call ends in exactly one response or a closed connection, and that everything held for it is let go.
 * Does not own: routes (`data-server.ts`), the journey (`gateway.ts`).
 * Invariants: `onEnd` of an outcome is called exactly once; a refusal becomes its problem document; anything else
 * thrown is a bug, reported to `onBug` once and answered without details.
 */
import type { ResponseEnd, Call, Outcome } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { RefusalCode } from '../errors.ts';
import type { ArrivalTimes } from './arrival-times.ts';
import type { BodyBounds } from './body.ts';
import type { Connections, OpenCall } from './connections.ts';
import { bugResponse, refusalResponse } from './problem.ts';
import type { ProblemResponse } from './problem.ts';
import { newRequestId, ReadCall } from './read-call.ts';
import { writeOutcome, writeProblem } from './respond.ts';
import type { ResponseContext } from './respond.ts';

export interface ServeParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly arrivals: Pick<ArrivalTimes, 'arrived'>;
  readonly bounds: BodyBounds;
  readonly connections: Connections;
  /** A call that was let in has ended. */
  readonly onLeft: () => void;
  /** How long a client may go on sending a body that nobody reads, before its connection is cut. Milliseconds. */
  readonly lingerMs: number;
  readonly draining: () => boolean;
  /** True when the client sent `Expect: 100-continue` and waits for our word. */
  readonly awaitsContinue: (open: OpenCall) => boolean;
  readonly onBug: (error: unknown) => void;
  /** A request was refused and did not become a call. */
  readonly onRequestRefused: (code: RefusalCode) => void;
}

/** The refusal of a request that does not become a call: for its form, or because the process is overloaded. */
export interface RequestRefusal {
  readonly code: RefusalCode;
  readonly detail?: string;
  readonly status?: number;
  readonly allow?: string;
  readonly retryInMs?: number;
  /** True when the connection ends with the response: its framing is in doubt, or the process is overloaded. */
  readonly mustEnd?: boolean;
}

const contextOf = (open: OpenCall, requestId: string, parts: ServeParts): ResponseContext => ({
  call: open,
  requestId,
  clock: parts.clock,
  draining: parts.draining(),
  lingerMs: parts.lingerMs,
});

/** Answers a request that never becomes a call. */
export async function refuseRequest(open: OpenCall, why: RequestRefusal, parts: ServeParts): Promise<void> {
  const requestId = newRequestId(parts.random);
  const { code, detail, status, allow, retryInMs } = why;
  const response = refusalResponse({
    code,
    details: {
      ...(detail === undefined ? {} : { detail }),
      ...(retryInMs === undefined ? {} : { retryInMs }),
    },
    requestId,
    ...(status === undefined ? {} : { status }),
    ...(allow === undefined ? {} : { allow }),
  });
  parts.onRequestRefused(code);
  try {
    await writeProblem(contextOf(open, requestId, parts), response, why.mustEnd);
  } finally {
    parts.connections.leave(open);
  }
}

async function writeAndReport(
  open: OpenCall,
  call: Call,
  outcome: Outcome,
  parts: ServeParts,
): Promise<void> {
  // Stands if writing fails before a byte is out: then the upstream's response was not usable.
  let end: ResponseEnd = 'upstream_cut';
  try {
    end = await writeOutcome(contextOf(open, call.id, parts), outcome);
  } finally {
    outcome.onEnd(end);
  }
}

/** The response to the client of a failed call; a fault of our own is reported. */
function problemFor(error: unknown, call: ReadCall, parts: ServeParts): ProblemResponse {
  if (error instanceof Refusal)
    return refusalResponse({
      code: error.code,
      details: error.details,
      requestId: call.id,
      known: call.known,
      rawFields: call.rawFields,
    });
  parts.onBug(error);
  return bugResponse(call.id);
}

/** Runs one call. Never rejects. */
export async function serveCall(
  open: OpenCall,
  { form, handle }: { readonly form: Call['form']; readonly handle: (call: Call) => Promise<Outcome> },
  parts: ServeParts,
): Promise<void> {
  const call = new ReadCall(open, form, parts);
  try {
    await writeAndReport(open, call, await handle(call), parts);
  } catch (error) {
    // The failure is the client's own leaving, with which a waiting part rejected: there is nobody to answer.
    const left = call.clientGone.aborted && error === call.clientGone.reason;
    if (!left)
      await writeProblem(contextOf(open, call.id, parts), problemFor(error, call, parts)).catch(
        (bug: unknown) => {
          parts.onBug(bug);
          open.response.socket?.destroy();
        },
      );
  } finally {
    call.release();
    parts.connections.leave(open);
    parts.onLeft();
  }
}
