/**
 * The fixed routes of the public port, and one call from its request to the end of its response.
 *
 * Owns: which path is which form of call, and that everything else does not exist; that every call ends in exactly one response or a
 * closed connection, and that everything held for it is let go.
 * Does not own: heads that may not be routed at all (`guard.policy.ts`), the journey of a call (`pipeline.ts`).
 * Invariants: the query is never parsed, and no part of a path is decoded here; `onEnd` of an outcome is called exactly once; a refusal
 * becomes its problem document; anything else thrown is a bug, reported to `onBug` once and answered without details.
 */
import express from 'express';
import type { NextFunction, Request, Response } from 'express';
import { IncomingMessage, ServerResponse } from 'node:http';
import type { Call, Outcome, ResponseEnd } from '../call.ts';
import { Refusal } from '../errors.ts';
import { OpenCall } from './connections.ts';
import { openapiOf } from './ports.ts';
import { bugResponse, refusalResponse } from './problem.ts';
import { newRequestId, ReadCall, type ServeParts } from './read-call.ts';
import { writeOutcome, writeProblem } from './respond.ts';

/**
 * Answers a request that never becomes a call.
 * @param mustEnd the connection ends with the response: its framing is in doubt, or the process is overloaded
 */
export async function refuseRequest(
  response: ServerResponse,
  refusal: Refusal,
  parts: ServeParts,
  mustEnd = false,
): Promise<void> {
  const { connections, random, onRequestRefused } = parts;
  const open = new OpenCall(connections.on(response.req.socket), response, newRequestId(random));
  connections.open(open);
  const { method = '' } = response.req;
  onRequestRefused({ requestId: open.id, method, status: refusal.status, code: refusal.code });
  try {
    await writeProblem(open, refusalResponse(refusal, open.id), parts, mustEnd);
  } finally {
    connections.leave(open);
    connections.openCalls -= 1;
  }
}

/** Runs one call through `handle`. Never rejects. */
async function serveCall(call: ReadCall, handle: ServeParts['handle'], parts: ServeParts): Promise<void> {
  const { connections, onBug } = parts;
  connections.open(call);
  try {
    const outcome = await handle(call);
    // Stands if writing fails before a byte is out: then the upstream's response was not usable.
    let end: ResponseEnd = 'upstream_cut';
    try {
      end = await writeOutcome(call, outcome, parts);
    } finally {
      outcome.onEnd(end);
    }
  } catch (error) {
    // The failure is the client's own leaving, with which a waiting part rejected: there is nobody to answer.
    if (call.gone.aborted && error === call.gone.reason) return;
    const isRefused = error instanceof Refusal;
    if (!isRefused) onBug(error);
    const { id, known, rawFields } = call;
    const problem = isRefused ? refusalResponse(error, id, known, rawFields) : bugResponse(id);
    await writeProblem(call, problem, parts).catch((bug: unknown) => {
      onBug(bug);
      call.response.socket?.destroy();
    });
  } finally {
    connections.leave(call);
    call.release();
  }
}

/** A response of ours. `json`: its body as it is. */
const jsonOutcome = (json: Buffer): Outcome => ({
  status: 200,
  throttled: false,
  fields: ['Content-Type', 'application/json', 'Cache-Control', 'no-store'],
  body: json,
  record: { waitedMs: 0, attempts: 0, absorbed: 0, held: [] },
  rateLimit: null,
  shouldRetry: null,
  onEnd: () => {},
});

/** What the router notes at each request and response for handlers, which a held call would keep. */
const unrouted = { request: { next: () => {}, params: {}, _parsedUrl: null }, response: { locals: {} } };

const noSuchRoute = new Refusal('not_found', {
  detail:
    'The routes are /proxy?target=<absolute URL, percent-encoded>, /via/{upstream}/{path}, GET /activity and GET /openapi.json.',
});

/**
 * The routes, and what the server makes requests and responses of: of the prototypes that Express would give each of them, because V8 is
 * slow with an object whose prototype was changed.
 */
export function buildRoutes(parts: ServeParts) {
  const { handle, activity, onBug } = parts;
  const app = express();
  class AppRequest extends IncomingMessage {}
  class AppResponse<Of extends IncomingMessage> extends ServerResponse<Of> {}
  app.request = Object.setPrototypeOf(AppRequest.prototype, app.request) as typeof app.request;
  app.response = Object.setPrototypeOf(AppResponse.prototype, app.response) as typeof app.response;
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.enable('case sensitive routing').enable('strict routing');
  const serve =
    (form: Call['form'], handled: ServeParts['handle']) =>
    (request: Request, response: Response): void => {
      // A call may be held for long: what the router knows of its request is let go, and no promise is returned to it.
      Object.assign(request, unrouted.request);
      Object.assign(response, unrouted.response);
      void serveCall(new ReadCall(response, form, parts), handled, parts);
    };
  const refuse = (why: Refusal) => (_request: Request, response: Response) =>
    refuseRequest(response, why, parts);
  app.all('/proxy', serve('proxy', handle));
  app.all(/^\/via\/./, serve('via', handle));
  const shown = {
    '/activity': async (call: Call) => Buffer.from(JSON.stringify(await activity(call))),
    '/openapi.json': () => openapiOf('data'),
  };
  for (const [path, json] of Object.entries(shown)) {
    app.get(
      path,
      serve('activity', async (call) => jsonOutcome(await json(call))),
    );
    app.all(path, refuse(new Refusal('method_not_allowed', { allow: 'GET, HEAD' })));
  }
  app.use(refuse(noSuchRoute));
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    onBug(error);
    response.socket?.destroy();
  });
  return { app, classes: { IncomingMessage: AppRequest, ServerResponse: AppResponse } };
}
