/** `maxInFlightTotal`: an account that takes three calls at once gets three at once, however many workspaces share it. */
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { AddressInfo } from 'node:net';
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
  expect(maxInFlight()).toBeLessThanOrEqual(3);
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

test('what an account takes at once is learned from its refusals, and holds for streams as well', async () => {
  const takes = 3;
  let inFlight = 0;
  let refused = 0;
  let hasRefused = false;
  const upstream = createServer((request, response) => {
    request.resume();
    if (inFlight >= takes) {
      refused += 1;
      hasRefused = true;
      const message = 'request reached organization max concurrency: 3, please try again after 1 seconds';
      return response
        .writeHead(429, { 'content-type': 'application/json' })
        .end(JSON.stringify({ error: { message, type: 'rate_limit_reached_error' } }));
    }
    inFlight += 1;
    const isStream = request.headers['x-stream'] === 'yes';
    response.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' });
    if (isStream) response.write('data: {}\n\n');
    const answer = async (): Promise<void> => {
      // Calls of the first wave stay until there is one too many.
      do await sleep(20);
      while (!hasRefused);
      inFlight -= 1;
      response.end(isStream ? 'data: [DONE]\n\n' : '{}');
    };
    return void answer();
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  world = await startWorld({
    upstreams: `  narrow:\n    kind: generic\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n`,
    workspaces: Object.fromEntries(workspaces.map((name) => [name, highCeilings])),
  });
  const wave = (isStream: boolean) =>
    Promise.all(
      Array.from({ length: 24 }, (_, at) =>
        world.call('/via/narrow/v1/chat/completions', {
          workspace: workspaces[at % workspaces.length] ?? '',
          json: { model: 'm', stream: isStream, messages: [{ role: 'user', content: `call ${at}` }] },
          headers: { prefer: 'wait=600', 'x-stream': isStream ? 'yes' : 'no' },
        }),
      ),
    );
  try {
    expect(tally(await wave(false))).toEqual({ 200: 24 });
    expect(refused).toBeGreaterThan(0);
    refused = 0;
    expect(tally(await wave(true))).toEqual({ 200: 24 });
    expect(refused).toBe(0);
  } finally {
    upstream.closeAllConnections();
    upstream.close();
  }
});
