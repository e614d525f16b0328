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
import type { ServerSettings } from '../config/settings.ts';
import type { RedisContact } from '../limiter/when-down.policy.ts';
import type { MetricsFormat } from '../telemetry/metrics.ts';
import { guardAdmin } from './admin-guard.ts';
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

export interface AdminServerOptions {
  readonly settings: Pick<ServerSettings, 'adminHost' | 'adminPort' | 'adminNames' | 'adminToken'>;
  readonly readiness: () => Readiness;
  readonly metrics: (
    format: MetricsFormat,
  ) => Promise<{ readonly contentType: string; readonly body: string }>;
  /** The activity of every workspace, by label, as a JSON value; `null` = the query is not valid. */
  readonly activity: (rawUrl: string) => Promise<unknown>;
  /** Adds further routes, before the response 404 to all other paths. */
  readonly addRoutes: (app: Express) => void;
  readonly onBug: (error: unknown) => void;
}

export interface AdminServer {
  readonly server: Server;
  listen(): Promise<AddressInfo>;
  /** Closes the listener and all connections at once: health checks fail from then on. */
  close(): Promise<void>;
}

/** Formats by preference: a client that accepts any gets the first. Versions are written as scrapers write them. */
const formats: Readonly<Record<string, MetricsFormat>> = {
  'text/plain; version=0.0.4': 'prometheus',
  'application/openmetrics-text; version=1.0.0': 'openmetrics',
};

/** How long a client may take to send its head and its whole request, milliseconds. */
const requestLimits = { headersTimeout: 10_000, requestTimeout: 10_000, connectionsCheckingInterval: 5_000 };

/** Whether the replica is ready, and what the operator should know of Redis. */
function readyLines({ isDraining, trouble, contact }: Readiness): readonly string[] {
  const isStarting = contact.kind === 'never' && contact.isAwaited;
  const lines = [isDraining ? 'draining' : isStarting ? 'starting' : 'ok'];
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

export function createAdminServer(options: AdminServerOptions): AdminServer {
  const { settings } = options;
  const app = express();
  const text = (response: Response, status: number, words: string): void =>
    void response.status(status).type('text').send(`${words}\n`);
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.use((_request, response, next) => {
    response.set('Cache-Control', 'no-store').set('X-Content-Type-Options', 'nosniff');
    next();
  });
  app.use(guardAdmin(settings));
  app.get('/livez', (_request, response) => text(response, 200, 'ok'));
  app.get('/readyz', (_request, response) => {
    const lines = readyLines(options.readiness());
    text(response, lines[0] === 'ok' ? 200 : 503, lines.join('\n'));
  });
  app.get('/metrics', async (request, response) => {
    const accepted = request.accepts(Object.keys(formats));
    const { contentType, body } = await options.metrics(formats[String(accepted)] ?? 'prometheus');
    // A buffer, because Express would rewrite the type of a string.
    response.set('Content-Type', contentType).set('Vary', 'Accept').send(Buffer.from(body));
  });
  app.get('/activity', async (request, response) => {
    const activity = await options.activity(request.url);
    if (activity === null) text(response, 400, 'window is like 90s, 15m or 1h');
    else response.json(activity);
  });
  app.get('/openapi.json', (_request, response) => void response.type('json').send(openapiOf('admin')));
  options.addRoutes(app);
  app.use((_request, response) =>
    text(response, 404, 'not found: this is the admin port, and callers use the data port'),
  );
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
    if (error instanceof URIError) return text(response, 400, 'invalid path');
    options.onBug(error);
    if (response.headersSent) response.socket?.destroy();
    else text(response, 500, 'internal error');
  });
  const server = createServer(requestLimits, app);
  return {
    server,
    listen: () => listen(server, settings.adminPort, settings.adminHost),
    close: () => end(server),
  };
}
