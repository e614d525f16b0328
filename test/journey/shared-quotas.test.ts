/**
 * Credentials and models that turn out to share a quota: what one of them learned holds for the others, and their calls leave
 * one after the other at the pace of the one quota.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const own = (upstream: string, credential: string): string =>
  `${highCeilings}    credentials: { ${upstream}: "${credential}" }\n`;

/** Buckets in which calls are in flight or wait now, by upstream. */
const busy = ({ gateway }: World, name: string): string[] =>
  gateway.service.gateway
    .buckets()
    .filter(({ upstream, snapshot }) => upstream === name && snapshot.inFlight + snapshot.waiting > 0)
    .map(({ snapshot }) => snapshot.bucket);

describe('keys of one project', () => {
  const orgs = {
    'org-sim': { projects: { proj_sim: { keys: ['sk-sim', 'sk-two'] }, other: { keys: ['sk-other'] } } },
  };
  const begin = async (rpm: number): Promise<World> =>
    (world = await startWorld({
      clock: skippingClock(),
      model: { orgs, models: { 'gpt-4o': { rpm, tpm: 1e9 } } },
      workspaces: {
        acme: highCeilings,
        beta: own('openai', 'Bearer sk-two'),
        gamma: own('openai', 'Bearer sk-other'),
      },
    }));

  test('use one bucket once their answers have named the project; another project keeps its own', async () => {
    const { chat, model } = await begin(1_000);
    for (const workspace of ['acme', 'beta', 'gamma']) await chat(1, { workspace });
    const holding = new AbortController();
    const held = ['acme', 'beta', 'gamma'].map(async (workspace) => {
      model.fault({ kind: 'hang' });
      await chat(2, { workspace, signal: holding.signal }).catch(() => {});
    });
    await world.settled(0, 3);
    const buckets = busy(world, 'openai');
    holding.abort();
    await Promise.all(held);
    expect(buckets).toHaveLength(2);
  });
});

describe('models whose refusal names one limit for them', () => {
  test('wait in one bucket after it', async () => {
    const clock = skippingClock();
    const shared = { family: 'gpt-shared', rpm: 2, tpm: 1e9 };
    world = await startWorld({ clock, model: { models: { one: shared, two: shared } } });
    const { chat, model } = world;
    const calls: ReturnType<World['chat']>[] = [];
    for (let at = 0; at < 3; at += 1) {
      for (const name of ['one', 'two'])
        calls.push(chat(at, { model: name, headers: { prefer: 'wait=600' } }));
    }
    for (let left = 60; left > 0; left -= 1) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      clock.skip(10_000);
    }
    expect(tally(await Promise.all(calls))).toEqual({ 200: 6 });
    expect(model.log.filter(({ decision }) => decision === 'throttled').length).toBeLessThanOrEqual(4);
    clock.skip(120_000);
    const holding = new AbortController();
    const held = ['one', 'two'].map(async (name) => {
      model.fault({ kind: 'hang' });
      await chat(9, { model: name, signal: holding.signal }).catch(() => {});
    });
    await world.settled(0, 2);
    const buckets = busy(world, 'openai');
    holding.abort();
    await Promise.all(held);
    expect(buckets).toHaveLength(1);
  });
});

describe('tokens of one app of a shop', () => {
  test('use one bucket once its answers have named the app', async () => {
    world = await startWorld({
      shop: {
        stores: { '127.0.0.1': { apps: { 'app-sim': ['shpat_sim', 'shpat_two'], 'app-b': ['shpat_b'] } } },
      },
      workspaces: { acme: highCeilings, beta: own('shop', 'shpat_two'), gamma: own('shop', 'shpat_b') },
    });
    const { orders, shop } = world;
    for (const workspace of ['acme', 'beta', 'gamma']) await orders(1, { workspace });
    const holding = new AbortController();
    const held = ['acme', 'beta', 'gamma'].map(async (workspace) => {
      shop.fault({ kind: 'hang' });
      await orders(2, { workspace, signal: holding.signal }).catch(() => {});
    });
    await world.settled(0, 3);
    const buckets = busy(world, 'shop');
    holding.abort();
    await Promise.all(held);
    expect(buckets).toHaveLength(2);
  });
});
