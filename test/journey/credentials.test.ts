import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { highCeilings, startWorld, type World } from './world.ts';

/** An upstream without any credential in the configuration: what arrives there came from the client. */
const seen: IncomingHttpHeaders[] = [];
let everSeen = '';
const open = createServer((request, response) => {
  seen.push(request.headers);
  everSeen += JSON.stringify(request.headers);
  request.resume();
  response.end('{}');
});
let world: World;
let openUrl = '';

beforeAll(async () => {
  await new Promise<void>((resolve) => open.listen(0, '127.0.0.1', resolve));
  openUrl = `http://127.0.0.1:${(open.address() as AddressInfo).port}`;
  world = await startWorld({
    model: { orgs: { 'org-sim': { projects: { proj_sim: { keys: ['sk-sim', 'sk-beta'] } } } } },
    upstreams: `  open:\n    origins: ["${openUrl}"]\n    allowPrivateAddresses: true\n`,
    workspaces: {
      acme: highCeilings,
      beta: `${highCeilings}    credentials: { openai: "Bearer sk-beta" }\n`,
    },
  });
});
beforeEach(() => {
  seen.length = 0;
  world.model.reset();
});
afterAll(async () => {
  const keys = Object.values(world.gateway.keys);
  expect(keys.filter((key) => everSeen.includes(key))).toEqual([]);
  await world.close();
  open.closeAllConnections();
  open.close();
});

describe('the upstream’s credential', () => {
  test('is the one of the upstream, or the workspace’s own where there is one', async () => {
    const { chat, orders, model, shop } = world;
    await chat(1);
    await chat(2, { workspace: 'beta' });
    await orders(3);
    expect(model.log.map(({ key }) => key)).toEqual(['sk-sim', 'sk-beta']);
    expect(shop.log.at(-1)?.key).toBe('shpat_sim');
  });

  test('cannot be replaced by a client', async () => {
    const { orders, shop, gateway } = world;
    const reply = await orders(1, { headers: { 'X-Shopify-Access-Token': 'shpat_other' } });
    expect(reply.status).toBe(200);
    expect(shop.log.at(-1)?.key).toBe('shpat_sim');
    const own = {
      'Sluice-Upstream-Authorization': 'Bearer sk-own',
      'Sluice-Key': gateway.keys['acme'] ?? '',
    };
    expect((await world.chat(2, { headers: own })).status).toBe(200);
    expect(world.model.log.at(-1)?.key).toBe('sk-sim');
  });

  test('is the client’s own where none is configured', async () => {
    const { call } = world;
    await call('/via/open/a', {
      headers: { 'Sluice-Upstream-Authorization': 'Bearer own', 'x-api-key': 'mine' },
    });
    expect(seen[0]).toMatchObject({ authorization: 'Bearer own', 'x-api-key': 'mine' });
    const target = encodeURIComponent(`${openUrl}/b`);
    await call(`/proxy?target=${target}`);
    expect(seen[1]).not.toHaveProperty('authorization');
  });
});

describe('the API key of a client', () => {
  test('may come in Sluice-Key, and Authorization then passes as the client’s own', async () => {
    const { gateway } = world;
    const headers = { 'Sluice-Key': gateway.keys['acme'] ?? '', authorization: 'Basic b3duOm93bg==' };
    const response = await fetch(`${gateway.url}/via/open/a`, { headers });
    expect(response.status).toBe(200);
    expect(seen[0]).toMatchObject({ authorization: 'Basic b3duOm93bg==' });
    expect(seen[0]).not.toHaveProperty('sluice-key');
  });

  test.each(['x-shopify-access-token', 'authorization'])(
    'may come in the field of the credential: %s',
    async (field) => {
      const { gateway, shop } = world;
      const key = gateway.keys['acme'] ?? '';
      const value = field === 'authorization' ? `Bearer ${key}` : key;
      const response = await fetch(`${gateway.url}/via/shop/admin/api/2026-10/shop.json`, {
        headers: { [field]: value },
      });
      expect(response.status).toBe(200);
      expect(shop.log.at(-1)?.headers?.['x-shopify-access-token']).toBe('shpat_sim');
      expect(shop.log.at(-1)?.headers).not.toHaveProperty('authorization');
    },
  );

  test('never goes upstream, wherever else the client puts it', async () => {
    const { gateway, call } = world;
    const key = gateway.keys['acme'] ?? '';
    for (const field of [
      'x-api-key',
      'Sluice-Key',
      'X-Shopify-Access-Token',
      'Sluice-Upstream-Authorization',
    ]) {
      await call('/via/open/a', {
        headers: { [field]: field.startsWith('Sluice-Up') ? `Bearer ${key}` : key },
      });
    }
    expect(JSON.stringify(seen)).not.toContain(key);
  });

  test('in a target makes the call refused, and nothing is sent', async () => {
    const { gateway, call } = world;
    const key = gateway.keys['acme'] ?? '';
    for (const path of [`/via/open/${key}`, `/proxy?target=${encodeURIComponent(`${openUrl}/a?k=${key}`)}`]) {
      const reply = await call(path);
      expect([reply.status, reply.headers.get('sluice-error')]).toEqual([400, 'request_invalid']);
      expect(reply.text).not.toContain(key);
    }
    expect(seen).toEqual([]);
  });

  test('that belongs to no workspace makes the call refused before anything is sent', async () => {
    const { gateway, model } = world;
    for (const key of ['', 'sk-sim', `${gateway.keys['acme'] ?? ''}x`]) {
      const reply = await world.chat(1, { key });
      expect([reply.status, reply.headers.get('www-authenticate')]).toEqual([
        401,
        expect.stringMatching(/^Bearer/),
      ]);
      expect(reply.text).not.toContain('sk-sim');
    }
    expect(model.log).toEqual([]);
  });
});
