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
import { CallAbort } from '../call-abort.ts';
import type { OverloadBound } from '../errors.ts';

/** A request whose response is not finished. One that is served as a call is a `ReadCall` (`read-call.ts`). */
export class OpenCall {
  readonly connection: Connection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** `Sluice-Request-Id`. */
  readonly id: string;
  /** Aborted when the client's connection is gone. */
  readonly gone = new CallAbort();

  constructor(connection: Connection, response: ServerResponse, id: string) {
    this.connection = connection;
    this.request = response.req;
    this.response = response;
    this.id = id;
  }
}

const none: readonly OpenCall[] = [];

/** One client's connection. Responses leave in the order of their requests; calls may be open side by side. */
export class Connection {
  readonly socket: Socket;
  /** The connection was opened beyond the bound on connections: none of its calls is let in. */
  readonly isExcess: boolean;
  /** A list, not a set: a connection has few open calls, and each of them comes and goes. Replaced at each change. */
  calls: readonly OpenCall[] = none;
  /** While true no further request is handled: its response might never be sent. */
  closing = false;
  /** True once `closing` cannot be taken back. */
  #fixed = false;
  /** True once the parser gave up; reported only once. */
  failed = false;
  /** The newest call; its response is the last one on the wire. */
  newest: OpenCall | null = null;
  /** True once a call on it had a valid key. */
  isAuthenticated = false;
  /** Bytes that had come over it when its last call ended: what has come since is the beginning of a head. */
  bytesBefore = 0;
  readonly #idleStrangers: Set<Connection>;

  constructor(socket: Socket, isExcess: boolean, idleStrangers: Set<Connection>) {
    this.socket = socket;
    this.isExcess = isExcess;
    this.#idleStrangers = idleStrangers;
  }

  /** The response to its newest call was sent, and nothing more happens than that the rest of the request is thrown away. */
  lingers(): void {
    if (!this.isAuthenticated) this.#idleStrangers.add(this);
  }

  /**
   * Decides, when the head of a response is written, whether it announces the end of the connection. Only the newest
   * call's response may: an earlier one would cut off the responses behind it.
   */
  endsWith(call: OpenCall, wanted: boolean): boolean {
    if (!(wanted || this.closing) || this.newest !== call) return false;
    this.end();
    return true;
  }

  /** No request after those that are open is handled; their last response ends the connection. */
  end(): void {
    this.closing = true;
    this.#fixed = true;
  }

  /** While it is not decided whether the newest response ends the connection, no further request of it is handled. */
  suspend(): void {
    this.closing = true;
  }

  /** Undoes {@link suspend}, unless a request was refused meanwhile, which its client sends again on another connection. */
  resume(): void {
    this.closing = this.#fixed;
  }

  /** Bytes of a head that is not complete, while no call is open. */
  get unfinishedBytes(): number {
    return this.calls.length > 0 ? 0 : this.socket.bytesRead - this.bytesBefore;
  }

  /** The client can no longer receive: aborts every call whose response is not already on its way as a whole. */
  abandon(): void {
    for (const call of this.calls) if (!call.response.writableEnded) call.gone.abort();
  }

  /** False when the call was not open any more. */
  leave(call: OpenCall): boolean {
    const at = this.calls.indexOf(call);
    if (at < 0) return false;
    this.calls = this.calls.length === 1 ? none : this.calls.toSpliced(at, 1);
    if (this.newest === call) this.newest = null;
    if (this.closing && this.calls.length === 0 && this.socket.writable) this.socket.destroySoon();
    return true;
  }
}

/** How a new request is received. */
export type Entry =
  | { readonly kind: 'open'; readonly connection: Connection }
  /** Over a bound: to be answered with `overloaded`. */
  | { readonly kind: 'crowded'; readonly connection: Connection; readonly bound: CountedBound }
  /** Came after the end of the connection was announced: gets no response. */
  | { readonly kind: 'ignored' };

/** Bounds that are counted here. */
export type CountedBound = Extract<OverloadBound, 'connections' | 'connection_calls' | 'calls'>;

export interface ConnectionBounds {
  /** Each connection above this number is refused with its first request, and closed. */
  readonly maxConnections: number;
  readonly maxCallsPerConnection: number;
  readonly maxOpenCalls: number;
}

/** Every connection of one server. */
export class Connections {
  readonly #bounds: ConnectionBounds;
  readonly #known = new Map<Socket, Connection>();
  /** Connections that never had an authenticated call, and have none open but one that lingers; the longest idle first. */
  readonly #idleStrangers = new Set<Connection>();
  readonly #onGivenUp: () => void;
  #openCalls = 0;
  /** Listeners of all connections: they learn from their emitter which one it is, and none is made for each. */
  readonly #onEnd: (this: Socket) => void;
  readonly #onClose: (this: Socket) => void;
  readonly #onWriteError: (this: ServerResponse) => void;

