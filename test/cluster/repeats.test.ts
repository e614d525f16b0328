/** Repeats of calls at another replica: one upstream call, a response for each, nothing readable in Redis. */
import type { ServerResponse } from 'node:http';
import { expect, test } from '@jest/globals';
import { pause } from '../support/redis-fleet.ts';
import { until } from '../support/until.ts';
import { onRedis, read } from './fleet.ts';

const { probe, fleet, upstream } = onRedis();

const canary = {
  workspace: 'canary-workspace',
  key: 'canary-key',
  body: 'canary-body',
  answer: 'canary-answer',
};
const keyed = { 'idempotency-key': canary.key };
const sdk = (count: number) => ({ 'x-stainless-retry-count': String(count) });

/** Two replicas before one upstream that has room for one call, beside which another one may wait. */
async function pair(respond: (response: ServerResponse, count: number) => void, more = {}) {
  const bodies: string[] = [];
  const { url } = await upstream((response, _, body) => respond(response, bodies.push(body)));
  const all = await fleet({
    upstreams: { api: { origins: [url], limits: { maxInFlight: 1, maxQueued: 1 } } },
    workspaces: { [canary.workspace]: {} },
    ...more,
  });
  const start = (replica: number, body: string, headers: Record<string, string>, signal?: AbortSignal) =>
    all.fetch(replica, 'api/orders', {
      workspace: canary.workspace,
      headers,
      body,
      ...(signal && { signal }),
    });
  const textOf = async (...call: Parameters<typeof start>) => (await read(await start(...call))).text;
  return { bodies, start, textOf };
}

test('two calls with one key at two replicas are one upstream call, and both get its response, large or a 500', async () => {
  const { start, bodies } = await pair((response, count) => {
    setTimeout(() => {
      response.writeHead(count === 1 ? 200 : 500);
      response.end(count === 1 ? 'x'.repeat(1_000_000) : 'broken');
    }, 300);
  });
  const both = async (key: string) => {
    const headers = { 'idempotency-key': key };
    const replies = await Promise.all(
      [0, 1].map(async (replica) => read(await start(replica, 'a', headers))),
    );
    return replies.map(({ status, text }) => [status, text.length]);
  };
  expect(await both('one')).toEqual(Array(2).fill([200, 1_000_000]));
  expect(await both('other')).toEqual(Array(2).fill([500, 6]));
  expect(bodies).toHaveLength(2);
});

test('a repeat amid a stream gets all of it at another replica, with a key while the first client reads, or as an SDK repeats after it left', async () => {
  const streams: ServerResponse[] = [];
  const { start, textOf, bodies } = await pair((response) => {
    streams.push(response.writeHead(200, { 'content-type': 'text/event-stream' }));
    response.write('data: first\n\n');
  });
  const end = () => streams.splice(0).forEach((response) => response.end('data: last\n\n'));
  const whole = 'data: first\n\ndata: last\n\n';
  const first = await start(0, 'a', keyed);
  const joined = textOf(1, 'a', keyed);
  await pause(100);
  end();
  expect([await first.text(), await joined]).toEqual([whole, whole]);

  const leaving = new AbortController();
  const left = await start(0, 'b', sdk(0), leaving.signal);
  await left.body?.getReader().read();
  leaving.abort();
  // Of calls without a key that clients have left.
  const lists = () => probe().keys('sluice:{left.*');
  await until(async () => (await lists()).length === 1);
  const [list = ''] = await lists();
  const offered = await probe().dump(list);
  const again = textOf(1, 'b', sdk(1));
  await until(async () => (await probe().dump(list)) !== offered);
  end();
  expect(await again).toBe(whole);
  expect(bodies).toEqual(['a', 'b']);
});

test('a kept response is given by the replica that keeps it although Redis has lost its data', async () => {
  const { start, textOf, bodies } = await pair((response, count) => response.end(`response ${count}`));
  await textOf(0, 'a', keyed);
  // It is written once it has ended, and is longer than the claim of a call under way.
  const keptBytes = async () => probe().strlen((await probe().keys('sluice:{repeat.*'))[0] ?? '');
  await until(async () => (await keptBytes()) > 180);
  await probe().flushall();
  const { text, headers } = await read(await start(0, 'a', keyed));
  expect([text, headers.get('sluice-replayed'), bodies.length]).toEqual(['response 1', 'true', 1]);
});

test('kept responses in Redis are bounded and expire, and neither keys nor values show what they are of', async () => {
  const idempotency = { maxWorkspaceBytes: 20_000, maxTotalBytes: 100_000 };
  const { textOf } = await pair((response) => response.end(canary.answer.repeat(500)), { idempotency });
  for (let at = 0; at < 6; at += 1)
    await textOf(0, canary.body, { 'idempotency-key': `${canary.key}-${at}` });
  // Of six responses of 6.5 kB the workspace may keep two.
  await until(async () => (await probe().keys('sluice:{repeat.*')).length === 2);
  for (const key of await probe().keys('*')) {
    expect([key, await probe().pttl(key)]).not.toEqual([key, -1]);
    const shown = `${key} ${(await probe().dumpBuffer(key)).toString('latin1')}`;
    expect(Object.values(canary).filter((word) => shown.includes(word))).toEqual([]);
  }
});

test('a repeat is answered although no further call of its lane may wait', async () => {
  const held: ServerResponse[] = [];
  const { start, textOf, bodies } = await pair((response, count) => {
    if (count === 1) response.end('kept');
    else held.push(response);
  });
  expect(await textOf(0, 'a', keyed)).toBe('kept');
  const underWay = textOf(0, 'b', {});
  await until(() => bodies.length === 2);
  const waits = textOf(0, 'c', {});
  await until(async () => (await read(await start(1, 'd', { prefer: 'wait=0' }))).code === 'queue_full');
  expect(await textOf(1, 'a', keyed)).toBe('kept');
  held.shift()?.end('b');
  await until(() => held.length === 1);
  held.shift()?.end('c');
  expect(await Promise.all([underWay, waits])).toEqual(['b', 'c']);
});
