import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { createAgents, type Resolve } from '../../src/dispatch/agents.ts';
import { Transport } from '../../src/dispatch/transport.ts';
import { closers } from '../support/closers.ts';
import { answering, rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';
import { ok } from '../support/scripts.ts';
import { failure, patient, text } from '../support/sending.ts';

const fixture = (name: string): string =>
  fileURLToPath(new URL(`../fixtures/tls/upstream.test.${name}`, import.meta.url));
const tls = { key: readFileSync(fixture('key'), 'utf8'), cert: readFileSync(fixture('crt'), 'utf8') };

async function open(scheme: string): Promise<RawUpstream> {
  const upstream = await rawUpstream(answering(ok), scheme === 'https' ? { tls } : {});
  closers.push(() => upstream.close());
  return upstream;
}

type Way = Partial<Parameters<typeof createAgents>[0] & Parameters<typeof createAgents>[1]>;

/** Sends calls to an origin, over one socket at most; the pools live for the rest of the test. */
function sender(origin: string, way: Way) {
  const { resolve, clock = systemClock, caFile = null, allowPrivateAddresses = false } = way;
  const ports = resolve === undefined ? { clock } : { clock, resolve };
  const agents = createAgents({ allowPrivateAddresses, maxSockets: 1, caFile }, ports);
  const transport = new Transport(clock);
  closers.push(
    () => agents.close(),
    () => transport.close(),
  );
  const request = {
    origin,
    method: 'GET',
    pathAndQuery: '/',
    fields: { host: new URL(origin).hostname, authorization: 'canary' },
    body: null,
    agent: agents.forOrigin(origin),
    timeouts: patient,
    signal: new AbortController().signal,
  };
  return () => transport.send(request);
}
const bodyFrom = async (origin: string, way: Way): Promise<string> =>
  text((await sender(origin, way)()).body);
const failureOf = (origin: string, way: Way) => failure(sender(origin, way)());

const to =
  (...addresses: string[]): Resolve =>
  async () =>
    addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }));
const denied = { kind: 'address_denied', phase: 'connect', neverSent: true };
const unreachable = { kind: 'unreachable', phase: 'connect', neverSent: true };

describe.each(['http', 'https'])('over %s', (scheme) => {
  const way = { caFile: scheme === 'https' ? fixture('crt') : null };
  const inside = { ...way, allowPrivateAddresses: true };

  test('an upstream with allowed private addresses is reached by name and by literal address', async () => {
    const upstream = await open(scheme);
    const named = `${scheme}://upstream.test:${upstream.port}`;
    expect(await bodyFrom(named, { ...inside, resolve: to('127.0.0.1') })).toBe('ok');
    expect(await bodyFrom(upstream.origin, inside)).toBe('ok');
    expect(upstream.connections).toHaveLength(2);
  });

  test.each([
    ['a literal address', '127.0.0.1', []],
    ['an IPv4-mapped literal address', '[::ffff:127.0.0.1]', []],
    ['a name that resolves to a private address', 'upstream.test', ['127.0.0.1']],
    ['a name with one public and one private address', 'upstream.test', ['192.0.1.1', '127.0.0.1']],
    ['a name with a private address first', 'upstream.test', ['127.0.0.1', '192.0.1.1']],
    ['a name of metadata', 'upstream.test', ['169.254.169.254']],
    ['a NAT64 address of metadata', 'upstream.test', ['64:ff9b::a9fe:a9fe']],
    ['a name with a mapped address', 'upstream.test', ['::ffff:127.0.0.1']],
  ])(
    '%s is denied without a connection, also to calls that wait for a socket',
    async (_, host, addresses) => {
      const upstream = await open(scheme);
      const send = sender(`${scheme}://${host}:${upstream.port}`, { ...way, resolve: to(...addresses) });
      const errors = await Promise.all([1, 2, 3].map(() => failure(send())));
      for (const error of errors) expect(error).toMatchObject(denied);
      expect(upstream.connections).toHaveLength(0);
    },
  );

  test('a name is resolved once, and the checked address is the one that is connected to', async () => {
    const upstream = await open(scheme);
    let asked = 0;
    const resolve: Resolve = async () => [{ address: asked++ === 0 ? '127.0.0.1' : '127.0.0.2', family: 4 }];
    expect(await bodyFrom(`${scheme}://upstream.test:${upstream.port}`, { ...inside, resolve })).toBe('ok');
    expect(asked).toBe(1);
  });

  test.each([
    ['fails', () => Promise.reject(new Error('canary'))],
    ['knows no address', async () => []],
  ] satisfies [string, Resolve][])('a resolver that %s makes it unreachable', async (_, resolve) => {
    const error = await failureOf(`${scheme}://upstream.test:1`, { ...way, resolve });
    expect(error).toMatchObject(unreachable);
    expect(error.message).not.toContain('canary');
  });

  test('a resolver that does not respond makes the upstream unreachable after five seconds', async () => {
    const delays: number[] = [];
    const clock: Clock = {
      ...systemClock,
      after(delayMs, run) {
        delays.push(delayMs);
        return systemClock.after(delayMs === 5000 ? 0 : delayMs, run);
      },
    };
    const resolve: Resolve = () => new Promise(() => {});
    expect(await failureOf(`${scheme}://upstream.test:1`, { ...way, clock, resolve })).toMatchObject(
      unreachable,
    );
    expect(delays).toContain(5000);
  });

  test('a refused connection makes the upstream unreachable', async () => {
    const upstream = await rawUpstream(() => {});
    await upstream.close();
    const error = await failureOf(`${scheme}://127.0.0.1:${upstream.port}`, inside);
    expect(error).toMatchObject({ ...unreachable, code: 'ECONNREFUSED' });
  });
});

describe('the certificate of an upstream', () => {
  const inside = { resolve: to('127.0.0.1'), allowPrivateAddresses: true };

  test.each([
    ['from an unknown authority', 'upstream.test', null],
    ['for another name', 'other.test', fixture('crt')],
  ])('%s makes the upstream unreachable, and no byte of the request is sent', async (_, host, caFile) => {
    const upstream = await open('https');
    const error = await failureOf(`https://${host}:${upstream.port}`, { ...inside, caFile });
    expect(error).toMatchObject(unreachable);
    await upstream.allClosed();
    expect(upstream.connections.map((connection) => connection.received()).join('')).toBe('');
  });

  test('with an unreadable file of authorities prevents the start', () => {
    const settings = { allowPrivateAddresses: false, maxSockets: 1, caFile: '/nowhere/ca.pem' };
    expect(() => createAgents(settings, { clock: systemClock })).toThrow(/ENOENT/);
  });
});
