/** Clients that bring credentials of their own: whose quota and whose breaker a call is about, and what goes upstream. */
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

interface Seen {
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
}

interface World {
  readonly seen: Seen[];
  /** Status, who made the response, and its text. */
  call(workspace: string, path: string, init?: Init): Promise<readonly [number, string]>;
}

const ends: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).toReversed()) await end();
});

interface Init {
  readonly headers?: Record<string, string>;
  readonly json?: unknown;
}

/** An upstream that refuses whoever shows `spent` for an hour, and whoever shows `broke` for good. */
async function start(
  more = '',
  { workspaces = ['a', 'b'], kind = 'language-model', workspace = '' } = {},
): Promise<World> {
  const seen: Seen[] = [];
  const upstream = createServer((request, response) => {
    const { url = '', headers } = request;
    seen.push({ url, headers });
    const shown = `${url} ${JSON.stringify(headers)}`;
    request.resume().on('end', () => {
      if (shown.includes('spent')) response.writeHead(429, { 'retry-after': '3600' });
      else if (shown.includes('broke')) response.writeHead(402);
      response.end('{}');
    });
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  ends.push(() => new Promise((resolve) => upstream.close(() => resolve())));
  const { port } = upstream.address() as AddressInfo;
  const gateway: TestGateway = await startGateway({
    upstreams: `  api:\n    kind: ${kind}\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n${more}`,
    workspaces: Object.fromEntries(workspaces.map((name) => [name, workspace])),
  });
  ends.push(() => gateway.close());
  return {
    seen,
    async call(workspace, path, { headers = {}, json } = {}) {
      const response = await fetch(`${gateway.url}/via/api${path}`, {
        headers: {
          'sluice-key': gateway.keys[workspace] ?? '',
          prefer: 'wait=1',
          ...(json === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(json === undefined ? {} : { method: 'POST', body: JSON.stringify(json) }),
      });
      await response.arrayBuffer();
      return [response.status, response.headers.get('sluice-error') ?? 'upstream'];
    },
  };
}

type Carrying = (value: string) => readonly [path: string, init?: Init];
const carrying: readonly (readonly [string, Carrying])[] = [
  ...['authorization', 'x-api-key', 'x-goog-api-key', 'private-token', 'x-auth-token', 'xi-api-key',
    'ocp-apim-subscription-key', 'sluice-upstream-authorization', 'x-vault-token'].map(
    (field): readonly [string, Carrying] => [field, (value) => ['/v1/x', { headers: { [field]: value } }]],
  ),
  ...['key', 'access_token', 'api_key', 'token', 'subscription-key', 'sig'].map(
    (name): readonly [string, Carrying] => [`the query member ${name}`, (value) => [`/v1/x?a=1&${name}=${value}`]],
  ),
  ['x-acme-secret, which the configuration names', (value) => ['/v1/x', { headers: { 'x-acme-secret': value } }]],
  ['the query member acme, which the configuration names', (value) => [`/v1/x?acme=${value}`]],
]; // prettier-ignore
const named = '    credentialFields: [x-acme-secret, "query:acme"]\n';

describe('a client’s own credential', () => {
  test.each(carrying)('that is throttled or without money stops no other in %s', async (_, request) => {
    const { call, seen } = await start(named);
    for (const how of ['spent', 'broke']) {
      const [status] = await call('a', ...request(`${how}-a`));
      expect([429, 402]).toContain(status);
      const before = seen.length;
      // The same account is known to refuse, also to another workspace; the others go on, in whatever workspace they are.
      expect((await call('b', ...request(`${how}-a`)))[1]).not.toBe('upstream');
      expect(seen).toHaveLength(before);
      expect(await call('a', ...request('good-a'))).toEqual([200, 'upstream']);
      expect(await call('b', ...request('good-b'))).toEqual([200, 'upstream']);
    }
  });

  test('that nothing shows is the workspace’s: no other workspace shares its quota or its breaker', async () => {
    const { call } = await start('', { workspaces: ['a', 'b', 'c'] });
    // Nothing of the list carries it, so that nothing can be said of its account.
    expect((await call('a', '/v1/x', { headers: { 'x-strange': 'spent' } }))[0]).toBe(429);
    expect((await call('c', '/v1/x', { headers: { 'x-strange': 'broke' } }))[0]).toBe(402);
    expect((await call('a', '/v1/x'))[1]).toBe('wait_too_long');
    expect((await call('c', '/v1/x'))[1]).toBe('upstream_refused');
    expect(await call('b', '/v1/x')).toEqual([200, 'upstream']);
  });
});

describe('values that a client invents', () => {
  const once = 'windows: [{ requests: 1, seconds: 3600 }]';
  const cases: readonly (readonly [string, string, (value: string) => readonly [string, Init?]])[] = [
    ['a credential of its own', `{ ${once} }`, (value) => ['/v1/x', { headers: { 'x-api-key': value } }]],
    ['a field', `{ ${once}, bucketBy: [credential, "header:x-org"] }`, (value) => ['/v1/x', { headers: { 'x-org': value } }]],
    ['a path segment', `{ ${once}, bucketBy: [credential, "path:/v1/{*}"] }`, (value) => [`/v1/${value}`]],
    ['a body member', `{ ${once}, bucketBy: [credential, "body:/org"] }`, (value) => ['/v1/x', { json: { org: value } }]],
  ]; // prettier-ignore
  test.each(cases)(
    'open new windows up to a bound, and share one beyond it: %s',
    async (_, speaks, request) => {
      const { call, seen } = await start(`    maxBuckets: 3\n    speaks: ${speaks}\n`, { kind: 'generic' });
      for (let at = 0; at < 12; at += 1) await call('a', ...request(`invented-${at}`));
      expect(seen).toHaveLength(4);
      // They are one workspace's: another one has its own.
      expect(await call('b', ...request('of-b'))).toEqual([200, 'upstream']);
    },
  );

  test('open new windows up to a bound: the models of an injected credential', async () => {
    const { call, seen } = await start(
      '    maxBuckets: 3\n    limits: { requestsPerMinute: 1 }\n    credential: { header: x-api-key, value: "injected" }\n',
      { workspace: '    requestsPerMinute: none' },
    );
    const ask = (workspace: string, model: string) =>
      call(workspace, '/v1/chat/completions', { json: { model, messages: [] } });
    for (let at = 0; at < 12; at += 1) await ask('a', `invented-${at}`);
    expect(seen).toHaveLength(4);
    expect(await ask('b', 'of-b')).toEqual([200, 'upstream']);
  });
});

describe('beside an injected credential', () => {
  const injected = (field: string): string =>
    `    credential: { header: ${field}, value: "injected" }\n    credentialFields: [x-acme-secret, "query:acme", "-x-token"]\n`;
  const own = { authorization: 'own', 'x-api-key': 'own', 'api-key': 'own', 'x-goog-api-key': 'own', 'private-token': 'own',
    'x-auth-token': 'own', 'sluice-upstream-authorization': 'own', 'x-acme-secret': 'own' }; // prettier-ignore

  test.each(['authorization', 'x-api-key', 'x-goog-api-key', 'x-shopify-access-token'])(
    'in %s no other one goes upstream, from fields or query',
    async (field) => {
      const { call, seen } = await start(injected(field));
      const path = '/v1/x?key=own&page_token=p&access_token=own&acme=own&signature=s';
      expect(await call('a', path, { headers: { ...own, 'x-token': 'kept', 'x-plain': 'kept' } })).toEqual([
        200,
        'upstream',
      ]);
      const [first] = seen;
      expect(first?.url).toBe('/v1/x?page_token=p&signature=s');
      expect(first?.headers).toMatchObject({ [field]: 'injected', 'x-token': 'kept', 'x-plain': 'kept' });
      expect(JSON.stringify(first?.headers)).not.toContain('own');
    },
  );

  test('the spent account of a client stops nobody who uses the injected one', async () => {
    const { call } = await start(injected('authorization'));
    for (const [path, headers] of [
      ['/v1/x?key=spent', {}],
      ['/v1/x', { 'x-api-key': 'broke' }],
    ] as const) {
      expect(await call('a', path, { headers })).toEqual([200, 'upstream']);
    }
    expect(await call('b', '/v1/x')).toEqual([200, 'upstream']);
  });
});
