/** A client that reads its response has a bound on how slowly. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { connect, type AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { afterEach, expect, test } from '@jest/globals';
import { pump } from '../../src/ingress/respond.ts';
import { manualClock } from '../support/manual-clock.ts';
import { until } from '../support/until.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

const piece = Buffer.alloc(65_536);

/** A response of 64 MiB, more than systems keep for a connection, to a client on a real socket that reads when told to. */
async function begin(maxUnreadMs: number) {
  const clock = manualClock();
  const leaving = new AbortController();
  let left = 1_024;
  const body = new Readable({ read: () => void ((left -= 1) >= 0 && body.push(piece)) });
  const ended = Promise.withResolvers<string>();
  const server = createServer((request, response) => {
    request.socket.on('error', () => {}).on('close', () => leaving.abort());
    void pump({ response, gone: leaving.signal }, body, null, maxUnreadMs, null, clock).then(ended.resolve);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  cleanups.push(
    () => client.destroy(),
    () => new Promise((resolve) => server.close(resolve)),
  );
  client.on('error', () => {}).write('GET / HTTP/1.1\r\nhost: a\r\n\r\n');
  await until(() => clock.waiting === 1);
  return { clock, client, body, ended: ended.promise };
}

test('it is cut off when it has not read within its limit what waits for it', async () => {
  const { clock, client, body, ended } = await begin(60_000);
  client.once('readable', () => client.read(5));
  clock.advance(59_999);
  expect(body.destroyed).toBe(false);
  clock.advance(1);
  expect(await ended).toBe('client_gone');
  expect([body.destroyed, clock.waiting]).toEqual([true, 0]);
});

test('one that goes on reading in time is not cut off', async () => {
  const { clock, client, body, ended } = await begin(60_000);
  clock.advance(59_999);
  client.resume();
  await until(() => clock.waiting === 0);
  clock.advance(60_000);
  expect(body.destroyed).toBe(false);
  body.push(null);
  expect(await ended).toBe('complete');
});
