/** A replica that has never reached its Redis does not know how many others there are: what it lets through, and when it is ready. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import type { Answer } from '../../src/activity/answer.policy.ts';
import type { AllActivity } from '../../src/activity/shape.ts';
import type { Service } from '../../src/service.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { serviceOf } from '../support/gateway.ts';
import { chatBody, chatPath, fleetConfig, send, type CallResponse } from '../support/redis-fleet.ts';
import { freePort } from '../support/free-port.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

type Simulator = ReturnType<typeof createLanguageModelSimulator>;

let simulator: Simulator;
let modelUrl: string;
/** Nothing listens there yet. */
let port: number;
let redis: RedisServer | null;
const services: Service[] = [];
const logs: string[] = [];

beforeEach(async () => {
  simulator = createLanguageModelSimulator({ models: { 'gpt-4o': { rpm: 100_000, tpm: 10_000_000 } } });
  modelUrl = (await simulator.listen(0)).url;
  port = await freePort();
  redis = null;
});
afterEach(async () => {
  await Promise.all(services.splice(0).map((service) => service.close()));
  await redis?.stop();
  await simulator.close();
  logs.length = 0;
});

interface Replica {
  /** A call that waits for a second at most. */
  call(): Promise<CallResponse>;
  readyz(): Promise<{ readonly status: number; readonly text: string }>;
  /** The answer of the page. */
  answer(): Promise<Answer>;
}

let nonces = 0;

/** A replica that starts without its Redis. `redis`: further keys of the section. */
async function replica(more: string): Promise<Replica> {
  const { yaml, keys } = fleetConfig({
    redis: `url: "redis://127.0.0.1:${port}", commandTimeoutMs: 2000, ${more}`,
    modelUrl,
    modelLimits: 'requestsPerMinute: 8, requestsPerDay: 1000, tokensPerMinute: 10000000',
  });
  const service = await serviceOf(yaml(), logs);
  services.push(service);
  return {
    call: () =>
      send({
        url: `http://127.0.0.1:${service.dataAddress.port}`,
        path: chatPath,
        key: keys['acme'] ?? '',
        nonce: `n${(nonces += 1)}`,
        body: chatBody,
        headers: { prefer: 'wait=1' },
      }),
    async readyz() {
      const response = await fetch(`http://127.0.0.1:${service.adminAddress.port}/readyz`);
      return { status: response.status, text: await response.text() };
    },
    async answer() {
      const response = await fetch(`http://127.0.0.1:${service.adminAddress.port}/activity`);
      return ((await response.json()) as AllActivity).answer;
    },
  };
}

const isReady = async ({ readyz }: Replica): Promise<boolean> => (await readyz()).text === 'ok\n';

async function succeeded(count: number, { call }: Replica): Promise<number> {
  let done = 0;
  for (let n = 0; n < count; n += 1) if ((await call()).status === 200) done += 1;
  return done;
}

describe('a replica that has never reached its Redis', () => {
  test('is not ready and takes its part of the replicas that are stated, until Redis is there', async () => {
    const one = await replica('replicas: 4, startSeconds: 3600');
    const { status, text } = await one.readyz();
    expect(status).toBe(503);
    expect(text).toMatch(
      /^starting\nRedis is away \(refused\): .*\nRedis has never been reached: until it is, this replica takes 1\/4 of every limit\.\n$/,
    );
    expect(await succeeded(4, one)).toBe(2);
    redis = await startRedis({ port });
    await until(() => isReady(one));
    let done = 2;
    await until(async () => (done += await succeeded(1, one)) === 8);
    expect(await succeeded(8, one)).toBe(0);
  });

  test('refuses calls where nobody states the replicas, with whenDown: deny', async () => {
    const one = await replica('whenDown: deny');
    expect(await one.call()).toMatchObject({ status: 503, code: 'limiter_unavailable' });
    expect(await one.answer()).toMatchObject({
      sentence: 'No: Redis is away and Sluice refuses all calls.',
      heldBy: 'Your redis.whenDown: deny.',
      next: [{ text: 'See why', command: 'sluice check --connect' }],
    });
    expect(logs.join('')).toMatch(/"calls":"refused".*"message":"Redis has never been reached"/);
    redis = await startRedis({ port });
    await until(async () => (await one.call()).status === 200);
  });

  test('with whenDown: local does so, too, and goes on with its share when Redis is away after it has been reached once', async () => {
    const one = await replica('whenDown: local');
    expect(await one.call()).toMatchObject({ status: 503, code: 'limiter_unavailable' });
    expect((await one.answer()).heldBy).toBe(
      'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.',
    );
    expect(logs.join('')).toMatch(/"calls":"refused".*"message":"Redis has never been reached"/);
    redis = await startRedis({ port });
    await until(() => isReady(one));
    await redis.stop();
    redis = null;
    await until(async () => (await one.readyz()).text !== 'ok\n');
    expect((await one.call()).status).toBe(200);
    expect(await one.readyz()).toMatchObject({
      status: 200,
      text: expect.not.stringContaining('never been reached'),
    });
  });

  test('is ready from redis.startSeconds on, and goes on to say that Redis was never reached', async () => {
    const one = await replica('startSeconds: 0.1');
    const { status, text } = await one.readyz();
    expect(status).toBe(200);
    expect(text).toMatch(
      /^ok\nRedis is away \(refused\): .*\nRedis has never been reached: .* calls are refused, because redis\.whenDown is deny or redis\.replicas is not set\.\n$/,
    );
  });
});
