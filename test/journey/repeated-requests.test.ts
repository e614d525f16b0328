/** Which requests count as the same, what of a response is given to whom, and how keys go upstream. */
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { scripted, type Arrival, type Script, type ScriptedOptions } from './scripted.ts';
import { closeAll } from './world.ts';

afterEach(closeAll);

interface Answer {
  readonly status: number;
  readonly fields: IncomingMessage['headers'];
  readonly text: string;
}
/** Field lines as they go out: a name may come twice. */
type Lines = readonly (readonly [name: string, value: string])[];

interface More extends Pick<ScriptedOptions, 'workspaces'> {
  readonly api?: string;
}
async function start(
  { api = '', workspaces = { team: '' } }: More = {},
  script: Script = ({ n }) => ({ body: `response ${n}` }),
) {
  const { gateway, arrivals, origin } = await scripted(script, { upstreams: { api }, workspaces });
  const { port } = gateway.service.dataAddress;
  const send = (
    lines: Lines,
    { path = '/via/api/orders?a=1', body = 'body', workspace = 'team', host = `127.0.0.1:${port}` } = {},
  ): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const own = { host, 'sluice-key': gateway.keys[workspace] ?? '', 'content-length': `${body.length}` };
      const headers = [...Object.entries(own), ...lines].flat();
      const sent = httpRequest({ port, host: '127.0.0.1', method: 'POST', path, headers }, (response) => {
        let text = '';
        response.on('data', (chunk: Buffer) => (text += chunk.toString()));
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, fields: response.headers, text }),
        );
      });
      sent.on('error', reject).end(body);
    });
  return { send, arrivals, origin };
}

const injected = 'credential: { header: x-operator, value: secret }';
const key = ['idempotency-key', 'k'] as const;
const codeOf = ({ fields }: Answer): unknown => fields['sluice-error'];
const mismatch = [422, 'idempotency_mismatch', 1];

describe('a request with a known key that differs from the first in', () => {
  test.each<[string, Lines, Lines]>([
    ['a Range that is not there', [['range', 'bytes=0-3']], []],
    ['Prefer, as far as it goes upstream', [['prefer', 'wait=5, return=minimal']], [['prefer', 'wait=5']]],
    ['a second line of a field', ['a', 'b'].map((tag) => ['x-tag', tag] as const), [['x-tag', 'a']]],
    [
      'a second cookie line',
      ['a=1', 's=alice'].map((text) => ['cookie', text] as const),
      [['cookie', 'a=1']],
    ],
    ['a field nobody knows', [['x-whatever', 'a']], [['x-whatever', 'b']]],
  ])('%s never gets its response', async (_words, first, second) => {
    const { send, arrivals } = await start();
    expect((await send([key, ...first])).text).toBe('response 1');
    const other = await send([key, ...second]);
    expect([other.status, codeOf(other), arrivals.length]).toEqual(mismatch);
  });

  test.each<[string, Lines, Lines]>([
    ['PRIVATE-TOKEN', [['private-token', 'alice']], [['private-token', 'bob']]],
    ['one that is not there', [['private-token', 'alice']], []],
    ['Authorization', [['authorization', 'Bearer alice']], [['authorization', 'Bearer bob']]],
    ['its own', [['sluice-upstream-authorization', 'a']], [['sluice-upstream-authorization', 'b']]],
  ])('its credential is a call of its own: %s', async (_words, first, second) => {
    const { send, arrivals } = await start();
    expect((await send([key, ...first])).text).toBe('response 1');
    const other = await send([key, ...second]);
    expect([other.text, other.fields['sluice-replayed'], arrivals.length]).toEqual([
      'response 2',
      undefined,
      2,
    ]);
  });

  test.each([
    ['the target', { path: '/via/api/orders?a=2' }],
    ['the body', { body: 'bodx' }],
  ])('%s is refused with 422', async (_words, options) => {
    const { send, arrivals } = await start();
    await send([key]);
    const other = await send([key], options);
    expect([other.status, codeOf(other), arrivals.length]).toEqual(mismatch);
  });
});

