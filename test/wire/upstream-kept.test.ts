/** Which kept connection a request is written into. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Worker } from 'node:worker_threads';
import { afterEach, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { createAgents } from '../../src/dispatch/agents.ts';
import { Transport } from '../../src/dispatch/transport.ts';
import { manualClock } from '../support/manual-clock.ts';
import { patient, text } from '../support/sending.ts';
import { until } from '../support/until.ts';

/** A server in a thread of its own. It closes a connection 2 s after a response, and counts the closed ones where both threads see it. */
const server = `
const { createServer } = require('node:http');
const { parentPort, workerData } = require('node:worker_threads');
const closed = new Int32Array(workerData);
const server = createServer((request, response) => request.resume().on('end', () => response.end(request.method)));
server.keepAliveTimeout = 2000;
server.keepAliveTimeoutBuffer = 0;
server.on('connection', (socket) => socket.on('close', () => { Atomics.add(closed, 0, 1); Atomics.notify(closed, 0); }));
server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port));
`;

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

test('a request is not written into a connection that was unused for too long while this process was kept from running', async () => {
  const shared = new SharedArrayBuffer(4);
  const worker = new Worker(server, { eval: true, workerData: shared });
  const [port] = (await once(worker, 'message')) as [number];
  const agents = createAgents(
    { allowPrivateAddresses: true, maxSockets: 64, caFile: null },
    { clock: systemClock },
  );
  const transport = new Transport(systemClock);
  cleanups.push(
    () => agents.close(),
    () => transport.close(),
    () => worker.terminate(),
  );
  const origin = `http://127.0.0.1:${port}`;
  const agent = agents.forOrigin(origin);
  const send = async (method: string): Promise<string> => {
    const { signal } = new AbortController();
    const fields = { host: 'upstream.test' };
    const request = {
      origin,
      method,
      pathAndQuery: '/',
      fields,
      body: null,
      agent,
      timeouts: patient,
      signal,
    };
    return text((await transport.send(request)).body);
  };
  expect(await send('GET')).toBe('GET');
  await until(() => Object.keys(agent.freeSockets).length === 1);
  // This thread stands still until the server has closed the connection, and sends before it reads that.
  Atomics.wait(new Int32Array(shared), 0, 0);
  expect(await send('POST')).toBe('POST');
});

test('a request is not written into a connection that was unused for four seconds, whose origin says nothing of how long it keeps it', async () => {
  let connections = 0;
  const upstream = createServer((request, response) => {
    response.writeHead(200, ['content-length', '2', 'connection', 'keep-alive']);
    request.resume().on('end', () => response.end('ok'));
  });
  upstream.on('connection', () => (connections += 1));
  await once(upstream.listen(0, '127.0.0.1'), 'listening');
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const clock = manualClock();
  const agents = createAgents({ allowPrivateAddresses: true, maxSockets: 64, caFile: null }, { clock });
  const transport = new Transport(systemClock);
  cleanups.push(
    () => agents.close(),
    () => transport.close(),
    () => upstream.close(),
  );
  const agent = agents.forOrigin(origin);
  const send = async (): Promise<void> => {
    const { signal } = new AbortController();
    const request = { origin, method: 'POST', pathAndQuery: '/', fields: { host: 'x' }, body: null };
    expect(await text((await transport.send({ ...request, agent, timeouts: patient, signal })).body)).toBe(
      'ok',
    );
    await until(() => Object.values(agent.freeSockets).flat().length === 1);
  };
  await send();
  clock.advance(4_000);
  await send();
  expect(connections).toBe(2);
});
