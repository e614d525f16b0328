/** What a client gets: the upstream's response with the fields of Sluice, or a problem document, whether repeating makes sense, and whether Sluice sends a call again of which it is unknown whether it ran. */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { freePort } from '../support/free-port.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { rawUpstream, type Script } from '../support/raw-upstream.ts';
import { bytes, ending, saying } from '../support/scripts.ts';
import { scripted } from './scripted.ts';
import {
  closeAll,
  logged,
  metric,
  opened,
  type Reply,
  type Sending,
  startWorld,
  type World,
  nonces,
} from './world.ts';

afterEach(closeAll);

describe('a response of the upstream', () => {
  test('keeps its status, body and fields, and gets the fields of Sluice', async () => {
    const { chat, model } = await startWorld();
    const { status, headers, json, admission, error, shouldRetry } = await chat(1);
    expect([status, error, shouldRetry]).toEqual([200, null, null]);
    expect(json).toHaveProperty('choices.0.message.content');
    expect(headers.get('x-ratelimit-limit-requests')).toBe('500');
    expect(headers.get('x-request-id')).toMatch(/^req_/);
    expect(headers.get('sluice-request-id')).toMatch(/^[0-9a-f]{32}$/);
    expect(admission).toMatch(/^waited=\d+, attempts=1, absorbed=0$/);
    expect(headers.get('ratelimit-policy')).toBe('"workspace";q=100000;w=60');
    expect(headers.get('ratelimit')).toMatch(/^"workspace";r=99999;t=\d+$/);
    expect(model.log).toHaveLength(1);
  });

  test.each<[string, string, number, string | undefined, string | null]>([
    ['model', '/v1/things', 500, 'true', 'true'],
    ['model', '/v1/things', 500, 'false', 'false'],
    ['model', '/v1/chat/completions', 500, undefined, null],
    ['model', '/v1/fine_tuning/jobs', 500, undefined, 'false'],
    ['model', '/v1/things', 504, ' TRUE', 'TRUE'],
    ['other', '/v1/things', 500, 'perhaps', 'false'],
    ['model', '/v1/things', 429, 'true', 'true'],
  ])(
    'of %s to POST %s with %i that advises %s is passed on with the advice %s',
    async (name, path, status, advice, told) => {
      const { ask } = await scripted(
        () => ({
          status,
          headers: advice === undefined ? {} : { 'X-Should-Retry': advice },
          body: status === 429 ? { error: { code: 'insufficient_quota' } } : {},
        }),
        { upstreams: { model: 'kind: language-model', other: 'kind: generic' } },
      );
      const reply = await ask(`/via/${name}${path}`, { json: { model: 'm' } });
      expect([reply.status, reply.shouldRetry]).toEqual([status, told]);
    },
  );
});

const chunked = 'HTTP/1.1 200 OK|transfer-encoding: chunked||';
const pem = (name: string) =>
  readFileSync(new URL(`../fixtures/tls/upstream.test.${name}`, import.meta.url), 'utf8');
/** A server without TLS answers the first bytes of a handshake with text. */
const plain: Script = async ({ until, send }) => {
  await until((received) => received.length > 0);
  send(bytes('HTTP/1.1 400 Bad Request||'));
};
const cut: Script = async ({ requests, send, socket }) => {
  await requests(1);
  send(bytes(`${chunked}2|ok|`));
  setTimeout(() => socket.resetAndDestroy(), 50);
};
const tls = { key: pem('key'), cert: pem('crt') };
const [unreachable, invalid] = ['502 upstream_unreachable', '502 upstream_invalid'] as const;

