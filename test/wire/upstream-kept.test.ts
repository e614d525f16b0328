/** Which kept connection a request is written into. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createServer as createTcpServer } from 'node:net';
import type { AddressInfo } from 'node:net';
import { Worker } from 'node:worker_threads';
import { afterEach, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { createAgents, IdleClosings } from '../../src/dispatch/agents.ts';
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

test('a connection is not used for as long as its origin was seen to keep unused ones', async () => {
  const clock = manualClock();
  let connections = 0;
  const upstream = createServer();
  upstream.keepAliveTimeout = 0;
  upstream.on('connection', () => (connections += 1));
  upstream.on('request', (request, response) => {
    // It does not say for how long.
    response.writeHead(200, ['content-length', '2', 'connection', 'keep-alive']);
    request.resume().on('end', () => response.end('ok'));
  });
  await once(upstream.listen(0, '127.0.0.1'), 'listening');
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const agents = createAgents({ allowPrivateAddresses: true, maxSockets: 64, caFile: null }, { clock });
  const transport = new Transport(systemClock);
  cleanups.push(
    () => agents.close(),
    () => transport.close(),
    () => upstream.close(),
  );
  const agent = agents.forOrigin(origin);
  const free = (): number => Object.values(agent.freeSockets).flat().length;
  const send = async (): Promise<void> => {
    const { signal } = new AbortController();
    const request = { origin, method: 'POST', pathAndQuery: '/', fields: { host: 'x' }, body: null };
    expect(await text((await transport.send({ ...request, agent, timeouts: patient, signal })).body)).toBe(
      'ok',
    );
    await until(() => free() === 1);
  };
  for (let closings = 0; closings < 2; closings += 1) {
    await send();
    clock.advance(400);
    upstream.closeIdleConnections();
    await until(() => free() === 0);
  }
  await send();
  const before = connections;
  // Up to three quarters of the time that the origin waits, and not beyond.
  clock.advance(299);
  await send();
  expect(connections).toBe(before);
  clock.advance(301);
  await send();
  expect(connections).toBe(before + 1);
});

test('a 408 with which an upstream gives up a kept connection is no response to the request that crossed it', async () => {
  // What comes second over a connection, or first, with the path of the request.
  const upstream = createTcpServer((socket) => {
    let requests = 0;
    socket
      .on('error', () => {})
      .on('data', (bytes) => {
        requests += 1;
        const isOk = requests === 1 && !bytes.includes('/refused');
        const close = bytes.includes('/kept') ? '' : 'connection: close\r\n';
        socket.write(
          isOk
            ? 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok'
            : `HTTP/1.1 408 Request Timeout\r\n${close}content-length: 0\r\n\r\n`,
        );
      });
  });
  await once(upstream.listen(0, '127.0.0.1'), 'listening');
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const agents = createAgents(
    { allowPrivateAddresses: true, maxSockets: 64, caFile: null },
    { clock: systemClock },
  );
  const transport = new Transport(systemClock);
  cleanups.push(
    () => agents.close(),
    () => transport.close(),
    () => upstream.close(),
  );
  const agent = agents.forOrigin(origin);
  const send = async (pathAndQuery: string): Promise<number> => {
    const { signal } = new AbortController();
    const request = { origin, method: 'POST', pathAndQuery, fields: { host: 'x' }, body: null };
    const { head, body } = await transport.send({ ...request, agent, timeouts: patient, signal });
    await text(body);
    return head.status;
  };
  const free = (): number => Object.values(agent.freeSockets).flat().length;
  expect(await send('/')).toBe(200);
  await until(() => free() === 1);
  await expect(send('/')).rejects.toMatchObject({ neverSent: true });
  // On a connection of its own, and without the end of the connection, it is a response.
  expect(await send('/refused')).toBe(408);
  expect(await send('/')).toBe(200);
  await until(() => free() === 1);
  expect(await send('/kept')).toBe(408);
});

test('closings at equal ages are a limit of the origin; one of them, or closings all at once, are none', () => {
  const closings = new IdleClosings();
  closings.note(5_000, 0);
  expect(closings.usableMs(0)).toBe(Infinity);
  for (const ageMs of [3, 40, 800, 2_000]) closings.note(ageMs, 6_000);
  closings.note(2_001, 6_050);
  expect(closings.usableMs(6_100)).toBe(Infinity);
  closings.note(5_100, 20_000);
  expect(closings.usableMs(20_000)).toBe(3_750);
  expect(closings.usableMs(700_000)).toBe(Infinity);
});
