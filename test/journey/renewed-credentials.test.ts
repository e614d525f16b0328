import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { mountSecret, type MountedSecret } from '../support/mounted-secret.ts';
import {
  startTokenEndpoint,
  type Manner,
  type TokenEndpoint,
  type TokenEndpointOptions,
} from '../support/token-endpoint.ts';
import { until } from '../support/until.ts';
import { highCeilings, inversions, startWorld, tally, type World, type WorldOptions } from './world.ts';

let world: World;
let endpoint: TokenEndpoint | null = null;
afterEach(async () => {
  await world.close();
  await endpoint?.close();
  endpoint = null;
});

const stores = (tokens: readonly string[]) => ({ '127.0.0.1': { apps: { 'app-sim': [...tokens] } } });
const injected = 'credential: { header: x-shopify-access-token, value: shpat_sim }';

/** The shop takes the tokens that the endpoint has issued and that have not ended. */
async function startShop(
  options: TokenEndpointOptions = {},
  more: WorldOptions = {},
  oauth = '',
): Promise<TokenEndpoint> {
  const started = await startTokenEndpoint({
    ...options,
    ...(more.clock === undefined ? {} : { clock: more.clock }),
    onChange: (valid) => world.shop.configure({ stores: stores(valid) }),
  });
  endpoint = started;
  world = await startWorld({
    ...more,
    shop: { stores: stores([]), latency: { minMs: 1, maxMs: 4 }, ...more.shop },
  });
  const written = `credential: { header: x-shopify-access-token, oauth: { tokenUrl: "${started.url}", clientId: client-sim, clientSecret: secret-of-the-client${oauth} } }`;
  await world.gateway.reload(world.gateway.yaml.replace(injected, written));
  return started;
}
const metrics = async (): Promise<string> => (await fetch(`${world.gateway.adminUrl}/metrics`)).text();
const many = (count: number, sending = {}): Promise<{ status: number }[]> =>
  Promise.all(Array.from({ length: count }, (_, at) => world.orders(at, sending)));
const problemOf = (reply: { json: unknown }) => reply.json as { code: string; detail: string };