test.each<[string, string, string, string, Script | string, { tls?: typeof tls }?]>([
  ['no listener', 'refused', unreachable, 'does it run, and are host and port', 'http://127.0.0.1'],
  ['no address', 'dns', unreachable, 'could not be resolved: is its origin right', 'https://unknown.example'],
  ['a strange certificate', 'certificate', unreachable, '`caFile` of the upstream names', () => {}, { tls }],
  ['a reset', 'reset', unreachable, 'ended the connection before its response', ending('', 'reset')],
  ['silence', 'timeout', '504 upstream_timeout', 'within one of its `timeouts`', () => {}],
  ['another protocol', 'protocol', invalid, '', saying(bytes('SSH-2.0-OpenSSH||'))],
  ['no TLS', 'protocol', unreachable, 'of its origin (http or https) right?', plain],
  ['a body that breaks in its first packet', 'protocol', invalid, '', saying(bytes(`${chunked}nonsense|`))],
  ['a reset behind the head', 'reset', '200', '', cut],
])(
  'a failed attempt has a reason of its own in the response, which says what helps, in the log and in the metric: %s: %s',
  async (name, reason, expected, helps, script, options = {}) => {
    let origin = script === 'http://127.0.0.1' ? `${script}:${await freePort()}` : String(script);
    if (typeof script !== 'string') {
      const upstream = await rawUpstream(script, options);
      opened.push(() => upstream.close());
      origin = name === 'no TLS' ? upstream.origin.replace('http:', 'https:') : upstream.origin;
    }
    const { key, hash } = createKey();
    const upstreams = `  api: { origins: ["${origin}"], allowPrivateAddresses: true, credential: "Bearer x", timeouts: { headSeconds: 1 } }`;
    const logs: string[] = [];
    const resolve = () => Promise.reject(Object.assign(new Error('unknown.example'), { code: 'ENOTFOUND' }));
    const service = await serviceOf(gatewayYaml({ upstreams }, { acme: hash }), logs, { resolve });
    opened.push(() => service.close());
    const url = `http://127.0.0.1:${service.dataAddress.port}/via/api/orders`;
    const headers = { authorization: `Bearer ${key}`, prefer: 'wait=0' };
    const response = await fetch(url, { method: 'POST', headers, body: '{}' });
    const text = await response.text().catch(() => '');
    const line = await logged({ logs }, response);
    const [status, code] = expected.split(' ');
    expect([response.status, line]).toMatchObject([Number(status), { reason, upstream: 'api' }]);
    if (code === undefined) expect(line).toMatchObject({ outcome: 'failed' });
    else {
      const { detail } = JSON.parse(text) as { detail: string };
      expect(detail).toContain(helps);
      expect(detail).toContain(`Reason: ${reason}.`);
      expect([JSON.parse(text), line]).toMatchObject([{ code }, { code }]);
    }
    const adminUrl = `http://127.0.0.1:${service.adminAddress.port}`;
    const series = `sluice_upstream_failures_total{upstream="api",reason="${reason}"}`;
    expect(await metric({ adminUrl }, series)).toBe(1);
    // Part of a port may stand in a random id by chance.
    const said =
      text.replace(/"requestId":"\w+"/, '') + JSON.stringify({ ...line, requestId: 0, workspace: 0 });
    const { hostname, port } = new URL(origin);
    expect(said).not.toContain(hostname);
    if (port !== '') expect(said).not.toContain(`:${port}`);
  },
);

const products = '/via/shop/admin/api/2026-10/products.json';
const cup: Sending = { json: { product: { title: 'Cup' } } };
const mutation = (more = '') =>
  `mutation { productCreate(product: { title: "Cup" }) ${more} { product { id } } }`;
const keyed = mutation('@idempotent(key: "6f5c1b1e-6a53-4a0e-b0a8-3f7f0a0c2c11")');
const asPost: Sending = { headers: { 'X-HTTP-Method-Override': 'POST' } };

const start = (): Promise<World> =>
  startWorld({
    modelMore: '    timeouts: { headSeconds: 1.5 }\n',
    shopMore: '    timeouts: { headSeconds: 1.5 }\n    maxInFlight: none\n',
  });

const reset = 'reset-before-response';
const unreached = { status: 502, error: 'upstream_unreachable' };
test.each<[string, typeof reset | 'hang', (world: World) => Promise<Reply>, object | null]>([
  ['a creation', reset, ({ call }) => call(products, cup), unreached],
  ['a creation', 'hang', ({ call }) => call(products, cup), { status: 504, error: 'upstream_timeout' }],
  ['a GET that asks to be run as a POST', reset, ({ call }) => call(products, asPost), unreached],
  ['a mutation', reset, ({ graphql }) => graphql(mutation()), unreached],
  ['a read', reset, ({ orders }) => orders(1), null],
  ['a read', 'hang', ({ orders }) => orders(1), null],
  ['a GraphQL query', reset, ({ graphql }) => graphql('{ shop { name } }'), null],
  ['a mutation with a key of its own', reset, ({ graphql }) => graphql(keyed), null],
])(
  '%s is sent once more after %s where it may run twice, and never otherwise',
  async (_, kind, send, passed) => {
    const world = await start();
    world.shop.fault({ kind });
    const again = { status: 200, admission: expect.stringMatching(/attempts=2, absorbed=0(,|$)/) };
    expect(await send(world)).toMatchObject(passed === null ? again : { ...passed, shouldRetry: 'false' });
    expect(world.shop.log).toHaveLength(passed === null ? 2 : 1);
  },
);

test('a chat is not sent again, and its client may do so: it costs money, but changes nothing', async () => {
  const { chat, model } = await start();
  const answers: [number, string | null][] = [];
  for (const [at, kind] of ([reset, 'hang', '500', '502-html'] as const).entries()) {
    model.fault({ kind });
    const { status, shouldRetry } = await chat(at);
    answers.push([status, shouldRetry]);
  }
  expect(answers).toEqual([502, 504, 500, 502].map((status) => [status, null]));
  expect(nonces(model.log)).toEqual(['0', '1', '2', '3']);
});
