/**
 * Credentials and models that turn out to share a quota: what one of them learned holds for the others, and their calls leave
 * one after the other at the pace of the one quota.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const own = (upstream: string, credential: string): string =>
  `${highCeilings}    credentials: { ${upstream}: "${credential}" }\n`;

/** Buckets in which calls are in flight or wait now, by upstream. */
const busy = ({ gateway }: World, name: string): string[] =>
  gateway.service.gateway.parts.pressure
    .buckets()
    .filter(({ upstream, snapshot }) => upstream === name && snapshot.inFlight + snapshot.waiting > 0)
    .map(({ snapshot }) => snapshot.bucket);

const inFlight = ({ gateway }: World): number =>
  gateway.service.gateway.parts.pressure.buckets().reduce((sum, { snapshot }) => sum + snapshot.inFlight, 0);

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

  test('use one bucket once their responses have named the project; another project keeps its own', async () => {
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
  test('wait in one bucket after that refusal', async () => {
    const clock = skippingClock();
    const shared = { family: 'gpt-shared', rpm: 2, tpm: 1e9 };
    world = await startWorld({ clock, model: { models: { one: shared, two: shared } } });
    const { chat, model, modelUrl } = world;
    const throttled = (): string[] =>
      model.log.filter(({ decision }) => decision === 'throttled').map((entry) => entry.model);
    // Calls past the gateway fill the quota, so that the first call of each model is refused, however slow the machine is.
    for (let call = 0; call < 2; call += 1) {
      const { status } = await fetch(`${modelUrl}/v1/chat/completions`, {
        method: 'POST',
        headers: { authorization: 'Bearer sk-sim', 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'one', max_tokens: 1, messages: [{ role: 'user', content: 'hi' }] }),
      });
      expect(status).toBe(200);
    }
    const send = (name: string, at: number): ReturnType<World['chat']> =>
      chat(at, { model: name, headers: { prefer: 'wait=600' } });
    const calls = [send('one', 0), send('two', 0)];
    await until(() => new Set(throttled()).size === 2);
    for (const at of [1, 2]) calls.push(send('one', at), send('two', at));
    let finished = 0;
    const ended = Promise.all(calls.map((call) => call.finally(() => (finished += 1))));
    await until(() => {
      clock.skip(10_000);
      return finished === calls.length;
    }, 10);
    expect(tally(await ended)).toEqual({ 200: 6 });
    expect(throttled().length).toBeLessThanOrEqual(4);
    clock.skip(120_000);
    const holding = new AbortController();
    const held = ['one', 'two'].map(async (name) => {
      model.fault({ kind: 'hang' });
      await chat(9, { model: name, signal: holding.signal }).catch(() => {});
    });
    await until(() => {
      clock.skip(1_000);
      return inFlight(world) === 2;
    });
    const buckets = busy(world, 'openai');
    holding.abort();
    await Promise.all(held);
    expect(buckets).toHaveLength(1);
  });
});

describe('tokens of one app of a shop', () => {
  test('use one bucket once its responses have named the app', async () => {
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