test('a repeat differs from its call in what each attempt writes anew, and gets its response all the same', async () => {
  const { send, arrivals } = await start();
  const anew =
    'x-stainless-retry-count x-stainless-read-timeout traceparent tracestate baggage date x-request-id x-client-request-id x-amzn-trace-id b3 sentry-trace uber-trace-id newrelic x-cloud-trace-context x-b3-spanid x-datadog-parent-id amz-sdk-request x-forwarded-for';
  const attempt = (n: number): Lines => [
    ...anew.split(' ').map((name) => [name, `${n}`] as const),
    ['prefer', `wait=${n + 10}`],
    ['priority', `u=${n}`],
  ];
  await send([key, ...attempt(1)]);
  const again = await send([['Idempotency-Key', '"k"'], ...attempt(2)]);
  expect([again.text, again.fields['sluice-replayed'], arrivals.length]).toEqual(['response 1', 'true', 1]);
});

test.each(['idempotency-key', 'x-webhook-id'])(
  'a repeated %s is refused with 400 and sent nowhere',
  async (field) => {
    const { send, arrivals } = await start({ api: 'idempotencyFields: [x-webhook-id]' });
    for (const second of ['a', 'b']) {
      const refused = await send(['a', second].map((value) => [field, value] as const));
      expect([refused.status, codeOf(refused), arrivals.length]).toEqual([400, 'request_invalid', 0]);
    }
  },
);

test('a link in a kept response leads each client back the way it came, not the way of the first', async () => {
  const { send, arrivals, origin } = await start({}, ({ headers: { host } }) => ({
    status: 201,
    headers: { location: `http://${host ?? ''}/orders/7` },
  }));
  const at = async (host: string, path: string, ...more: Lines): Promise<string> => {
    const { fields, status } = await send([key, ...more], { path, host });
    expect(status).toBe(201);
    return String(fields.location);
  };
  const proxy = `/proxy?target=${encodeURIComponent(`${origin}/orders?a=1`)}`;
  expect(await at('evil.example', '/via/api/orders?a=1')).toBe('http://evil.example/via/api/orders/7');
  expect(await at('gateway.example', '/via/api/orders?a=1')).toBe('http://gateway.example/via/api/orders/7');
  const secure = await at('gateway.example:8443', '/via/api/orders?a=1', [
    'x-forwarded-proto',
    'https, http',
  ]);
  expect(secure).toBe('https://gateway.example:8443/via/api/orders/7');
  expect(await at('gateway.example', proxy)).not.toContain('evil.example');
  expect(arrivals).toHaveLength(1);
});

describe('an Idempotency-Key', () => {
  const keysOf = (arrivals: readonly Arrival[], field = 'idempotency-key') =>
    arrivals.map(({ headers }) => headers[field]);
  const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
  const two = { team: '', other: '' };
  const ofItsOwn = '    credentials: { api: of-its-own }\n';

  test.each<[string, More]>([
    ['its credential serves one workspace', { api: injected }],
    ["its credential is the client's own", { workspaces: two }],
    ['the other workspace has another', { api: injected, workspaces: { team: '', other: ofItsOwn } }],
  ])('goes upstream as it came where %s', async (_words, options) => {
    const { send, arrivals } = await start(options);
    await send([['idempotency-key', '"order-7"']]);
    expect(keysOf(arrivals)).toEqual(['"order-7"']);
  });

  test.each([
    ['of the upstream', two],
    ['that two workspaces have each', { team: ofItsOwn, other: ofItsOwn }],
  ])(
    'goes upstream as a digest of workspace and key where several share a credential %s',
    async (_words, workspaces) => {
      const { send, arrivals } = await start({
        api: `${injected}, idempotencyFields: [paypal-request-id]`,
        workspaces,
      });
      const lines = ['idempotency-key', 'paypal-request-id'].map((field) => [field, 'order-7'] as const);
      await send(lines);
      await send(lines, { workspace: 'other' });
      await send([['idempotency-key', 'order-8']]);
      const digests = keysOf(arrivals);
      expect(new Set(digests).size).toBe(3);
      for (const each of digests) expect(each).toMatch(uuid);
      const others = keysOf(arrivals, 'paypal-request-id').slice(0, 2);
      expect([new Set(others).size, others.includes('order-7')]).toEqual([2, false]);
    },
  );

  test('of a shared credential is the same digest after a restart, quoted where it was', async () => {
    const digests: unknown[] = [];
    for (const _ of [1, 2]) {
      const { send, arrivals } = await start({ api: injected, workspaces: two });
      await send([['idempotency-key', '"order-7"']]);
      digests.push(...keysOf(arrivals));
    }
    expect(digests[0]).toBe(digests[1]);
    expect(digests[0]).toMatch(new RegExp(`^"${uuid.source.slice(1, -1)}"$`));
  });
});
