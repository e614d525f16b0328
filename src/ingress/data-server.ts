/**
 * The public port: which requests become calls.
 *
 * Owns: the server's limits, and the order in which a request is let in, judged and routed.
 * Does not own: the journey of a call (`handle` is handed in), the bytes of responses (`respond.ts`).
 * Invariants: every head is judged before it is routed; the query is never parsed here; nothing a client sends
 * ends the process.
 */
import type { Express } from 'express';
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Call, Outcome } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import type { RefusalCode } from '../errors.ts';
import { HeldBytes, headBytes } from './body.ts';
import { Connections } from './connections.ts';
import type { Entry } from './connections.ts';
import { drainServer } from './drain.ts';
import type { DrainOptions } from './drain.ts';
import { judgeHead } from './guard.policy.ts';
import { Overload, type LoadWatch, type Overloaded, type OverloadOptions } from './overload.ts';
import { end, listen } from './ports.ts';
import { proxyMethods, watchRawErrors } from './raw-errors.ts';
import { buildRoutes } from './routes.ts';
import { refuseRequest } from './serve-call.ts';
import type { RequestRefusal, ServeParts } from './serve-call.ts';

export interface DataServerOptions {
  readonly settings: ServerSettings;
  readonly clock: Clock;
  readonly random: Random;
  /** The journey. Refusals are thrown; anything else thrown counts as a bug. */
  readonly handle: (call: Call) => Promise<Outcome>;
  /** `GET /activity`: the calling workspace's own state, as a JSON value. Refusals are thrown. */
  readonly activity: (call: Call) => Promise<unknown>;
  /** Lower-case names of the fields in which credentials are injected; asked for every request. */
  readonly credentialFields: () => ReadonlySet<string>;
  /** Called for every fault of our own, once. */
  readonly onBug: (error: unknown) => void;
  /** Called for refusals made before the journey began. */
  readonly onRequestRefused?: (code: RefusalCode) => void;
  /** Called for every call, and every connection, that was refused as too many. */
  readonly onOverload?: OverloadOptions['onRefused'];
  /** Called when shedding by load begins and ends. */
  readonly onShedding?: OverloadOptions['onShedding'];
  /** Looks at the load of the process. Absent: nothing is shed for it. */
  readonly load?: LoadWatch;
  /** How long a refused upload is read and thrown away before the connection ends, milliseconds. Default 1,000. */
  readonly lingerMs?: number;
}

/** What the server holds now. */
export interface DataServerStats {
  readonly openConnections: number;
  readonly openCalls: number;
  /** Bytes of heads and bodies of open calls, and of heads that are not complete. */
  readonly heldBytes: number;
  /** Bytes of the bodies among `heldBytes`. */
  readonly heldBodyBytes: number;
  /** The load that stands, and the share of new calls that is refused for it. */
  readonly load: Overload['load'];
  /** Calls and connections refused as too many since the start. */
  readonly overloadRefusals: number;
}

/** Parser limits: heads of 16 KiB and 1,000 fields; slow heads end in 408, and so do slow bodies (`body.ts` asks for a least speed). */
const parserLimits = {
  maxHeaderSize: 16_384,
  headersTimeout: 20_000,
  requestTimeout: 900_000,
  connectionsCheckingInterval: 5_000,
};
const maxFields = 1_000;

/** Refuses what a head is refused for; `null` = it may be routed. */
function judge(request: IncomingMessage, credentialFields: ReadonlySet<string>): RequestRefusal | null {
  const finding = judgeHead(
    {
      method: request.method ?? '',
      url: request.url ?? '',
      httpVersion: request.httpVersion,
      rawFields: request.rawHeaders,
    },
    credentialFields,
  );
  if (finding === null) return null;
  const { code, status, detail } = finding;
  const refusal = { code, status, details: { detail }, mustEnd: true };
  return code === 'method_not_allowed' ? { ...refusal, allow: proxyMethods } : refusal;
}

/** The early refusal of an overloaded process. The connection ends, so that the client or its balancer may choose another replica. */
const overloadRefusalOf = (overloaded: Overloaded | null): RequestRefusal | null =>
  overloaded === null ? null : { code: 'overloaded', details: overloaded, mustEnd: true };

/** How many connections beyond the bound are still read and answered, so that their clients learn why; further ones are closed. */
const excessConnections = 256;

/** Unfinished heads are looked at no more often, milliseconds. */
const unfinishedEveryMs = 100;

