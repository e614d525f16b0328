/** A ceiling holds in every window, is stated in every response, and holds for calls that wait when a reload changes it. */
import { afterEach, describe, expect, test } from '@jest/globals';
import type { LogEntry } from '../../simulators/log.ts';
import { fastClock } from '../support/fast-clock.ts';
import { closeAll, many, refuseOnce, startWorld, tally, type World } from './world.ts';

let world: World;
const perMinute = (calls: number): string => `    requestsPerMinute: { openai: ${calls} }\n`;
const perDay = (calls: number): string => `${perMinute(1_000)}    requestsPerDay: { openai: ${calls} }\n`;
const start = async (acme: string, modelLimits = ''): Promise<World> =>
  (world = await startWorld({ workspaces: { acme }, modelLimits }));
afterEach(closeAll);

const waits = (seconds: number) => ({ headers: { prefer: `wait=${seconds}` } });
async function oneByOne(calls: number): Promise<number[]> {
  const statuses: number[] = [];
  for (let at = 0; at < calls; at += 1) statuses.push((await world.chat(at)).status);
  return statuses;
}
/** Edits the workspace's part of the configuration. */
const edit = ({ gateway }: World, to: string): Promise<void> =>
  gateway.reload(gateway.yaml.replace(/    requestsPer[^]*$/, to));

const speed = 10;
/**
 * Our sockets are as slow as ever while time runs faster: 30 rounds of the event loop between sending and arriving are three
 * seconds here. The ceiling itself is held to the millisecond where time is an argument (`test/limiter/`).
 */
const slackMs = 300 * speed;

/** Most calls that arrived in any window of a minute, however one lays it. */
function busiestMinute(log: readonly LogEntry[]): number {
  const times = log.map(({ arrivedT }) => arrivedT);
  const within = (start: number) => times.filter((at) => at >= start && at < start + 60_000 - slackMs);
  return Math.max(...times.map((start) => within(start).length));
}

test('a ceiling holds in every window of 60 s, for each workspace and upstream separately', async () => {
  const patient = { headers: { prefer: 'wait=600' } };
  const { chat, orders, call, model, shop, modelUrl } = await startWorld({
    clock: fastClock(speed),
    workspaces: {
      acme: '    requestsPerMinute: { openai: 12, shop: 9 }\n',
      beta: '    requestsPerMinute: { openai: 7, shop: 9 }\n',
    },
  });
  const target = encodeURIComponent(`${modelUrl}/v1/chat/completions`);
  const json = { model: 'gpt-4o', messages: [{ role: 'user', content: 'x' }], user: 'acme' };
  // Spread at first, so that the windows do not begin together.
  const calls = many(24, async (at) => {
    await new Promise((resolve) => setTimeout(resolve, at < 12 ? at * 100 : 1200));
    return Promise.all([
      at % 2 === 0 ? chat('acme', patient) : call(`/proxy?target=${target}`, { json, ...patient }),
      ...(at < 14 ? [chat('beta', { workspace: 'beta', ...patient })] : []),
      ...(at < 18 ? [orders('shop', patient)] : []),
    ]);
  });
  expect(tally((await Promise.all(calls)).flat())).toEqual({ 200: 24 + 14 + 18 });
  const of = (name: string): readonly LogEntry[] => model.log.filter(({ nonce }) => nonce === name);
  expect([of('acme'), of('beta'), shop.log].map(busiestMinute)).toEqual([12, 7, 9]);
});

test('a ceiling is stated in every response, and is not changed by what the upstream reports', async () => {
  const { chat } = await start(perMinute(5));
  const replies = [await chat(1), await chat(2), await chat(3)];
  expect(replies.map(({ headers }) => headers.get('ratelimit-policy'))).toEqual(
    Array(3).fill('"workspace";q=5;w=60'),
  );
  const left = replies.map(({ headers }) => /r=(\d+)/.exec(headers.get('ratelimit') ?? '')?.[1]);
  expect(left).toEqual(['4', '3', '2']);
});

test('a ceiling counts a throttled attempt, too, because the attempt reached the upstream', async () => {
  const { chat, model } = await start(perMinute(3));
  refuseOnce(model, { 'retry-after-ms': '20' });
  expect(await oneByOne(2)).toEqual([200, 200]);
  expect((await chat(3, waits(45))).error).toBe('wait_too_long');
  expect(model.log).toHaveLength(3);
});

test('a used-up ceiling of the day is named by every refusal, and has room when it is raised or removed, as much as was added', async () => {
  await start(perDay(2));
  expect(await oneByOne(2)).toEqual([200, 200]);
  for (const { error, json, headers } of [await world.chat(3), await world.chat(4)]) {
    const detail = expect.not.stringContaining('Prefer');
    expect([error, json]).toMatchObject(['day_quota_exhausted', { heldBy: 'ceiling_day', detail }]);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(80_000);
  }
  const lines = world.gateway.logs.map((line) => JSON.parse(line) as Record<string, unknown>);
  const shed = lines.filter(({ outcome }) => outcome === 'shed').map(({ code, heldBy }) => [code, heldBy]);
  expect(shed).toEqual(Array(2).fill(['day_quota_exhausted', 'ceiling_day']));
  await edit(world, perDay(5));
  expect(await oneByOne(5)).toEqual([200, 200, 200, 429, 429]);
  await edit(world, perMinute(1_000));
  expect(await oneByOne(3)).toEqual([200, 200, 200]);
});

test('a ceiling of the day counts from a reload that adds it', async () => {
  await start(perMinute(1_000), 'requestsPerDay: none');
  await oneByOne(3);
  await edit(world, perDay(2));
  expect(await oneByOne(3)).toEqual([200, 200, 429]);
});

describe('a ceiling of the minute', () => {
  test('and another default wait holds for calls that come after the reload, not for those that wait', async () => {
    const { chat, settled, clock } = await start(perMinute(2), 'maxWaitSeconds: 100');
    await oneByOne(2);
    const waiting = chat('waiting');
    await settled(1);
    const { yaml, reload } = world.gateway;
    const short = yaml.replace('maxWaitSeconds: 100', 'maxWaitSeconds: 1');
    await reload(short);
    // A process that stands still for a moment before it refuses says that the call has waited.
    expect((await chat('arriving')).error).toMatch(/wait_too_long|wait_expired/);
    await new Promise<void>((resolve) => void clock.after(1_500, resolve));
    await settled(1);
    await reload(short.replace(perMinute(2), perMinute(10)));
    expect((await waiting).status).toBe(200);
  });
});
