/** Which kept connection a request is written into. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { expect, test } from '@jest/globals';
import { sendingWorlds, text, type SendingWorld } from '../support/sending.ts';
import { until } from '../support/until.ts';

const world = sendingWorlds();
const free = ({ agents, upstream }: SendingWorld, origin = upstream.origin): number =>
  Object.values(agents.forOrigin(origin).freeSockets).flat().length;

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

test('a request is not written into a connection that was unused for too long while this process was kept from running', async () => {
  const opened = await world(() => {});
  const shared = new SharedArrayBuffer(4);
  const worker = new Worker(server, { eval: true, workerData: shared });
  try {
    const [port] = (await once(worker, 'message')) as [number];
    const origin = `http://127.0.0.1:${port}`;
    const agent = opened.agents.forOrigin(origin);
    const send = async (method: string) => text((await opened.send({ origin, agent, method })).body);
    expect(await send('GET')).toBe('GET');
    await until(() => free(opened, origin) === 1);
    // This thread stands still until the server has closed the connection, and sends before it reads that.
    Atomics.wait(new Int32Array(shared), 0, 0);
    expect(await send('POST')).toBe('POST');
  } finally {
    opened.agents.close();
    await worker.terminate();
  }
});
