/**
 * The clients' connections and the calls open on each of them.
 *
 * Owns: noticing that a client is gone, the bounds on open calls, when a connection must end, and which one is given up for another.
 * Does not own: what is written on a connection.
 * Invariants: every open call of a dead connection is aborted; once `Connection: close` was announced no further
 * request of that connection is handled (RFC 9112 §9.6); one connection holds a bounded number of calls; idle connections of clients
 * that have shown no valid key keep nobody else out.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { ServerSettings } from '../config/settings.ts';
import { type OverloadBound, Refusal } from '../errors.ts';
import type { Call, CallBody, CallFacts, Outcome } from '../call.ts';
import { every, type Clock, type Random } from '../clock.ts';
import type { RefusedRequest } from '../telemetry/events.ts';
import type { Overload, OverloadOptions } from './overload.ts';

/** A request whose response is not finished. One that is served as a call is a `ReadCall`. */
export class OpenCall {
  readonly connection: Connection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** `Sluice-Request-Id`. */
  readonly id: string;
  /**
   * A client that does not take within this time all that waits for it (some 64 KiB) counts as gone, milliseconds. Before an upstream
   * has responded: what `timeouts.idleSeconds` is where nothing else is configured.
   */
  maxUnreadMs = 300_000;
  readonly #leaving = new AbortController();
  /** Aborted when the client's connection is gone. */
  readonly gone = this.#leaving.signal;

  constructor(connection: Connection, response: ServerResponse, id: string) {
    this.connection = connection;
    this.request = response.req;
    this.response = response;
    this.id = id;
  }

  leave(): void {
    this.#leaving.abort();
  }
}

/** One client's connection. Responses leave in the order of their requests; calls may be open side by side. */
export class Connection {
  readonly socket: Socket;
  /** The connection was opened beyond the bound on connections: none of its calls is let in. */
  readonly isExcess: boolean;
  /** In the order of their requests. A list that is replaced at each change: there are few. */
  calls: readonly OpenCall[] = [];
  /**
   * `open`: further requests are handled. `undecided`: its newest client waits for `100 Continue`; without it Node ends the connection
   * behind the response. `ending`: the last open response ends it. `failed`: so does the parser's error, which is reported once.
   */
  state: 'open' | 'undecided' | 'ending' | 'failed' = 'open';
  /** True once a call on it had a valid key. */
  isAuthenticated = false;
  /** Bytes that had come over it when its last call ended: what has come since is the beginning of a head. */
  bytesBefore = 0;

  readonly #onClosed: (connection: Connection) => void;

  constructor(socket: Socket, isExcess: boolean, onClosed: (connection: Connection) => void) {
    this.socket = socket;
    this.isExcess = isExcess;
    this.#onClosed = onClosed;
  }

  /** The newest call; its response is the last one on the wire. */
  get newest(): OpenCall | undefined {
    return this.calls.at(-1);
  }

  /**
   * Decides, when the head of a response is written, whether it announces the end of the connection. Only the newest
   * call's response may: an earlier one would cut off the responses behind it.
   */
  endsWith(call: OpenCall, wanted: boolean): boolean {
    if (!(wanted || this.state !== 'open') || this.newest !== call) return false;
    this.end();
    return true;
  }

  /** No request after those that are open is handled; their last response ends the connection. */
  end(): void {
    if (this.state !== 'failed') this.state = 'ending';
  }

  /** Sends `100 Continue` if the client waits for it. */
  askForBody({ request, response }: OpenCall): void {
    if (this.state !== 'undecided') return;
    response.writeContinue();
    this.state = request.headers.upgrade === undefined ? 'open' : 'ending';
  }

  /** Bytes of a head that is not complete, while no call is open. */
  get unfinishedBytes(): number {
    return this.calls.length > 0 ? 0 : this.socket.bytesRead - this.bytesBefore;
  }

  /**
   * The client can no longer receive: aborts every call whose response is not already on its way as a whole. One function for whatever
   * shows it, because a held call keeps it.
   */
  readonly abandon = (): void => {
    for (const call of this.calls) if (!call.response.writableEnded) call.leave();
    if (this.socket.destroyed) this.#onClosed(this);
  };

  /**
   * Takes the connection out of service after a parser error: whatever is open and complete is still answered.
   * @returns true when it is free for one last response about the error
   */
  fail(): boolean {
    const { socket, state, newest } = this;
    if (state === 'failed') return false;
    this.state = 'failed';
    // The call whose body was being received when the parser gave up.
    const broken = newest?.request.complete === false ? newest : null;
    const hasBegun = broken?.response.headersSent ?? false;
    broken?.leave();
    if (!socket.writable || socket.bytesRead === 0) socket.destroy();
    // The connection ends behind the last response.
    else if (this.calls.some((call) => call !== broken)) return false;
    else if (state === 'open' && !hasBegun) return true;
    else socket.destroySoon();
    return false;
  }

