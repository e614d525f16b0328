/**
 * The fixed routes of the public port.
 *
 * Owns: which path is which form of call, and that everything else does not exist.
 * Refuses to own: heads that may not be routed at all (`guard.policy.ts`), and the calls themselves.
 * Invariant: the query is never parsed, and no part of a path is decoded here.
 */
import express from 'express';
import type { NextFunction, Request, Response } from 'express';
import type { Call, Outcome } from '../call.ts';
import type { OpenCall } from './connections.ts';
import { refuseEarly, serveCall } from './serve-call.ts';
import type { ServeDeps } from './serve-call.ts';

/** Who answers the routes. */
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

/** What Express carries from the request to its route. */
interface Locals {
  readonly open: OpenCall;
}
type Routed = Response<unknown, Locals>;

/** Routes a call that is open already. */
export type RouteCall = (open: OpenCall) => void;

export const buildRoutes = (handlers: RouteHandlers, deps: ServeDeps): RouteCall => {
  const app = express();
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.enable('case sensitive routing').enable('strict routing');
  const serve =
    (form: Call['form'], handle: (call: Call) => Promise<Outcome>) => (_request: Request, response: Routed) =>
      serveCall(response.locals.open, { form, handle }, deps);
  app.all('/proxy', serve('proxy', handlers.handle));
  app.all(/^\/via\/./, serve('via', handlers.handle));
  app.get(
    '/activity',
    serve('activity', async (call) => jsonOutcome(await handlers.activity(call))),
  );
  app.all('/activity', (_request: Request, response: Routed) =>
    refuseEarly(response.locals.open, { code: 'method_not_allowed', allow: 'GET, HEAD' }, deps),
  );
  app.use((_request: Request, response: Routed) =>
    refuseEarly(response.locals.open, { code: 'not_found' }, deps),
  );
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    deps.onBug(error);
    response.socket?.destroy();
  });
  return (open) => {
    const locals: Locals = { open };
    app(open.request, Object.assign(open.response, { locals }));
  };
};
