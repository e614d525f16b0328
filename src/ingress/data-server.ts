/**
 * The public port: which requests become calls.
 *
 * Owns: the server's limits, the order in which a request is let in, judged and routed, and what Node never passes to the application,
 * answered on bare sockets: requests that do not parse (`clientError`), and CONNECT.
 * Does not own: the journey of a call (`handle` is handed in), the bytes of responses (`respond.ts`).
 * Invariants: every head is judged before it is routed; the query is never parsed here; nothing a client sends
 * ends the process; a response meant for one request never stands in another one's place; every socket is answered or ended.
 */
import { createServer, STATUS_CODES, IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { delay } from '../clock.ts';
import { Refusal } from '../errors.ts';
import type { ProcessPressure } from '../telemetry/events.ts';
import {
  Connections,
  type Connection,
  OpenCall,
  headBytes,
  HeldBytes,
  newRequestId,
  type DataServerOptions,
  type ServeParts,
  ReadCall,
  tooSlow,
} from './connections.ts';
import { judgeHead } from './guard.policy.ts';
import { connectionsWithin, Overload } from './overload.ts';
import { end, listen, openapiOf } from './ports.ts';
import { refusalResponse, bugResponse, writeOutcome, writeProblem } from './respond.ts';
import express, { type NextFunction, type Request, type Response } from 'express';
import type { Call, Outcome, ResponseEnd } from '../call.ts';

/** Parser limits: heads of 16 KiB and 1,000 fields; slow heads end in 408, and so do slow bodies (`connections.ts` asks for a least speed). */
const parserLimits = {
  maxHeaderSize: 16_384,
  headersTimeout: 20_000,
  requestTimeout: 900_000,
  connectionsCheckingInterval: 5_000,
};
const maxFields = 1_000;

/** How many connections beyond the bound are still read and answered, so that their clients learn why; further ones are closed. */
const excessConnections = 256;

/** Unfinished heads are looked at no more often, milliseconds. */
const unfinishedEveryMs = 100;
/** How often idle connections are searched for while the server drains, milliseconds. */
const drainCheckEveryMs = 100;
/** For so long after the last connection was accepted a first head may arrive, milliseconds. */
const firstHeadMs = 1_000;

/** What the parser's errors mean for the client, by code. */
const parserRefusals: Readonly<Record<string, Refusal>> = {
  HPE_HEADER_OVERFLOW: new Refusal('headers_too_large', { detail: 'The request head is too large.' }),
  ERR_HTTP_REQUEST_TIMEOUT: tooSlow,
};
const notHttp = new Refusal('request_invalid', { detail: 'The request is not valid HTTP/1.1.' });

export class DataServer {
  readonly server;
  readonly #parts: ServeParts;
  readonly #maxConnections: number;
  readonly #routes: ReturnType<typeof buildRoutes>;
  /** When unfinished heads were last looked at, monotonic milliseconds. */
  #unfinishedSeenAt = Number.NEGATIVE_INFINITY;

  constructor(options: DataServerOptions) {
    const { settings } = options;
    const overload = new Overload(options);
    this.#maxConnections = connectionsWithin(settings.maxConnections);
    const bounds = { ...settings, maxConnections: this.#maxConnections };
    this.#parts = {
      lingerMs: 1_000,
      ...options,
      heldBytes: new HeldBytes(settings.maxHeldBytes, settings.maxBodyBytes),
      connections: new Connections(bounds, () => void overload.refuse('connections')),
      overload,
      isDraining: false,
    };
    this.#routes = buildRoutes(this.#parts);
    this.server = this.#serve();
  }

  /** Starts listening on the configured address. */
  listen(): Promise<AddressInfo> {
    const { port, host } = this.#parts.settings;
    return listen(this.server, port, host);
  }

  /**
   * Ends without cutting calls off: connections are accepted until `delayMs` is over, because load balancers learn late; one with an open
   * call is not closed before `limitMs` after the start, or before the signal. @returns how many were cut then.
   */
  async drain(delayMs: number, limitMs: number, signal = new AbortController().signal): Promise<number> {
    const { server } = this;
    const { clock, connections, overload } = this.#parts;
    this.#parts.isDraining = true;
    const endsAt = clock.monotonic() + limitMs;
    await delay(clock, Math.min(delayMs, limitMs), signal);
    // Closes idle connections too; not listening any more is not an error.
    server.close();
    const headsUntil = clock.monotonic() + firstHeadMs;
    while (connections.count > 0 && clock.monotonic() < endsAt && !signal.aborted) {
      server.closeIdleConnections();
      if (clock.monotonic() >= headsUntil) connections.endIdle();
      await delay(clock, Math.min(drainCheckEveryMs, endsAt - clock.monotonic()), signal);
    }
    const cut = connections.count;
    server.closeAllConnections();
    overload.close();
    return cut;
  }

  /** Stops at once. */
  close(): Promise<void> {
    this.#parts.overload.close();
    return end(this.server);
  }

  /** What the server holds now: bodies, and heads also that are not complete. */
  stats(): Omit<ProcessPressure, 'keptBytes'> {
    const { connections, heldBytes, overload } = this.#parts;
    const { held, bodies } = heldBytes;
    const { sustained, cause, refusals } = overload;
    return {
      heldBytes: bodies,
      headBytes: held - bodies + connections.unfinishedBytes(),
      connections: connections.count,
      openCalls: connections.openCalls,
      eventLoopDelayMs: sustained.delayMs,
      memoryRatio: sustained.memoryRatio,
      sheddingShare: cause === null ? 0 : 1,
      overloadRefusals: refusals,
    };
  }

  #serve() {
    const { connections, overload, settings } = this.#parts;
    // The guard checks Host itself, so that its absence too is answered with a problem document.
    const server = createServer({
      ...this.#routes.classes,
      ...parserLimits,
      requireHostHeader: false,
      keepAliveTimeout: settings.keepAliveSeconds * 1_000,
      keepAlive: true,
      noDelay: true,
    });
    server.maxHeadersCount = maxFields;
    server.maxConnections =
      this.#maxConnections + Math.min(excessConnections, Math.ceil(this.#maxConnections / 8));
    // A held call may be silent for long; its own deadline ends it.
    server.timeout = 0;
    server.on('drop', () => overload.refuse('connections'));
    server.on('connection', (socket: Socket) => connections.on(socket));
    const accept = (awaitsContinue: boolean) => (request: IncomingMessage, response: ServerResponse) =>
      this.#accept(request, response, awaitsContinue);
    // No listener for `upgrade`: Node then hands offers of other protocols over as plain requests, and the guard sees them.
    server.on('request', accept(false)).on('checkExpectation', accept(false));
    server.on('checkContinue', accept(true));
    server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
      this.#refuseRaw(socket as Socket, parserRefusals[error.code ?? ''] ?? notHttp);
    });
    server.on('connect', ({ socket }: IncomingMessage) => {
      // Node has detached this socket: an error without a listener would end the process.
      socket.on('error', () => socket.destroy());
      const isAnswered = this.#refuseRaw(socket, new Refusal('method_not_allowed'), 'CONNECT');
      // The socket is not read any more, so that its end would not be noticed when the client leaves.
      if (!isAnswered) socket.destroy();
    });
    return server;
  }

  /** `awaitsContinue`: the client sends its body when it has `100 Continue`. */
  #accept(request: IncomingMessage, response: ServerResponse, awaitsContinue: boolean): void {
    const { connections, credentialFields, onBug } = this.#parts;
    const connection = connections.enter(response);
    if (connection === null) return;
    const refusal = judgeHead(request, credentialFields()) ?? this.#tooMuch(connection, request);
    if (refusal !== null) {
      refuseRequest(response, refusal, this.#parts, true).catch(onBug);
      return;
    }
    if (awaitsContinue) connection.state = 'undecided';
    // Behind an offer to upgrade Node's parser drops what came in the same packet, so nothing may follow.
    else if (request.headers.upgrade !== undefined) connection.end();
    this.#routes.app(request, response);
  }

  /** Refuses a call with a good head for want of room. The connection ends, so that the client or its balancer may choose another replica. */
  #tooMuch(connection: Connection, request: IncomingMessage): Refusal | null {
    const { clock, connections, heldBytes, overload } = this.#parts;
    const room = heldBytes.limit - heldBytes.held - headBytes(request);
    const bound = connections.crowded(connection) ?? (room < 0 ? 'bytes' : null);
    if (bound !== null) return overload.refuse(bound);
    // Heads that are not complete may take the room that calls leave, and no more, also while the process is short of memory. They are
    // looked at only when that many connections could hold more, and seldom, because each connection is asked.
    const now = clock.monotonic();
    const mayBeMore = connections.count * parserLimits.maxHeaderSize > room;
    if (mayBeMore && now >= this.#unfinishedSeenAt + unfinishedEveryMs) {
      this.#unfinishedSeenAt = now;
      connections.giveUpUnfinished(connections.unfinishedBytes() - room, connection);
    }
    return overload.cause === null ? null : overload.refuse(overload.cause);
  }

  /**
   * Sends one response on a bare socket, reads what still comes for `lingerMs` so that no reset overtakes it, and ends the connection.
   * False, and nothing is written, when the connection is not free for it.
   */
  #refuseRaw(socket: Socket, refusal: Refusal, method = ''): boolean {
    const { clock, connections, random, lingerMs, onRequestRefused } = this.#parts;
    if (!connections.on(socket).fail()) return false;
    const requestId = newRequestId(random);
    const { status, fields, body } = refusalResponse(refusal, requestId);
    onRequestRefused({ requestId, method, status, code: refusal.code });
    const lines = [`HTTP/1.1 ${status} ${STATUS_CODES[status] ?? ''}`];
    for (let at = 0; at < fields.length; at += 2) lines.push(`${fields[at] ?? ''}: ${fields[at + 1] ?? ''}`);
    lines.push(`Date: ${new Date(clock.now()).toUTCString()}`, 'Connection: close', '', '');
    socket.on('error', () => socket.destroy());
    socket.once(
      'close',
      clock.after(lingerMs, () => socket.destroy()),
    );
    socket.end(Buffer.concat([Buffer.from(lines.join('\r\n'), 'latin1'), body]));
    socket.resume();
    return true;
  }
}

// The fixed routes of the public port, and one call from its request to the end of its response.
//
// Owns: which path is which form of call, and that everything else does not exist; that every call ends in exactly one response or a
// closed connection, and that everything held for it is let go.
// Does not own: heads that may not be routed at all (`guard.policy.ts`), the journey of a call (`pipeline.ts`).
// Invariants: the query is never parsed, and no part of a path is decoded here; `onEnd` of an outcome is called exactly once; a refusal
// becomes its problem document; anything else thrown is a bug, reported to `onBug` once and answered without details.

/**
 * Answers a request that never becomes a call.
 * @param mustEnd the connection ends with the response: its framing is in doubt, or the process is overloaded
 */
async function refuseRequest(
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
function buildRoutes(parts: ServeParts) {
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
