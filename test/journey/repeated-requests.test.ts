/** Which requests count as the same, what of an answer is given to whom, and how keys go upstream. */
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});

interface Answer {
  readonly status: number;
  readonly fields: IncomingMessage['headers'];
  readonly text: string;
}

/** Field lines as they go out: a name may come twice. */
type Lines = readonly (readonly [name: string, value: string])[];

async function upstream(
  {
    credential = '',
    workspaces = { team: '' },
    more = '',
  }: {
    readonly credential?: string;
    readonly workspaces?: Readonly<Record<string, string>>;
    readonly more?: string;
  } = {},
  respond = (_request: IncomingMessage, response: ServerResponse, count: number): void =>
    void response.end(`response ${count}`),
) {
  const seen: IncomingMessage[] = [];
  const http = createServer((request, response) => {
    seen.push(request);
    request.resume().on('end', () => respond(request, response, seen.length));
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  open.push(
    () =>
      new Promise((resolve) => {
        http.close(resolve);
        http.closeAllConnections();
      }),
  );
  const origin = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const gateway: TestGateway = await startGateway({
    upstreams: `  api:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n${credential}${more}`,
    workspaces,
  });
  open.push(() => gateway.close());
  const { port } = gateway.service.dataAddress;
  const send = (
    lines: Lines,
    options: { path?: string; body?: string; workspace?: string } = {},
  ): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const {
        path = '/via/api/orders?a=1',
        body = 'body',
        workspace = Object.keys(workspaces)[0] ?? '',
      } = options;
      const headers = [...lines, ['sluice-key', gateway.keys[workspace] ?? '']].flat();
      if (!lines.some(([name]) => name.toLowerCase() === 'host')) headers.push('host', `127.0.0.1:${port}`);
      headers.push('content-length', String(body.length));
      const sent = httpRequest({ port, host: '127.0.0.1', method: 'POST', path, headers }, (response) => {
        let text = '';
        response.on('data', (chunk: Buffer) => (text += chunk.toString()));
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, fields: response.headers, text }),
        );
      });
      sent.on('error', reject).end(body);
    });
  return { send, seen, origin };
}

const injected = '    credential: { header: x-operator, value: secret }\n';
const key = ['idempotency-key', 'k'] as const;
const codeOf = ({ fields }: Answer): unknown => fields['sluice-error'];

describe('a request with a known key that differs from the first in', () => {
  test.each<[string, Lines, Lines]>([
    ['Range', [['range', 'bytes=0-3']], [['range', 'bytes=4-7']]],
    ['a Range that is not there', [['range', 'bytes=0-3']], []],
    ['Accept', [['accept', 'application/json']], [['accept', 'application/xml']]],
    ['Accept-Encoding', [['accept-encoding', 'gzip']], []],
    ['Content-Type', [['content-type', 'a/b']], [['content-type', 'c/d']]],
    ['Stripe-Account', [['stripe-account', 'acct_1']], [['stripe-account', 'acct_2']]],
    ['OpenAI-Organization', [['openai-organization', 'org_1']], [['openai-organization', 'org_2']]],
    ['a version', [['x-api-version', '1']], [['x-api-version', '2']]],
    ['If-None-Match', [], [['if-none-match', '"a"']]],
    [
      'Prefer, as far as it concerns the upstream',
      [['prefer', 'wait=5, return=minimal']],
      [['prefer', 'wait=5']],
    ],
    ['User-Agent', [['user-agent', 'one/1']], [['user-agent', 'two/1']]],
    [
      'a second line of a field',
      [
        ['x-tag', 'a'],
        ['x-tag', 'b'],
      ],
      [['x-tag', 'a']],
    ],
    ['a field nobody knows', [['x-whatever', 'a']], [['x-whatever', 'b']]],
    ['PRIVATE-TOKEN', [['private-token', 'alice']], [['private-token', 'bob']]],
    ['x-goog-api-key', [['x-goog-api-key', 'alice']], [['x-goog-api-key', 'bob']]],
    ['x-auth-token', [['x-auth-token', 'alice']], [['x-auth-token', 'bob']]],
    ['a credential that is not there', [['private-token', 'alice']], []],
    ['Authorization', [['authorization', 'Bearer alice']], [['authorization', 'Bearer bob']]],
    [
      'Sluice-Upstream-Authorization',
      [['sluice-upstream-authorization', 'a']],
      [['sluice-upstream-authorization', 'b']],
    ],
    ['a cookie', [['cookie', 'session=alice']], [['cookie', 'session=bob']]],
    [
      'a second cookie line',
      [
        ['cookie', 'a=1'],
        ['cookie', 's=alice'],
      ],
      [
        ['cookie', 'a=1'],
        ['cookie', 's=bob'],
      ],
    ],
  ])('%s never gets its response', async (_words, first, second) => {
    const { send, seen } = await upstream();
    expect((await send([key, ...first])).text).toBe('response 1');
    const other = await send([key, ...second]);
    expect(other.fields['sluice-replayed']).toBeUndefined();
    // With another credential of its own it is a call of its own; all else is another request under the same key.
    if (other.status === 200) expect([other.text, seen.length]).toEqual(['response 2', 2]);
    else expect([other.status, codeOf(other), seen.length]).toEqual([422, 'idempotency_mismatch', 1]);
  });

  test.each([
    ['the target', { path: '/via/api/orders?a=2' }],
    ['the body', { body: 'bodx' }],
  ])('%s is refused with 422', async (_words, options) => {
    const { send, seen } = await upstream();
    await send([key]);
    const other = await send([key], options);
    expect([other.status, codeOf(other), seen.length]).toEqual([422, 'idempotency_mismatch', 1]);
  });
});

