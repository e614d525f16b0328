/**
 * The private port: probes, metrics, and the state of all workspaces by label.
 *
 * Owns: its routes and the negotiation of the metrics format. Does not own: what is rendered.
 * Invariants: `/livez` and `/readyz` depend on nothing outside the process; a failing page breaks no other one;
 * an error is answered without details.
 */
import express from 'express';
import type { Express, NextFunction, Request, Response } from 'express';
import { createServer } from 'node:http';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { listen } from './listen.ts';

/** `prometheus`: text format 0.0.4. `openmetrics`: OpenMetrics 1.0.0, on request only. */
export type MetricsFormat = 'prometheus' | 'openmetrics';

/** Says whether new calls may be sent to this replica, and why Redis is unavailable, if it is. */
export interface Readiness {
  readonly ready: boolean;
  /** Why Redis is away. Calls are served all the same, in the mode chosen for that: it does not make a replica unready. */
  readonly trouble: { readonly reason: string; readonly advice: string } | null;
}

export interface AdminServerOptions {
  readonly host: string;
  readonly port: number;
  /** False while draining. Redis has no say in it: all replicas would vanish together. */
  readonly readiness: () => Readiness;
  readonly metrics: (
    format: MetricsFormat,
  ) => Promise<{ readonly contentType: string; readonly body: string }>;
  /** Every workspace, by label, as a JSON value; `null` when the query cannot be read. */
  readonly activity: (rawUrl: string) => Promise<unknown>;
  /** The live page; absent = a short text. */
  readonly page?: (request: Request, response: Response) => void;
  /** Further routes, added before the catch-all. */
  readonly routes?: readonly ((app: Express) => void)[];
  readonly onBug: (error: unknown) => void;
}

export interface AdminServer {
  readonly app: Express;
  readonly server: Server;
  listen(): Promise<AddressInfo>;
  /** Stops at once; probes fail from then on. */
  close(): Promise<void>;
}

/** The first is given to everybody without a preference. Versions as scrapers name them. */
const offered: readonly { readonly type: string; readonly format: MetricsFormat }[] = [
  { type: 'text/plain; version=0.0.4', format: 'prometheus' },
  { type: 'application/openmetrics-text; version=1.0.0', format: 'openmetrics' },
];

/** Longest head and request a prober or scraper may take, milliseconds. */
const requestLimits = { headersTimeout: 10_000, requestTimeout: 10_000, connectionsCheckingInterval: 5_000 };

function negotiated(request: Request): MetricsFormat {
  const accepted = request.accepts(offered.map(({ type }) => type));
  return offered.find(({ type }) => type === accepted)?.format ?? 'prometheus';
}

function defaultPage(_request: Request, response: Response): void {
  response.type('text').send('Sluice\n\n/livez\n/readyz\n/metrics\n/activity\n');
}

function buildApp(options: AdminServerOptions): Express {
  const app = express();
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.use((_request, response, next) => {
    response.set('Cache-Control', 'no-store').set('X-Content-Type-Options', 'nosniff');
    next();
  });
  app.get('/livez', (_request, response) => {
    response.type('text').send('ok\n');
  });
  app.get('/readyz', (_request, response) => {
    const { ready, trouble } = options.readiness();
    const detail = trouble === null ? '' : `Redis is away (${trouble.reason}): ${trouble.advice}\n`;
    response
      .status(ready ? 200 : 503)
      .type('text')
      .send(`${ready ? 'ok' : 'draining'}\n${detail}`);
  });
  app.get('/metrics', async (request, response) => {
    const { contentType, body } = await options.metrics(negotiated(request));
    // Bytes, so that Express leaves the type as the renderer spells it.
    response.set('Content-Type', contentType).set('Vary', 'Accept').send(Buffer.from(body));
  });
  app.get('/activity', async (request, response) => {
    const activity = await options.activity(request.url);
    if (activity === null) response.status(400).type('text').send('window is like 90s, 15m or 1h\n');
    else response.json(activity);
  });
  app.get('/', options.page ?? defaultPage);
  for (const add of options.routes ?? []) add(app);
  app.use((_request, response) => {
    response.status(404).type('text').send('not found\n');
  });
  app.use((error: unknown, _request: Request, response: Response, _next: NextFunction) => {
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
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