  leave(call: OpenCall): void {
    this.calls = this.calls.filter((other) => other !== call);
    if (this.calls.length > 0) return;
    this.bytesBefore = this.socket.bytesRead;
    if (this.state !== 'open' && this.socket.writable) this.socket.destroySoon();
  }
}

type ConnectionBounds = Pick<ServerSettings, 'maxConnections' | 'maxCallsPerConnection' | 'maxOpenCalls'>;

/** Every connection of one server. */
export class Connections {
  readonly #bounds: ConnectionBounds;
  readonly #onGivenUp: () => void;
  readonly #known = new Map<Socket, Connection>();
  /** Connections that never had an authenticated call, and have none open but one that lingers; the longest idle first. */
  readonly #idleStrangers = new Set<Connection>();
  /**
   * Calls whose response is not finished, and those that go on for their repeats after their clients have left. Who has {@link open}ed one
   * takes it off when it is over, for its repeats as well.
   */
  openCalls = 0;

  /** @param onGivenUp called for each connection that is closed to make room */
  constructor(bounds: ConnectionBounds, onGivenUp: () => void = () => {}) {
    this.#bounds = bounds;
    this.#onGivenUp = onGivenUp;
  }

  /** Connections there are now. */
  get count(): number {
    return this.#known.size;
  }

  /** Bytes of heads that are not complete. Looks at every connection. */
  unfinishedBytes(): number {
    return this.#known.values().reduce((bytes, connection) => bytes + connection.unfinishedBytes, 0);
  }

  /** Closes connections on which no call is open. */
  endIdle(): void {
    for (const { calls, socket } of this.#known.values()) if (calls.length === 0) socket.destroySoon();
  }

  /**
   * Closes idle connections of strangers with an unfinished head, the longest idle first, until `bytes` of heads are given up. Not that of
   * `caller`, whose head is complete.
   */
  giveUpUnfinished(bytes: number, caller: Connection): void {
    let left = bytes;
    for (const connection of this.#idleStrangers) {
      if (left <= 0) return;
      if (connection === caller) continue;
      const { unfinishedBytes } = connection;
      left -= unfinishedBytes;
      if (unfinishedBytes > 0) this.#giveUp(connection);
    }
  }

  /** The connection on this socket; watched from the first time it is asked for. */
  on(socket: Socket): Connection {
    const known = this.#known.get(socket);
    if (known !== undefined) return known;
    const { maxConnections } = this.#bounds;
    const [longestIdle] = this.#idleStrangers;
    if (this.#known.size >= maxConnections && longestIdle !== undefined) this.#giveUp(longestIdle);
    const connection = new Connection(socket, this.#known.size >= maxConnections, this.#forget);
    this.#known.set(socket, connection);
    this.#idleStrangers.add(connection);
    // A client that only half-closes is gone too: it cannot be distinguished from one that closed, and Node ends the connection.
    socket.on('close', connection.abandon);
    return connection;
  }

  /**
   * A request has come; whatever becomes of it is to be {@link open}ed in the same turn of the event loop.
   * `null`: it came after the end of its connection was announced, and gets no response.
   */
  enter(response: ServerResponse): Connection | null {
    const connection = this.on(response.req.socket);
    // A write after the client left is reported here; the call learns of it through `gone`.
    response.on('error', connection.abandon);
    if (connection.state === 'open') return connection;
    connection.end();
    return null;
  }

  /** The bound that one more call on this connection would exceed; `null` = there is room. */
  crowded({ isExcess, calls }: Connection): OverloadBound | null {
    const { maxCallsPerConnection, maxOpenCalls } = this.#bounds;
    if (isExcess) return 'connections';
    if (calls.length >= maxCallsPerConnection) return 'connection_calls';
    return this.openCalls >= maxOpenCalls ? 'calls' : null;
  }

  /** Takes the call among those that are open. */
  open(call: OpenCall): void {
    const { connection } = call;
    // Exact in size, as a list that has grown is not: every held call has one.
    connection.calls = connection.calls.concat(call);
    this.#idleStrangers.delete(connection);
    this.openCalls += 1;
    if (call.request.socket.destroyed) call.leave();
  }

  /** Nothing more happens on the connection than that the rest of a refused request is thrown away. */
  lingers(connection: Connection): void {
    if (!connection.isAuthenticated && this.#known.has(connection.socket))
      this.#idleStrangers.add(connection);
  }

  /** Takes a call off its connection, which it counts for no longer. It still counts as open. */
  leave(call: OpenCall): void {
    const { connection } = call;
    connection.leave(call);
    if (connection.calls.length === 0) this.lingers(connection);
  }

  /** Closes an idle connection, which counts no longer from now on. */
  #giveUp(connection: Connection): void {
    this.#forget(connection);
    connection.socket.destroy();
    this.#onGivenUp();
  }

  readonly #forget = (connection: Connection): void => {
    this.#known.delete(connection.socket);
    this.#idleStrangers.delete(connection);
    for (const call of connection.calls) call.leave();
  };
}

// A request that is served as a {@link Call}: its head has passed the guard, and it has a route.
//
// Owns: what the journey sees of it, and what is held for it until nobody needs it any more. Does not own: what the call asks for.
// Invariants: fields and request target are passed on as received; bytes are counted before they are kept and given back exactly once;
// nothing is read beyond a bound.

export interface DataServerOptions extends OverloadOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly settings: ServerSettings;
  /** The journey of a call. */
  readonly handle: (call: Call) => Promise<Outcome>;
  /** What `GET /activity` shows to its caller, as a JSON value. */
  readonly activity: (call: Call) => Promise<unknown>;
  /** Lower-case names of the fields in which credentials are injected; asked for every request. */
  readonly credentialFields: () => ReadonlySet<string>;
  /** How long the rest of an unread request body is thrown away before the connection ends, milliseconds. Default 1,000. */
  readonly lingerMs?: number;
  /** Called for every fault of our own, once. */
  readonly onBug: (error: unknown) => void;
  readonly onRequestRefused: (refused: RefusedRequest) => void;
}

/** What all requests of the data port share. */
export interface ServeParts extends Required<DataServerOptions> {
  readonly heldBytes: HeldBytes;
  readonly connections: Connections;
  readonly overload: Overload;
  /** The replica drains: connections end with their response. */
  isDraining: boolean;
}

/** Bytes of heads and bodies that the whole process holds, and how many of them each owner (workspace) does. */
export class HeldBytes {
  readonly limit: number;
  /** Bytes that one owner may hold at most: half of the limit, so that nobody can shut the others out. */
  readonly #share: number;
  readonly #byOwner = new Map<string, number>();
  /** Bytes held now, heads and bodies. */
  held = 0;
  /** Bytes of bodies held now. */
  bodies = 0;

