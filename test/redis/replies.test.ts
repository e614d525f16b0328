/** A hostile server at the address of Redis, which replies with anything. It stands for an attacker, not for a Redis. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type AddressInfo, type Socket } from 'node:net';

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

const bulk = (text: string): string => `$${text.length}\r\n${text}\r\n`;
const list = (...items: readonly string[]): string => `*${items.length}\r\n${items.join('')}`;

const hostile: readonly (readonly [string, string])[] = [
  ['an integer', ':1\r\n'],
  ['a word', '+OK\r\n'],
  ['an empty list', '*0\r\n'],
  ['a list of integers', '*3\r\n:1\r\n:2\r\n:3\r\n'],
  ['a list of nulls', '*3\r\n_\r\n_\r\n_\r\n'],
  ['a null', '_\r\n'],
  ['a null, and one more', '$-1\r\n$-1\r\n'],
  ['a push of nulls', '>3\r\n_\r\n_\r\n_\r\n'],
  ['a message without a channel', `>3\r\n${bulk('message')}_\r\n_\r\n`],
  ['a confirmation of nothing', `>1\r\n${bulk('subscribe')}`],
  ['a map', '%1\r\n+a\r\n:1\r\n'],
  ['an error', '-ERR no\r\n'],
  ['no RESP at all', 'HTTP/1.1 400 Bad Request\r\n\r\n'],
];

/** Replies to `command` wrongly once per connection, with the next wrong reply of the list, and then as Redis does. */
async function wrongRedis(command: string) {
  const sockets = new Set<Socket>();
  let next = 0;
  const right = (name: string, words: readonly string[], port: number): string => {
    if (name === 'HELLO') return '%1\r\n+proto\r\n:3\r\n';
    if (name === 'INFO') return bulk('redis_version:8.0.0\r\nrole:master\r\nloading:0\r\n');
    if (name === 'PING') return '+PONG\r\n';
    if (name === 'GET') return bulk('value');
    if (name === 'ROLE') return list(bulk('master'), ':0\r\n', '*0\r\n');
    if (name === 'SENTINEL') {
      return words[1] === 'sentinels' ? '*0\r\n' : list(bulk('127.0.0.1'), bulk(String(port)));
    }
    if (name === 'CLUSTER') {
      const node = list(bulk('127.0.0.1'), `:${port}\r\n`, bulk('id'));
      return list(list(':0\r\n', ':16383\r\n', node));
    }
    if (name !== 'SUBSCRIBE') return '+OK\r\n';
    const push = (kind: string, last: string): string => `>3\r\n${bulk(kind)}${bulk(words[1] ?? '')}${last}`;
    return push('subscribe', ':1\r\n') + push('message', bulk('hello'));
  };
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => {}).on('close', () => sockets.delete(socket)));
    let rest = '';
    let isWrong = false;
    socket.on('data', (bytes) => {
      rest += bytes.toString('latin1');
      for (;;) {
        const found = /^\*\d+\r\n(?:\$\d+\r\n[^\r]*\r\n)+?(?=\*|$)/.exec(rest)?.[0];
        if (found === undefined || isWrong) return;
        rest = rest.slice(found.length);
        const words = [...found.matchAll(/\$\d+\r\n([^\r]*)\r\n/g)].map(([, word]) => word ?? '');
        const name = (words[0] ?? '').toUpperCase();
        const reply = hostile[next]?.[1];
        if (name !== command || reply === undefined) {
          socket.write(right(name, words, (server.address() as AddressInfo).port));
          continue;
        }
        next += 1;
        isWrong = true;
        socket.write(reply, 'latin1');
        // Without this, a wrong reply that looks right would keep the connection open for good.
        setTimeout(() => socket.destroy(), 100);
      }
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  closers.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  return { port: (server.address() as AddressInfo).port, wrongReplies: () => next };
}

/** A process of its own with the service's connection: prints `heard` and `read` when it could do so. */
function connectFrom(mode: string, port: number) {
  const script = `
    const { systemClock, systemRandom } = await import('./src/clock.ts');
    const { connectRedis } = await import('./src/redis/connection.ts');
    const settings = { whenDown: 'local', mode: '${mode}', nodes: [{ host: '127.0.0.1', port: ${port} }], tls: null,
      sentinelName: 'primary', username: null, password: null, database: 0, commandTimeoutMs: 250, keyPrefix: '' };
    const ignore = () => {};
    const connection = connectRedis(settings, { clock: systemClock, random: systemRandom }, ignore);
    connection.subscribe('grants', { onMessage: () => console.log('heard'), onReady: ignore, onError: ignore });
    setInterval(() => {
      if (!connection.isReady()) return;
      connection.client.get('key').then((value) => value === 'value' && console.log('read'), ignore);
    }, 20);`;
  const child = spawn(
    process.execPath,
    ['--max-old-space-size=256', '--no-warnings', '--input-type=module', '-e', script],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  );
  const ended = once(child, 'exit');
  let printed = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (printed += String(text)));
  closers.push(async () => {
    child.kill('SIGKILL');
    await ended;
  });
  return {
    /** Resolves when `done` holds; fails when the process ends before. */
    async until(done: (printed: string) => boolean): Promise<void> {
      while (!done(printed)) {
        if (child.exitCode !== null || child.signalCode !== null) throw new Error(`it ended:\n${printed}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    },
  };
}

describe.each([
  ['single', 'SUBSCRIBE', 'heard'],
  ['single', 'GET', 'read'],
  ['single', 'HELLO', 'read'],
  ['single', 'INFO', 'read'],
  ['sentinel', 'SENTINEL', 'read'],
  ['cluster', 'CLUSTER', 'read'],
])('a process whose Redis (mode %s) replies to %s in every wrong way', (mode, command, sign) => {
  test('does not end: it reconnects until the reply is right', async () => {
    const redis = await wrongRedis(command);
    const child = connectFrom(mode, redis.port);
    await child.until(() => redis.wrongReplies() === hostile.length);
    await child.until((printed) => printed.includes(sign));
    expect(redis.wrongReplies()).toBe(hostile.length);
  });
});
