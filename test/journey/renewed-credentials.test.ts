/** Credentials that are fetched, mounted and renewed: no call is lost over a renewal, nobody is sent with one that has ended. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from '@jest/globals';
import { mountSecret, type MountedSecret } from '../support/mounted-secret.ts';
import { startTokenEndpoint, type Manner, type TokenEndpointOptions } from '../support/token-endpoint.ts';
import { until } from '../support/until.ts';
import { scripted } from './scripted.ts';
import { adminText, bucketsOf, closeAll, many, metric } from './world.ts';
import { opened, startWorld, tally, type Reply, type World } from './world.ts';

afterEach(closeAll);

let world: World;
const stores = (tokens: readonly string[]) => ({ '127.0.0.1': { apps: { 'app-sim': [...tokens] } } });
/** Replaces the fixed credential of the shop. */
const inject = (text: string): Promise<void> =>
  world.gateway.reload(
    world.gateway.yaml.replace('x-shopify-access-token, value: shpat_sim', `x-shopify-access-token, ${text}`),
  );
const oauth = (url: string, more = ''): string =>
  `oauth: { tokenUrl: "${url}", clientId: client-sim, clientSecret: secret-of-the-client${more} }`;

/** The shop takes the tokens that the endpoint has issued and that have not ended. The first request for one comes after `before`. */
async function startShop(
  options: TokenEndpointOptions = {},
  { field = '', before = [] }: { field?: string; before?: readonly Manner[] } = {},
) {
  const onChange = (valid: readonly string[]) => world.shop.configure({ stores: stores(valid) });
  const endpoint = await startTokenEndpoint({ ...options, onChange });
  world = await startWorld({ shop: { stores: stores([]), latency: { minMs: 1, maxMs: 4 } } });
  opened.push(() => endpoint.close());
  if (before.length > 0) endpoint.respond(...before);
  await inject(oauth(endpoint.url, field));
  return endpoint;
}
const reads = (count: number): Promise<Reply[]> => Promise.all(many(count, (at) => world.orders(at)));
const renewals = (outcome: string): Promise<number> =>
  metric(world.gateway, `sluice_credential_renewals_total{upstream="shop",outcome="${outcome}"}`);
const unavailable = (detail: unknown = expect.any(String)) => ({
  status: 502,
  error: 'credential_unavailable',
  json: { detail },
});

test('a token of an OAuth client is fetched once for a burst and injected', async () => {
  const tokens = await startShop();
  expect(tally(await reads(20))).toEqual({ 200: 20 });
  const body = 'grant_type=client_credentials&client_id=client-sim&client_secret=secret-of-the-client';
  expect([tokens.requests.map((request) => request.body), tokens.maxAtOnce]).toEqual([[body], 1]);
  expect(await renewals('renewed')).toBe(1);
  const expires = await metric(world.gateway, 'sluice_credential_expires_seconds{upstream="shop"}');
  expect(expires).toBeGreaterThan(3_500);
});

test.each([
  [
    'a 200 with an error in it',
    200,
    '{"error":"token_expired"}',
    'body: token_expired',
    200,
    '{"error":"not_in_channel"}',
  ],
  ['a 440, while a 401 means something else', 440, '{}', '', 401, '{"error":"second factor"}'],
])(
  '%s that `expiredBy` describes renews the token once, and the same calls are sent again',
  async (_words, status, body, by, otherStatus, otherBody) => {
    const endpoint = await startTokenEndpoint({ isRotating: true });
    const { ask, arrivals, gateway } = await scripted(
      ({ path, headers }) => {
        if (!endpoint.isValid((headers.authorization ?? '').replace('Bearer ', ''))) return { status, body };
        return path === '/other' ? { status: otherStatus, body: otherBody } : {};
      },
      {
        upstreams: {
          api: `credential: { ${oauth(endpoint.url)} }, speaks: { expiredBy: [{ status: ${status}, ${by} }] }`,
        },
      },
    );
    opened.push(() => endpoint.close());
    expect(await ask('/via/api/x')).toMatchObject({ status: 200, text: '{}' });
    endpoint.revoke(endpoint.issued[0] ?? '');
    const replies = await Promise.all(many(5, () => ask('/via/api/x')));
    expect(replies.map((reply) => [reply.status, reply.text])).toEqual(Array(5).fill([200, '{}']));
    expect([endpoint.requests.length, bucketsOf(gateway).length]).toEqual([2, 1]);
    // Another refusal is no word of the token: it passes, and nothing is renewed.
    const sent = arrivals.length;
    expect(await ask('/via/api/other')).toMatchObject({ status: otherStatus, text: otherBody });
    expect([arrivals.length - sent, endpoint.requests.length]).toEqual([1, 2]);
  },
);

