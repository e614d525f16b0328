/** Replicas whose Redis is away: what they let through, and when they are ready. */
import { expect, test } from '@jest/globals';
import type { AllActivity } from '../../src/activity/activity.ts';
import { freePort } from '../support/free-port.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { model, onRedis, plenty, type Reply } from './fleet.ts';

const { open, fleet, languageModel } = onRedis();

/** A replica that starts without its Redis, and that Redis. `redis`: further keys of the section. */
async function neverReached(redis: object) {
  const port = await freePort();
  const { url } = await languageModel();
  const all = await fleet({
    upstreams: model(url, { ...plenty, requestsPerMinute: 8 }),
    redis: { url: `redis://127.0.0.1:${port}`, ...redis },
    replicas: 1,
  });
  const call = (): Promise<Reply> => all.chat(0, { prefer: 'wait=1' });
  const readyz = (): Promise<Reply> => all.admin(0, '/readyz');
  return {
    logs: all.logs,
    call,
    readyz,
    isReady: async () => (await readyz()).text === 'ok\n',
    /** How many of so many calls succeed. */
    async succeeded(calls: number): Promise<number> {
      let done = 0;
      for (let n = 0; n < calls; n += 1) if ((await call()).status === 200) done += 1;
      return done;
    },
    answer: async () => (JSON.parse((await all.admin(0, '/activity')).text) as AllActivity).answer,
    async redisComes() {
      const server = await startRedis({ port });
      open.push(() => server.stop());
      return server;
    },
  };
}

test('a replica that has never reached its Redis is not ready and takes its part of the replicas that are stated', async () => {
  const one = await neverReached({ replicas: 4, startSeconds: 3600 });
  const { status, text } = await one.readyz();
  expect(status).toBe(503);
  expect(text).toMatch(
    /^starting\nRedis is away \(refused\): .*\nRedis has never been reached: until it is, this replica takes 1\/4 of every limit\.\n$/,
  );
  expect(await one.succeeded(4)).toBe(2);
  await one.redisComes();
  await until(one.isReady);
  let done = 2;
  await until(async () => (done += await one.succeeded(1)) === 8);
  expect(await one.succeeded(8)).toBe(0);
});

test.each([
  ['deny', 'No: Redis is away and Sluice refuses all calls.', 'Your redis.whenDown: deny.'],
  [
    'local',
    expect.any(String),
    'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.',
  ],
])(
  'it refuses calls where nobody states the replicas, with whenDown: %s',
  async (whenDown, sentence, heldBy) => {
    const one = await neverReached({ whenDown });
    expect(await one.call()).toMatchObject({ status: 503, code: 'limiter_unavailable' });
    const next = [{ text: 'Why is Redis away?', command: 'curl http://127.0.0.1:9090/readyz' }];
    expect(await one.answer()).toMatchObject({ sentence, heldBy, next });
    expect(one.logs.join('')).toMatch(/"calls":"refused".*"message":"Redis has never been reached"/);
    const server = await one.redisComes();
    await until(one.isReady);
    await until(async () => (await one.call()).status === 200);
    await server.stop();
    await until(async () => !(await one.isReady()));
    // From now on it knows its share.
    expect((await one.call()).status).toBe(whenDown === 'deny' ? 503 : 200);
    const { status, text } = await one.readyz();
    expect(status).toBe(200);
    expect(text).not.toContain('never been reached');
  },
);
