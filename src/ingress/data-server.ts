/**
 * The public port: which requests become calls.
 *
 * Owns: the server's limits, and the order in which a request is let in, judged and routed.
 * Does not own: the journey of a call (`handle` is handed in), the bytes of responses (`respond.ts`).
 * Invariants: every head is judged before it is routed; the query is never parsed here; nothing a client sends
 * ends the process.
 */
import type { Express } from 'express';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { delay } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import type { ProcessPressure } from '../telemetry/events.ts';
import { Connections, type Connection } from './connections.ts';
import { judgeHead, type GuardFinding } from './guard.policy.ts';
import { connectionsWithin, openFilesLimit, Overload, type OverloadOptions } from './overload.ts';
import { end, listen } from './ports.ts';
import { proxyMethods, watchRawErrors } from './raw-errors.ts';
import { headBytes, HeldBytes, type ServeParts } from './read-call.ts';
import { buildRoutes, refuseRequest, type RequestRefusal, type RouteHandlers } from './routes.ts';

export interface DataServerOptions
  extends
    RouteHandlers,
    OverloadOptions,
    Pick<ServeParts, 'clock' | 'random' | 'onBug' | 'onRequestRefused'> {
  readonly random: ServeParts['random'];
  readonly settings: ServerSettings;
  /** Lower-case names of the fields in which credentials are injected; asked for every request. */
  readonly credentialFields: () => ReadonlySet<string>;
  /** How long a refused upload is read and thrown away before the connection ends, milliseconds. Default 1,000. */
  readonly lingerMs?: number;
}

/** Parser limits: heads of 16 KiB and 1,000 fields; heads and bodies that are slower than this end in 408. Milliseconds. */
const parserLimits = {
  maxHeaderSize: 16_384,
  headersTimeout: 20_000,
  requestTimeout: 300_000,
  connectionsCheckingInterval: 5_000,
};
const maxFields = 1_000;

function refusalOf({ code, status, detail }: GuardFinding): RequestRefusal {
  const refusal = { code, status, details: { detail }, mustEnd: true };
  return code === 'method_not_allowed' ? { ...refusal, allow: proxyMethods } : refusal;
}

/** How many connections beyond the bound are still read and answered, so that their clients learn why; further ones are closed. */
const excessConnections = 256;

/** Unfinished heads are looked at no more often, milliseconds. */
const unfinishedEveryMs = 100;

export interface DrainOptions {
  /** Still accepting, milliseconds. */
  readonly delayMs: number;
  /** Time from the start of the drain until the calls that are left are cut, milliseconds. */
  readonly limitMs: number;
  /** Ends the drain at once (second SIGTERM). */
  readonly signal?: AbortSignal;
}

/** How often idle connections are searched for, milliseconds. */
const drainCheckEveryMs = 100;
/** For so long after the last connection was accepted a first head may arrive, milliseconds. */
const firstHeadMs = 1_000;

export class DataServer {
  readonly server: Server;
  readonly #options: DataServerOptions;
  readonly #heldBytes: HeldBytes;
  readonly #connections: Connections;
  readonly #maxConnections: number;
  readonly #overload: Overload;
  readonly #parts: ServeParts;
  readonly #app: Express;
  #draining = false;
  /** When unfinished heads were last looked at, monotonic milliseconds. */
  #unfinishedSeenAt = Number.NEGATIVE_INFINITY;

  constructor(options: DataServerOptions) {
    const { settings, lingerMs = 1_000 } = options;
    this.#options = options;
    this.#heldBytes = new HeldBytes(settings.maxHeldBytes, settings.maxBodyBytes);
    this.#overload = new Overload(options);
    this.#maxConnections = connectionsWithin(openFilesLimit(), settings.maxConnections);
    const bounds = { ...settings, maxConnections: this.#maxConnections };
    this.#connections = new Connections(bounds, () => void this.#overload.refuse('connections'));
    this.#parts = {
      ...options,
      lingerMs,
      heldBytes: this.#heldBytes,
      connections: this.#connections,
      overload: this.#overload,
      draining: () => this.#draining,
    };
    this.#app = buildRoutes(options, this.#parts);
    this.server = this.#serve();
  }

  /** Starts listening on the configured address. */
  listen(): Promise<AddressInfo> {
    const { port, host } = this.#options.settings;
    return listen(this.server, port, host);
  }

