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
import type { Clock, Random } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { RefusalCode } from '../errors.ts';
import type { BodyBounds } from './body.ts';
import { OpenCall } from './connections.ts';
import type { Connections } from './connections.ts';
import { bugResponse, refusalResponse } from './problem.ts';
import type { ProblemResponse, RefusedCall } from './problem.ts';
import { newRequestId, ReadCall } from './read-call.ts';
import { writeOutcome, writeProblem } from './respond.ts';
import type { ResponseParts } from './respond.ts';

export interface ServeParts extends ResponseParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly bounds: BodyBounds;
  readonly connections: Connections;
  /** A call that was let in has ended. */
  readonly onLeft: () => void;
  /** True when the client sent `Expect: 100-continue` and waits for our word. */
  readonly awaitsContinue: (open: OpenCall) => boolean;
  readonly onBug: (error: unknown) => void;
  /** A request was refused and did not become a call. */
  readonly onRequestRefused: (code: RefusalCode) => void;
}

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
  onRequestRefused(why.code);
  try {
    await writeProblem(open, refusalResponse({ ...why, requestId: open.id }), parts, mustEnd);
  } finally {
    connections.leave(open);
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

/** How the calls of one route are served. */
export interface Service extends ServeParts {
  readonly form: Call['form'];
  readonly handle: (call: Call) => Promise<Outcome>;
}

/** Runs one call. Never rejects. */
export async function serveCall(response: ServerResponse, parts: Service): Promise<void> {
  const call = new ReadCall(parts.connections.on(response.req.socket), response, parts);
  parts.connections.open(call);
  try {
    await writeAndReport(call, await parts.handle(call), parts);
  } catch (error) {
    // The failure is the client's own leaving, with which a waiting part rejected: there is nobody to answer.
    const left = call.clientGone.aborted && error === call.clientGone.reason;
    if (!left)
      await writeProblem(call, problemFor(error, call, parts), parts).catch((bug: unknown) => {
        parts.onBug(bug);
        call.response.socket?.destroy();
      });
  } finally {
    parts.connections.detach(call);
    call.end(() => {
      parts.connections.ended();
      parts.onLeft();
    });
  }
}
