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
import type { OverloadBound } from '../errors.ts';

/** A request whose response is not finished. One that is served as a call is a `ReadCall` (`read-call.ts`). */
export class OpenCall {
  readonly connection: Connection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** `Sluice-Request-Id`. */
  readonly id: string;
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

  /** Closes idle connections of strangers with an unfinished head, the longest idle first, until `bytes` of heads are given up. */
  giveUpUnfinished(bytes: number): void {
    let left = bytes;
    for (const connection of this.#idleStrangers) {
      if (left <= 0) return;
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
