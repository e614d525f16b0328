/**
 * The server of the private port: health checks, metrics, the state of all workspaces by label, commands, the live page.
 *
 * The port is private, but the browsers of those who can reach it are not: a web page can make them send
 * requests there, and by a name of its own that it lets resolve to the port's address (DNS rebinding) also read the responses.
 *
 * Keeps: a request names the port by an address, `localhost` or a configured name, and comes from no page of another site. What
 * changes something also carries a field that no such page can send, and the token where one is configured. `/livez` and `/readyz` depend
 * on nothing outside the process; a route that fails breaks no other one; an error is answered without details.
 * Does not own: the content of a response (each comes from an option).
 */
import { hash, timingSafeEqual } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import { isIP, type AddressInfo } from 'node:net';
import express, { type Express, type NextFunction, type Request, type Response } from 'express';
import type { ServerSettings } from '../config/settings.ts';
import { secondsInQuery } from '../duration.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';
import type { RedisContact } from '../limiter/limiter.ts';
import { nearest } from '../nearest.policy.ts';
import type { MetricsFormat } from '../telemetry/metrics.ts';
import { end, listen, openapiOf } from './ports.ts';

/** Whether a load balancer may send new calls to this replica, and what is wrong with Redis. */
interface Readiness {
  readonly isDraining: boolean;
  /**
   * Why Redis is unavailable; `null` = it is available. It does not make a replica unready that has reached Redis before: a load balancer
   * would drop all replicas at once.
   */
  readonly trouble: { readonly reason: string; readonly advice: string } | null;
  /** A replica that has never reached Redis is not ready while that is awaited. */
  readonly contact: RedisContact;
}

/** What came of a command that was carried out: `not_paused` = there was no pause to end. */
type Carried = 'done' | 'not_paused' | 'unavailable';

/** A command as it was given, and what came of it. */
export interface GivenCommand {
  readonly verb: 'open' | 'pause' | 'resume';
  /** `null` where it was not found to be an upstream's name: a name that nobody configured may be anything. */
  readonly upstream: string | null;
  /** Of a pause. */
  readonly seconds: number | null;
  readonly result: Carried | 'unknown' | 'invalid';
}

export interface AdminServerOptions {
  readonly settings: Pick<ServerSettings, 'adminHost' | 'adminPort' | 'adminNames' | 'adminToken'>;
  readonly readiness: () => Readiness;
  readonly metrics: (
    format: MetricsFormat,
  ) => Promise<{ readonly contentType: string; readonly body: string }>;
  /** The activity of every workspace, by label, as a JSON value; `null` = the query is not valid. */
  readonly activity: (rawUrl: string) => Promise<unknown>;
  /** What an operator may do about an upstream. */
  readonly controls: {
    /** Names of the upstreams that are configured now; no other name is acted on. */
    upstreams(): readonly string[];
    open(upstream: string): Promise<Carried>;
    pause(upstream: string, ms: number): Promise<Carried>;
    resume(upstream: string): Promise<Carried>;
  };
  /** Called with each command, also one that changed nothing. */
  readonly onCommand: (command: GivenCommand) => void;
  /** Adds further routes, before the response 404 to all other paths. */
  readonly addRoutes: (app: Express) => void;
  readonly onBug: (error: unknown) => void;
}

/** Formats by preference: a client that accepts any gets the first. Versions are written as scrapers write them. */
const formats: Readonly<Record<string, MetricsFormat>> = {
  'text/plain; version=0.0.4': 'prometheus',
  'application/openmetrics-text; version=1.0.0': 'openmetrics',
};

/** How long a client may take to send its head and its whole request, milliseconds. */
const requestLimits = { headersTimeout: 10_000, requestTimeout: 10_000, connectionsCheckingInterval: 5_000 };

/** Probes of load balancers, which show nothing but health. */
const probes = ['/livez', '/readyz'];

/** A day: longer than an upstream closes a bucket. */
const maxPauseSeconds = 86_400;

/** Problems of the admin port: status, code, detail, and a field of the response. */
const problems = {
  host: [
    403,
    'admin_host_forbidden',
    'Name the admin port by its IP address, as localhost, or by a name of `server.adminNames` in the configuration.',
  ],
  origin: [
    403,
    'admin_origin_forbidden',
    'Pages of other sites may not ask the admin port: open it by its own address.',
  ],
  field: [
    403,
    'admin_field_missing',
    'This is the admin port, and callers use the data port. A command needs the field `Sluice-Admin: yes`.',
  ],
  token: [
    401,
    'admin_token_missing',
    'Send the token of `server.adminToken` as `Authorization: Bearer …`; the commands of sluice take it from SLUICE_ADMIN_TOKEN.',
    { 'WWW-Authenticate': 'Bearer' },
  ],
  method: [405, 'method_not_allowed', 'Use POST.', { Allow: 'POST' }],
  invalid: [
    400,
    'request_invalid',
    'Give `?seconds=`, more than 0 and at most 86400, such as 90, 90s or 5m.',
  ],
  unavailable: [
    503,
    'limiter_unavailable',
    'Redis is away, so the other replicas cannot be told. Try again.',
    { 'Retry-After': '1' },
  ],
  unknown: [404, 'not_found', 'No upstream of the configuration has this name'],
} as const satisfies Record<string, readonly [number, string, string, object?]>;
type Fault = keyof typeof problems;

