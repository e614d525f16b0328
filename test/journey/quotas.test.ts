/** Which calls share a quota: what one of them learned holds for the others, and they leave one after the other at the pace of the one quota. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import { adminText, bucketsOf, closeAll, highCeilings, inversions, many, maxInFlight } from './world.ts';
import { startWorld, tally, type World, type WorldOptions } from './world.ts';

afterEach(closeAll);

const own = (upstream: string, credential: string, more = ''): string =>
  `${highCeilings}    credentials: { ${upstream}: "${credential}" }\n${more}`;

/** In how many buckets these calls, which the upstream holds, are in flight. */
async function bucketsOfHeld(
  { gateway }: World,
  upstream: { fault(fault: { kind: 'hang' }): void },
  calls: readonly ((signal: AbortSignal) => Promise<unknown>)[],
  meanwhile: () => void = () => {},
): Promise<number> {
  const holding = new AbortController();
  const held = calls.map(async (call) => {
    upstream.fault({ kind: 'hang' });
    await call(holding.signal).catch(() => {});
  });
  const busy = () => bucketsOf(gateway).filter(({ inFlight }) => inFlight > 0);
  await until(() => {
    meanwhile();
    return busy().reduce((sum, { inFlight }) => sum + inFlight, 0) === calls.length;
  });
  const count = busy().length;
  holding.abort();
  await Promise.all(held);
  return count;
}

test('keys of one project use one bucket once their responses have named it; another project keeps its own', async () => {
  const projects = { proj_sim: { keys: ['sk-sim', 'sk-two'] }, other: { keys: ['sk-other'] } };
  const world = await startWorld({
    model: { orgs: { 'org-sim': { projects } } },
    workspaces: {
      acme: highCeilings,
      beta: own('openai', 'Bearer sk-two'),
      gamma: own('openai', 'Bearer sk-other'),
    },
  });
  const { chat, model } = world;
  const names = ['acme', 'beta', 'gamma'];
  for (const workspace of names) await chat(1, { workspace });
  const calls = names.map((workspace) => (signal: AbortSignal) => chat(2, { workspace, signal }));
  expect(await bucketsOfHeld(world, model, calls)).toBe(2);
});

test('tokens of one app of a shop use one bucket once its responses have named the app', async () => {
  const apps = { 'app-sim': ['shpat_sim', 'shpat_two'], 'app-b': ['shpat_b'] };
  const world = await startWorld({
    shop: { stores: { '127.0.0.1': { apps } } },
    workspaces: { acme: highCeilings, beta: own('shop', 'shpat_two'), gamma: own('shop', 'shpat_b') },
  });
  const { orders, shop } = world;
  const names = ['acme', 'beta', 'gamma'];
  for (const workspace of names) await orders(1, { workspace });
  const calls = names.map((workspace) => (signal: AbortSignal) => orders(2, { workspace, signal }));
  expect(await bucketsOfHeld(world, shop, calls)).toBe(2);
});

test('models whose refusals name one limit for them wait in one bucket afterwards', async () => {
  const clock = skippingClock();
  const shared = { family: 'gpt-shared', rpm: 2, tpm: 1e9 };
  const world = await startWorld({ clock, model: { models: { one: shared, two: shared } } });
  const { chat, model } = world;
  // Others fill the quota, so that the first call of each model is refused, however slow the machine is.
  model.consume(2, { model: 'one' });
  const throttled = () => model.log.filter(({ decision }) => decision === 'throttled');
  const send = (name: string, at: number) => chat(at, { model: name, headers: { prefer: 'wait=600' } });
  const calls = [send('one', 0), send('two', 0)];
  await until(() => new Set(throttled().map((entry) => entry.model)).size === 2);
  for (const at of [1, 2]) calls.push(send('one', at), send('two', at));
  let finished = 0;
  for (const call of calls) void call.finally(() => (finished += 1));
  await until(() => {
    clock.skip(10_000);
    return finished === calls.length;
  }, 10);
  expect(tally(await Promise.all(calls))).toEqual({ 200: 6 });
  expect(throttled().length).toBeLessThanOrEqual(4);
  clock.skip(120_000);
  const held = ['one', 'two'].map((name) => (signal: AbortSignal) => chat(9, { model: name, signal }));
  expect(await bucketsOfHeld(world, model, held, () => clock.skip(1_000))).toBe(1);
});

describe('a credential with an account', () => {
  const tokens = ['shpat_sim', 'shpat_new', 'shpat_acme', 'shpat_beta'];
  const start = (more: WorldOptions = {}): Promise<World> =>
    startWorld({
      shop: { stores: { '127.0.0.1': { apps: { 'app-sim': tokens } } }, latency: { minMs: 1, maxMs: 4 } },
      shopMore: '    account: acme-shop\n',
      ...more,
    });

  test.each([
    ['keeps bucket, order and serialization, and waiting calls leave with the new value', {}, 'shpat_new', 1],
    [
      'without an account: there is a new bucket, and waiting calls leave with the old value',
      { shopMore: '' },
      'shpat_sim',
      2,
    ],
  ])('whose value changes %s', async (_words, more, sentWith, buckets) => {
    const { behindOccupied, gateway, orders } = await start(more);
    const { replies, log } = await behindOccupied(
      many(12, (at) => at),
      undefined,
      () => gateway.reload(gateway.yaml.replace('value: shpat_sim', 'value: shpat_new')),
    );
    expect(tally(replies)).toEqual({ 200: 12 });
    expect(new Set(log.map(({ key }) => key))).toEqual(new Set([sentWith]));
    expect([inversions(log), maxInFlight(log.slice(1))]).toEqual([0, 1]);
    expect((await orders(13)).status).toBe(200);
    expect(bucketsOf(gateway, 'shop')).toHaveLength(buckets);
  });

  test('shares one quota with every credential of the same account, and its name is shown nowhere', async () => {
    const { orders, shop, gateway } = await start({
      workspaces: {
        main: highCeilings,
        acme: own('shop', 'shpat_acme', '    accounts: { shop: acme-shop }\n'),
        beta: own('shop', 'shpat_beta', '    accounts: { shop: beta-shop }\n'),
      },
    });
    for (const workspace of ['main', 'acme', 'beta'])
      expect((await orders(1, { workspace })).status).toBe(200);
    expect(shop.log.map(({ key }) => key)).toEqual(['shpat_sim', 'shpat_acme', 'shpat_beta']);
    const buckets = bucketsOf(gateway, 'shop').map(({ bucket }) => bucket);
    expect(buckets).toHaveLength(2);
    const shown = [await adminText(gateway, '/metrics'), await adminText(gateway, '/activity')];
    expect([...gateway.logs, ...shown, ...buckets].join('\n')).not.toContain('acme-shop');
  });
});

