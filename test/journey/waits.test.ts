/** How long calls wait, what holds them, who goes first, and what a client is told of it. */
import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import {
  adminText,
  closeAll,
  highCeilings,
  insideRetryAfter,
  many,
  metric,
  nonces,
  refuseOnce,
  type Reply,
  type Sending,
  startWorld,
  tally,
  type World,
} from './world.ts';

afterEach(closeAll);

const waits = (seconds: number) => ({ headers: { prefer: `wait=${seconds}` } });

test('a call that cannot leave within its wait is refused at once by its ceiling, with the true time and no retry beyond 59 s', async () => {
  const workspaces = { acme: '    requestsPerMinute: { openai: 2 }\n' };
  const { chat, model, clock } = await startWorld({ workspaces });
  const startedAt = clock.monotonic();
  expect(tally(await Promise.all([chat(1), chat(2)]))).toEqual({ 200: 2 });
  const { status, error, headers, json, tookMs, ...refused } = await chat(3, waits(45));
  expect([status, error, headers.get('content-type')]).toEqual([
    429,
    'wait_too_long',
    'application/problem+json',
  ]);
  const members = { code: 'wait_too_long', type: 'rate_limit_error' };
  expect(json).toMatchObject({ code: 'wait_too_long', heldBy: 'ceiling_minute', error: members });
  expect([refused.admission, refused.shouldRetry]).toEqual([expect.stringMatching(/^waited=\d+,/), 'false']);
  // Loosely: on a loaded machine a response may take longer than the 50 ms that are promised, but never a wait.
  expect(tookMs).toBeLessThan(1_000);
  const seconds = Number(headers.get('retry-after'));
  // A minute after the two, of which the calls themselves took a moment.
  expect(seconds).toBeGreaterThanOrEqual(60 - (clock.monotonic() - startedAt) / 1_000);
  expect(seconds).toBeLessThanOrEqual(61);
  expect(Number(headers.get('retry-after-ms'))).toBeGreaterThan((seconds - 2) * 1_000);
  expect(headers.get('ratelimit-policy')).toBe('"workspace";q=2;w=60');
  expect(headers.get('ratelimit')).toMatch(RegExp(`^"workspace";r=0;t=(${seconds - 1}|${seconds})$`));
  expect(model.log).toHaveLength(2);
});

