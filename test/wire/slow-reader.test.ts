/** A client that reads its response a few bytes at a time is ended by `timeouts.totalSeconds`, whatever it still reads. */
import { afterEach, expect, test } from '@jest/globals';
import { connect } from 'node:net';
import { until } from '../support/until.ts';
import { faults, leftBehind, startStack, type Stack } from './stack-fixture.ts';

let stack: Stack | null = null;

afterEach(async () => {
  await stack?.close();
});

const bytes = 16 * 1_048_576;

/** What a client that reads five bytes at a time gets: the beginning of its response, and how its connection ended. */
async function readSlowly({ port, head, proxy, metric }: Stack): Promise<readonly [string, string]> {
  const client = connect(port, '127.0.0.1');
  let how = 'closed';
  client.on('error', (failure: NodeJS.ErrnoException) => (how = failure.code ?? failure.message));
  const closed = new Promise((resolve) => client.once('close', resolve));
  client.write(head('GET', proxy('/large'), 'Connection: close\r\n'));
  let read = '';
  await until(async () => {
    const piece: Buffer | null = client.read(5) as Buffer | null;
    read += piece?.toString('latin1') ?? '';
    return read !== '' && (await metric('sluice_connections')) === 0;
  }, 50);
  // Bytes that the system still had for a connection that was merely closed would come first, then its end.
  client.resume();
  await closed;
  return [read, how];
}

test('a client that reads five bytes at a time is reset at the end of `totalSeconds`, and the upstream is let go', async () => {
  const started = await startStack(
    async (connection) => {
      await connection.requests(1);
      connection.send(`HTTP/1.1 200 OK\r\nContent-Length: ${bytes}\r\n\r\n`);
      connection.socket.write(Buffer.alloc(bytes));
    },
    // Long enough for a slow machine to begin the response a second before the end: only then is the client known to hold it back.
    { timeouts: '{ connectSeconds: 3, headSeconds: 3, idleSeconds: 60, totalSeconds: 6 }' },
  );
  stack = started;
  let [read, how] = await readSlowly(started);
  // A machine that is too slow to begin the response within the limit gets a refusal.
  while (read.startsWith('HTTP/1.1 5')) [read, how] = await readSlowly(started);
  expect([read.slice(0, 12), how]).toEqual(['HTTP/1.1 200', 'ECONNRESET']);
  await started.upstream.allClosed();
  expect(await leftBehind(started)).toEqual({});
  expect(faults(started)).toEqual([]);
});