  /** @param onGivenUp called for each connection that is closed to make room */
  constructor(bounds: ConnectionBounds, onGivenUp: () => void = () => {}) {
    this.#bounds = bounds;
    this.#onGivenUp = onGivenUp;
    const known = this.#known;
    const idleStrangers = this.#idleStrangers;
    this.#onEnd = function () {
      known.get(this)?.abandon();
    };
    this.#onClose = function () {
      const connection = known.get(this);
      known.delete(this);
      if (connection !== undefined) idleStrangers.delete(connection);
      for (const call of connection?.calls ?? none) call.gone.abort();
    };
    this.#onWriteError = function () {
      known.get(this.req.socket)?.abandon();
    };
  }

  get all(): Iterable<Connection> {
    return this.#known.values();
  }

  /** Connections there are now. */
  get count(): number {
    return this.#known.size;
  }

  /** Calls whose response is not finished, and those that go on for their repeats after their clients have left. */
  get openCalls(): number {
    return this.#openCalls;
  }

  /** Bytes of heads that are not complete. Looks at every connection. */
  unfinishedBytes(): number {
    let bytes = 0;
    for (const connection of this.#known.values()) bytes += connection.unfinishedBytes;
    return bytes;
  }

  /** Closes idle connections of strangers with an unfinished head, the longest idle first, until `bytes` of heads are given up. */
  giveUpUnfinished(bytes: number): void {
    let left = bytes;
    for (const connection of this.#idleStrangers) {
      if (left <= 0) return;
      const { unfinishedBytes } = connection;
      if (unfinishedBytes === 0) continue;
      left -= unfinishedBytes;
      this.#giveUp(connection);
    }
  }

  /** The connection on this socket; watched from the first time it is asked for. */
  on(socket: Socket): Connection {
    const known = this.#known.get(socket);
    if (known !== undefined) return known;
    if (this.#known.size >= this.#bounds.maxConnections) {
      const [longestIdle] = this.#idleStrangers;
      if (longestIdle !== undefined) this.#giveUp(longestIdle);
    }
    const isExcess = this.#known.size >= this.#bounds.maxConnections;
    const connection = new Connection(socket, isExcess, this.#idleStrangers);
    this.#known.set(socket, connection);
    this.#idleStrangers.add(connection);
    // A client that only half-closes is gone too: it cannot be distinguished from one that closed.
    socket.on('end', this.#onEnd).on('close', this.#onClose);
    return connection;
  }

  /** A request has come. Whatever becomes of it is to be {@link open}ed in the same turn of the event loop. */
  enter(request: IncomingMessage, response: ServerResponse): Entry {
    const connection = this.on(request.socket);
    // A write after the client left is reported here; the call learns of it through `gone`.
    response.on('error', this.#onWriteError);
    if (connection.closing) {
      connection.end();
      return { kind: 'ignored' };
    }
    const bound = this.#crowded(connection);
    return bound === null ? { kind: 'open', connection } : { kind: 'crowded', connection, bound };
  }

  /** Takes the call among those that are open. */
  open(call: OpenCall): void {
    const { connection } = call;
    // A list literal is exact in size; one that has grown is not.
    connection.calls = connection.calls.length === 0 ? [call] : [...connection.calls, call];
    connection.newest = call;
    this.#idleStrangers.delete(connection);
    this.#openCalls += 1;
    if (call.request.socket.destroyed) call.gone.abort();
  }

  #crowded(connection: Connection): CountedBound | null {
    if (connection.isExcess) return 'connections';
    if (connection.calls.length >= this.#bounds.maxCallsPerConnection) return 'connection_calls';
    return this.#openCalls >= this.#bounds.maxOpenCalls ? 'calls' : null;
  }

  /** Ends a call; later calls of it do nothing. */
  leave(call: OpenCall): void {
    if (!this.#leaveConnection(call)) return;
    this.ended();
  }

  /** Takes a call off its connection, which it counts for no longer. It is still open until {@link ended}. */
  detach(call: OpenCall): void {
    this.#leaveConnection(call);
  }

  /** A call that was {@link detach}ed has ended. */
  ended(): void {
    this.#openCalls -= 1;
  }

  /** False when the call was not on it any more. */
  #leaveConnection(call: OpenCall): boolean {
    const { connection } = call;
    if (!connection.leave(call)) return false;
    if (connection.calls.length > 0) return true;
    connection.bytesBefore = connection.socket.bytesRead;
    if (!connection.isAuthenticated && this.#known.has(connection.socket))
      this.#idleStrangers.add(connection);
    return true;
  }

  /** Closes an idle connection, which counts no longer from now on. */
  #giveUp(connection: Connection): void {
    this.#known.delete(connection.socket);
    this.#idleStrangers.delete(connection);
    for (const call of connection.calls) call.gone.abort();
    connection.socket.destroy();
    this.#onGivenUp();
  }
}
