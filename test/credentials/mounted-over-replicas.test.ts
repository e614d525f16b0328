/**
 * A mounted Secret that is rotated under three replicas, each with a mount of its own as on three nodes: they see the new version
 * one after the other, and no call notices.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator, type CommerceSimulator } from '../../simulators/commerce.ts';
import { serviceOf } from '../support/gateway.ts';
import { mountSecret, type MountedSecret } from '../support/mounted-secret.ts';
import { clientAgent, ordersPath, pause, send } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import { until } from '../support/until.ts';

type CallResponses = Awaited<ReturnType<typeof send>>[];

const replicas = [0, 1, 2];
const clients = 6;
const agent = clientAgent();
let redis: RedisServer;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(async () => {
  agent.destroy();
  await redis.stop();
});

describe('a mounted credential of three replicas', () => {
  const { key, hash } = createKey();
  let shop: CommerceSimulator;
  let mounts: readonly MountedSecret[] = [];
  let services: readonly Service[] = [];
  const logs: string[] = [];

  const accept = (tokens: readonly string[]): void =>
    shop.configure({
      stores: { '127.0.0.1': { plan: { limit: 4_000, leak: 200 }, apps: { 'app-sim': [...tokens] } } },
    });

  beforeEach(async () => {
    shop = createCommerceSimulator({ latency: { minMs: 1, maxMs: 3 } });
    accept(['canary-1']);
    const { url } = await shop.listen();
    mounts = await Promise.all(replicas.map(() => mountSecret('canary-1')));
    const yamlOf = ({ path }: MountedSecret): string =>
      [
        'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainDelaySeconds: 0 }',
        `redis: { url: "${redis.url}", commandTimeoutMs: 2000 }`,
        'privacy: { labelKey: "a label key for tests only" }',
        'upstreams:',
        '  shop:',
        '    kind: commerce',
        `    origins: ["${url}"]`,
        '    allowPrivateAddresses: true',
        `    credential: { file: "${path}" }`,
        // Their paths differ, the quota does not.
        '    account: acme-shop',
        '    limits: { requestsPerMinute: 100000, bucket: { capacity: 4000, leakPerSecond: 200 } }',
        `workspaces:\n  acme: { keys: ["${hash}"] }`,
      ].join('\n');
    services = await Promise.all(mounts.map((mount) => serviceOf(yamlOf(mount), logs)));
  });
  afterEach(async () => {
    await Promise.all(services.map((service) => service.close()));
    await shop.close();
    for (const mount of mounts) await mount.remove();
  });

  /** Clients of which each sends one call after the other, to each replica in turn, until `act` is over. */
  async function under(act: () => Promise<void>): Promise<CallResponses> {
    const responses: CallResponses = [];
    let isOver = false;
    const client = async (at: number): Promise<void> => {
      for (let n = 0; !isOver; n += 1) {
        const replica = (at + n) % replicas.length;
        const url = `http://127.0.0.1:${services[replica]?.dataAddress.port ?? 0}`;
        const headers = { prefer: 'wait=60' };
        const nonce = `${replica}-${at}-${n}`;
        responses.push(await send({ url, path: `${ordersPath}?limit=1`, key, nonce, agent, headers }));
        await pause(5);
      }
    };
    const load = Promise.all(Array.from({ length: clients }, (_, at) => client(at)));
    try {
      await act();
    } finally {
      isOver = true;
      await load;
    }
    return responses;
  }

  const hasUsed = (replica: number, token: string): boolean =>
    shop.log.some((entry) => entry.key === token && entry.nonce.startsWith(`${replica}-`));

  const expectWhole = (responses: CallResponses): void => {
    expect(responses.filter(({ status }) => status !== 200)).toEqual([]);
    expect(Math.max(...shop.log.map(({ inFlight }) => inFlight.scope))).toBe(1);
    // One bucket of all replicas and for all tokens.
    const buckets = services.flatMap(({ gateway }) =>
      gateway.parts.pressure.buckets().map(({ snapshot }) => snapshot.bucket),
    );
    expect([buckets.length, new Set(buckets).size]).toEqual([replicas.length, 1]);
    expect(logs.join('\n')).not.toContain('canary');
  };

  test('is followed by each replica when its own mount changes: no call fails, and none is refused', async () => {
    const responses = await under(async () => {
      for (const version of [2, 3]) {
        accept([`canary-${version - 1}`, `canary-${version}`]);
        for (const [replica, mount] of mounts.entries()) {
          await mount.write(`canary-${version}`);
          await until(() => hasUsed(replica, `canary-${version}`));
        }
        // Nobody sends the old one any more.
        accept([`canary-${version}`]);
        await until(() => replicas.every((replica) => hasUsed(replica, `canary-${version}`)));
      }
    });
    expectWhole(responses);
    expect(shop.log.filter(({ status }) => status !== 200)).toEqual([]);
  });

  test('is read again where the upstream refuses the old one at once: each replica finds out by one call, which is sent again', async () => {
    const responses = await under(async () => {
      await until(() => replicas.every((replica) => hasUsed(replica, 'canary-1')));
      await Promise.all(mounts.map((mount) => mount.write('canary-2')));
      accept(['canary-2']);
      await until(() => replicas.every((replica) => hasUsed(replica, 'canary-2')));
    });
    expectWhole(responses);
    const refused = shop.log.filter(({ status }) => status !== 200);
    expect(refused.every(({ status, key: token }) => status === 401 && token === 'canary-1')).toBe(true);
    const finders = refused.map(({ nonce }) => nonce.split('-')[0]);
    expect(new Set(finders).size).toBe(finders.length);
  });
});
