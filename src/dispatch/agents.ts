/**
 * The connections of one upstream.
 *
 * Owns: pools, address checks and certificate authorities. Does not own: what is sent over them. Keeps: the address
 * that was checked is the address that is connected to, for names and literals, http and https alike; one denied answer
 * of a resolver refuses them all; the host name stays what certificate and SNI are checked against.
 */
import { promises as dns } from 'node:dns';
import type { LookupAddress } from 'node:dns';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { Socket, isIP } from 'node:net';
import type { LookupFunction } from 'node:net';
import type { Duplex } from 'node:stream';
import { getCACertificates } from 'node:tls';
import type { Clock } from '../clock.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import { addressCheck } from '../target/address.policy.ts';
import type { IsOwn } from './own-listeners.ts';
import { KeptConnections } from './kept-connections.ts';
import { AddressDeniedError, NameError } from './transport-error.ts';

/** All addresses of a name. */
export type Resolve = (hostname: string) => Promise<readonly LookupAddress[]>;

export interface AgentParts {
  readonly clock: Clock;
  /** Replaces the system's resolver. */
  readonly resolve?: Resolve | undefined;
  /** Names where this process listens: nobody is sent there. */
  readonly isOwn?: IsOwn | undefined;
}

/** A pool of connections. */
export type Pool = (http.Agent | https.Agent) & {
  /** The pool's unused connections. The overdue ones are dropped before each request. */
  readonly kept: KeptConnections;
};

export interface Agents {
  /** The pool for `scheme://host:port`. */
  forOrigin(origin: string): Pool;
  /** Destroys every connection, busy ones included. */
  close(): void;
}

/** An unused connection is closed after this at the latest, milliseconds: sooner than most balancers would. */
const idleConnectionMs = 55_000;
/** An unused connection is closed this long before the time at which the upstream said it would close it, milliseconds. */
const keepAliveMarginMs = 1_500;

/** Longest time for resolving a name, milliseconds. */
const resolveWithinMs = 5000;

const systemResolve: Resolve = (hostname) => dns.lookup(hostname, { all: true, order: 'verbatim' });

/** True when a connection to this address and port may be made. */
type AddressCheck = (address: string, port: number) => boolean;

/** Node hands options that its types do not list on to `net.connect`; these are documented there. */
type PoolOptions = http.AgentOptions & {
  readonly noDelay: boolean;
  readonly agentKeepAliveTimeoutBuffer: number;
};

/** Builds both pools of an upstream; reads `caFile` now, so that a wrong path stops the start and not a call. */
export function createAgents(
  settings: Pick<UpstreamSettings, 'allowPrivateAddresses' | 'maxSockets' | 'caFile'>,
  { clock, resolve = systemResolve, isOwn = () => false }: AgentParts,
): Agents {
  const { allowPrivateAddresses, maxSockets, caFile } = settings;
  const mayBeAt = addressCheck(allowPrivateAddresses);
  const guard: Guard = {
    allowed: (address, port) => mayBeAt(address) && !isOwn(address, port),
    resolve,
    clock,
  };
  const options: PoolOptions = {
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
  };
  const plain = new GuardedHttpAgent(options, guard);
  const secure = new GuardedHttpsAgent(
    caFile === null
      ? options
      : { ...options, ca: [...getCACertificates('default'), readFileSync(caFile, 'utf8')] },
    guard,
  );
  return {
    forOrigin: (origin) => (origin.startsWith('https:') ? secure : plain),
    close() {
      plain.destroy();
      secure.destroy();
    },
  };
}

/** What stands between a pool and the network. */
interface Guard {
  readonly allowed: AddressCheck;
  readonly resolve: Resolve;
  readonly clock: Clock;
}

type Connected = (error: Error | null, stream: Duplex) => void;

/** A resolver is never asked about a literal, so literals are checked where connections are made. */
function isDeniedLiteral({ host, port }: http.ClientRequestArgs, { allowed }: Guard): boolean {
  const literal = (host ?? '').replace(/^\[|\]$/g, '');
  return isIP(literal) !== 0 && !allowed(literal, Number(port));
}

/** Through the callback and never by throwing: a pool also connects from socket events, where nobody would catch it. */
function refuse(connected: Connected | undefined): undefined {
  connected?.(new AddressDeniedError(), new Socket());
}

class GuardedHttpAgent extends http.Agent {
  readonly #guard: Guard;
  readonly kept: KeptConnections;

  constructor(options: http.AgentOptions, guard: Guard) {
    super(options);
    this.#guard = guard;
    this.kept = new KeptConnections(this, guard.clock);
  }

  override keepSocketAlive(socket: Duplex): boolean {
    return this.kept.keep(socket, super.keepSocketAlive(socket));
  }

  override createConnection(
    options: http.ClientRequestArgs,
    connected?: Connected,
  ): Duplex | null | undefined {
    if (isDeniedLiteral(options, this.#guard)) return refuse(connected);
    return super.createConnection({ ...options, lookup: guardedLookup(this.#guard, options) }, connected);
  }
}

class GuardedHttpsAgent extends https.Agent {
  readonly #guard: Guard;
  readonly kept: KeptConnections;

  constructor(options: https.AgentOptions, guard: Guard) {
    super(options);
    this.#guard = guard;
    this.kept = new KeptConnections(this, guard.clock);
  }

  override keepSocketAlive(socket: Duplex): boolean {
    return this.kept.keep(socket, super.keepSocketAlive(socket));
  }

  override createConnection(options: https.RequestOptions, connected?: Connected): Duplex | null | undefined {
    if (isDeniedLiteral(options, this.#guard)) return refuse(connected);
    return super.createConnection({ ...options, lookup: guardedLookup(this.#guard, options) }, connected);
  }
}

/** `net.connect` asks for one address or, for happy eyeballs, for all; both get only what was checked for this port. */
function guardedLookup({ resolve, allowed, clock }: Guard, to: http.ClientRequestArgs): LookupFunction {
  const port = Number(to.port);
  return (hostname, options, callback) => {
    const fail = (error: Error): void => callback(error, '', 0);
    resolveInTime(resolve, hostname, clock).then((addresses) => {
      const usable = addresses.filter(({ family }) => !options.family || options.family === family);
      const [first] = usable;
      if (first === undefined) fail(new NameError('ENODATA'));
      else if (!addresses.every(({ address }) => allowed(address, port))) fail(new AddressDeniedError());
      else if (options.all === true) callback(null, [...usable]);
      else callback(null, first.address, first.family);
    }, fail);
  };
}

function resolveInTime(resolve: Resolve, hostname: string, clock: Clock): Promise<readonly LookupAddress[]> {
  return new Promise((settle, reject) => {
    const cancel = clock.after(resolveWithinMs, () => reject(new NameError('ETIMEOUT')));
    const end = (): void => cancel();
    const answered = resolve(hostname);
    answered.then(settle, reject);
    answered.then(end, end);
  });
}
