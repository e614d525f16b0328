/** An operator pauses, resumes and reopens an upstream through the admin port, over all replicas. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from '@jest/globals';
import { ran } from '../support/command.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { scripted, type Answer, type Scripted, type ScriptedOptions } from './scripted.ts';
import { adminPost, closeAll, metric } from './world.ts';

let redis: RedisServer;
beforeAll(async () => (redis = await startRedis()));
afterAll(() => redis.stop());
afterEach(closeAll);

const onRedis = (): ScriptedOptions => ({
  sections: `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
});

/** One upstream, of which no other test has the name, that answers `first` to its first call. */
function start(
  name: string,
  options: ScriptedOptions = {},
  first: Answer = {},
  kind = 'generic',
): Promise<Scripted> {
  const upstreams = { [name]: `kind: ${kind}, credential: "Bearer x", maxWaitSeconds: 100` };
  return scripted(({ n }) => (n === 1 ? first : {}), { upstreams, ...options });
}
const call = ({ ask }: Pick<Scripted, 'ask'>, name: string, prefer = 'wait=100') =>
  ask(`/via/${name}/x`, { headers: { prefer } });
const closing: Answer = { status: 429, headers: { 'retry-after': '86000' } };
const admin = ({ gateway }: Scripted, path: string) => adminPost(gateway, `/upstreams/${path}`);

test('the commands of the terminal carry the token, and the log says what was done but no token', async () => {
  const token = 'canary-token-of-the-operator';
  const api = await start('guarded', { server: `  adminToken: ${token}\n` });
  const { logs, adminUrl } = api.gateway;
  const command = ['pause', '--upstream', 'guarded', '--seconds', '60', '--admin', adminUrl];
  const said = [];
  for (const env of [{}, { SLUICE_ADMIN_TOKEN: 'another-token-of-somebody' }, { SLUICE_ADMIN_TOKEN: token }])
    said.push(await ran(command, { env }));
  expect(said.map(({ code }) => code)).toEqual([1, 1, 0]);
  expect(said[0]?.err).toContain('SLUICE_ADMIN_TOKEN');
  const lines = logs.filter((line) => line.includes('a command was given at the admin port'));
  expect(lines.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { level: 'info', verb: 'pause', upstream: 'guarded', seconds: 60, result: 'done' },
  ]);
  expect(logs.join('') + JSON.stringify(said)).not.toContain(token);
});

test('a pause holds calls, refuses those that cannot wait for its end, and resume lets them go', async () => {
  const api = await start('paused');
  const isPaused = () => metric(api.gateway, 'sluice_upstream_paused{upstream="paused"}');
  expect(await isPaused()).toBe(0);
  expect((await admin(api, 'paused/pause?seconds=60')).status).toBe(200);
  expect(await isPaused()).toBe(1);
  const refused = await call(api, 'paused', 'wait=2');
  expect(refused).toMatchObject({ status: 429, error: 'wait_too_long', json: { heldBy: 'paused' } });
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(5);
  const held = call(api, 'paused');
  await until(() => api.gateway.service.telemetry.live().some(({ waiting }) => waiting === 1));
  expect(api.arrivals).toHaveLength(0);
  for (const result of ['done', 'not_paused'])
    expect(await (await admin(api, 'paused/resume')).json()).toEqual({ result });
  expect(await held).toMatchObject({
    status: 200,
    admission: expect.stringMatching(/held=\(paused;ms=\d+\)/),
  });
  expect(api.arrivals).toHaveLength(1);
});

test('open reopens a bucket that a long Retry-After has closed', async () => {
  const api = await start('closed', {}, closing);
  expect((await call(api, 'closed')).status).toBe(429);
  expect(await call(api, 'closed')).toMatchObject({ error: 'wait_too_long', json: { heldBy: 'closed' } });
  expect((await admin(api, 'closed/open')).status).toBe(200);
  expect([(await call(api, 'closed')).status, api.arrivals.length]).toEqual([200, 2]);
});

describe('several replicas', () => {
  test('forget a breaker when an operator opens the upstream at one of them', async () => {
    const one = await start('unpaid', onRedis(), { status: 402, body: 'no credit' }, 'commerce');
    const two = await one.replica();
    expect((await call(one, 'unpaid')).status).toBe(402);
    expect((await call(one, 'unpaid')).error).toBe('upstream_refused');
    const open = () => two.service.gateway.parts.breakers.observed('unpaid').length;
    await until(() => open() > 0);
    expect((await admin(one, 'unpaid/open')).status).toBe(200);
    await until(() => open() === 0);
    expect([(await call(one, 'unpaid')).error, (await call(two, 'unpaid')).error]).toEqual([null, null]);
  });

  test('share a pause, also with one that begins later', async () => {
    const one = await start('shared', onRedis());
    const two = await one.replica();
    await admin(one, 'shared/pause?seconds=60');
    await until(async () => (await call(two, 'shared', 'wait=0')).status === 429);
    const later = await call(await one.replica(), 'shared', 'wait=1');
    expect(later).toMatchObject({ error: 'wait_too_long', json: { heldBy: 'paused' } });
  });
});