describe('an upstream whose responses name the quota of their call', () => {
  const windowMs = 60_000;

  async function start() {
    const clock = skippingClock();
    const resources = Object.entries({ core: 5_000, search: 30, code_search: 10 }).map(([name, limit]) => ({
      name,
      limit,
      used: 0,
      endsAt: clock.monotonic() + windowMs,
    }));
    const resourceOf = (path: string) => {
      const name = path.startsWith('/search/code')
        ? 'code_search'
        : path.startsWith('/search')
          ? 'search'
          : 'core';
      return resources.find((each) => each.name === name) as (typeof resources)[number];
    };
    const fields =
      'limit: x-ratelimit-limit, remaining: x-ratelimit-remaining, reset: { name: x-ratelimit-reset, as: seconds }';
    const api = await scripted(
      ({ path, at }) => {
        const resource = resourceOf(path);
        if (at >= resource.endsAt) Object.assign(resource, { used: 0, endsAt: at + windowMs });
        const hasRoom = resource.used < resource.limit;
        if (hasRoom) resource.used += 1;
        const reset = String(Math.ceil((resource.endsAt - at) / 1000));
        const headers = {
          'x-ratelimit-limit': String(resource.limit),
          'x-ratelimit-remaining': String(resource.limit - resource.used),
          'x-ratelimit-reset': reset,
          'x-ratelimit-resource': resource.name,
          'retry-after': hasRoom ? '' : reset,
        };
        return { status: hasRoom ? 200 : 429, headers };
      },
      {
        clock,
        upstreams: {
          api: `credential: "Bearer x", maxWaitSeconds: 75, speaks: { fields: { ${fields} }, bucketBy: [credential, "answer:x-ratelimit-resource"] }`,
        },
      },
    );
    const ask = async (path: string): Promise<number> => (await api.ask(`/via/api${path}`)).status;
    const asked = (count: number, path: string) => Promise.all(many(count, (n) => ask(`${path}${n}`)));
    /** What waits for the end of a window, which comes sooner. */
    const later = async <Result>(waiting: Promise<Result>): Promise<Result> => {
      let isOver = false;
      void waiting.finally(() => (isOver = true));
      await until(() => {
        if (!isOver) clock.skip(1_000);
        return isOver;
      });
      return waiting;
    };
    const refused = (): number => api.arrivals.filter(({ status }) => status === 429).length;
    return { ...api, resourceOf, ask, asked, later, refused };
  }

  test('has one that is used up hold nothing of another one', async () => {
    const { ask, asked, later, refused, arrivals } = await start();
    await asked(10, '/search/code?q=');
    const held = ask('/search/code?q=more');
    const others = [
      ...(await asked(10, '/search/issues?q=')),
      ...(await asked(20, '/repos/acme/shop/issues/')),
    ];
    expect(new Set(others)).toEqual(new Set([200]));
    // The window of the held call is far from over.
    expect(arrivals.filter(({ path, status }) => path.endsWith('more') && status === 200)).toEqual([]);
    expect(await later(held)).toBe(200);
    expect(refused()).toBeLessThanOrEqual(1);
  });

  test('has calls of several forms share the one that their responses name', async () => {
    const { ask, later, refused, arrivals, resourceOf, closed } = await start();
    expect([await ask('/search/issues?q=0'), await ask('/search/labels?q=0')]).toEqual([200, 200]);
    resourceOf('/search').used = 30;
    const first = ask('/search/issues?q=1');
    await closed();
    const seen = arrivals.length;
    const others = ['/search/labels?q=1', '/search/labels?q=2', '/search/issues?q=2'].map(ask);
    expect(await ask('/user')).toBe(200);
    expect(arrivals.slice(seen).map(({ path }) => path)).toEqual(['/user']);
    expect(await later(Promise.all([first, ...others]))).toEqual([200, 200, 200, 200]);
    expect(refused()).toBe(1);
  });

  test('has what the first calls of one have learned of it hold for all that wait', async () => {
    const { asked, later, refused, arrived, gateway } = await start();
    const waiting = asked(18, '/search/code?q=');
    await arrived(10);
    await until(() => bucketsOf(gateway).every(({ inFlight }) => inFlight === 0));
    expect(new Set(await later(waiting))).toEqual(new Set([200]));
    // All come before a response says how many have room. What is refused is refused once.
    expect(refused()).toBeLessThanOrEqual(8);
  });
});
