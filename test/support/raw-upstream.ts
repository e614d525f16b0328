/** An upstream that records the bytes that arrive and sends those that a test scripts, also what no HTTP server would. */
import { once } from 'node:events';
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import { heardOn } from './raw-client.ts';
import { until } from './until.ts';

export type RawConnection = ReturnType<typeof rawConnection>;
export type Script = (connection: RawConnection) => void | Promise<void>;

export type RawUpstream = Awaited<ReturnType<typeof rawUpstream>>;

/** Starts an upstream on a free port of 127.0.0.1. */
export async function rawUpstream(
  script: Script,
  { tls }: { readonly tls?: { readonly key: string; readonly cert: string } } = {},
) {
  const connections: RawConnection[] = [];
  const sockets = new Set<Socket>();
  const accept = (socket: Socket): void => {
    sockets.add(socket);
    // Resets are what tests provoke; the transport's side of them is what is asserted.
    socket.on('error', () => {});
    socket.on('close', () => sockets.delete(socket));
    const connection = rawConnection(socket, connections.length);
    connections.push(connection);
    Promise.resolve(script(connection)).catch(() => socket.destroy());
  };
  const server: Server = tls === undefined ? createServer(accept) : createTlsServer({ ...tls }, accept);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    port,
    origin: `http${tls === undefined ? '' : 's'}://127.0.0.1:${port}`,
    connections: connections as readonly RawConnection[],
    open: () => sockets.size,
    allClosed: () => until(() => sockets.size === 0),
    async close() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, 'close');
    },
  };
}

function rawConnection(socket: Socket, number: number) {
  const { received, until: untilHeard } = heardOn(socket);
  return {
    socket,
    /** 0 for the first connection of this upstream. */
    number,
    /** Everything received so far, one character per byte. */
    received: () => received().toString('latin1'),
    until: untilHeard,
    /** Resolves when `count` requests whose heads and announced bodies are complete have arrived. */
    requests: (count: number) => untilHeard((text) => completeRequests(text) >= count),
    send: (text: string) => void socket.write(text, 'latin1'),
  };
}

/** How many requests with `content-length` framing (or none) these bytes hold completely. */
function completeRequests(text: string): number {
  let rest = text;
  for (let count = 0; ; count++) {
    const headEnd = rest.indexOf('\r\n\r\n');
    if (headEnd === -1) return count;
    const length = Number(/\r\ncontent-length: (\d+)/i.exec(rest.slice(0, headEnd))?.[1] ?? 0);
    const end = headEnd + 4 + length;
    if (rest.length < end) return count;
    rest = rest.slice(end);
  }
}

/** Answers every request on a connection with the same bytes. */
export const answering =
  (response: string): Script =>
  async (connection) => {
    for (let count = 1; ; count++) {
      await connection.requests(count);
      if (connection.socket.destroyed) return;
      connection.send(response);
    }
  };
