/** `maxInFlightTotal`: an account that takes three calls at once gets three at once, however many workspaces share it. */
import { afterEach, expect, test } from '@jest/globals';
import { highCeilings, startWorld, tally, type World } from './world.ts';

let world: World;
afterEach(() => world.close());

const workspaces = ['one', 'two', 'three'];
const maxInFlight = (): number => Math.max(...world.model.log.map(({ inFlight }) => inFlight.scope));

const start = async (modelLimits: string): Promise<void> => {
  world = await startWorld({
    model: { latency: { baseMs: 20, perTokenMs: 1, jitter: 0 } },
    modelLimits,
    workspaces: Object.fromEntries(workspaces.map((name) => [name, highCeilings])),
  });
};

/** Calls of all workspaces at once, of which every other one asks for a stream. */
const burst = (count: number) =>
  Promise.all(
    Array.from({ length: count }, (_, at) =>
      world.call('/via/openai/v1/chat/completions', {
        workspace: workspaces[at % workspaces.length] ?? '',
        json: { model: 'gpt-4o', stream: at % 2 === 0, messages: [{ role: 'user', content: `call ${at}` }] },
        headers: { 'x-nonce': String(at) },
      }),
    ),
  );

test('three workspaces together have no more calls in flight than the account takes', async () => {
  await start('maxInFlightTotal: 3');
  expect(tally(await burst(24))).toEqual({ 200: 24 });
  expect(maxInFlight()).toBe(3);
});

test('without a cap on all calls each workspace has as many in flight as it may', async () => {
  await start('maxInFlight: 2');
  expect(tally(await burst(24))).toEqual({ 200: 24 });
  expect(maxInFlight()).toBe(6);
});

test('a call that finds no place within its wait is refused, and told why', async () => {
  await start('maxInFlightTotal: 1');
  world.model.fault({ kind: 'hang' });
  const leaving = new AbortController();
  const occupying = world.chat('occupying', { workspace: 'one', signal: leaving.signal }).catch(() => null);
  await world.settled(0, 1);
  const late = await world.chat('late', { workspace: 'two', headers: { prefer: 'wait=1' } });
  expect(late.status).toBe(429);
  expect(late.text).toContain('maxInFlightTotal');
  leaving.abort();
  await occupying;
});
