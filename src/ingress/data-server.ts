/**
 * The public port: which requests become calls.
 *
 * Owns: the server's limits, and the order in which a request is let in, judged and routed.
 * Refuses to own: the journey of a call (`handle` is handed in), the bytes of answers (`respond.ts`).
 * Invariants: every head is judged before it is routed; the query is never parsed here; nothing a client sends
 * ends the process.
 */
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Call, Outcome } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import type { ServerSettings } from '../config/settings.ts';
import type { RefusalCode } from '../errors.ts';
import { ArrivalTimes } from './arrival-times.ts';
import { HeldBytes, headBytes } from './body.ts';
import { Connections } from './connections.ts';
import type { Entry, OpenCall } from './connections.ts';
import { drainServer } from './drain.ts';
import type { DrainOptions } from './drain.ts';
import { judgeHead } from './guard.policy.ts';
import { listen } from './listen.ts';
import type { LoadWatch } from './load.ts';
import { Overload, type Overloaded, type OverloadOptions } from './overload.ts';
import { proxyMethods, watchRawErrors } from './raw-errors.ts';
import { buildRoutes } from './routes.ts';
import { refuseEarly } from './serve-call.ts';
import type { EarlyRefusal, ServeParts } from './serve-call.ts';

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
  readonly onEarlyRefusal?: (code: RefusalCode) => void;
  /** Called for every call, and every connection, that was refused as too many. */
  readonly onOverload?: OverloadOptions['onRefused'];
  /** Called when shedding by load begins and ends. */
  readonly onShedding?: OverloadOptions['onShedding'];
  /** Looks at the load of the process. Absent: nothing is shed for it. */
  readonly load?: LoadWatch;
  /** How long a refused upload is read and thrown away before the connection ends, milliseconds. Default 1,000. */
  readonly lingerMs?: number;
}

export interface DataServer {
  readonly server: Server;
  /** Starts listening on the configured address. */
  listen(): Promise<AddressInfo>;
  /** Ends with every connection closed; see {@link DrainOptions}. */
  drain(options: DrainOptions): Promise<{ readonly cut: number }>;
  /** Stops at once. */
  close(): Promise<void>;
  stats(): {
    readonly openConnections: number;
    readonly openCalls: number;
    /** Bytes of heads and bodies of open calls. */
    readonly heldBytes: number;
    /** Those of bodies alone. */
    readonly heldBodyBytes: number;
    /** The load that stands, and the share of new calls that is refused for it. */
    readonly load: Overload['load'];
  };
}

/** Parser limits: heads of 16 KiB and 1,000 fields; slow heads and bodies end in 408. */
const parserLimits = {
  maxHeaderSize: 16_384,
  headersTimeout: 20_000,
  requestTimeout: 60_000,
  connectionsCheckingInterval: 5_000,
};
const maxFields = 1_000;

/** Refuses what a head is refused for; `null` = it may be routed. */
function judge(open: OpenCall, credentialFields: ReadonlySet<string>): EarlyRefusal | null {
  const { request } = open;
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
  return {
    ...finding,
    mustEnd: true,
    ...(finding.code === 'method_not_allowed' ? { allow: proxyMethods } : {}),
  };
}

/** Its connection ends: the client, or what balances its load, may find a replica with room. */
const refusalOf = (overloaded: Overloaded | null): EarlyRefusal | null =>
  overloaded === null ? null : { code: 'overloaded', mustEnd: true, ...overloaded };

/** Connections over the bound that are still heard and answered, so that their clients learn why; further ones are closed. */
const excessConnections = 256;

export function createDataServer(options: DataServerOptions): DataServer {
  const { settings, clock } = options;
  const heldBytes = new HeldBytes(settings.maxHeldBytes, settings.maxBodyBytes);
  const connections = new Connections(settings);
  const overload = new Overload({
    clock,
    random: options.random,
    bounds: settings,
    onRefused: options.onOverload ?? (() => {}),
    onShedding: options.onShedding ?? (() => {}),
    ...(options.load === undefined ? {} : { watch: options.load }),
  });
  const arrivals = new ArrivalTimes(clock);
  const waitingForContinue = new WeakSet<IncomingMessage>();
  let draining = false;
  const parts: ServeParts = {
    clock,
    random: options.random,
    arrivals,
    bounds: {
      maxBodyBytes: settings.maxBodyBytes,
      maxReplayBytes: settings.maxReplayBytes,
      heldBytes,
      refuseBytes: () => overload.refuse('bytes'),
    },
    connections,
    onLeft: () => overload.left(),
    lingerMs: options.lingerMs ?? 1_000,
    draining: () => draining,
    awaitsContinue: (open) => waitingForContinue.has(open.request),
    onBug: options.onBug,
    onEarlyRefusal: options.onEarlyRefusal ?? (() => {}),
  };
  const route = buildRoutes(options, parts);

  /** Why a call with a good head is not let in. */
  const refusedEntry = (entry: Exclude<Entry, { kind: 'ignored' }>): Overloaded | null => {
    if (entry.kind === 'crowded') return overload.refuse(entry.bound);
    if (heldBytes.held + headBytes(entry.call.request) > heldBytes.limit) return overload.refuse('bytes');
    return overload.shed();
  };

  const accept = (request: IncomingMessage, response: ServerResponse): void => {
    const entry = connections.enter(request, response);
    if (entry.kind === 'ignored') return;
    const { call } = entry;
    const refusal = judge(call, options.credentialFields()) ?? refusalOf(refusedEntry(entry));
    if (refusal !== null) {
      refuseEarly(call, refusal, parts).catch(options.onBug);
      return;
    }
    // Behind an offer to upgrade Node's parser drops what came in the same packet, so nothing may follow.
    if (request.headers.upgrade !== undefined) call.connection.end();
    // Without its `100 Continue` Node ends the connection behind the answer; `sendContinue` resumes it.
    if (waitingForContinue.has(request)) call.connection.suspend();
    route(call);
  };

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
  server.on('drop', () => overload.dropped());
  // A held call may be silent for long; its own deadline ends it.
  server.timeout = 0;
  server.on('connection', (socket: Socket) => connections.on(socket));
  server.on('request', accept);
  // No listener for `upgrade`: Node then hands offers of other protocols over as plain requests, and the guard sees them.
  server.on('checkExpectation', accept);
  server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
    waitingForContinue.add(request);
    accept(request, response);
  });
  watchRawErrors(server, parts);

  return {
    server,
    listen: () => listen(server, settings.port, settings.host),
    drain: (drainOptions) => {
      draining = true;
      return drainServer(server, connections, clock, drainOptions).finally(() => {
        arrivals.close();
        overload.close();
      });
    },
    close: () =>
      new Promise((resolve) => {
        arrivals.close();
        overload.close();
        server.close(() => resolve());
        server.closeAllConnections();
      }),
    stats: () => ({
      openConnections: connections.open,
      openCalls: connections.openCalls,
      heldBytes: heldBytes.held,
      heldBodyBytes: heldBytes.bodies,
      load: overload.load,
    }),
  };
}