  /** @param maxBody bytes; one body of this size always fits an owner's share. */
  constructor(limit: number, maxBody: number) {
    this.limit = limit;
    this.#share = Math.max(Math.floor(limit / 2), maxBody);
  }

  /** Counts a head that is held already as this owner's; false (and nothing counted) when the owner's share is used up. */
  assign(bytes: number, owner: string): boolean {
    const own = this.#of(owner) + bytes;
    if (own > this.#share) return false;
    this.#byOwner.set(owner, own);
    return true;
  }

  /** True when `bytes` more of this owner would fit now. */
  fits(bytes: number, owner: string): boolean {
    return this.held + bytes <= this.limit && this.#of(owner) + bytes <= this.#share;
  }

  /** Counts bytes of a body as held; false (and nothing counted) when they do not fit. */
  take(bytes: number, owner: string): boolean {
    if (!this.fits(bytes, owner) || !this.assign(bytes, owner)) return false;
    this.held += bytes;
    this.bodies += bytes;
    return true;
  }

  /** Gives a call's bytes back; `owner` is `null` when none was found. */
  give(head: number, body: number, owner: string | null): void {
    this.held -= head + body;
    this.bodies -= body;
    if (owner === null) return;
    const left = this.#of(owner) - head - body;
    // Owners that hold nothing are forgotten: the map is as small as what is held.
    if (left > 0) this.#byOwner.set(owner, left);
    else this.#byOwner.delete(owner);
  }

  #of(owner: string): number {
    return this.#byOwner.get(owner) ?? 0;
  }
}

/** Bytes of a request's target and fields. Node keeps them as text, one byte a character, while the call is open. */
export function headBytes({ url = '', rawHeaders }: IncomingMessage): number {
  let bytes = url.length;
  for (const text of rawHeaders) bytes += text.length;
  return bytes;
}

/** True when the head announces a body, even of unknown length. */
export const announcesBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;

/** 32 hex digits. */
export const newRequestId = (random: Random): string => random.hex(16);

const nothingKnown: CallFacts = {};
const noBody: CallBody = { bytes: Buffer.alloc(0), replayable: true, completeAt: null };

/** A body of which fewer bytes come within this time is given up: slower than 1 KiB a second. */
const leastSpeed = { bytes: 30 * 1024, withinMs: 30_000 } as const;
export const tooSlow = new Refusal('request_invalid', {
  status: 408,
  detail: 'The request did not arrive in time.',
});

/** A call, and what the ingress stage keeps of it until it ends: one object. */
export class ReadCall extends OpenCall implements Call {
  readonly receivedAt: number;
  readonly form: Call['form'];
  readonly method = this.request.method ?? 'GET';
  readonly rawUrl = this.request.url ?? '/';
  readonly rawFields: readonly string[] = this.request.rawHeaders;
  readonly clientGone = this.gone;
  /** What the journey reported so far, for a refusal's fields. */
  known = nothingKnown;
  readonly #parts: ServeParts;
  readonly #headBytes = headBytes(this.request);
  #bodyBytes = 0;
  /** Whom the bytes count for; `null` while that is not known. */
  #owner: string | null = null;
  /** Who still needs what is held of the call: its client, and its repeats. */
  #holders = 1;