test('a refresh token that has ended refuses calls with the reason, and the next one in its file is used without a restart', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  opened.push(() => rm(folder, { recursive: true }));
  const file = join(folder, 'token');
  await writeFile(file, 'canary-of-before\n', { mode: 0o600 });
  const tokens = await startShop({ refresh: 'single_use' }, { field: `, refreshTokenFile: "${file}"` });
  const ended = expect.stringMatching(/authorize the client again .* to its file \(grant_ended\)/);
  expect(await world.orders(0)).toMatchObject(unavailable(ended));
  const { gateway } = world;
  expect(await renewals('grant_ended')).toBe(1);
  await writeFile(file, `${tokens.authorize()}\n`);
  await until(async () => (await world.orders(0)).status === 200);
  expect([tally(await reads(5)), tokens.requests.length]).toEqual([{ 200: 5 }, 2]);
  expect(await readFile(file, 'utf8')).toContain(tokens.refreshTokens.at(-1));
  // Taken out: the end of a world looks for errors that nobody expected.
  const said = gateway.logs.splice(0);
  expect(said.filter((line) => line.includes('"level":"error"'))).toEqual([
    expect.stringContaining('a refresh token is not valid any more: authorize the client again'),
  ]);
  expect([...said, await adminText(gateway, '/metrics')].join()).not.toContain('canary');
});

test.each<[string, Manner, string]>([
  ['hangs', { kind: 'hang' }, 'timeout'],
  ['fails', { kind: 'answer', status: 503, body: '' }, 'throttled'],
  ['lies', { kind: 'answer', status: 200, body: '{"access_token":"canary of a lie\\n"}' }, 'invalid'],
  ['is down', { kind: 'cut' }, 'unreachable'],
  [
    'does not know the client',
    { kind: 'answer', status: 400, body: '{"error":"invalid_client"}' },
    'refused',
  ],
])(
  'when the token endpoint %s for longer than a call can wait, the call gets 502 with the class of the reason',
  async (_, manner, fault) => {
    const { url } = await startShop({}, { before: [manner] });
    const reply = await world.orders(1, { headers: { prefer: 'wait=1' } });
    expect(reply).toMatchObject(unavailable(expect.stringContaining(`(${fault})`)));
    expect(world.shop.log).toEqual([]);
    const seen = [await adminText(world.gateway, '/metrics'), ...world.gateway.logs, reply.text].join('\n');
    for (const secret of ['secret-of-the-client', 'canary', 'client-sim', url])
      expect(seen).not.toContain(secret);
    if (fault !== 'timeout') expect(seen).toContain(`outcome="${fault}"} `);
  },
);

describe('a credential in a file', () => {
  let secret: MountedSecret;
  const tokens = many(9, (n) => `shpat_${n + 1}`);
  const startMounted = async (): Promise<World> => {
    secret = await mountSecret('shpat_1');
    opened.push(() => secret.remove());
    world = await startWorld({ shop: { stores: stores(tokens), latency: { minMs: 1, maxMs: 4 } } });
    await inject(`file: "${secret.path}"`);
    return world;
  };

  test('that the upstream refuses is read again at once', async () => {
    const { orders, shop } = await startMounted();
    expect((await orders(0)).status).toBe(200);
    const written = secret.write('shpat_2');
    shop.configure({ stores: stores(['shpat_2']) });
    await written;
    expect([(await orders(1)).status, shop.log.at(-1)?.key]).toEqual([200, 'shpat_2']);
  });

  test('makes calls wait while its file is missing, stays in use when the file is removed later, and is followed by the next one', async () => {
    const { orders, shop } = await startMounted();
    const later = join(secret.folder, 'later');
    await inject(`file: "${later}"`);
    expect(await orders(0, { headers: { prefer: 'wait=1' } })).toMatchObject(unavailable());
    const waiting = orders(1, { headers: { prefer: 'wait=20' } });
    await writeFile(later, 'shpat_3');
    const replies = [await waiting];
    await rm(later);
    replies.push(await orders(2));
    await writeFile(later, '');
    replies.push(await orders(3));
    expect(shop.log.map(({ key }) => key)).toEqual(['shpat_3', 'shpat_3', 'shpat_3']);
    await writeFile(later, 'shpat_4');
    while (shop.log.at(-1)?.key !== 'shpat_4') replies.push(await orders(4));
    expect(tally(replies)).toEqual({ 200: replies.length });
  });
});