test('a repeat differs from its call in what each attempt writes anew, and gets its response all the same', async () => {
  const { send, seen } = await upstream();
  const attempt = (n: number): Lines =>
    [
      'x-stainless-retry-count',
      'x-stainless-read-timeout',
      'traceparent',
      'tracestate',
      'baggage',
      'date',
      'x-request-id',
      'x-client-request-id',
      'x-amzn-trace-id',
      'b3',
      'sentry-trace',
      'uber-trace-id',
      'newrelic',
      'x-cloud-trace-context',
      'x-b3-spanid',
      'x-datadog-parent-id',
      'amz-sdk-request',
      'x-forwarded-for',
    ]
      .map((name): readonly [string, string] => [name, `${n}`])
      .concat([
        ['prefer', `wait=${n + 10}`],
        ['priority', `u=${n}`],
      ]);
  await send([key, ...attempt(1)]);
  const again = await send([['Idempotency-Key', '"k"'], ...attempt(2)]);
  expect([again.text, again.fields['sluice-replayed'], seen.length]).toEqual(['response 1', 'true', 1]);
});

test.each(['idempotency-key', 'x-webhook-id'])(
  'a repeated %s is refused with 400 and sent nowhere',
  async (field) => {
    const { send, seen } = await upstream({ more: '    idempotencyFields: [x-webhook-id]\n' });
    for (const second of ['a', 'b']) {
      const refused = await send([
        [field, 'a'],
        [field, second],
      ]);
      expect([refused.status, codeOf(refused)]).toEqual([400, 'request_invalid']);
    }
    expect(seen).toHaveLength(0);
  },
);

test('a link in a kept response leads each client back the way it came, not the way of the first', async () => {
  const { send, seen, origin } = await upstream({}, (request, response) => {
    response.writeHead(201, { location: `http://${request.headers.host ?? ''}/orders/7` });
    response.end('created');
  });
  const at = async (host: string, path: string): Promise<unknown> => {
    const { fields, status } = await send([key, ['host', host]], { path });
    expect(status).toBe(201);
    return fields.location;
  };
  const proxy = `/proxy?target=${encodeURIComponent(`${origin}/orders?a=1`)}`;
  expect(await at('evil.example', '/via/api/orders?a=1')).toBe('http://evil.example/via/api/orders/7');
  expect(await at('gateway.example', '/via/api/orders?a=1')).toBe('http://gateway.example/via/api/orders/7');
  expect(String(await at('gateway.example', proxy))).not.toContain('evil.example');
  expect(seen).toHaveLength(1);
});

describe('an Idempotency-Key', () => {
  const keysOf = (seen: readonly IncomingMessage[], field = 'idempotency-key') =>
    seen.map(({ headers }) => headers[field]);
  const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

  test("goes upstream as it came where its credential serves one workspace, or is the client's own", async () => {
    for (const options of [
      { credential: injected },
      { workspaces: { team: '', other: '' } },
      { credential: injected, workspaces: { team: '', other: '    credentials: { api: of-its-own }\n' } },
    ]) {
      const { send, seen } = await upstream(options);
      await send([['idempotency-key', '"order-7"']]);
      expect(keysOf(seen)).toEqual(['"order-7"']);
    }
  });

  test.each([
    ['of the upstream', { credential: injected, workspaces: { team: '', other: '' } }],
    [
      'that two workspaces have each',
      {
        credential: injected,
        workspaces: { team: '    credentials: { api: one }\n', other: '    credentials: { api: one }\n' },
      },
    ],
  ])(
    'goes upstream as a digest of workspace and key where several workspaces share a credential %s',
    async (_words, options) => {
      const { send, seen } = await upstream({
        ...options,
        more: '    idempotencyFields: [paypal-request-id]\n',
      });
      const lines: Lines = [
        ['idempotency-key', 'order-7'],
        ['paypal-request-id', 'order-7'],
      ];
      await send(lines);
      await send(lines, { workspace: 'other' });
      await send([['idempotency-key', 'order-8']]);
      const [one, two, three] = keysOf(seen);
      expect(new Set([one, two, three]).size).toBe(3);
      for (const each of [one, two, three]) expect(each).toMatch(uuid);
      expect(new Set(keysOf(seen, 'paypal-request-id').slice(0, 2)).size).toBe(2);
      expect(keysOf(seen, 'paypal-request-id')[0]).not.toBe('order-7');
    },
  );

  test('of a shared credential is the same digest after a restart, quoted where it was', async () => {
    const keys: unknown[] = [];
    for (const _ of [1, 2]) {
      const { send, seen } = await upstream({ credential: injected, workspaces: { team: '', other: '' } });
      await send([['idempotency-key', '"order-7"']]);
      keys.push(...keysOf(seen));
    }
    expect(keys[0]).toBe(keys[1]);
    expect(keys[0]).toMatch(new RegExp(`^"${uuid.source.slice(1, -1)}"$`));
  });
});