  constructor(response: ServerResponse, form: Call['form'], parts: ServeParts) {
    super(parts.connections.on(response.req.socket), response, newRequestId(parts.random));
    this.receivedAt = parts.clock.monotonic();
    this.form = form;
    this.#parts = parts;
    // Whether it fits or not: it is in memory already.
    parts.heldBytes.held += this.#headBytes;
  }

  readBody(owner: string): CallBody | Promise<CallBody> {
    const { request, gone } = this;
    const { clock, heldBytes, settings } = this.#parts;
    gone.throwIfAborted();
    if (!heldBytes.assign(this.#headBytes, owner)) throw this.#overloaded();
    this.#owner = owner;
    if (!announcesBody(request)) return noBody;
    const announced = Number(request.headers['content-length'] ?? 0);
    if (announced > settings.maxBodyBytes) throw this.#tooLarge();
    if (!heldBytes.fits(announced, owner)) throw this.#overloaded();
    this.connection.askForBody(this);
    return this.#collectBody(owner).then((bytes) => ({
      bytes,
      replayable: bytes.length <= settings.maxReplayBytes,
      completeAt: clock.monotonic(),
    }));
  }

  authenticated(): void {
    this.connection.isAuthenticated = true;
  }

  report(known: CallFacts): void {
    this.known = known;
  }

  retain(): () => void {
    let isHeld = true;
    this.#holders += 1;
    return () => {
      if (isHeld) this.release();
      isHeld = false;
    };
  }

  /** One of those who need it does so no longer. Behind the last of them the call has ended, and what was held for it is given back. */
  release(): void {
    this.#holders -= 1;
    if (this.#holders > 0) return;
    const { heldBytes, connections } = this.#parts;
    heldBytes.give(this.#headBytes, this.#bodyBytes, this.#owner);
    connections.openCalls -= 1;
  }

  /** Rejects with a refusal, 408 where the body is too slow, or with the reason of `gone`. */
  #collectBody(owner: string): Promise<Buffer> {
    const { request, gone } = this;
    const { clock } = this.#parts;
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let lately = 0;
      const stop = (): void => {
        cancelWatch();
        request.off('data', onData).off('end', onEnd);
        gone.removeEventListener('abort', onGone);
      };
      const refuse = (refusal: Refusal): void => {
        stop();
        request.pause();
        reject(refusal);
      };
      const cancelWatch = every(clock, leastSpeed.withinMs, () => {
        if (lately < leastSpeed.bytes) refuse(tooSlow);
        lately = 0;
      });
      const onData = (chunk: Buffer): void => {
        const refusal = this.#keep(chunk.length, owner);
        if (refusal !== null) return refuse(refusal);
        lately += chunk.length;
        chunks.push(chunk);
      };
      const onEnd = (): void => {
        stop();
        const [first] = chunks;
        resolve(chunks.length === 1 && first !== undefined ? first : Buffer.concat(chunks));
      };
      const onGone = (): void => {
        stop();
        reject(gone.reason as unknown);
      };
      gone.addEventListener('abort', onGone);
      request.on('data', onData).on('end', onEnd);
    });
  }

  /** Counts a chunk before it is kept; returns why it cannot be. */
  #keep(bytes: number, owner: string): Refusal | null {
    const { heldBytes, settings } = this.#parts;
    if (this.#bodyBytes + bytes > settings.maxBodyBytes) return this.#tooLarge();
    if (this.#holders === 0 || !heldBytes.take(bytes, owner)) return this.#overloaded();
    this.#bodyBytes += bytes;
    return null;
  }

  #tooLarge(): Refusal {
    const { maxBodyBytes } = this.#parts.settings;
    const detail = `The request body is above ${maxBodyBytes} bytes, which the operator can raise (\`server.maxBodyBytes\`).`;
    return new Refusal('body_too_large', { detail });
  }

  #overloaded(): Refusal {
    return this.#parts.overload.refuse('bytes');
  }
}
