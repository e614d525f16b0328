/**
 * A way to Redis on which a test decides what passes. Owns the sockets of both sides and their end; does not own what
 * goes wrong: that is what a test is about.
 */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';

export interface RedisWire {
  readonly port: number;
  close(): void;
}

/**
 * Every connection to the wire gets one to `target()`, and `pass` hands on what comes, or not. When one side closes, so
 * does the other.
 */
export async function redisWire(
  target: () => number,
  pass: (client: Socket, redis: Socket) => void,
): Promise<RedisWire> {
  const sockets = new Set<Socket>();
  const server = createServer((client) => {
    const redis = connect(target(), '127.0.0.1');
    for (const socket of [client, redis]) {
      sockets.add(socket.on('error', () => {}));
      socket.on('close', () => {
        sockets.delete(socket);
        client.destroy();
        redis.destroy();
      });
    }
    pass(client, redis);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    close() {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
