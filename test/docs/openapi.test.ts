/** Holds the OpenAPI documents to the code: the files to their sources, the routes and responses to a running gateway. */
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { z } from 'zod';
import { adminPort, dataPort } from '../../scripts/openapi/documents.ts';
import { createAdminServer } from '../../src/ingress/admin-server.ts';
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

test.each(['data', 'admin'] as const)(
  'the document of the %s port is published as the code makes it',
  (port) => expect(published(port)).toEqual(JSON.parse(JSON.stringify(documents[port]))),
);

test('the admin document has every route of the port but the files of the page', () => {
  let routed: string[] = [];
  createAdminServer({
    settings: { adminHost: '127.0.0.1', adminPort: 0, adminNames: [], adminToken: null },
    readiness: () => ({ isDraining: false, trouble: null, contact: { kind: 'reached' } }),
    metrics: () => Promise.resolve({ contentType: 'text/plain', body: '' }),
    activity: () => Promise.resolve(null),
    controls: { upstreams: () => [], open: no, pause: no, resume: no },
    onCommand: () => {},
    addRoutes(app) {
      routed = app.router.stack.flatMap(({ route }) => (route === undefined ? [] : [route.path]));
    },
    onBug: () => {},
  });
  const named = routed.map((path) => path.replace(/:(\w+)/g, '{$1}'));
  expect([...new Set([...named, '/', '/calls', '/page/events', '/recording'])].toSorted()).toEqual(
    Object.keys(documents.admin.paths).toSorted(),
  );
});
const no = () => Promise.resolve('done' as const);

const target = (url: string): string => `/proxy?target=${encodeURIComponent(url)}`;
const here = target('http://127.0.0.1:9/x');
const via = '/via/{upstream}/{path}';
const admin = { 'sluice-admin': 'yes' };
const openmetrics = 'application/openmetrics-text; version=1.0.0';
const open = '/upstreams/{name}/open';
const pause = '/upstreams/{name}/pause';
const resume = '/upstreams/{name}/resume';

type Fields = Readonly<Record<string, string>>;
const held = { prefer: 'wait=0' };
test.each<
  [port: 'data' | 'admin', path: string, url: string, method: string, fields: Fields | null, status: number]
>([
  ['data', '/proxy', here, 'GET', {}, 502],
  ['data', '/proxy', '/proxy', 'GET', {}, 400],
  ['data', '/proxy', '/proxy?target=nonsense', 'GET', {}, 400],
  ['data', '/proxy', here, 'GET', null, 401],
  ['data', '/proxy', target('https://else.example/'), 'GET', {}, 403],
  ['data', '/proxy', `/proxy?target=${'x'.repeat(9_000)}`, 'GET', {}, 414],
  ['data', via, '/via/nobody/x', 'GET', {}, 403],
  ['data', '/activity', '/activity', 'GET', {}, 200],
  ['data', '/activity', '/activity?window=nonsense', 'GET', {}, 400],
  ['data', '/activity', '/activity', 'GET', null, 401],
  ['data', '/openapi.json', '/openapi.json', 'GET', null, 200],
  ['admin', '/livez', '/livez', 'GET', null, 200],
  ['admin', '/readyz', '/readyz', 'GET', null, 200],
  ['admin', '/openapi.json', '/openapi.json', 'GET', null, 200],
  ['admin', '/metrics', '/metrics', 'GET', null, 200],
  ['admin', '/metrics', '/metrics', 'GET', { accept: openmetrics }, 200],
  ['admin', '/activity', '/activity', 'GET', null, 200],
  ['admin', '/activity', '/activity?window=nonsense', 'GET', null, 400],
  ['admin', '/', '/', 'GET', null, 200],
  ['admin', open, '/upstreams/api/open', 'POST', admin, 200],
  ['admin', pause, '/upstreams/api/pause?seconds=60', 'POST', admin, 200],
  // Whoever may not wait is refused while the upstream is paused.
  ['data', '/proxy', here, 'GET', held, 429],
  ['data', via, '/via/api/x', 'POST', held, 429],
  ['admin', pause, '/upstreams/api/pause', 'POST', admin, 400],
  ['admin', resume, '/upstreams/api/resume', 'POST', admin, 200],
  ['admin', resume, '/upstreams/nobody/resume', 'POST', admin, 404],
  ['admin', resume, '/upstreams/api/resume', 'POST', null, 403],
])(
  'the response of the %s port is as described: %s, %.60s, %s %j: %d',
  async (port, path, url, method, fields, status) => {
    const key: Fields = port === 'data' ? { authorization: `Bearer ${gateway.keys['acme'] ?? ''}` } : {};
    const body = port === 'data' && method === 'POST' ? '{}' : null;
    const headers = fields === null ? {} : { ...key, ...fields };
    expect(await described(port, path, url, { method, headers, body })).toBe(status);
  },
);

test('the data port serves its document', async () =>
  expect(await (await fetch(`${gateway.url}/openapi.json`)).json()).toEqual(published('data')));
