/** What counts in a ceiling, and what a reload of it changes; `waits.test.ts` has what it holds. */
import { afterEach, expect, test } from '@jest/globals';
import { closeAll, startWorld, type World } from './world.ts';

let world: World;
const perMinute = (calls: number): string => `    requestsPerMinute: { openai: ${calls} }\n`;
const perDay = (calls: number): string => `${perMinute(1_000)}    requestsPerDay: { openai: ${calls} }\n`;
const start = async (acme: string, modelLimits = ''): Promise<World> =>
  (world = await startWorld({ workspaces: { acme }, modelLimits }));
afterEach(closeAll);

async function oneByOne(calls: number): Promise<number[]> {
  const statuses: number[] = [];
  for (let at = 0; at < calls; at += 1) statuses.push((await world.chat(at)).status);
  return statuses;
}
/** Edits the workspace's part of the configuration. */
const edit = ({ gateway }: World, to: string): Promise<void> =>
  gateway.reload(gateway.yaml.replace(/    requestsPer[^]*$/, to));

test('a used-up ceiling of the day counts from the reload that adds it, is named by every refusal, and has room when it is raised or removed, as much as was added', async () => {
  await start(perMinute(1_000), 'requestsPerDay: none');
  expect(await oneByOne(3)).toEqual([200, 200, 200]);
  await edit(world, perDay(2));
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

test('a ceiling of the minute and another default wait hold for calls that come after the reload, not for those that wait', async () => {
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
