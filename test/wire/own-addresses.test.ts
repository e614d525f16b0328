import { networkInterfaces } from 'node:os';
import { expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { OwnListeners } from '../../src/dispatch/agents.ts';
import type { Service } from '../../src/service.ts';
import { parseSettings } from '../../src/config/load.ts';
import { closers } from '../support/closers.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { answering, rawUpstream } from '../support/raw-upstream.ts';
import { ok } from '../support/scripts.ts';

const { key, hash } = createKey();
const yaml = (origins: readonly string[], allow = 'true'): string =>
  gatewayYaml(
    { upstreams: `  api: { origins: ${JSON.stringify(origins)}, allowPrivateAddresses: ${allow} }` },
    { acme: hash },
  );

async function started(text: string): Promise<Service> {
  const service = await serviceOf(text, [], {
    resolve: async (name) =>
      name === 'mapped.test'
        ? [{ address: '::ffff:127.0.0.1', family: 6 }]
        : [{ address: '127.0.0.1', family: 4 }],
  });
  closers.push(() => service.close());
  return service;
}

async function called(service: Service, target: string): Promise<string> {
  const url = `http://127.0.0.1:${service.dataAddress.port}/proxy?target=${encodeURIComponent(target)}`;
  const response = await fetch(url, { headers: { authorization: `Bearer ${key}` } });
  await response.arrayBuffer();
  return `${response.status} ${response.headers.get('sluice-error') ?? ''}`.trim();
}

const denied = '502 target_address_denied';

test('no call is sent to a port of the gateway itself, by address or by a name that resolves to it', async () => {
  const service = await started(yaml(['http://placeholder.test']));
  const ports = [service.dataAddress.port, service.adminAddress.port];
  const hosts = ['127.0.0.1', 'here.test', 'mapped.test'];
  const origins = ports.flatMap((port) => hosts.map((host) => `http://${host}:${port}`));
  service.reload(parseSettings(yaml(origins), { path: 'test.yaml', env: {} }));
  for (const origin of origins)
    expect([origin, await called(service, `${origin}/metrics`)]).toEqual([origin, denied]);
});

test('other ports of the same machine are upstreams like any other, and ranges open what they name', async () => {
  const upstream = await rawUpstream(answering(ok));
  closers.push(() => upstream.close());
  const named = `http://api.test:${upstream.port}`;
  const inRange = await started(yaml([upstream.origin, named], '["127.0.0.0/8"]'));
  expect(await called(inRange, `${upstream.origin}/`)).toBe('200');
  expect(await called(inRange, `${named}/`)).toBe('200');
  const outside = await started(yaml([named], '["10.0.0.0/8"]'));
  expect(await called(outside, `${named}/`)).toBe(denied);
});

test('whoever listens on all addresses is reached at each of them', () => {
  const everywhere = new OwnListeners();
  expect(everywhere.isOwn('127.0.0.1', 8080)).toBe(false);
  everywhere.listen({ address: '0.0.0.0', port: 8080 }, { address: '127.0.0.1', port: 9090 });
  const interfaces = Object.values(networkInterfaces()).flatMap((each) => each ?? []);
  const usual = ['127.0.0.1', '127.9.9.9', '::1', '0.0.0.0', '::', '::ffff:127.0.0.1'];
  for (const address of [...interfaces.map(({ address }) => address), ...usual])
    expect([address, everywhere.isOwn(address, 8080)]).toEqual([address, true]);
  expect(everywhere.isOwn('127.0.0.1', 8081)).toBe(false);
  expect(everywhere.isOwn('192.0.2.1', 8080)).toBe(false);
  expect([everywhere.isOwn('127.0.0.1', 9090), everywhere.isOwn('127.0.0.2', 9090)]).toEqual([true, false]);
});
