import { request } from 'node:http';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { highCeilings, startWorld, type World } from './world.ts';

let world: World;
beforeAll(
  async () =>
    (world = await startWorld({ workspaces: { acme: highCeilings, blind: '    upstreams: [shop]\n' } })),
);
beforeEach(() => {
  world.model.reset();
  world.shop.reset();
});
afterAll(() => world.close());

describe('a response of the upstream', () => {
  test('keeps its status, body and fields, and gets the fields of Sluice', async () => {
    const { chat, model } = world;
    const { status, headers, json } = await chat(1);
    expect(status).toBe(200);
    expect(json).toHaveProperty('choices.0.message.content');
    expect(headers.get('x-ratelimit-limit-requests')).toBe('500');
    expect(headers.get('x-request-id')).toMatch(/^req_/);
    expect(headers.get('sluice-request-id')).toMatch(/^[0-9a-f]{32}$/);
    expect(headers.get('sluice-admission')).toMatch(/^waited=\d+, attempts=1, absorbed=0$/);
    expect(headers.get('ratelimit-policy')).toBe('"workspace";q=100000;w=60');
    expect(headers.get('ratelimit')).toMatch(/^"workspace";r=99999;t=\d+$/);
    expect(headers.get('sluice-error')).toBeNull();
    expect(headers.get('x-should-retry')).toBeNull();
    expect(model.log).toHaveLength(1);
  });

  test('cannot claim to come from Sluice, and does not name fields by its Connection', async () => {
    const { chat, model } = world;
    const headers = {
      'Sluice-Error': 'queue_full',
      'Sluice-Admission': 'waited=1',
      'Alt-Svc': 'h3=":1"',
      RateLimit: '"x";r=1',
    };
    model.fault({ kind: 'answer', status: 418, headers, body: 'tea' });
    const reply = await chat(1);
    expect([reply.status, reply.text]).toEqual([418, 'tea']);
    expect(reply.headers.get('sluice-error')).toBeNull();
    expect(reply.headers.get('sluice-admission')).toMatch(/attempts=1/);
    expect(reply.headers.get('alt-svc')).toBeNull();
    expect(reply.headers.get('ratelimit')).toMatch(/^"workspace"/);
  });

  test('is the same through both call forms, and links lead back through Sluice only for /via/ calls', async () => {
    const { call, gateway, shopUrl } = world;
    const path = '/admin/api/2026-10/products.json?limit=50';
    const via = await call(`/via/shop${path}`);
    const proxied = await call(`/proxy?target=${encodeURIComponent(shopUrl + path)}`);
    expect(via.text).toBe(proxied.text);
    const next = (link: string | null): string => /<([^>]+)>; rel="next"/.exec(link ?? '')?.[1] ?? '';
    expect(next(proxied.headers.get('link'))).toMatch(`${shopUrl}/admin/api/2026-10/products.json?`);
    const link = next(via.headers.get('link'));
    expect(link.startsWith(`${gateway.url}/via/shop/admin/api/2026-10/products.json?`)).toBe(true);
    const followed = await call(link.slice(gateway.url.length));
    expect([followed.status, followed.text === via.text]).toEqual([200, false]);
  });

  test.each([
    ['sluice.example:8443', {}, 'http://sluice.example:8443'],
    ['sluice.example', { 'x-forwarded-proto': 'https' }, 'https://sluice.example'],
    ['sluice.example', { 'x-forwarded-proto': 'https, http' }, 'https://sluice.example'],
  ])('has links to the host that the client used: %s %j', async (host, more, origin) => {
    const { gateway } = world;
    // fetch does not let a caller choose Host.
    const link = await new Promise<string>((resolve, reject) => {
      const authorization = `Bearer ${gateway.keys['acme'] ?? ''}`;
      request(`${gateway.url}/via/shop/admin/api/2026-10/products.json?limit=50`, {
        headers: { host, authorization, ...more },
      })
        .on('response', (response) => {
          response.resume();
          resolve(String(response.headers['link']));
        })
        .on('error', reject)
        .end();
    });
    expect(link).toContain(`<${origin}/via/shop/admin/api/2026-10/products.json?`);
  });
});

describe('a refusal by Sluice', () => {
  const cases: readonly [string, number, string, string, object?][] = [
    ['no target', 400, 'target_missing', '/proxy'],
    ['a target that is no URL', 400, 'target_invalid', '/proxy?target=nowhere'],
    [
      'a target that is not configured',
      403,
      'target_forbidden',
      '/proxy?target=https%3A%2F%2Fexample.com%2Fsecret-path',
    ],
    ['an unknown upstream', 403, 'target_forbidden', '/via/none/x'],
    ['an unknown route', 404, 'not_found', '/nothing'],
    ['no key', 401, 'unauthenticated', '/via/openai/v1/models', { key: '' }],
    [
      'an upstream that is not the workspace’s',
      403,
      'target_forbidden',
      '/via/openai/v1/models',
      { workspace: 'blind' },
    ],
    [
      'a call that comes back',
      508,
      'loop_detected',
      '/via/openai/v1/models',
      { headers: { via: '1.1 sluice' } },
    ],
  ];
  test.each(cases)(
    'for %s is a problem document marked as Sluice’s own: %i %s',
    async (_name, status, code, path, sending = {}) => {
      const { call, model, shop } = world;
      const reply = await call(path, sending);
      expect([reply.status, reply.headers.get('sluice-error')]).toEqual([status, code]);
      expect(reply.headers.get('content-type')).toBe('application/problem+json');
      expect(reply.json).toMatchObject({
        type: expect.any(String),
        title: expect.any(String),
        status,
        detail: expect.any(String),
        code,
        requestId: reply.headers.get('sluice-request-id'),
        error: { message: expect.any(String), type: expect.any(String), code },
      });
      expect(reply.text).not.toContain('secret-path');
      expect([...model.log, ...shop.log]).toEqual([]);
    },
  );

  test('is 502 for an unreachable upstream, after a second attempt', async () => {
    const gone = await startWorld();
    try {
      await gone.model.close();
      const reply = await gone.chat(1);
      expect([reply.status, reply.headers.get('sluice-error')]).toEqual([502, 'upstream_unreachable']);
      expect(reply.headers.get('sluice-admission')).toMatch(/attempts=3/);
      expect(reply.headers.get('x-should-retry')).not.toBe('false');
    } finally {
      await gone.close();
    }
  });
});
