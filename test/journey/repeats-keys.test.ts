/** Clients that share one upstream call, each with an API key of its own, of which some are revoked meanwhile. */
import { createServer, request as httpRequest, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import { startGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const open: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).toReversed()) await close();
});

/** Two keys of one workspace, and an upstream that answers when the test says so. `maxInFlight: 1` lets calls wait. */
async function world() {
  const held: ServerResponse[] = [];
  let count = 0;
  const http = createServer((request, response) => {
    count += 1;
    request.resume().on('end', () => held.push(response));
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
  const gateway = await startGateway({
    upstreams: `  api:\n    origins: ["${origin}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n    limits: { maxInFlight: 1 }\n`,
    workspaces: { team: '' },
  });
  open.push(() => gateway.close());
  const second = createKey();
  const first = {
    key: gateway.keys['team'] ?? '',
    hash: /sha256:[0-9a-f]{64}/.exec(gateway.yaml)?.[0] ?? '',
  };
  const withKeys = (...hashes: readonly string[]): Promise<void> =>
    gateway.reload(
      gateway.yaml.replace(/keys: \[.*\]/, `keys: [${hashes.map((hash) => `"${hash}"`).join(', ')}]`),
    );
  await withKeys(first.hash, second.hash);
  const send = (key: string, idempotencyKey: string): Promise<Response> =>
    fetch(`${gateway.url}/via/api/orders`, {
      method: 'POST',
      body: 'body',
      headers: { authorization: `Bearer ${key}`, 'idempotency-key': idempotencyKey },
    });
  const answer = (text: string): void => held.splice(0).forEach((response) => response.end(text));
  const waiting = (): number =>
    gateway.service.gateway.parts.pressure.buckets().reduce((sum, { snapshot }) => sum + snapshot.waiting, 0);
  const joins = async (): Promise<number> => {
    const page = await (await fetch(`${gateway.adminUrl}/metrics`)).text();
    return Number(/^sluice_repeats_joined_total\S* (\d+)/m.exec(page)?.[1] ?? 0);
  };
  return { gateway, first, second, withKeys, send, answer, waiting, joins, count: () => count };
}

test('a client whose key is valid gets its response although the key of the first one is revoked while their call waits', async () => {
  const { first, second, withKeys, send, answer, waiting, joins, count } = await world();
  const busy = send(second.key, 'busy');
  await until(() => count() === 1);
  const revoked = send(first.key, 'shared');
  await until(() => waiting() === 1);
  const joined = send(second.key, 'shared');
  await until(async () => (await joins()) === 1);
  await withKeys(second.hash);
  expect((await revoked).status).toBe(401);
  answer('busy');
  expect(await (await busy).text()).toBe('busy');
  await until(() => count() === 2);
  answer('shared');
  expect(await (await joined).text()).toBe('shared');
});

test('a client whose key is revoked while it waits for the call of another one gets 401, and the other one its response', async () => {
  const { first, second, withKeys, send, answer, joins, count } = await world();
  const stays = send(first.key, 'shared');
  await until(() => count() === 1);
  const revoked = send(second.key, 'shared');
  await until(async () => (await joins()) === 1);
  await withKeys(first.hash);
  expect((await revoked).status).toBe(401);
  answer('shared');
  expect(await (await stays).text()).toBe('shared');
});

test('a call that was sent with a valid key is answered although the key is revoked meanwhile', async () => {
  const { first, second, withKeys, send, answer, count } = await world();
  const sent = send(first.key, 'sent');
  await until(() => count() === 1);
  await withKeys(second.hash);
  answer('sent');
  expect(await (await sent).text()).toBe('sent');
  const replayed = await send(second.key, 'sent');
  expect([await replayed.text(), replayed.headers.get('sluice-replayed')]).toEqual(['sent', 'true']);
});

test('a key that is revoked while the body of its request arrives gets no kept response', async () => {
  const { gateway, first, second, withKeys, send, answer, count } = await world();
  const kept = send(second.key, 'kept');
  await until(() => count() === 1);
  answer('kept');
  await (await kept).text();
  const status = await new Promise<number | undefined>((resolve, reject) => {
    const request = httpRequest(
      `${gateway.url}/via/api/orders`,
      {
        method: 'POST',
        headers: {
          authorization: `Bearer ${first.key}`,
          'idempotency-key': 'kept',
          'content-type': 'text/plain;charset=UTF-8',
          'content-length': 4,
        },
      },
      (response) => response.resume().on('end', () => resolve(response.statusCode)),
    );
    request.on('error', reject);
    request.write('bo');
    until(() => gateway.service.gateway.parts.pressure.buckets().length > 0)
      .then(() => withKeys(second.hash))
      .then(() => request.end('dy'))
      .catch(reject);
  });
  expect([status, count()]).toEqual([401, 1]);
});
