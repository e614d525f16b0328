/** The way to a token endpoint: guarded addresses, no redirects, bounded time and size, failures without a word of it. */
import type { RequestListener } from 'node:http';
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { createEndpoint, endpointLimitMs } from '../../src/dispatch/one-request.ts';
import { closers } from '../support/closers.ts';
import { fastClock } from '../support/fast-clock.ts';
import { homeward } from '../support/gateway.ts';
import { listening } from '../support/listening.ts';
import { until } from '../support/until.ts';

async function serving(listener: RequestListener): Promise<number> {
  const { port, close } = await listening(listener);
  closers.push(close);
  return port;
}
const endpoint = createEndpoint({ clock: systemClock, resolve: homeward });
const post = (
  url: string,
  { ask = endpoint, allowPrivateAddresses = true, caFile = null as string | null } = {},
) =>
  ask(
    { url, fields: { 'content-type': 'text/plain' }, body: 'grant' },
    { allowPrivateAddresses, caFile },
    new AbortController().signal,
  );
const home = (port: number, path = '/'): string => `http://127.0.0.1:${port}${path}`;
const failed = (fault: string) => ({ kind: 'failed', fault, statedMs: null });

describe('a token endpoint', () => {
  const inside = ['https://id.example', 'http://127.0.0.1', 'https://[::1]', 'http://169.254.169.254'];
  test.each(inside)('is not asked at a private address: %s', async (origin) => {
    let asked = 0;
    const port = await serving((_, response) => {
      asked += 1;
      response.end('{}');
    });
    const result = await post(`${origin}:${port}/token`, { allowPrivateAddresses: false });
    expect([result, asked]).toEqual([failed('address_denied'), 0]);
  });

  test('is asked once, and a redirect is a response like any other', async () => {
    const seen: string[] = [];
    const port = await serving((incoming, response) => {
      seen.push(`${incoming.method} ${incoming.url}`);
      response.writeHead(307, { location: '/elsewhere', 'Retry-After': '3' }).end('moved');
    });
    const result = await post(home(port, '/token?a=b'));
    expect(result).toMatchObject({ kind: 'answered', status: 307, body: 'moved' });
    expect(result.kind === 'answered' && result.fields.get('retry-after')).toBe('3');
    expect(seen).toEqual(['POST /token?a=b']);
  });

  // A kept connection may have been closed by the endpoint, and a POST written into it is neither answered nor may it be repeated.
  test('is asked over a connection of its own each time, which does not stay open', async () => {
    const ports = new Set<number | undefined>();
    let open = 0;
    const port = await serving((incoming, response) => {
      ports.add(incoming.socket.remotePort);
      open += 1;
      incoming.socket.once('close', () => (open -= 1));
      response.end('{}');
    });
    for (let n = 0; n < 3; n += 1) expect(await post(home(port))).toMatchObject({ kind: 'answered' });
    expect(ports.size).toBe(3);
    await until(() => open === 0);
  });

  test('is not reached while the file of its authorities cannot be read', async () => {
    expect(await post(home(9), { caFile: '/none/ca.pem' })).toEqual(failed('unreachable'));
  });

  test('that sends without end gives no token', async () => {
    const port = await serving((_, response) => {
      const more = (): void => void (response.destroyed || response.write('x'.repeat(16_384), more));
      more();
    });
    expect(await post(home(port))).toEqual(failed('invalid'));
  });

  test.each(['before its head', 'inside its body'])(
    'that stops %s is given up at the limit',
    async (where) => {
      const port = await serving((_, response) => {
        if (where === 'inside its body') response.writeHead(200).write('{');
      });
      const ask = createEndpoint({ clock: fastClock(endpointLimitMs / 200) });
      expect(await post(home(port), { ask })).toEqual(failed('timeout'));
    },
  );
});