test('a closed bucket holds all calls: none is sent before the stated time, then all leave in order, and the refused one says what held it', async () => {
  const { chat, model, settled } = await startWorld();
  await chat(0);
  refuseOnce(model, { 'retry-after-ms': '700', 'retry-after': '9' });
  const calls = [chat(1)];
  await until(() => model.log.length === 2);
  await settled(1, 0);
  for (let at = 2; at < 12; at += 1) {
    calls.push(chat(at));
    await settled(at, 0);
  }
  expect(model.log).toHaveLength(2);
  const replies = await Promise.all(calls);
  expect(tally(replies)).toEqual({ 200: 11 });
  expect(replies[0]?.admission).toMatch(/attempts=2, absorbed=1, held=\(closed;ms=\d+/);
  expect(nonces(model.log.slice(2))).toEqual(many(11, (at) => `${at + 1}`));
  const [refused, again] = model.log.slice(1);
  expect((again?.arrivedT ?? NaN) - (refused?.t ?? NaN)).toBeGreaterThanOrEqual(700);
  expect(insideRetryAfter(model.log)).toEqual([]);
});

let world: World;
const perMinute = (calls: number): string => `    requestsPerMinute: { openai: ${calls} }\n`;
const perDay = (calls: number): string => `${perMinute(1_000)}    requestsPerDay: { openai: ${calls} }\n`;
const start = async (acme: string, modelLimits = ''): Promise<World> =>
  (world = await startWorld({ workspaces: { acme }, modelLimits }));
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

test('calls of a workspace on a commerce bucket go by urgency, and in their order where it is the same', async () => {
  const { behindOccupied, orders } = await startWorld();
  const { log } = await behindOccupied(['3a', '3b', '0a', '7a', '6a', '0b', '3c', '7b'], (name) =>
    orders(name, { headers: name.startsWith('3') ? {} : { priority: `u=${name[0] ?? ''}` } }),
  );
  expect(nonces(log)).toEqual(['0a', '0b', '3a', '3b', '3c', '6a', '7a', '7b']);
});

test.each<[string, string, (caller: string) => Sending]>([
  ['a field', 'header:x-agent', (caller) => ({ headers: { 'x-agent': caller } })],
  ['a member of the body', 'body:/user/id', (caller) => ({ json: { user: { id: caller } } })],
])('callers, as %s of their calls names them, take turns, and are shown as digests', async (_, by, of) => {
  const world = await startWorld({ workspaces: { acme: `${highCeilings}    callers: { by: "${by}" }\n` } });
  const { gateway, orders, behindOccupied } = world;
  const shownAsDigests = async (): Promise<void> => {
    const { workspaces } = JSON.parse(await adminText(gateway, '/activity')) as {
      workspaces: { upstreams: { upstream: string; callers: { caller: string; waiting: number }[] }[] }[];
    };
    const shown = workspaces[0]?.upstreams.find(({ upstream }) => upstream === 'shop')?.callers ?? [];
    expect(shown.map(({ waiting }) => waiting)).toEqual([5, 2, 1]);
    for (const { caller } of shown) {
      expect(caller).toMatch(/^c_[0-9a-f]{16}$/);
      expect(await adminText(gateway, '/metrics')).not.toContain(caller);
    }
  };
  const line = ['loop1', 'loop2', 'loop3', 'loop4', 'loop5', 'ann1', 'ann2', 'bob1'];
  const send = (name: string) => orders(name, of(name.slice(0, -1)));
  const order = nonces((await behindOccupied(line, send, shownAsDigests)).log);
  expect(gateway.logs.some((text) => text.includes('"caller"'))).toBe(true);
  // Each caller's calls in their order, and nobody's second call before everybody's first.
  expect(order.filter((name) => name.startsWith('loop'))).toEqual(line.slice(0, 5));
  expect(order.slice(0, 3).toSorted()).toEqual(['ann1', 'bob1', 'loop1']);
  expect(order.slice(3, 5).toSorted()).toEqual(['ann2', 'loop2']);
});

test('background calls leave a tenth of the places under a ceiling, and their clients are told of all', async () => {
  const { chat } = await startWorld({ workspaces: { acme: '    requestsPerMinute: { openai: 20 }\n' } });
  const [background, usual] = [{ prefer: 'wait=1', priority: 'u=7' }, { prefer: 'wait=1' }];
  await chat('warm', { headers: background });
  const replies = await Promise.all(many(30, (at) => chat(at, { headers: background })));
  expect(tally(replies)).toEqual({ 200: 17, 429: 13 });
  const sent = replies.filter(({ status }) => status === 200);
  for (const { headers } of sent) expect(headers.get('ratelimit-policy')).toContain('q=20');
  const rest = await Promise.all(many(2, (at) => chat(at, { headers: usual })));
  expect(tally(rest)).toEqual({ 200: 2 });
  expect((await chat('more', { headers: usual })).status).toBe(429);
});

const observed = {
  modelMore: '    mode: observe\n',
  modelLimits: 'requestsPerMinute: 6, probe: 100',
  model: { models: { 'gpt-4o': { rpm: 6 } } },
} as const;
const wouldOf = ({ admission }: Reply): string =>
  /would=(\w+), would-wait=\d+$/.exec(admission)?.[1] ?? 'nothing';
const linesOf = ({ gateway }: World, wanted: string) =>
  gateway.logs.map((line) => JSON.parse(line)).filter(({ message }) => message === wanted);

/** In tens of seconds: when each call would have left. */
const fatesOf = (all: readonly (readonly [would: string, waitMs: number])[]): string[] =>
  all.map(([would, ms]) => (would === 'refuse' ? would : `${Math.round(ms / 10_000)}`)).toSorted();
/** Of 20 calls: 6 at once, then one each 10 s, up to the default wait of 75 s. */
const fates = '0 0 0 0 0 0 1 2 3 4 5 6 7 refuse refuse refuse refuse refuse refuse refuse'.split(' ');

test('every call is sent at once, refusals are passed on untouched, and response, log and metrics say what limits would have done', async () => {
  const world = await startWorld(observed);
  const { model, gateway, chat } = world;
  const replies = await Promise.all(many(20, (at) => chat(at)));
  // 6 pass, and the simulator refuses the others.
  expect(model.log).toHaveLength(20);
  const { 200: passed = 0, 429: refused } = tally(replies);
  expect(passed).toBeGreaterThanOrEqual(6);
  expect(refused).toBe(20 - passed);
  for (const { status, headers, error, shouldRetry, admission } of replies) {
    expect(admission).toMatch(/^waited=\d, attempts=1, absorbed=0, would=/);
    expect([error, headers.get('ratelimit'), shouldRetry]).toEqual([null, null, null]);
    if (status === 429) expect(headers.get('retry-after')).not.toBeNull();
  }
  const waits = replies.map(({ admission }) => Number(/would-wait=(\d+)$/.exec(admission)?.[1]));
  expect(fatesOf(replies.map((reply, at) => [wouldOf(reply), waits[at] ?? NaN]))).toEqual(fates);
  const lines = linesOf(world, 'call ended');
  expect(fatesOf(lines.map(({ would, wouldWaitMs }) => [would, wouldWaitMs]))).toEqual(fates);
  // The last of the six would have left a moment later.
  await until(
    async () => (await metric(gateway, 'sluice_would_wait_seconds_count{upstream="openai"}')) === 6,
  );
  const series = ['sluice_would_refuse_total{', 'sluice_shed_total{', 'sluice_queue_depth{'];
  expect(await Promise.all(series.map((name) => metric(gateway, name)))).toEqual([7, 0, 0]);
});

test('a breaker still answers calls that the upstream refuses for good', async () => {
  const { chat, model } = await startWorld(observed);
  model.configure({ quotaState: { 'org-sim': 'insufficient_quota', proj_sim: 'insufficient_quota' } });
  expect([(await chat(1)).error, (await chat(2)).error]).toEqual([null, 'upstream_refused']);
  expect(model.log).toHaveLength(1);
});

/** An upstream that takes two calls a minute, which are used up, and calls that keep their positions or come back for them. */
async function usedUp(limits = '') {
  const { ask, clock } = await scripted(undefined, {
    clock: fastClock(20),
    upstreams: { api: `credential: "Bearer one", limits: { requestsPerMinute: 2${limits} }` },
    workspaces: { acme: '', other: '' },
  });
  const call = async (name: string, prefer: string, ticket: string | null = null, workspace = 'acme') => {
    const headers = { prefer, ...(ticket === null ? {} : { 'sluice-ticket': ticket }) };
    const reply = await ask(`/via/api/${name}`, { workspace, headers });
    return { status: reply.status, headers: reply.headers, ticket: reply.headers.get('sluice-ticket') };
  };
  for (const name of ['0', '1']) expect((await call(name, 'wait=20')).status).toBe(200);
  const pass = (ms: number): Promise<void> => new Promise((resolve) => void clock.after(ms, resolve));
  return { call, pass };
}
const reserve = 'reserve, wait=0';

test('a ticket of another workspace is a new call’s, and nobody learns of it', async () => {
  const { call, pass } = await usedUp();
  const { ticket, headers } = await call('a', reserve);
  const none = { status: 429, ticket: null };
  expect(await call('b', 'wait=0', ticket, 'other')).toMatchObject(none);
  for (const forged of ['', 'x', `${'0'.repeat(32)}.${'0'.repeat(32)}`, `${ticket}0`])
    expect(await call('c', 'wait=0', forged)).toMatchObject(none);
  await pass(Number(headers.get('retry-after-ms')));
  expect((await call('d', 'wait=0', ticket)).status).toBe(200);
});

test('no more calls than `maxReserved` keep their positions', async () => {
  const { call } = await usedUp(', maxReserved: 3');
  const tickets = new Set<string | null>();
  for (let n = 0; n < 5; n += 1) tickets.add((await call(`r${n}`, reserve)).ticket);
  expect([tickets.size, [...tickets].at(-1)]).toEqual([4, null]);
});
