import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, test } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { systemClock } from '../../src/clock.ts';
import { createAgents } from '../../src/dispatch/agents.ts';
import type { Resolve } from '../../src/dispatch/agents.ts';
import { Transport } from '../../src/dispatch/transport.ts';
import { answering, rawUpstream } from '../support/raw-upstream.ts';
import type { RawUpstream } from '../support/raw-upstream.ts';
import { failure, patient, text } from '../support/sending.ts';

const fixture = (name: string): string =>
  fileURLToPath(new URL(`../fixtures/tls/upstream.test.${name}`, import.meta.url));
const tls = { key: readFileSync(fixture('key'), 'utf8'), cert: readFileSync(fixture('crt'), 'utf8') };
const ok = answering('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok');

const closers: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

async function open(scheme: string): Promise<RawUpstream> {
  const upstream = await rawUpstream(ok, scheme === 'https' ? { tls } : {});
  closers.push(() => upstream.close());
  return upstream;
}

interface Way {
  readonly origin: string;
  readonly host?: string;
  readonly resolve?: Resolve;
  readonly allowPrivateAddresses?: boolean;
  readonly caFile?: string | null;
  readonly clock?: Clock;
}

/** Sends one call the given way; the pools live for the rest of the test. */
function send({
  origin,
  host = 'upstream.test',
  resolve,
  allowPrivateAddresses = false,
  caFile = null,
  clock = systemClock,
}: Way) {
  const agents = createAgents(
    { allowPrivateAddresses, maxSockets: 4, caFile },
    resolve === undefined ? { clock } : { clock, resolve },
  );
  const transport = new Transport(clock);
  closers.push(
    () => agents.close(),
    () => transport.close(),
  );
  return transport.send({
    origin,
    method: 'GET',
    pathAndQuery: '/',
    fields: { host, authorization: 'canary' },
    body: null,
    agent: agents.forOrigin(origin),
    timeouts: patient,
    signal: new AbortController().signal,
  });
}

const to =
  (...addresses: string[]): Resolve =>
  async () =>
    addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
const denied = { kind: 'address_denied', phase: 'connect', neverSent: true };

