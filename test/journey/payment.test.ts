/** Whom a 402 of a language model stops: everybody with its credential, or only the call that met it. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';

const chat = '{"choices":[{"message":{"content":"hi"}}],"usage":{"total_tokens":3}}';

interface Refusal {
  readonly status: number;
  readonly body: string;
  readonly fields?: Record<string, string>;
}
let gateway: TestGateway | null = null;
let close = async (): Promise<void> => {};
afterEach(async () => {
  await gateway?.close();
  await close();
});

/** An upstream that answers with what `refuse` says of a model, and two workspaces on one credential. */
async function begin(refuse: (model: string, n: number) => Refusal | null) {
  const models: string[] = [];
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const { model } = JSON.parse(Buffer.concat(parts).toString());
      models.push(model);
      const refusal = refuse(model, models.length);
      const head = { 'content-type': 'application/json', ...refusal?.fields };
      response.writeHead(refusal?.status ?? 200, head).end(refusal?.body ?? chat);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(() => resolve()));
  };
  const started = await startGateway({
    upstreams: `  model: { kind: language-model, origins: ["http://127.0.0.1:${(server.address() as AddressInfo).port}"], allowPrivateAddresses: true, credential: "Bearer sk" }`,
    workspaces: { a: '', b: '' },
  });
  gateway = started;
  const call = async (workspace: string, model: string): Promise<string> => {
    const response = await fetch(`${started.url}/via/model/v1/chat/completions`, {
      method: 'POST',
      headers: { 'sluice-key': started.keys[workspace] ?? '', 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: `${workspace} ${models.length}` }] }),
    });
    await response.text();
    return `${response.status} ${response.headers.get('sluice-error') ?? 'upstream'}`;
  };
  return { call, models };
}

const said = (message: string): Refusal => ({
  status: 402,
  body: JSON.stringify({ error: { message, code: 402 } }),
});

describe('a 402', () => {
  test('that lies in one call stops nobody else, however often it comes', async () => {
    const { call, models } = await begin((model) =>
      model === 'dear' ? said('This request requires more credits, or fewer max_tokens') : null,
    );
    for (let n = 0; n < 3; n += 1) {
      expect([await call('a', 'dear'), await call('b', 'cheap')]).toEqual(['402 upstream', '200 upstream']);
    }
    expect(models).toHaveLength(6);
  });

  test('of a spent account stops everybody who uses it', async () => {
    const { call, models } = await begin(() => said('Insufficient credits'));
    expect([await call('a', 'm'), await call('b', 'm')]).toEqual(['402 upstream', '402 upstream_refused']);
    expect(models).toHaveLength(1);
  });

  test('in unknown words stops everybody once a second call has met it and none has passed', async () => {
    const { call, models } = await begin(() => said('E-4711'));
    expect([await call('a', 'm'), await call('b', 'm'), await call('a', 'm')]).toEqual([
      '402 upstream',
      '402 upstream',
      '402 upstream_refused',
    ]);
    expect(models).toHaveLength(2);
  });

  test('in unknown words stops nobody while other calls pass', async () => {
    const { call } = await begin((model) => (model === 'dear' ? said('E-4711') : null));
    for (let n = 0; n < 3; n += 1) {
      expect([await call('a', 'dear'), await call('b', 'cheap')]).toEqual(['402 upstream', '200 upstream']);
    }
  });

  test('that states a time is absorbed', async () => {
    const busy: Refusal = { ...said('In-flight spending budget reached'), fields: { 'retry-after': '1' } };
    const { call, models } = await begin((_model, n) => (n === 1 ? busy : null));
    expect([await call('a', 'm'), await call('b', 'm')]).toEqual(['200 upstream', '200 upstream']);
    expect(models).toHaveLength(3);
  });
});

test.each([413, 400])('a %i about the length of one call stops nobody else', async (status) => {
  const body = JSON.stringify({ error: { message: 'too long', code: 'context_length_exceeded' } });
  const { call } = await begin((model) => (model === 'long' ? { status, body } : null));
  expect([await call('a', 'long'), await call('b', 'short')]).toEqual([`${status} upstream`, '200 upstream']);
});
