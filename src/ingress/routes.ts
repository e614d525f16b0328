/**
 * The fixed routes of the public port.
 *
 * Owns: which path is which form of call, and that everything else does not exist.
 * Does not own: heads that may not be routed at all (`guard.policy.ts`), and the calls themselves.
 * Invariant: the query is never parsed, and no part of a path is decoded here.
 */
import express from 'express';
import type { NextFunction, Request, Response } from 'express';
import type { Call, Outcome } from '../call.ts';
import type { OpenCall } from './connections.ts';
import { refuseRequest, serveCall } from './serve-call.ts';
import type { ServeParts } from './serve-call.ts';

/** The handlers of the routes. */
export interface RouteHandlers {
  readonly handle: (call: Call) => Promise<Outcome>;
  readonly activity: (call: Call) => Promise<unknown>;
}

const jsonOutcome = (value: unknown): Outcome => ({
  status: 200,
  throttled: false,
  fields: ['Content-Type', 'application/json', 'Cache-Control', 'no-store'],
  body: Buffer.from(JSON.stringify(value)),
  record: { waitedMs: 0, attempts: 0, absorbed: 0 },
  rateLimit: null,
  shouldRetry: null,
  onEnd: () => {},
});

const noSuchRoute =
  'The routes are /proxy?target=<absolute URL, percent-encoded>, /via/{upstream}/{path} and GET /activity.';

/** What Express carries from the request to its route. */
interface Locals {
  readonly open: OpenCall;
}
type Routed = Response<unknown, Locals>;

/** What the router hangs on a request, let go once it is routed: a call that is held keeps its request for minutes. */
const routed = { next: undefined, params: undefined, route: undefined, _parsedUrl: undefined };
const withoutLocals = { locals: undefined };

/** Routes a call that is open already. */
export type RouteCall = (open: OpenCall) => void;

export function buildRoutes(handlers: RouteHandlers, parts: ServeParts): RouteCall {
  // Express's router without its application, which gives each request and response another prototype: all of Node's code
  // that touches them then misses its inline caches, and nothing here uses what the prototypes add.
  const router = express.Router({ caseSensitive: true, strict: true });
  const serve = (form: Call['form'], handle: (call: Call) => Promise<Outcome>) => {
    const served = { form, handle };
    // Nothing is returned: the router would hold what it knows of the request until the call has ended.
    return (_request: Request, response: Routed): void => void serveCall(response.locals.open, served, parts);
  };
  router.all('/proxy', serve('proxy', handlers.handle));
  router.all(/^\/via\/./, serve('via', handlers.handle));
  router.get(
    '/activity',
    serve('activity', async (call) => jsonOutcome(await handlers.activity(call))),
  );
  router.all('/activity', (_request: Request, response: Routed) =>
    refuseRequest(response.locals.open, { code: 'method_not_allowed', allow: 'GET, HEAD' }, parts),
  );
  router.use((_request: Request, response: Routed) =>
    refuseRequest(response.locals.open, { code: 'not_found', detail: noSuchRoute }, parts),
  );
  return (open) => {
    const locals: Locals = { open };
    const unrouted: NextFunction = (error: unknown) => {
      parts.onBug(error);
      open.response.socket?.destroy();
    };
    router(open.request as Request, Object.assign(open.response, { locals }) as Routed, unrouted);
    Object.assign(open.request, routed);
    Object.assign(open.response, withoutLocals);
  };
}