  /**
   * Ends without cutting calls off: connections are accepted until `delayMs` is over, because load balancers learn late; one with an open
   * call is not closed before `limitMs`. @returns how many were cut then.
   */
  async drain({
    delayMs,
    limitMs,
    signal = new AbortController().signal,
  }: DrainOptions): Promise<{ readonly cut: number }> {
    const { clock } = this.#options;
    const { server } = this;
    const connections = this.#connections;
    this.#draining = true;
    const endsAt = clock.monotonic() + limitMs;
    await delay(clock, Math.min(delayMs, limitMs), signal);
    // Closes idle connections too; not listening any more is not an error.
    server.close();
    const headsUntil = clock.monotonic() + firstHeadMs;
    while (connections.count > 0 && clock.monotonic() < endsAt && !signal.aborted) {
      server.closeIdleConnections();
      if (clock.monotonic() >= headsUntil)
        for (const { calls, socket } of connections.all) if (calls.length === 0) socket.destroySoon();
      await delay(clock, Math.min(drainCheckEveryMs, endsAt - clock.monotonic()), signal);
    }
    const cut = connections.count;
    server.closeAllConnections();
    this.#overload.close();
    return { cut };
  }

  /** Stops at once. */
  close(): Promise<void> {
    this.#overload.close();
    return end(this.server);
  }

  /** What the server holds now: bodies, and heads also that are not complete. */
  stats(): Omit<ProcessPressure, 'keptBytes'> {
    const { held, bodies } = this.#heldBytes;
    const { load, refusals } = this.#overload;
    return {
      heldBytes: bodies,
      headBytes: held - bodies + this.#connections.unfinishedBytes(),
      connections: this.#connections.count,
      openCalls: this.#connections.openCalls,
      eventLoopDelayMs: load.sustained.delayMs,
      memoryRatio: load.sustained.memoryRatio,
      sheddingShare: load.share,
      overloadRefusals: refusals,
    };
  }

  #serve(): Server {
    const { settings } = this.#options;
    // The guard checks Host itself, so that its absence too is answered with a problem document.
    const server = createServer({
      ...parserLimits,
      requireHostHeader: false,
      keepAliveTimeout: settings.keepAliveSeconds * 1_000,
      keepAlive: true,
      noDelay: true,
    });
    server.maxHeadersCount = maxFields;
    server.maxConnections =
      this.#maxConnections + Math.min(excessConnections, Math.ceil(this.#maxConnections / 8));
    server.on('drop', () => this.#overload.refuse('connections'));
    // A held call may be silent for long; its own deadline ends it.
    server.timeout = 0;
    server.on('connection', (socket: Socket) => this.#connections.on(socket));
    const accept = (awaitsContinue: boolean) => (request: IncomingMessage, response: ServerResponse) =>
      this.#accept(request, response, awaitsContinue);
    // No listener for `upgrade`: Node then hands offers of other protocols over as plain requests, and the guard sees them.
    server.on('request', accept(false)).on('checkExpectation', accept(false));
    server.on('checkContinue', accept(true));
    watchRawErrors(server, this.#parts);
    return server;
  }

  /** `awaitsContinue`: the client sends its body when it has `100 Continue`. */
  #accept(request: IncomingMessage, response: ServerResponse, awaitsContinue: boolean): void {
    const connection = this.#connections.enter(response);
    if (connection === null) return;
    const { credentialFields, onBug } = this.#options;
    const { method = '', url = '', httpVersion, rawHeaders: rawFields } = request;
    const finding = judgeHead({ method, url, httpVersion, rawFields }, credentialFields());
    const refusal = finding === null ? this.#tooMuch(connection, request) : refusalOf(finding);
    if (refusal !== null) {
      refuseRequest(response, refusal, this.#parts).catch(onBug);
      return;
    }
    if (awaitsContinue) connection.state = 'undecided';
    // Behind an offer to upgrade Node's parser drops what came in the same packet, so nothing may follow.
    else if (request.headers.upgrade !== undefined) connection.end();
    this.#app(request, response);
  }

  /** Refuses a call with a good head for want of room. The connection ends, so that the client or its balancer may choose another replica. */
  #tooMuch(connection: Connection, request: IncomingMessage): RequestRefusal | null {
    const room = this.#heldBytes.limit - this.#heldBytes.held - headBytes(request);
    const bound = this.#connections.crowded(connection) ?? (room < 0 ? 'bytes' : null);
    if (bound === null) this.#keepUnfinishedWithin(room);
    const details = bound === null ? this.#overload.shed() : this.#overload.refuse(bound);
    return details === null ? null : { code: 'overloaded', details, mustEnd: true };
  }

  /**
   * Heads that are not complete may take the room that calls leave, and no more. They are looked at only when that many connections
   * could hold more, and seldom, because each connection is asked.
   */
  #keepUnfinishedWithin(room: number): void {
    const { count } = this.#connections;
    if (count * parserLimits.maxHeaderSize <= room) return;
    const now = this.#options.clock.monotonic();
    if (now < this.#unfinishedSeenAt + unfinishedEveryMs) return;
    this.#unfinishedSeenAt = now;
    this.#connections.giveUpUnfinished(this.#connections.unfinishedBytes() - room);
  }
}
