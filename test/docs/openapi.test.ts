/** Holds the OpenAPI documents to the code: the files to their sources, the routes and responses to a running gateway. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { z } from 'zod';
import { adminPort, dataPort } from '../../scripts/openapi/documents.ts';
import { createAdminServer } from '../../src/ingress/admin-server.ts';
import { addControlRoutes } from '../../src/ingress/control-routes.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

interface Described {
  readonly content?: Readonly<Record<string, { readonly schema: object }>>;
  readonly headers?: object;
}
interface Operation {
  readonly responses: Readonly<Record<string, Described | { readonly $ref: string }>>;
}
interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: {
    readonly schemas: Readonly<Record<string, object>>;
    readonly responses?: Readonly<Record<string, Described>>;
  };
}
const documents = { data: dataPort() as unknown as Document, admin: adminPort() as unknown as Document };
const published = (name: string): unknown =>
  JSON.parse(readFileSync(new URL(`../../schema/openapi-${name}.json`, import.meta.url), 'utf8'));

/** A schema of the document as a check, with the components that it may refer to. */
function checkOf(schema: object, { components }: Document): z.ZodType {
  const whole = JSON.stringify({ ...schema, $defs: components.schemas }).replaceAll(
    '#/components/schemas/',
    '#/$defs/',
  );
  return z.fromJSONSchema(JSON.parse(whole) as Parameters<typeof z.fromJSONSchema>[0]);
}

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway({
    upstreams: '  api: { origins: ["http://127.0.0.1:9"], allowPrivateAddresses: true }',
  });
});
afterAll(() => gateway.close());

/** Asks, and holds the response to what the document says about this status of the operation. */
async function described(
  port: 'data' | 'admin',
  path: string,
  url: string,
  init: RequestInit = {},
): Promise<number> {
  const document = documents[port];
  const operation = document.paths[path]?.[(init.method ?? 'GET').toLowerCase()];
  if (operation === undefined) throw new Error(`no operation ${init.method ?? 'GET'} ${path}`);
  const response = await fetch(`${port === 'data' ? gateway.url : gateway.adminUrl}${url}`, init);
  const body = await response.text();
  const named = operation.responses[String(response.status)] ?? operation.responses['default'];
  const known =
    named !== undefined && '$ref' in named
      ? document.components.responses?.[named.$ref.replace('#/components/responses/', '')]
      : named;
  expect([url, response.status, known !== undefined]).toEqual([url, response.status, true]);
  const type = (response.headers.get('content-type') ?? '').split(';')[0] ?? '';
  const content = known?.content?.[type];
  expect([url, type, content !== undefined]).toEqual([url, type, true]);
  if (content !== undefined && type.endsWith('json'))
    checkOf(content.schema, document).parse(JSON.parse(body));
  if (type === 'application/problem+json' && port === 'data') {
    // A ticket is given to who asks for one.
    const names = Object.keys(known?.headers ?? {}).filter((name) => name !== 'Sluice-Ticket');
    expect(names.filter((name) => response.headers.has(name))).toEqual(names);
  }
  return response.status;
}

describe.each(['data', 'admin'] as const)('the document of the %s port', (port) => {
  test('is published as the code makes it', () => {
    expect(published(port)).toEqual(JSON.parse(JSON.stringify(documents[port])));
  });
});

test('the admin document has every route of the port but the files of the page', () => {
  const admin = createAdminServer({
    host: '127.0.0.1',
    port: 0,
    adminNames: [],
    adminToken: null,
    readiness: () => ({ isDraining: false, trouble: null, contact: { kind: 'reached' } }),
    metrics: () => Promise.resolve({ contentType: 'text/plain', body: '' }),
    activity: () => Promise.resolve(null),
    routes: [
      (app) => addControlRoutes(app, { upstreams: () => [], open: no, pause: no, resume: no }, () => {}),
    ],
    onBug: () => {},
  });
  const routed = admin.app.router.stack.flatMap(({ route }) => (route === undefined ? [] : [route.path]));
  const named = routed.map((path) => path.replace(/:(\w+)/g, '{$1}'));
  expect([...new Set([...named, '/calls', '/page/events', '/recording'])].toSorted()).toEqual(
    Object.keys(documents.admin.paths).toSorted(),
  );
});
const no = () => Promise.resolve('done' as const);

