/** Which kept connection a request is written into; and sockets are few, and shared: between workspaces, not between calls. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { describe, expect, test } from '@jest/globals';
import { IdleClosings, SocketPermits } from '../../src/dispatch/agents.ts';
import { manualClock } from '../support/manual-clock.ts';
import { answering } from '../support/raw-upstream.ts';
import { ok } from '../support/scripts.ts';
import { failure, patient, type SendingWorld, sendingWorld as world, text } from '../support/sending.ts';
import { until } from '../support/until.ts';

const origin = 'http://upstream.test';

/** Permits, and who began in which order. */
function pool(maxSockets: number) {
  const permits = new SocketPermits(maxSockets);
  const began: string[] = [];
  const open = new Map<string, () => void>();
  return {
    enter(workspace: string, count = 1, weight = 1): void {
      for (let n = 0; n < count; n += 1) {
        const name = `${workspace}${[...open.keys()].filter((key) => key.startsWith(workspace)).length}`;
        const start = (): unknown => began.push(name);
        open.set(name, permits.enter(origin, { id: workspace, weight }, start));
      }
    },
    end: (...names: string[]): void => names.forEach((name) => open.get(name)?.()),
    /** Calls that began since last asked. */
    next: (): string[] => began.splice(0),
  };
}

describe('the sockets of an upstream', () => {
  test.each([
    ['in the order of requests while some are free', 3, { a: 2, b: 1 }, '', 'a0 a1 b0'],
    ['first to who has the fewest', 4, { a: 100, b: 3 }, 'a0 a1 a2 b0', 'a0 a1 a2 a3 b0 b1 a4 b2'],
    ['in rotation when there is only one', 1, { a: 3, b: 3 }, 'a0 b0 a1 b1 a2', 'a0 b0 a1 b1 a2 b2'],
    ['once by calls that end twice, not to one that has left', 1, { a: 4 }, 'a1 a1 a0 a0 a2', 'a0 a2 a3'],
  ])('are given %s', (_, maxSockets, entering, ends, expected) => {
    const { enter, end, next } = pool(maxSockets);
    for (const [workspace, count] of Object.entries(entering)) enter(workspace, count);
    end(...ends.split(' '));
    expect(next().join(' ')).toBe(expected);
  });

  test('are given by weight', () => {
    const { enter, end, next } = pool(8);
    enter('first', 8);
    enter('light', 20, 1);
    enter('heavy', 20, 3);
    end(...next());
    expect(next().filter((name) => name.startsWith('heavy'))).toHaveLength(6);
  });

  test('leave a few for workspaces that have none', () => {
    const { enter, next } = pool(32);
    enter('busy', 100);
    expect(next()).toHaveLength(30);
    enter('small', 2);
    expect(next()).toEqual(['small0']);
  });

  test('are never more than allowed, and no waiting call is forgotten, whatever the order of ends', () => {
    const permits = new SocketPermits(20);
    interface Entered {
      end: () => void;
      state: 'waiting' | 'going' | 'over';
    }
    const entered: Entered[] = [];
    const going = (): Entered[] => entered.filter(({ state }) => state === 'going');
    const finish = (one: Entered): void => {
      one.state = 'over';
      one.end();
    };
    let seed = 7;
    const below = (n: number): number => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648) % n;
    for (let n = 0; n < 3_000; n += 1) {
      const one = entered[below(Math.max(1, entered.length))];
      if (one !== undefined && below(2) === 0) finish(one);
      else {
        const call: Entered = { end: () => {}, state: 'waiting' };
        const share = { id: `w${below(5)}`, weight: 1 + below(3) };
        call.end = permits.enter(origin, share, () => (call.state = 'going'));
        entered.push(call);
      }
      expect(going().length).toBeLessThanOrEqual(20);
    }
    for (let [left] = going(); left !== undefined; [left] = going()) finish(left);
    expect(entered.filter(({ state }) => state === 'waiting')).toEqual([]);
  });
});

describe('a call that waits for a socket', () => {
  test('fails at the connect limit or with its client, and the one behind it is sent', async () => {
    const { send, upstream } = await world(() => {});
    const permits = new SocketPermits(1);
    const line = (start: () => void) => permits.enter(upstream.origin, { id: 'w', weight: 1 }, start);
    const [first, second] = [new AbortController(), new AbortController()];
    const paths = (): string[] =>
      upstream.connections.flatMap((connection) => /(?<=GET )\S+/.exec(connection.received()) ?? []);
    const one = failure(send({ line, pathAndQuery: '/1', signal: first.signal }));
    const two = failure(send({ line, pathAndQuery: '/2', signal: second.signal }));
    const late = failure(send({ line, pathAndQuery: '/3', timeouts: { ...patient, connectMs: 1 } }));
    const last = failure(send({ line, pathAndQuery: '/4' }));
    expect(await late).toMatchObject({ kind: 'timeout', phase: 'connect', neverSent: true });
    await until(() => paths().length === 1);
    second.abort();
    expect(await two).toMatchObject({ kind: 'aborted', neverSent: true });
    first.abort();
    await one;
    await until(() => paths().length === 2);
    expect(paths()).toEqual(['/1', '/4']);
    for (const connection of upstream.connections) connection.socket.destroy();
    await last;
  });
});

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

test('a connection is not used for as long as its origin was seen to keep unused ones', async () => {
  const clock = manualClock();
  // It does not say for how long it keeps them.
  const opened = await world(answering(ok), clock);
  const { connections } = opened.upstream;
  const send = async (): Promise<void> => {
    expect(await text((await opened.send({ method: 'POST' })).body)).toBe('ok');
    await until(() => free(opened) === 1);
  };
  await send();
  clock.advance(400);
  connections.at(-1)?.socket.end();
  await until(() => free(opened) === 0);
  await send();
  const before = connections.length;
  // Up to three quarters of the time that the origin waits, and not beyond.
  clock.advance(299);
  await send();
  expect(connections).toHaveLength(before);
  clock.advance(301);
  await send();
  expect(connections).toHaveLength(before + 1);
});

test('the longest age of late is a limit of the origin; what a server closes that stops is none', () => {
  const closings = new IdleClosings();
  for (const ageMs of [3, 40]) closings.note(ageMs, 0);
  expect(closings.usableMs(0)).toBe(Infinity);
  closings.note(5_000, 6_000);
  closings.note(2_000, 6_000);
  expect(closings.usableMs(20_000)).toBe(3_750);
  expect(closings.usableMs(700_000)).toBe(Infinity);
});
