/**
 * The fixed routes of the public port.
 *
 * Owns: which path is which form of call, and that everything else does not exist.
 * Does not own: heads that may not be routed at all (`guard.policy.ts`), and the calls themselves.
 * Invariant: the query is never parsed, and no part of a path is decoded here.
 */
import express from 'express';
import type { Express, NextFunction, Request, Response } from 'express';
import type { Call, Outcome } from '../call.ts';
import { openapiOf } from './ports.ts';
import { ReadCall, type ServeParts } from './read-call.ts';
import { refuseRequest, serveCall, type RequestRefusal } from './serve-call.ts';

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
  record: { waitedMs: 0, attempts: 0, absorbed: 0, held: [] },
  rateLimit: null,
  shouldRetry: null,
  onEnd: () => {},
});

const noNext = (): void => {};

const noSuchRoute =
  'The routes are /proxy?target=<absolute URL, percent-encoded>, /via/{upstream}/{path}, GET /activity and GET /openapi.json.';

export function buildRoutes({ handle, activity }: RouteHandlers, parts: ServeParts): Express {
  const app = express();
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.enable('case sensitive routing').enable('strict routing');
  const serve =
    (form: Call['form'], handled: RouteHandlers['handle']) =>
    (request: Request, response: Response): void => {
      // A call may be held for long: what the router knows of its request is let go, and no promise is returned to it.
      request.next = noNext;
      void serveCall(new ReadCall(response, form, parts), handled, parts);
    };
  const json = async (value: Promise<unknown>): Promise<Outcome> =>
    jsonOutcome(Buffer.from(JSON.stringify(await value)));
  app.all('/proxy', serve('proxy', handle));
  app.all(/^\/via\/./, serve('via', handle));
  app.get(
    '/activity',
    serve('activity', (call) => json(activity(call))),
  );
  app.get(
    '/openapi.json',
    serve('activity', async () => jsonOutcome(openapiOf('data'))),
  );
  const refuse = (why: RequestRefusal) => (_request: Request, response: Response) =>
    refuseRequest(response, why, parts);
  app.all(
    ['/activity', '/openapi.json'],
    refuse({ code: 'method_not_allowed', allow: 'GET, HEAD', details: {} }),
  );
  app.use(refuse({ code: 'not_found', details: { detail: noSuchRoute } }));
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    parts.onBug(error);
    response.socket?.destroy();
  });
  return app;
}
