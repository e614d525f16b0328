/**
 * Several accept queues on the address of one server.
 *
 * libuv takes one connection per listening socket and turn of the event loop (https://github.com/libuv/libuv/pull/3696)
 * but reads every open connection in each turn. Where turns are long, a burst over new connections would be read up to a
 * second after calls on open ones that were sent later. On Linux the system spreads new connections over sockets that
 * share an address (`SO_REUSEPORT`, socket(7)), and each of them gives one per turn. Elsewhere there is one queue.
 *
 * Owns: the sockets beside the server's own. Refuses to own: connections, which the server gets as if they were its own.
 * Invariant: an address that somebody else listens on is refused, although it could be shared.
 */
import {
  createServer as createListener,
  type AddressInfo,
  type Server as Listener,
  type Socket,
} from 'node:net';
import type { Server } from 'node:http';
import { listen } from './listen.ts';

/** So many connections at most are taken in one turn of the event loop. */
const queues = 4;

export interface AcceptQueuesOptions {
  readonly server: Server;
  /** As those of the server's own connections. */
  readonly socketOptions: { readonly keepAlive: boolean; readonly noDelay: boolean };
  /** Default: the platform of this process. */
  readonly platform?: NodeJS.Platform;
}

export class AcceptQueues {
  readonly #server: Server;
  readonly #more: Listener[] = [];
  readonly #socketOptions: AcceptQueuesOptions['socketOptions'];
  readonly #canShare: boolean;

  constructor({ server, socketOptions, platform = process.platform }: AcceptQueuesOptions) {
    this.#server = server;
    this.#socketOptions = socketOptions;
    this.#canShare = platform === 'linux';
  }

  /** @param port 0 = any free one. Rejects when the address cannot be listened on by this process alone. */
  async listen(port: number, host: string): Promise<AddressInfo> {
    if (!this.#canShare) return listen(this.#server, { port, host });
    if (port !== 0) await assertFree(port, host);
    const address = await listen(this.#server, { port, host, reusePort: true });
    while (this.#more.length < queues - 1) {
      const listener = createListener({ ...this.#socketOptions, allowHalfOpen: true }, (socket: Socket) =>
        this.#server.emit('connection', socket),
      );
      this.#more.push(listener);
      await listen(listener, { port: address.port, host, reusePort: true });
    }
    return address;
  }

  /** No connection is taken any more; open ones stay. Calling it twice does nothing. */
  close(): void {
    for (const listener of this.#more.splice(0)) listener.close();
  }
}

/** Listens without sharing for a moment. */
async function assertFree(port: number, host: string): Promise<void> {
  const listener = createListener();
  await listen(listener, { port, host });
  await new Promise<void>((resolve) => listener.close(() => resolve()));
}