export class DataServer {
  readonly server: Server;
  readonly #options: DataServerOptions;
  readonly #heldBytes: HeldBytes;
  readonly #connections: Connections;
  readonly #overload: Overload;
  readonly #waitingForContinue = new WeakSet<IncomingMessage>();
  readonly #parts: ServeParts;
  readonly #app: Express;
  #draining = false;
  /** When unfinished heads were last looked at, monotonic milliseconds. */
  #unfinishedSeenAt = Number.NEGATIVE_INFINITY;

  constructor(options: DataServerOptions) {
    const { settings, clock, random, onBug } = options;
    this.#options = options;
    this.#heldBytes = new HeldBytes(settings.maxHeldBytes, settings.maxBodyBytes);
    this.#connections = new Connections(settings, () => this.#overload.dropped());
    this.#overload = new Overload({
      clock,
      random,
      bounds: settings,
      onRefused: options.onOverload ?? (() => {}),
      onShedding: options.onShedding ?? (() => {}),
      ...(options.load === undefined ? {} : { watch: options.load }),
    });
    this.#parts = {
      clock,
      random,
      bounds: {
        maxBodyBytes: settings.maxBodyBytes,
        maxReplayBytes: settings.maxReplayBytes,
        heldBytes: this.#heldBytes,
        refuseBytes: () => this.#overload.refuse('bytes'),
      },
      connections: this.#connections,
      onLeft: () => this.#overload.callEnded(),
      lingerMs: options.lingerMs ?? 1_000,
      draining: () => this.#draining,
      awaitsContinue: (open) => this.#waitingForContinue.has(open.request),
      onBug,
      onRequestRefused: options.onRequestRefused ?? (() => {}),
    };
    this.#app = buildRoutes(options, this.#parts);
    this.server = this.#serve();
  }

  /** Starts listening on the configured address. */
  listen(): Promise<AddressInfo> {
    const { port, host } = this.#options.settings;
    return listen(this.server, port, host);
  }

  /** Ends with every connection closed; see {@link DrainOptions}. */
  drain(options: DrainOptions): Promise<{ readonly cut: number }> {
    this.#draining = true;
    const drained = drainServer(this.server, this.#connections, this.#options.clock, options);
    return drained.finally(() => this.#overload.close());
  }

  /** Stops at once. */
  close(): Promise<void> {
    this.#overload.close();
    return end(this.server);
  }

  stats(): DataServerStats {
    return {
      openConnections: this.#connections.count,
      openCalls: this.#connections.openCalls,
      heldBytes: this.#heldBytes.held + this.#connections.unfinishedBytes(),
      heldBodyBytes: this.#heldBytes.bodies,
      load: this.#overload.load,
      overloadRefusals: this.#overload.refusals,
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
    server.maxConnections = settings.maxConnections + excessConnections;
    server.on('drop', () => this.#overload.dropped());
    // A held call may be silent for long; its own deadline ends it.
    server.timeout = 0;
    server.on('connection', (socket: Socket) => this.#connections.on(socket));
    const accept = (request: IncomingMessage, response: ServerResponse): void =>
      this.#accept(request, response);
    server.on('request', accept);
    // No listener for `upgrade`: Node then hands offers of other protocols over as plain requests, and the guard sees them.
    server.on('checkExpectation', accept);
    server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      this.#waitingForContinue.add(request);
      this.#accept(request, response);
    });
    watchRawErrors(server, this.#parts);
    return server;
  }

  #accept(request: IncomingMessage, response: ServerResponse): void {
    const entry = this.#connections.enter(request, response);
    if (entry.kind === 'ignored') return;
    const { connection } = entry;
    const { credentialFields, onBug } = this.#options;
    const refusal =
      judge(request, credentialFields()) ?? overloadRefusalOf(this.#refusedEntry(entry, request));
    if (refusal !== null) {
      refuseRequest(response, refusal, this.#parts).catch(onBug);
      return;
    }
    // Behind an offer to upgrade Node's parser drops what came in the same packet, so nothing may follow.
    if (request.headers.upgrade !== undefined) connection.end();
    // Without its `100 Continue` Node ends the connection behind the response; `sendContinue` resumes it.
    if (this.#waitingForContinue.has(request)) connection.suspend();
    this.#app(request, response);
  }

  /** Why a call with a good head is not let in. */
  #refusedEntry(entry: Exclude<Entry, { kind: 'ignored' }>, request: IncomingMessage): Overloaded | null {
    if (entry.kind === 'crowded') return this.#overload.refuse(entry.bound);
    const room = this.#heldBytes.limit - this.#heldBytes.held - headBytes(request);
    if (room < 0) return this.#overload.refuse('bytes');
    this.#keepUnfinishedWithin(room);
    return this.#overload.shed();
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