describe('a token of an OAuth client', () => {
  test('is fetched once for a burst and injected', async () => {
    const tokens = await startShop();
    const { requests } = tokens;
    expect(tally(await many(20))).toEqual({ 200: 20 });
    expect([requests.length, tokens.maxAtOnce]).toEqual([1, 1]);
    expect(requests[0]?.body).toBe(
      'grant_type=client_credentials&client_id=client-sim&client_secret=secret-of-the-client',
    );
    expect(await metrics()).toMatch(
      /sluice_credential_renewals_total\{upstream="shop",outcome="renewed"\} 1/,
    );
    expect(
      Number(/sluice_credential_expires_seconds\{upstream="shop"\} (\S+)/.exec(await metrics())?.[1]),
    ).toBeGreaterThan(3_500);
  });

  test('of 5 s is renewed under load: no call fails, the order stays, and one call is in flight across every renewal', async () => {
    const { issued } = await startShop(
      { lifeSeconds: 5 },
      {
        clock: fastClock(5),
        // A little below what the shop allows: the clock runs five times as fast, and so do delays.
        shopLimits: 'bucket: { capacity: 36, leakPerSecond: 1.8 }, learn: false',
      },
    );
    // About 20 s of its time.
    expect(tally(await many(72, { headers: { prefer: 'wait=100' } }))).toEqual({ 200: 72 });
    const { log } = world.shop;
    expect(issued.length).toBeGreaterThan(3);
    // On a busy machine a call may take longer to arrive than its token has left: it finds out, and is sent again.
    const late = log.filter(({ decision }) => decision === 'unauthenticated');
    expect(Math.max(...log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    expect(log.filter((entry) => entry.decision !== 'admitted' && !late.includes(entry))).toEqual([]);
    expect(world.gateway.service.gateway.parts.pressure.buckets()).toHaveLength(1);
  });

  test('that the upstream refuses is renewed once, and the same call is sent again', async () => {
    const { issued, revoke, requests } = await startShop();
    expect((await world.orders(0)).status).toBe(200);
    revoke(issued[0] ?? '');
    const replies = await many(10);
    expect(tally(replies)).toEqual({ 200: 10 });
    expect(requests).toHaveLength(2);
    expect(world.shop.log.filter(({ status }) => status === 401)).toHaveLength(1);
    const created = await world.call('/via/shop/admin/api/2026-10/orders.json', {
      json: { order: { line_items: [{ title: 'a', price: '1.00', quantity: 1 }] } },
    });
    expect(created.status).toBeLessThan(300);
  });

  test('whose renewal does not help is not fetched again, and the upstream’s response is passed on', async () => {
    const { requests, respond } = await startShop();
    expect((await world.orders(0)).status).toBe(200);
    world.shop.configure({ stores: stores(['another']) });
    respond({ kind: 'answer', status: 200, body: '{"access_token":"of-another-shop"}' });
    expect((await world.orders(1)).status).toBe(401);
    expect((await world.orders(2)).status).toBe(401);
    expect(requests).toHaveLength(2);
  });
});

test('a refresh token that has ended refuses calls with the reason, and the next one in its file is used without a restart', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  const file = join(folder, 'token');
  await writeFile(file, 'canary-of-before\n', { mode: 0o600 });
  const tokens = await startShop({ refresh: 'single_use' }, {}, `, refreshTokenFile: "${file}"`);
  const refused = await world.orders(0);
  expect([refused.status, problemOf(refused).code]).toEqual([502, 'credential_unavailable']);
  expect(problemOf(refused).detail).toMatch(/authorize the client again .* to its file \(grant_ended\)/);
  expect(await metrics()).toMatch(/renewals_total\{upstream="shop",outcome="grant_ended"\} 1/);
  await writeFile(file, `${tokens.authorize()}\n`);
  await until(() => tokens.issued.length === 1);
  expect(tally(await many(5))).toEqual({ 200: 5 });
  expect(tokens.requests).toHaveLength(2);
  expect(await readFile(file, 'utf8')).toContain(tokens.refreshTokens.at(-1));
  // Taken out: the end of a world looks for errors that nobody expected.
  const said = world.gateway.logs.splice(0);
  expect(said.filter((line) => line.includes('"level":"error"'))).toEqual([
    expect.stringContaining('a refresh token is not valid any more: authorize the client again'),
  ]);
  expect([...said, await metrics()].join()).not.toContain('canary');
  await rm(folder, { recursive: true });
});

describe('when the token endpoint', () => {
  test.each<[string, Manner]>([
    ['is slow', { kind: 'issue', afterMs: 800 }],
    ['fails', { kind: 'answer', status: 500, body: 'oops' }],
    ['is throttled', { kind: 'answer', status: 429, body: '', headers: { 'retry-after': '1' } }],
    ['responds with a page', { kind: 'answer', status: 200, body: '<html>sign in</html>' }],
    ['breaks off', { kind: 'cut' }],
  ])('%s, calls wait and are sent in order', async (_, first) => {
    const { respond } = await startTokens();
    respond(first, { kind: 'issue' });
    await useIt();
    expect(tally(await many(8))).toEqual({ 200: 8 });
    expect(inversions(world.shop.log)).toBe(0);
    expect(world.shop.log).toHaveLength(8);
  });

  test.each([
    ['hangs', { kind: 'hang' }, 'timeout'],
    ['fails', { kind: 'answer', status: 503, body: '' }, 'throttled'],
    [
      'responds with a page',
      { kind: 'answer', status: 200, body: '{"access_token":"canary of a lie\\n"}' },
      'invalid',
    ],
    ['is down', { kind: 'cut' }, 'unreachable'],
    [
      'does not know the client',
      { kind: 'answer', status: 400, body: '{"error":"invalid_client"}' },
      'refused',
    ],
  ] as const)(
    '%s for longer than a call can wait, the call gets 502 with the class of the reason',
    async (_, manner, fault) => {
      const { respond } = await startTokens();
      respond(manner);
      await useIt();
      const reply = await world.orders(1, { headers: { prefer: 'wait=1' } });
      expect([reply.status, problemOf(reply).code]).toEqual([502, 'credential_unavailable']);
      expect(problemOf(reply).detail).toContain(`(${fault})`);
      expect(world.shop.log).toEqual([]);
      const seen = [await metrics(), ...world.gateway.logs, reply.text].join('\n');
      for (const secret of ['secret-of-the-client', 'canary', 'client-sim', endpoint?.url ?? '']) {
        expect(seen).not.toContain(secret);
      }
      if (fault !== 'timeout') expect(seen).toContain(`outcome="${fault}"} `);
    },
  );

  /** An endpoint that has not been asked yet. */
  async function startTokens(): Promise<TokenEndpoint> {
    const started = await startTokenEndpoint({
      onChange: (valid) => world.shop.configure({ stores: stores(valid) }),
    });
    endpoint = started;
    world = await startWorld({ shop: { stores: stores([]), latency: { minMs: 1, maxMs: 4 } } });
    return started;
  }
  const useIt = (): Promise<void> =>
    world.gateway.reload(
      world.gateway.yaml.replace(
        injected,
        `credential: { header: x-shopify-access-token, oauth: { tokenUrl: "${endpoint?.url ?? ''}", clientId: client-sim, clientSecret: secret-of-the-client } }`,
      ),
    );
});

describe('a credential in a file', () => {
  let secret: MountedSecret;
  afterEach(() => secret.remove());

  const startMounted = async (more: WorldOptions = {}): Promise<void> => {
    secret = await mountSecret('shpat_1');
    const { path } = secret;
    const all = Array.from({ length: 9 }, (_, n) => `shpat_${n + 1}`);
    world = await startWorld({ shop: { stores: stores(all), latency: { minMs: 1, maxMs: 4 } }, ...more });
    await world.gateway.reload(
      world.gateway.yaml.replace(injected, `credential: { header: x-shopify-access-token, file: "${path}" }`),
    );
  };

  test('is replaced under load without a failed call, in one bucket, with one call in flight', async () => {
    await startMounted({ workspaces: { acme: highCeilings, beta: highCeilings } });
    const { shop, gateway } = world;
    shop.configure({
      stores: {
        '127.0.0.1': {
          plan: { limit: 4000, leak: 200 },
          apps: { 'app-sim': Array.from({ length: 9 }, (_, n) => `shpat_${n + 1}`) },
        },
      },
    });
    const calls: Promise<{ status: number }>[] = [];
    let at = 0;
    for (let version = 2; version <= 5; version += 1) {
      for (let n = 0; n < 25; n += 1) calls.push(world.orders((at += 1)));
      await secret.write(`shpat_${version}`);
      while (shop.log.at(-1)?.key !== `shpat_${version}`) {
        calls.push(world.orders((at += 1)));
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    }
    expect(tally(await Promise.all(calls))).toEqual({ 200: calls.length });
    expect(new Set(shop.log.map(({ key }) => key)).size).toBe(5);
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    expect(
      gateway.service.gateway.parts.pressure.buckets().filter(({ upstream }) => upstream === 'shop'),
    ).toHaveLength(1);
  });

  test('that the upstream refuses is read again at once', async () => {
    await startMounted();
    expect((await world.orders(0)).status).toBe(200);
    const clocked = secret.write('shpat_2');
    world.shop.configure({ stores: stores(['shpat_2']) });
    await clocked;
    expect((await world.orders(1)).status).toBe(200);
    expect(world.shop.log.at(-1)?.key).toBe('shpat_2');
  });

  test('makes calls wait while its file is missing, and stays in use when the file is removed later', async () => {
    await startMounted();
    const { shop, gateway, orders } = world;
    const later = join(secret.folder, 'later');
    await gateway.reload(
      gateway.yaml.replace(injected, `credential: { header: x-shopify-access-token, file: "${later}" }`),
    );
    const refused = await orders(0, { headers: { prefer: 'wait=1' } });
    expect([refused.status, problemOf(refused).code]).toEqual([502, 'credential_unavailable']);
    const waiting = orders(1, { headers: { prefer: 'wait=20' } });
    await writeFile(later, 'shpat_3');
    expect((await waiting).status).toBe(200);
    await rm(later);
    expect((await orders(2)).status).toBe(200);
    await writeFile(later, '');
    expect((await orders(3)).status).toBe(200);
    expect(shop.log.map(({ key }) => key)).toEqual(['shpat_3', 'shpat_3', 'shpat_3']);
  });
});
