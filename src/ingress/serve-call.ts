/**
 * One call from its request to the end of its response.
 *
 * Owns: that every call ends in exactly one response or a closed connection, and that everything held for it is let go.
 * Does not own: routes (`routes.ts`), the journey (`pipeline.ts`).
 * Invariants: `onEnd` of an outcome is called exactly once; a refusal becomes its problem document; anything else
 * thrown is a bug, reported to `onBug` once and answered without details.
 */
import type { ServerResponse } from 'node:http';
import type { ResponseEnd, Call, Outcome } from '../call.ts';
import { Refusal } from '../errors.ts';
import { OpenCall } from './connections.ts';
import { bugResponse, refusalResponse, type ProblemResponse, type RefusedCall } from './problem.ts';
import { newRequestId, type ReadCall, type ServeParts } from './read-call.ts';
import { writeOutcome, writeProblem } from './respond.ts';

/** The refusal of a request that does not become a call: for its form, or because the process is overloaded. */
export interface RequestRefusal extends Pick<RefusedCall, 'code' | 'details' | 'status' | 'allow'> {
  /** True when the connection ends with the response: its framing is in doubt, or the process is overloaded. */
  readonly mustEnd?: boolean;
}

/** Answers a request that never becomes a call. */
export async function refuseRequest(
  response: ServerResponse,
  { mustEnd, ...why }: RequestRefusal,
  parts: ServeParts,
): Promise<void> {
  const { connections, random, onRequestRefused } = parts;
  const open = new OpenCall(connections.on(response.req.socket), response, newRequestId(random));
  connections.open(open);
  const problem = refusalResponse({ ...why, requestId: open.id });
  const { method = '' } = response.req;
  onRequestRefused({ requestId: open.id, method, status: problem.status, code: why.code });
  try {
    await writeProblem(open, problem, parts, mustEnd);
  } finally {
    connections.leave(open);
    connections.ended();
  }
}

async function writeAndReport(call: ReadCall, outcome: Outcome, parts: ServeParts): Promise<void> {
  // Stands if writing fails before a byte is out: then the upstream's response was not usable.
  let end: ResponseEnd = 'upstream_cut';
  try {
    end = await writeOutcome(call, outcome, parts);
  } finally {
    outcome.onEnd(end);
  }
}

/** The response to the client of a failed call; a fault of our own is reported. */
function problemFor(error: unknown, { id, known, rawFields }: ReadCall, parts: ServeParts): ProblemResponse {
  if (error instanceof Refusal) {
    const { code, details } = error;
    return refusalResponse({ code, details, requestId: id, known, rawFields });
  }
  parts.onBug(error);
  return bugResponse(id);
}

/** Runs one call through `handle`. Never rejects. */
export async function serveCall(
  call: ReadCall,
  handle: (call: Call) => Promise<Outcome>,
  parts: ServeParts,
): Promise<void> {
  parts.connections.open(call);
  try {
    await writeAndReport(call, await handle(call), parts);
  } catch (error) {
    // The failure is the client's own leaving, with which a waiting part rejected: there is nobody to answer.
    const left = call.clientGone.aborted && error === call.clientGone.reason;
    if (!left)
      await writeProblem(call, problemFor(error, call, parts), parts).catch((bug: unknown) => {
        parts.onBug(bug);
        call.response.socket?.destroy();
      });
  } finally {
    parts.connections.leave(call);
    call.release();
  }
}
