/**
 * The server of the private port: health checks, metrics, the state of all workspaces by label, the live page.
 *
 * Owns: its routes and the negotiation of the metrics format. Does not own: who may ask (`admin-guard.ts`), the content of a response
 * (each comes from an option).
 * Keeps: `/livez` and `/readyz` depend on nothing outside the process; a route that fails breaks no other one; an error is answered
 * without details.
 */
import express, { type Express, type NextFunction, type Request, type Response } from 'express';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { RedisContact } from '../limiter/when-down.policy.ts';
import type { MetricsFormat } from '../telemetry/metrics.ts';
import { guardAdmin, type AdminAccess } from './admin-guard.ts';
import { end, listen, openapiOf } from './ports.ts';

/** Whether a load balancer may send new calls to this replica, and what is wrong with Redis. */
export interface Readiness {
  readonly isDraining: boolean;
  /**
   * Why Redis is unavailable; `null` = it is available. It does not make a replica unready that has reached Redis before: a load balancer
   * would drop all replicas at once.
   */
  readonly trouble: { readonly reason: string; readonly advice: string } | null;
  /** A replica that has never reached Redis is not ready while that is awaited. */
  readonly contact: RedisContact;
}

export interface AdminServerOptions extends AdminAccess {
  readonly host: string;
  readonly port: number;
  readonly readiness: () => Readiness;
  readonly metrics: (
    format: MetricsFormat,
  ) => Promise<{ readonly contentType: string; readonly body: string }>;
  /** The activity of every workspace, by label, as a JSON value; `null` = the query is not valid. */
  readonly activity: (rawUrl: string) => Promise<unknown>;
  /** The live page; absent = a short text. */
  readonly page?: (request: Request, response: Response) => void;
  /** Each adds routes of its own, before the response 404 to all other paths. */
  readonly routes?: readonly ((app: Express) => void)[];
  readonly onBug: (error: unknown) => void;
}

export interface AdminServer {
  readonly app: Express;
  readonly server: Server;
  listen(): Promise<AddressInfo>;
  /** Closes the listener and all connections at once: health checks fail from then on. */
  close(): Promise<void>;
}

/** Formats by preference: a client that accepts any gets the first. Versions are written as scrapers write them. */
const offered: readonly { readonly type: string; readonly format: MetricsFormat }[] = [
  { type: 'text/plain; version=0.0.4', format: 'prometheus' },
  { type: 'application/openmetrics-text; version=1.0.0', format: 'openmetrics' },
];

/** How long a client may take to send its head and its whole request, milliseconds. */
const requestLimits = { headersTimeout: 10_000, requestTimeout: 10_000, connectionsCheckingInterval: 5_000 };

function negotiated(request: Request): MetricsFormat {
  const accepted = request.accepts(offered.map(({ type }) => type));
  return offered.find(({ type }) => type === accepted)?.format ?? 'prometheus';
}

function defaultPage(_request: Request, response: Response): void {
  response.type('text').send('Sluice\n\n/livez\n/readyz\n/metrics\n/activity\n/openapi.json\n');
}

function stateOf({ isDraining, contact }: Readiness): 'ok' | 'starting' | 'draining' {
  if (isDraining) return 'draining';
  return contact.kind === 'never' && contact.isAwaited ? 'starting' : 'ok';
}

/** What the operator should know of Redis; empty = nothing is wrong with it. */
function redisLines({ trouble, contact }: Readiness): readonly string[] {
  const lines: string[] = [];
  if (trouble !== null) lines.push(`Redis is away (${trouble.reason}): ${trouble.advice}`);
  if (contact.kind === 'never') {
    const { replicas } = contact;
    const until =
      replicas === null
        ? 'calls are refused, because redis.whenDown is deny or redis.replicas is not set'
        : `this replica takes 1/${replicas} of every limit`;
    lines.push(`Redis has never been reached: until it is, ${until}.`);
  }
  return lines;
}

function buildApp(options: AdminServerOptions): Express {
  const app = express();
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.use((_request, response, next) => {
    response.set('Cache-Control', 'no-store').set('X-Content-Type-Options', 'nosniff');
    next();
  });
  app.use(guardAdmin(options));
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/readyz', (_request, response) => {
    const readiness = options.readiness();
    const state = stateOf(readiness);
    response
      .status(state === 'ok' ? 200 : 503)
      .type('text')
      .send([state, ...redisLines(readiness)].map((line) => `${line}\n`).join(''));
  });
  app.get('/metrics', async (request, response) => {
    const { contentType, body } = await options.metrics(negotiated(request));
    // A buffer, because Express would rewrite the type of a string.
    response.set('Content-Type', contentType).set('Vary', 'Accept').send(Buffer.from(body));
  });
  app.get('/activity', async (request, response) => {
    const activity = await options.activity(request.url);
    if (activity === null) response.status(400).type('text').send('window is like 90s, 15m or 1h\n');
    else response.json(activity);
  });
  app.get('/openapi.json', (_request, response) => {
    response.type('json').send(openapiOf('admin'));
  });
  app.get('/', options.page ?? defaultPage);
  for (const add of options.routes ?? []) add(app);
  app.use((_request, response) => {
    response
      .status(404)
      .type('text')
      .send('not found: this is the admin port, and callers use the data port\n');
  });
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    if (error instanceof URIError) return void response.status(400).type('text').send('invalid path\n');
    options.onBug(error);
    if (response.headersSent) response.socket?.destroy();
    else response.status(500).type('text').send('internal error\n');
  });
  return app;
}

export function createAdminServer(options: AdminServerOptions): AdminServer {
  const app = buildApp(options);
  const server = createServer(requestLimits, app);
  return {
    app,
    server,
    listen: () => listen(server, options.port, options.host),
    close: () => end(server),
  };
}
