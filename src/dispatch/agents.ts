/**
 * The connections of one upstream: pools, address checks and certificate authorities.
 *
 * Invariants: the address that was checked is the address that is connected to, for names and literals, http and https alike; one denied
 * answer of a resolver refuses them all; the host name stays what certificate and SNI are checked against; no request is written into a
 * connection that was unused for longer than it may be.
 */
import { promises as dns, type LookupAddress } from 'node:dns';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { Socket, isIP, type LookupFunction } from 'node:net';
import type { Duplex } from 'node:stream';
import { getCACertificates } from 'node:tls';
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { Clock } from '../clock.ts';
import type { UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { addressCheck } from '../target/address.policy.ts';
import { coded } from './transport-error.ts';

/** All addresses of a name. */
export type Resolve = (hostname: string) => Promise<readonly LookupAddress[]>;

export interface AgentParts {
  readonly clock: Clock;
  /** Replaces the system's resolver. */
  readonly resolve?: Resolve | undefined;
}

/** An unused connection is closed after this at the latest, milliseconds: sooner than most balancers would. */
const idleConnectionMs = 55_000;
/** An unused connection is closed this long before the time at which the upstream said it would close it, milliseconds. */
const keepAliveMarginMs = 1_500;
/** Longest time for resolving a name, milliseconds. */
const resolveWithinMs = 5_000;

/** The settings that pools are made of: where one of them changes at a reload, new pools are built. */
export const poolKeys = ['allowPrivateAddresses', 'maxSockets', 'caFile'] as const;

/** Builds both pools of an upstream; reads `caFile` now, so that a wrong path stops the start and not a call. */
export function createAgents(
  { allowPrivateAddresses, maxSockets, caFile }: Pick<UpstreamSettings, (typeof poolKeys)[number]>,
  parts: AgentParts,
) {
  const allowed = addressCheck(allowPrivateAddresses);
  // Node hands options that its types do not list on to `net.connect`; these are documented there.
  const options: https.AgentOptions & { noDelay: boolean; agentKeepAliveTimeoutBuffer: number } = {
    keepAlive: true,
    // Node heeds the upstream's `Keep-Alive: timeout=` only where the pool has a limit of its own. Without it a call
    // could be written into a connection that is being closed, and a POST must not be written twice.
    timeout: idleConnectionMs,
    agentKeepAliveTimeoutBuffer: keepAliveMarginMs,
    // The most recently used connection is the least likely to have been closed by the other side.
    scheduling: 'lifo',
    maxSockets,
    maxFreeSockets: maxSockets,
    noDelay: true,
    ...(caFile === null ? {} : { ca: [...getCACertificates('default'), readFileSync(caFile, 'utf8')] }),
  };
  const plain = new http.Agent(options);
  const secure = new https.Agent(options);
  for (const pool of [plain, secure]) {
    guard(pool, allowed, parts);
    dropOverdueConnections(pool, parts.clock);
  }
  return {
    /** The pool for `scheme://host:port`. */
    forOrigin: (origin: string): http.Agent => (origin.startsWith('https:') ? secure : plain),
    /** Destroys every connection, busy ones included. */
    close(): void {
      plain.destroy();
      secure.destroy();
    },
  };
}

// Addresses

/**
 * Connections are made to `allowed` addresses only. A resolver is never asked about a literal, so literals are checked where connections
 * are made; a name's addresses are checked where they are found, and `net.connect` gets only those, one or, for happy eyeballs, all.
 */
function guard(pool: http.Agent, allowed: (address: string) => boolean, parts: AgentParts): void {
  const addressesOf = parts.resolve ?? ((name) => dns.lookup(name, { all: true, order: 'verbatim' }));
  const lookup: LookupFunction = (hostname, options, callback) => {
    const fail = (error: Error): void => callback(error, '', 0);
    const { promise: late, reject } = Promise.withResolvers<never>();
    const cancel = parts.clock.after(resolveWithinMs, () => reject(coded('ETIMEOUT')));
    const resolved = Promise.race([addressesOf(hostname), late]).finally(cancel);
    resolved.then((addresses) => {
      const usable = addresses.filter(({ family }) => !options.family || options.family === family);
      const [first] = usable;
      if (first === undefined) fail(coded('ENODATA'));
      else if (!addresses.every(({ address }) => allowed(address))) fail(coded('ERR_ADDRESS_DENIED'));
      else if (options.all === true) callback(null, [...usable]);
      else callback(null, first.address, first.family);
    }, fail);
  };
  const create = pool.createConnection.bind(pool);
  pool.createConnection = (options, connected?: (error: Error | null, stream: Duplex) => void) => {
    const literal = (options.host ?? '').replace(/^\[|\]$/g, '');
    if (isIP(literal) === 0 || allowed(literal)) {
      const connection = create({ ...options, lookup }, connected);
      if (connection instanceof Socket) readBeforeWriteFails(connection);
      return connection;
    }
    // Through the callback and never by throwing: a pool also connects from socket events, where nobody would catch it.
    connected?.(coded('ERR_ADDRESS_DENIED'), new Socket());
    return undefined;
  };
}

// Responses that come while a request is written

/**
 * An upstream that refuses an upload responds and closes before it has read all, and the next write fails. Node destroys a connection whose
 * write fails, whatever has come over it unread, so the failure is reported one turn of the event loop later. What a reset overtakes on its
 * way is lost nevertheless (RFC 9112 §9.6).
 */
function readBeforeWriteFails(connection: Socket): void {
  type Ended = (error?: Error | null) => void;
  const late =
    (ended: Ended): Ended =>
    (error) => {
      if (error) setImmediate(ended, error);
      else ended();
    };
  const write = connection._write.bind(connection);
  const writeAll = connection._writev?.bind(connection);
  connection._write = (chunk, encoding, ended) => write(chunk, encoding, late(ended));
  if (writeAll !== undefined) connection._writev = (chunks, ended) => writeAll(chunks, late(ended));
}

// Unused connections

/** How long before Node's own timer an unused connection counts as overdue: those that it closes stay in the pool for a moment. Milliseconds. */
const overdueMarginMs = 100;
/** How long the closing of an unused connection is remembered. One that was unused for less than the least is closed by a server that stops. Milliseconds. */
const closingMemoryMs = 600_000;
const leastIdleMs = 100;
/** A connection is used for this share of the time after which its origin closes unused ones. */
const safeShare = 0.75;

/** What a pool does beside what its types list: methods of Node's that others replace, too. */
interface PoolMethods {
  keepSocketAlive(socket: Socket): boolean;
  reuseSocket(socket: Socket, request: http.ClientRequest): void;
  addRequest(request: http.ClientRequest, options: object): void;
  readonly freeSockets: Record<string, Socket[]>;
}

/**
 * After how long an origin closes unused connections that said nothing of it (`Keep-Alive: timeout=`): the longest age of late. A server
 * with a limit closes none that is older, and one that is stopped closes them at any age.
 */
export class IdleClosings {
  #longest = { ageMs: Infinity, at: -Infinity };

  /** The origin closed a connection that was unused for `ageMs`, at a monotonic time. */
  note(ageMs: number, at: number): void {
    const isOver = at - this.#longest.at >= closingMemoryMs;
    if (ageMs >= leastIdleMs && (isOver || ageMs > this.#longest.ageMs)) this.#longest = { ageMs, at };
  }

  /** For how long an unused connection may be used, milliseconds; `Infinity` = nothing is known. */
  usableMs(now: number): number {
    return now - this.#longest.at < closingMemoryMs ? safeShare * this.#longest.ageMs : Infinity;
  }
}

/**
 * Takes connections that have been unused for too long out of a pool before a request can get one.
 *
 * Node closes an unused connection by a timer, and leaves it in its pool until the close is through. A process that was kept from
 * running handles requests before its timers, and before it reads that the upstream has closed a connection meanwhile: a POST was
 * written into such a one, and answered 502, because it must not be written twice. So was one that the upstream closed at this moment.
 */
function dropOverdueConnections(agent: http.Agent, clock: Pick<Clock, 'monotonic'>): void {
  const pool = agent as unknown as PoolMethods;
  const origins = new LRUCache<string, IdleClosings>({
    ...atMost(1_000),
    memoMethod: () => new IdleClosings(),
  });
  const closingsOf = new WeakMap<Socket, IdleClosings>();
  /** Of connections that are unused now. Monotonic milliseconds. */
  const unusedSince = new WeakMap<Socket, number>();
  const ageMs = (socket: Socket): number => clock.monotonic() - (unusedSince.get(socket) ?? -Infinity);
  const isOverdue = (socket: Socket): boolean => {
    const byNode = (socket.timeout ?? 0) - overdueMarginMs;
    const byOrigin = closingsOf.get(socket)?.usableMs(clock.monotonic()) ?? Infinity;
    return ageMs(socket) >= Math.min(byNode, byOrigin);
  };
  const keep = pool.keepSocketAlive.bind(pool);
  pool.keepSocketAlive = (socket) => {
    if (!keep(socket)) return false;
    if (!closingsOf.has(socket)) {
      const closings = origins.memo(`${socket.remoteAddress} ${socket.remotePort}`);
      closingsOf.set(socket, closings);
      // One that is overdue was closed by this process; one in use was not closed for being unused.
      socket.once('close', () => {
        if (!isOverdue(socket)) closings.note(ageMs(socket), clock.monotonic());
      });
    }
    unusedSince.set(socket, clock.monotonic());
    return true;
  };
  const reuse = pool.reuseSocket.bind(pool);
  pool.reuseSocket = (socket, request) => {
    unusedSince.delete(socket);
    reuse(socket, request);
  };
  const add = pool.addRequest.bind(pool);
  pool.addRequest = (request, options) => {
    for (const free of Object.values(pool.freeSockets))
      // The one that is unused for longest comes first.
      while (free[0] !== undefined && isOverdue(free[0])) free.shift()?.destroy();
    add(request, options);
  };
}

// Permits

// Decides which waiting call gets the next socket of an upstream. Node's pool serves calls in the order in which they come, so
// that ten thousand calls of one workspace would be served before those of all others.
//
// The workspace with the fewest permits for its weight is next, of several the one whose latest permit is the oldest; calls of one
// workspace keep their order; a single busy workspace leaves a few permits free for others; no call waits while a permit is free that
// its workspace may have. How long a call may wait is its exchange's connect limit.

/** This share of all permits is kept for workspaces that hold none. Rounded down, so that fewer than 16 permits keep nothing. */
const keptFree = 1 / 16;

/** One workspace at one origin. */
interface Line {
  /** One of weight 2 may have twice as many permits as one of weight 1 before it comes after it. */
  weight: number;
  taken: number;
  /** Number, among all permits taken at the origin, of the workspace's latest one. */
  last: number;
  /** What calls that wait do with their permits, in the order of their coming. */
  readonly waiting: Set<() => void>;
}

/** The permits of one pool, by origin: `max` at each. */
export class SocketPermits {
  readonly #max: number;
  /** Workspaces that hold a permit or wait for one, by id. */
  readonly #origins = new Map<string, { taken: number; served: number; readonly lines: Map<string, Line> }>();

  constructor(max: number) {
    this.#max = max;
  }

  /**
   * Calls `start` once, at once or when its turn has come. Returns what ends the permit, or the wait for it; after that `start` is not
   * called. A second end does nothing.
   */
  enter(name: string, { id, weight }: Pick<WorkspaceSettings, 'id' | 'weight'>, start: () => void) {
    const origin = this.#origins.get(name) ?? { taken: 0, served: 0, lines: new Map<string, Line>() };
    const line = origin.lines.get(id) ?? { weight, taken: 0, last: 0, waiting: new Set() };
    this.#origins.set(name, origin);
    origin.lines.set(id, line);
    line.weight = weight;
    const mayTake = ({ taken }: Line): boolean =>
      origin.taken < this.#max - (taken === 0 ? 0 : Math.floor(this.#max * keptFree));
    let held = 0;
    const take = (): void => {
      held = 1;
      line.waiting.delete(take);
      line.taken += 1;
      origin.taken += 1;
      line.last = origin.served += 1;
      start();
    };
    // A workspace with waiting calls cannot take a permit now, or those calls would have it: the new call queues behind them.
    if (line.waiting.size === 0 && mayTake(line)) take();
    else line.waiting.add(take);
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      line.waiting.delete(take);
      line.taken -= held;
      origin.taken -= held;
      for (;;) {
        let next: Line | null = null;
        for (const one of origin.lines.values())
          if (one.waiting.size > 0 && mayTake(one) && (next === null || isBefore(one, next))) next = one;
        if (next === null) break;
        const [first] = next.waiting;
        first?.();
      }
      if (line.taken + line.waiting.size === 0) origin.lines.delete(id);
      if (origin.lines.size === 0) this.#origins.delete(name);
    };
  }
}

function isBefore(one: Line, other: Line): boolean {
  const more = one.taken * other.weight - other.taken * one.weight;
  return more < 0 || (more === 0 && one.last < other.last);
}
