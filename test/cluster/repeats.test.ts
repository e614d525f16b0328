/** Repeats of calls at another replica: one upstream call, a response for each, nothing readable in Redis. */
import type { ServerResponse } from 'node:http';
import { expect, test } from '@jest/globals';
import { monitorRedis } from '../support/redis-monitor.ts';
import { until } from '../support/until.ts';
import { onRedis, read } from './fleet.ts';

const { open, redis, probe, fleet, upstream } = onRedis();

const canary = {
  workspace: 'canary-workspace',
  key: 'canary-key',
  body: 'canary-body',
  answer: 'canary-answer',
};
const keyed = { 'idempotency-key': canary.key };
const sdk = (count: number) => ({ 'x-stainless-retry-count': String(count) });
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

const valueOf = async (keys: readonly string[]): Promise<string> =>
  ((await probe().getBuffer(keys[0] ?? '')) ?? '').toString('latin1');
/** Keys of calls without a key that clients have left. */
const lists = () => probe().keys('sluice:{left.*');
/** Keys of claims and kept responses. */
const claims = () => probe().keys('sluice:{repeat.*');
/** Every response is kept: it is written once it has ended, and is longer than a claim of a call under way. */
const areKept = async (): Promise<boolean> => {
  const sizes = await Promise.all((await claims()).map((key) => probe().strlen(key)));
  return sizes.length > 0 && sizes.every((size) => size > 180);
};

/** Two replicas before one upstream that has room for one call. `respond`: left out, the test answers calls by `answer`. */
async function pair(respond?: (response: ServerResponse, count: number) => void, limits = {}, more = {}) {
  const bodies: string[] = [];
  const unanswered: ServerResponse[] = [];
  const { url } = await upstream((response, _, body) => {
    bodies.push(body);
    if (respond === undefined) unanswered.push(response);
    else respond(response, bodies.length);
  });
  const all = await fleet({
    upstreams: { api: { origins: [url], limits: { maxInFlight: 1, ...limits } } },
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
  const send = async (replica: number, body: string, headers: Record<string, string>) =>
    read(await start(replica, body, headers));
  return {
    all,
    bodies,
    start,
    send,
    textOf: async (...call: Parameters<typeof send>) => (await send(...call)).text,
    /** The upstream answers what it has: `response 1` to its first call. */
    answer: () => unanswered.splice(0).forEach((one) => one.end(`response ${bodies.length}`)),
    async leave(replica: number, body: string, headers: Record<string, string>, when: () => boolean) {
      const leaving = new AbortController();
      const left = start(replica, body, headers, leaving.signal).catch(() => 'left');
      await until(when);
      leaving.abort();
      expect(await left).toBe('left');
    },
  };
}

test('two calls with one key at two replicas are one upstream call, and both get its response, large or a 500', async () => {
  const { send, bodies } = await pair((response, count) => {
    setTimeout(() => {
      response.writeHead(count === 1 ? 200 : 500);
      response.end(count === 1 ? 'x'.repeat(1_000_000) : 'broken');
    }, 300);
  });
  const both = async (key: string) => {
    const headers = { 'idempotency-key': key };
    const replies = await Promise.all([0, 1].map((replica) => send(replica, 'a', headers)));
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
  await sleep(100);
  end();
  expect([await first.text(), await joined]).toEqual([whole, whole]);

  const leaving = new AbortController();
  const left = await start(0, 'b', sdk(0), leaving.signal);
  await left.body?.getReader().read();
  leaving.abort();
  await until(async () => (await lists()).length === 1);
  const offered = await valueOf(await lists());
  const again = textOf(1, 'b', sdk(1));
  await until(async () => (await valueOf(await lists())) !== offered);
  end();
  expect(await again).toBe(whole);
  expect(bodies).toEqual(['a', 'b']);
});

test('a kept response is given by the replica that keeps it although Redis has lost its data', async () => {
  const { send, textOf, bodies } = await pair((response, count) => response.end(`response ${count}`));
  await textOf(0, 'a', keyed);
  await until(areKept);
  await probe().flushall();
  const { text, headers } = await send(0, 'a', keyed);
  expect([text, headers.get('sluice-replayed'), bodies.length]).toEqual(['response 1', 'true', 1]);
});

test('kept responses in Redis are bounded and expire, and neither keys nor values show what they are of', async () => {
  const idempotency = { maxWorkspaceBytes: 20_000, maxTotalBytes: 100_000 };
  const { textOf } = await pair((response) => response.end(canary.answer.repeat(500)), {}, { idempotency });
  for (let at = 0; at < 6; at += 1)
    await textOf(0, canary.body, { 'idempotency-key': `${canary.key}-${at}` });
  // Of six responses of 6.5 kB the workspace may keep two.
  await until(async () => (await claims()).length === 2);
  for (const key of await probe().keys('*')) {
    expect([key, await probe().pttl(key)]).not.toEqual([key, -1]);
    const shown = `${key} ${(await probe().dumpBuffer(key)).toString('latin1')}`;
    expect(Object.values(canary).filter((word) => shown.includes(word))).toEqual([]);
  }
});

test('a repeat is answered although its replica refuses further calls of its lane, and a refused call without a key asks Redis for no claim', async () => {
  const { all, send, textOf, bodies, answer } = await pair(undefined, { maxQueued: 1 });
  const [kept, held] = [{ 'idempotency-key': 'kept' }, { 'idempotency-key': 'held' }];
  const first = textOf(0, 'kept', kept);
  await until(() => bodies.length === 1);
  answer();
  expect(await first).toBe('response 1');
  const underWay = textOf(0, 'held', held);
  await until(() => bodies.length === 2);
  const waits = textOf(0, 'waits', {});
  await until(() => all.waiting() > 0);

  const { lines, stop } = await monitorRedis(redis().port);
  open.push(stop);
  for (let at = 0; at < 3; at += 1) expect((await send(1, 'other', {})).code).toBe('queue_full');
  // Of claims there are renewals of the calls above.
  const names = await claims();
  const asked = lines.filter(
    (line) => line.includes('{repeat.5:') && !names.some((name) => line.includes(name)),
  );
  expect(asked).toEqual([]);

  const again = await send(1, 'kept', kept);
  expect([again.text, again.headers.get('sluice-replayed')]).toEqual(['response 1', 'true']);
  const joined = textOf(1, 'held', held);
  expect((await send(1, 'new', { 'idempotency-key': 'new' })).code).toBe('queue_full');
  answer();
  expect([await joined, await underWay]).toEqual(['response 2', 'response 2']);
  await until(() => bodies.length === 3);
  answer();
  await waits;
  expect(bodies).toEqual(['kept', 'held', 'waits']);
});
