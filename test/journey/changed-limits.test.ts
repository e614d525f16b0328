/** A ceiling that is changed by reload holds for calls that wait and for those that come, and refusals name what holds them. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { startWorld, tally, type Reply, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const perDay = (calls: number | string): string =>
  `    requestsPerMinute: { openai: 1000 }\n    requestsPerDay: { openai: ${calls} }\n`;
const perMinute = (calls: number): string => `    requestsPerMinute: { openai: ${calls} }\n`;

async function start(acme: string, modelLimits?: string): Promise<void> {
  world = await startWorld({ workspaces: { acme }, ...(modelLimits === undefined ? {} : { modelLimits }) });
}
/** Edits the workspace's part of the configuration. */
async function edit(from: string, to: string): Promise<void> {
  const { gateway } = world;
  expect(gateway.yaml).toContain(from);
  await gateway.reload(gateway.yaml.replace(from, to));
}
async function oneByOne(calls: number): Promise<Reply[]> {
  const replies: Reply[] = [];
  for (let at = 0; at < calls; at += 1) replies.push(await world.chat(at));
  return replies;
}
const waits = (seconds: number) => ({ headers: { prefer: `wait=${seconds}` } });
/** Heads of the log's lines about refused calls. */
const heldInLog = (): unknown[] =>
  world.gateway.logs.flatMap((line) => {
    const entry = JSON.parse(line) as Record<string, unknown>;
    return entry['outcome'] === 'shed' ? [[entry['code'], entry['heldBy']]] : [];
  });

describe('a used-up daily ceiling', () => {
  test('is named by every refusal, with no field that suggests a useful retry', async () => {
    await start(perDay(2));
    const replies = await oneByOne(6);
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 429, 429, 429, 429]);
    for (const { json, headers } of replies.slice(2)) {
      expect(json).toMatchObject({ code: 'day_quota_exhausted', heldBy: 'ceiling_day' });
      expect(json).toMatchObject({ detail: expect.not.stringContaining('Prefer') });
      expect(Number(headers.get('retry-after'))).toBeGreaterThan(80_000);
    }
    expect(heldInLog()).toEqual(Array(4).fill(['day_quota_exhausted', 'ceiling_day']));
  });

  test('has room again when it is raised, as much as was added', async () => {
    await start(perDay(2));
    await oneByOne(3);
    await edit(perDay(2), perDay(5));
    const replies = await oneByOne(5);
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200, 429, 429]);
  });

  test('lets all calls go when it is removed', async () => {
    await start(perDay(2));
    await oneByOne(3);
    await edit('    requestsPerDay: { openai: 2 }\n', '');
    expect(tally(await oneByOne(5))).toEqual({ 200: 5 });
  });

  test('counts from a reload that adds it', async () => {
    await start(perMinute(1_000), 'requestsPerDay: none');
    await oneByOne(3);
    await edit(perMinute(1_000), perDay(2));
    expect((await oneByOne(3)).map(({ status }) => status)).toEqual([200, 200, 429]);
  });
});

describe('a ceiling of the minute', () => {
  test('lets waiting and new calls go at once when it is raised', async () => {
    await start(perMinute(1));
    await world.chat('first');
    const waiting = [world.chat('a', waits(300)), world.chat('b', waits(300))];
    await world.settled(2);
    await edit(perMinute(1), perMinute(10));
    expect(tally(await Promise.all(waiting))).toEqual({ 200: 2 });
    expect((await world.chat('new')).status).toBe(200);
  });

  test('holds waiting calls when it is lowered, and refuses those that are too late now', async () => {
    await start(perMinute(3));
    await oneByOne(3);
    const leaving = new AbortController();
    const patient = world.chat('patient', { ...waits(300), signal: leaving.signal }).catch(() => 'left');
    await world.settled(1);
    const hasty = world.chat('hasty', waits(100));
    await world.settled(2);
    // Longer than a call passes through admission, by the clock of the gateway: from then on it has waited.
    await new Promise<void>((resolve) => void world.clock.after(300, resolve));
    await edit(perMinute(3), perMinute(1));
    // A minute each for the three of before, and for the one that waits already.
    const { status, json } = await hasty;
    expect([status, json]).toMatchObject([429, { code: 'wait_expired', heldBy: 'ceiling_minute' }]);
    await world.settled(1);
    expect(world.model.log).toHaveLength(3);
    leaving.abort();
    expect(await patient).toBe('left');
  });

  test('states how long a call would have to wait, where the call may ask for that', async () => {
    await start(perMinute(1));
    await world.chat('first');
    const { json } = await world.chat('second', waits(1));
    expect(json).toMatchObject({ code: 'wait_too_long', heldBy: 'ceiling_minute' });
    expect(json).toMatchObject({ detail: expect.stringMatching(/Prefer: wait=(60|61) lets it wait/) });
    await world.close();
    await start(perMinute(1), 'maxWaitCeilingSeconds: 30');
    await world.chat('first');
    const short = await world.chat('second', waits(1));
    expect(short.json).toMatchObject({
      heldBy: 'ceiling_minute',
      detail: expect.not.stringContaining('Prefer'),
    });
  });
});

test('a refusal names what holds the call for every other reason, too', async () => {
  await start(perMinute(1_000), 'maxQueued: 2');
  world.model.fault({ kind: 'answer', status: 429, headers: { 'retry-after': '30' }, body: {} });
  const leaving = new AbortController();
  const wait = (name: string): Promise<unknown> =>
    world.chat(name, { ...waits(300), signal: leaving.signal }).catch(() => 'left');
  const waiting = [wait('closes')];
  await world.settled(1);
  const closed = await world.chat('closed', waits(1));
  waiting.push(wait('patient'));
  await world.settled(2);
  const full = await world.chat('full', waits(300));
  expect([closed.json, full.json]).toMatchObject([
    { code: 'wait_too_long', heldBy: 'closed' },
    { code: 'queue_full', heldBy: 'queue' },
  ]);
  expect(heldInLog()).toEqual([
    ['wait_too_long', 'closed'],
    ['queue_full', 'queue'],
  ]);
  leaving.abort();
  expect(await Promise.all(waiting)).toEqual(['left', 'left']);
});
