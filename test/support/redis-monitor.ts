/**
 * Everything that is said to a Redis, as its `MONITOR` tells it, one line per command. By a socket of its own: the driver
 * fails when the first line comes with the reply to `MONITOR` (ioredis 5, "Command queue state error").
 */
import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

export interface RedisMonitor {
  /** `"<command>" "<argument>"…`, without who said it when. */
  readonly lines: readonly string[];
  stop(): void;
}

export async function monitorRedis(port: number): Promise<RedisMonitor> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  const lines: string[] = [];
  const reader = createInterface({ input: socket });
  reader.on('line', (line) => lines.push(line.replace(/^[\d.]+ \[[^\]]*\] /, '')));
  socket.write('MONITOR\r\n');
  await once(reader, 'line');
  const answer = lines.shift();
  if (answer !== '+OK') throw new Error(`MONITOR was answered with ${String(answer)}`);
  return { lines, stop: () => void socket.destroy() };
}