/** Writes a problem of the admin port. */
export function adminProblem(response: Response, status: number, code: string, detail: string, fields = {}) {
  response.status(status).set(fields).type('application/problem+json');
  response.send(JSON.stringify({ type: `urn:sluice:error:${code}`, title: detail, status, detail, code }));
}

/** `hint`: goes on with the detail. */
function refuse(response: Response, fault: Fault, hint = ''): void {
  const [status, code, detail, fields] = problems[fault];
  adminProblem(response, status, code, detail + hint, fields);
}

/** `host` or `host:port`; an IPv6 address in brackets. */
const hostForm = /^(\[[0-9a-f:.]+\]|[^\s:/?#@[\]]+)(?::\d{1,5})?$/i;

/** The host in lower case, without brackets and port; empty = not a host. */
const hostnameOf = (host: string): string =>
  (hostForm.exec(host)?.[1] ?? '').toLowerCase().replace(/^\[(.*)\]$/, '$1');

/** Why a request is refused that a web page may have caused; `null` = it may pass. `names`: of the port. */
function faultOf(request: Request, names: ReadonlySet<string>, token: string | null): Fault | null {
  const { method, path, rawHeaders, url } = request;
  const hosts = valuesOf(rawHeaders, 'host');
  const host = hosts.length === 1 ? (hosts[0] ?? '').trim() : '';
  const hostname = hostnameOf(host);
  const isOwn = isIP(hostname) !== 0 || names.has(hostname.replace(/\.$/, ''));
  // HAProxy's probes are HTTP/1.0 without a Host. Every browser sends one.
  const isBareProbe = hosts.length === 0 && probes.includes(path);
  // An absolute target names a host of its own, which would count instead (RFC 9112 §3.2.2). No browser sends one here.
  if (!url.startsWith('/') || !(isBareProbe || isOwn)) return 'host';
  const sites = valuesOf(rawHeaders, 'sec-fetch-site');
  if (sites.some((site) => site.trim().toLowerCase() === 'cross-site')) return 'origin';
  const isForeign = (origin: string): boolean => {
    const from = /^https?:\/\/([^/]+)$/i.exec(origin.trim())?.[1] ?? '';
    const page = hostnameOf(from);
    // A page of `localhost` on another port is another site; one behind a proxy of a configured name is the admin port's own.
    const isConfigured = page !== 'localhost' && names.has(page);
    return from === '' || (from.toLowerCase() !== host.toLowerCase() && !isConfigured);
  };
  if (valuesOf(rawHeaders, 'origin').some(isForeign)) return 'origin';
  if (method !== 'POST') return null;
  if (request.get('sluice-admin') !== 'yes') return 'field';
  // Digests are compared, so that the time taken shows neither the token nor its length.
  const digest = (text: string): Buffer => hash('sha256', text, 'buffer');
  const given = /^Bearer +(\S+) *$/i.exec(request.get('authorization') ?? '')?.[1] ?? '';
  return token === null || timingSafeEqual(digest(given), digest(token)) ? null : 'token';
}

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

/** `POST /upstreams/{name}/open`, `/pause?seconds=` and `/resume`. */
function addCommands(app: Express, { controls, onCommand }: AdminServerOptions): void {
  for (const verb of ['open', 'resume', 'pause'] as const) {
    app.post(`/upstreams/:name/${verb}`, async (request, response) => {
      const { name } = request.params;
      const known = controls.upstreams();
      const stated = verb === 'pause' ? (secondsInQuery(request.url, 'seconds') ?? 0) : null;
      const seconds = stated !== null && stated > 0 && stated <= maxPauseSeconds ? stated : null;
      const fault = seconds !== stated ? 'invalid' : known.includes(name) ? null : 'unknown';
      const result = fault ?? (await controls[verb](name, (seconds ?? 0) * 1_000));
      onCommand({ verb, upstream: known.includes(name) ? name : null, seconds, result });
      if (result === 'done' || result === 'not_paused') return void response.json({ result });
      const meant = nearest(name, known);
      const hint = meant === null ? '.' : `: did you mean ${meant}?`;
      refuse(response, result, result === 'unknown' ? hint : '');
    });
    app.all(`/upstreams/:name/${verb}`, (_request, response) => refuse(response, 'method'));
  }
}

/** `close` ends the listener and all connections at once: health checks fail from then on. */
export function createAdminServer(options: AdminServerOptions): {
  readonly server: Server;
  listen(): Promise<AddressInfo>;
  close(): Promise<void>;
} {
  const { adminHost, adminNames, adminPort, adminToken } = options.settings;
  const names = new Set(['localhost', ...adminNames]);
  const app = express();
  const text = (response: Response, status: number, words: string): void =>
    void response.status(status).type('text').send(`${words}\n`);
  app.disable('x-powered-by').disable('etag').set('query parser', false);
  app.use((request, response, next) => {
    response.set('Cache-Control', 'no-store').set('X-Content-Type-Options', 'nosniff');
    const fault = faultOf(request, names, adminToken);
    if (fault === null) next();
    else refuse(response, fault);
  });
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
  addCommands(app, options);
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
  return { server, listen: () => listen(server, adminPort, adminHost), close: () => end(server) };
}