describe('responses of the data port are as described', () => {
  const key = () => ({ authorization: `Bearer ${gateway.keys['acme'] ?? ''}` });
  const target = `/proxy?target=${encodeURIComponent('http://127.0.0.1:9/x')}`;

  test('refused calls of each kind that a client can make', async () => {
    const unreachable = await described('data', '/proxy', target, { headers: key() });
    // Whoever may not wait is refused while the upstream is paused.
    const operator = { method: 'POST', headers: { 'sluice-admin': 'yes' } };
    await fetch(`${gateway.adminUrl}/upstreams/api/pause?seconds=60`, operator);
    const asked = [
      unreachable,
      await described('data', '/proxy', '/proxy', { headers: key() }),
      await described('data', '/proxy', '/proxy?target=nonsense', { headers: key() }),
      await described('data', '/proxy', target),
      await described('data', '/proxy', `/proxy?target=${encodeURIComponent('https://else.example/')}`, {
        headers: key(),
      }),
      await described('data', '/proxy', target, { headers: { ...key(), prefer: 'wait=0' } }),
      await described('data', '/proxy', `/proxy?target=${'x'.repeat(9_000)}`, { headers: key() }),
      await described('data', '/via/{upstream}/{path}', '/via/api/x', {
        method: 'POST',
        body: '{}',
        headers: { ...key(), prefer: 'wait=0' },
      }),
      await described('data', '/via/{upstream}/{path}', '/via/nobody/x', { headers: key() }),
    ];
    await fetch(`${gateway.adminUrl}/upstreams/api/resume`, operator);
    expect(asked).toEqual([502, 400, 400, 401, 403, 429, 414, 429, 403]);
  });

  test('a workspace’s own activity', async () => {
    expect(await described('data', '/activity', '/activity', { headers: key() })).toBe(200);
    expect(await described('data', '/activity', '/activity?window=nonsense', { headers: key() })).toBe(400);
    expect(await described('data', '/activity', '/activity')).toBe(401);
  });

  test('the document itself, for which nobody needs a key', async () => {
    expect(await described('data', '/openapi.json', '/openapi.json')).toBe(200);
    const response = await fetch(`${gateway.url}/openapi.json`);
    expect(await response.json()).toEqual(published('data'));
  });
});

test('responses of the admin port are as described', async () => {
  const yes = { method: 'POST', headers: { 'sluice-admin': 'yes' } };
  const asked = [
    await described('admin', '/livez', '/livez'),
    await described('admin', '/readyz', '/readyz'),
    await described('admin', '/openapi.json', '/openapi.json'),
    await described('admin', '/metrics', '/metrics'),
    await described('admin', '/metrics', '/metrics', {
      headers: { accept: 'application/openmetrics-text; version=1.0.0' },
    }),
    await described('admin', '/activity', '/activity'),
    await described('admin', '/activity', '/activity?window=nonsense'),
    await described('admin', '/', '/'),
    await described('admin', '/upstreams/{name}/open', '/upstreams/api/open', yes),
    await described('admin', '/upstreams/{name}/pause', '/upstreams/api/pause?seconds=0.1', yes),
    await described('admin', '/upstreams/{name}/pause', '/upstreams/api/pause', yes),
    await described('admin', '/upstreams/{name}/resume', '/upstreams/api/resume', yes),
    await described('admin', '/upstreams/{name}/resume', '/upstreams/nobody/resume', yes),
    await described('admin', '/upstreams/{name}/resume', '/upstreams/api/resume', { method: 'POST' }),
  ];
  expect(asked).toEqual([200, 200, 200, 200, 200, 200, 400, 200, 200, 200, 400, 200, 404, 403]);
});
