/**
 * The fixed routes of the public port.
 *
 * Owns: which path is which form of call, and that everything else does not exist.
 * Does not own: heads that may not be routed at all (`guard.policy.ts`), and the calls themselves.
 * Invariant: the query is never parsed, and no part of a path is decoded here.
 */
import type { ServerResponse } from 'node:http';
import express from 'express';
import type { NextFunction, Request, Response } from 'express';
import type { Call, Outcome } from '../call.ts';
import type { Connection } from './connections.ts';
import { openapiOf } from './openapi.ts';
import { openRefused, refuseRequest, serveCall } from './serve-call.ts';
import type { RequestRefusal, ServeParts, Service } from './serve-call.ts';

/** The handlers of the routes. */
export interface RouteHandlers {
  readonly handle: (call: Call) => Promise<Outcome>;
  readonly activity: (call: Call) => Promise<unknown>;
}

/** A response of ours. `json`: its body as it is. */
const jsonOutcome = (json: Buffer): Outcome => ({
  status: 200,
  throttled: false,
  fields: ['Content-Type', 'application/json', 'Cache-Control', 'no-store'],
  body: json,
  record: { waitedMs: 0, attempts: 0, absorbed: 0 },
  rateLimit: null,
  shouldRetry: null,
  onEnd: () => {},
});

const noSuchRoute =
  'The routes are /proxy?target=<absolute URL, percent-encoded>, /via/{upstream}/{path}, GET /activity and GET /openapi.json.';

/** What Express carries from the request to its route. */
interface Locals {
  readonly connection: Connection;
}
type Routed = Response<unknown, Locals>;

/** What the router hangs on a request, let go once it is routed: a call that is held keeps its request for minutes. */
const routed = { next: undefined, params: undefined, route: undefined, _parsedUrl: undefined };
const withoutLocals = { locals: undefined };

/** Routes a request that was let in. */
export type RouteRequest = (connection: Connection, response: ServerResponse) => void;

export function buildRoutes(handlers: RouteHandlers, parts: ServeParts): RouteRequest {
  // Express's router without its application, which gives each request and response another prototype: all of Node's code
  // that touches them then misses its inline caches, and nothing here uses what the prototypes add.
  const router = express.Router({ caseSensitive: true, strict: true });
  const serve = (form: Call['form'], handle: (call: Call) => Promise<Outcome>) => {
    const service: Service = { ...parts, form, handle };
    // Nothing is returned: the router would hold what it knows of the request until the call has ended.
    return (_request: Request, response: Routed): void =>
      void serveCall(response.locals.connection, response, service);
  };
  router.all('/proxy', serve('proxy', handlers.handle));
  router.all(/^\/via\/./, serve('via', handlers.handle));
  router.get(
    '/activity',
    serve('activity', async (call) =>
      jsonOutcome(Buffer.from(JSON.stringify(await handlers.activity(call)))),
    ),
  );
  router.get(
    '/openapi.json',
    serve('activity', async () => jsonOutcome(openapiOf('data'))),
  );
  const refuse =
    (why: RequestRefusal) =>
    (_request: Request, response: Routed): Promise<void> =>
      refuseRequest(openRefused(response.locals.connection, response, parts), why, parts);
  for (const path of ['/activity', '/openapi.json'])
    router.all(path, refuse({ code: 'method_not_allowed', allow: 'GET, HEAD' }));
  router.use(refuse({ code: 'not_found', detail: noSuchRoute }));
  return (connection, response) => {
    const request = response.req;
    const locals: Locals = { connection };
    const unrouted: NextFunction = (error: unknown) => {
      parts.onBug(error);
      response.socket?.destroy();
    };
    router(request as Request, Object.assign(response, { locals }) as Routed, unrouted);
    Object.assign(request, routed);
    Object.assign(response, withoutLocals);
  };
}