describe.each(['http', 'https'])('over %s', (scheme) => {
  const way = { caFile: scheme === 'https' ? fixture('crt') : null };

  test('an upstream with allowed private addresses is reached by name and by literal address', async () => {
    const upstream = await open(scheme);
    const allowed = { ...way, allowPrivateAddresses: true };
    const byName = await send({
      ...allowed,
      origin: `${scheme}://upstream.test:${upstream.port}`,
      resolve: to('127.0.0.1'),
    });
    expect(await text(byName.body)).toBe('ok');
    const byLiteral = await send({ ...allowed, origin: upstream.origin });
    expect(await text(byLiteral.body)).toBe('ok');
    expect(upstream.connections).toHaveLength(2);
  });

  test('a literal address is denied without a connection', async () => {
    const upstream = await open(scheme);
    expect(await failure(send({ ...way, origin: upstream.origin }))).toMatchObject(denied);
    expect(upstream.connections).toHaveLength(0);
  });

  test('an IPv4-mapped literal address is denied without a connection', async () => {
    const upstream = await open(scheme);
    const origin = `${scheme}://[::ffff:127.0.0.1]:${upstream.port}`;
    expect(await failure(send({ ...way, origin }))).toMatchObject(denied);
    expect(upstream.connections).toHaveLength(0);
  });

  test.each([
    ['a private address', ['127.0.0.1']],
    ['one public and one private address', ['192.0.1.1', '127.0.0.1']],
    ['a private address first', ['127.0.0.1', '192.0.1.1']],
    ['metadata', ['169.254.169.254']],
    ['a NAT64 address of metadata', ['64:ff9b::a9fe:a9fe']],
    ['a mapped address', ['::ffff:127.0.0.1']],
  ])('a name that resolves to %s is denied without a connection', async (_, addresses) => {
    const upstream = await open(scheme);
    const origin = `${scheme}://upstream.test:${upstream.port}`;
    expect(await failure(send({ ...way, origin, resolve: to(...addresses) }))).toMatchObject(denied);
    expect(upstream.connections).toHaveLength(0);
  });

  test('a name is resolved once, and the checked address is the one that is connected to', async () => {
    const upstream = await open(scheme);
    let asked = 0;
    const resolve: Resolve = async () => [{ address: asked++ === 0 ? '127.0.0.1' : '127.0.0.2', family: 4 }];
    const origin = `${scheme}://upstream.test:${upstream.port}`;
    const response = await send({ ...way, origin, resolve, allowPrivateAddresses: true });
    expect(await text(response.body)).toBe('ok');
    expect(asked).toBe(1);
  });

  test.each([
    ['fails', () => Promise.reject(new Error('canary'))],
    ['knows no address', async () => []],
  ] satisfies [string, Resolve][])(
    'a resolver that %s makes the upstream unreachable',
    async (_, resolve) => {
      const error = await failure(send({ ...way, origin: `${scheme}://upstream.test:1`, resolve }));
      expect(error).toMatchObject({ kind: 'unreachable', phase: 'connect', neverSent: true });
      expect(error.message).not.toContain('canary');
    },
  );

  test('a resolver that does not respond makes the upstream unreachable after five seconds', async () => {
    const delays: number[] = [];
    const clock: Clock = {
      ...systemClock,
      after(delayMs, run) {
        delays.push(delayMs);
        if (delayMs !== 5000) return systemClock.after(delayMs, run);
        return systemClock.after(0, run);
      },
    };
    const resolve: Resolve = () => new Promise(() => {});
    const error = await failure(send({ ...way, clock, origin: `${scheme}://upstream.test:1`, resolve }));
    expect(error).toMatchObject({ kind: 'unreachable', phase: 'connect', neverSent: true });
    expect(delays).toContain(5000);
  });

  test('a refused connection makes the upstream unreachable', async () => {
    const upstream = await rawUpstream(ok);
    await upstream.close();
    const origin = `${scheme}://127.0.0.1:${upstream.port}`;
    const error = await failure(send({ ...way, origin, allowPrivateAddresses: true }));
    expect(error).toMatchObject({
      kind: 'unreachable',
      phase: 'connect',
      neverSent: true,
      code: 'ECONNREFUSED',
    });
  });

  test('each of several calls at once is denied, also those that would wait for a socket', async () => {
    const upstream = await open(scheme);
    const agents = createAgents(
      { allowPrivateAddresses: false, maxSockets: 1, caFile: null },
      { clock: systemClock },
    );
    const transport = new Transport(systemClock);
    closers.push(
      () => agents.close(),
      () => transport.close(),
    );
    const calls = Array.from({ length: 5 }, () =>
      failure(
        transport.send({
          origin: upstream.origin,
          method: 'GET',
          pathAndQuery: '/',
          fields: { host: 'x' },
          body: null,
          agent: agents.forOrigin(upstream.origin),
          timeouts: patient,
          signal: new AbortController().signal,
        }),
      ),
    );
    for (const error of await Promise.all(calls)) expect(error).toMatchObject(denied);
    expect(upstream.connections).toHaveLength(0);
  });
});

describe('the certificate of an upstream', () => {
  const resolve = to('127.0.0.1');
  test('from an unknown authority makes the upstream unreachable, and no byte of the request is sent', async () => {
    const upstream = await open('https');
    const origin = `https://upstream.test:${upstream.port}`;
    const error = await failure(send({ origin, resolve, allowPrivateAddresses: true }));
    expect(error).toMatchObject({ kind: 'unreachable', phase: 'connect', neverSent: true });
    await upstream.allClosed();
    expect(upstream.connections.map((connection) => connection.received()).join('')).toBe('');
  });
  test('for another name makes the call fail although the address is right', async () => {
    const upstream = await open('https');
    const origin = `https://other.test:${upstream.port}`;
    const error = await failure(
      send({ origin, host: 'other.test', resolve, allowPrivateAddresses: true, caFile: fixture('crt') }),
    );
    expect(error).toMatchObject({ kind: 'unreachable', phase: 'connect', neverSent: true });
  });
  test('with an unreadable file of authorities prevents the start', () => {
    const settings = { allowPrivateAddresses: false, maxSockets: 1, caFile: '/nowhere/ca.pem' };
    expect(() => createAgents(settings, { clock: systemClock })).toThrow(/ENOENT/);
  });
});

describe('a redirect of the upstream', () => {
  test('to a metadata address is passed back, and no connection is made to it', async () => {
    const elsewhere = await open('http');
    const upstream = await rawUpstream(
      answering(`HTTP/1.1 302 Found\r\nlocation: ${elsewhere.origin}/\r\ncontent-length: 0\r\n\r\n`),
    );
    closers.push(() => upstream.close());
    const response = await send({ origin: upstream.origin, allowPrivateAddresses: true });
    expect(response.head.status).toBe(302);
    await text(response.body);
    expect(elsewhere.connections).toHaveLength(0);
  });
}); // prettier-ignore
