/**
 * A scene for the pictures of the live page: two replicas over a Redis of their own, both simulated upstreams, and
 * workspaces that call them. Everything is real but the upstreams, and listens on 127.0.0.1 only.
 *
 * Owns: the configuration, the traffic, who is started and ended. Does not own: when a picture is taken (`pictures.ts`).
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import { startGateway, type Gateway } from '../cluster/fleet.ts';
import { newFolder, startServer, startSimulator, stopServer, type Simulator } from '../cluster/processes.ts';

/** Calls that a workspace sends to an upstream. */
export interface Traffic {
  readonly workspace: 'acme' | 'batch' | 'globex';
  readonly upstream: 'openai' | 'shop';
  readonly perMinute: number;
  /** So many calls arrive together. */
  readonly together: number;
}

/** Well under every limit, in bursts. */
export const calmTraffic: readonly Traffic[] = [
  { workspace: 'acme', upstream: 'openai', perMinute: 120, together: 20 },
  { workspace: 'globex', upstream: 'openai', perMinute: 60, together: 15 },
  { workspace: 'batch', upstream: 'openai', perMinute: 100, together: 50 },
  { workspace: 'acme', upstream: 'shop', perMinute: 40, together: 10 },
  { workspace: 'globex', upstream: 'shop', perMinute: 20, together: 4 },
];

/** With what others take of it, more than the model's quota. */
export const pressedTraffic: readonly Traffic[] = [
  { workspace: 'acme', upstream: 'openai', perMinute: 160, together: 10 },
  { workspace: 'globex', upstream: 'openai', perMinute: 90, together: 10 },
  { workspace: 'batch', upstream: 'openai', perMinute: 270, together: 9 },
  { workspace: 'acme', upstream: 'shop', perMinute: 60, together: 4 },
  { workspace: 'globex', upstream: 'shop', perMinute: 30, together: 2 },
];

/** Calls of somebody else on the same credential, of which Sluice knows only by the upstream's responses; per second. */
export const outsidePerSecond = 3;

const modelQuota = { rpm: 500, tpm: 30_000 };
const batchPerMinute = 300;
/** Replicas of a scene: more than one, so that the figures of all replicas are shown. */
const replicaCount = 2;

export interface Scene {
  /** The admin port of the replica that is shown. */
  readonly pageUrl: string;
  readonly model: Simulator;
  readonly shop: Simulator;
  /** From now on the workspaces send this. */
  send(traffic: readonly Traffic[]): void;
  /** Ends Redis at once. */
  stopRedis(): Promise<void>;
  end(): Promise<void>;
}

export async function startScene(): Promise<Scene> {
  const redis = await startServer();
  const model = await startSimulator('language-model', {
    models: { 'gpt-4o': modelQuota },
    latency: { baseMs: 600, perTokenMs: 20, jitter: 0.3 },
  });
  const shop = await startSimulator('commerce', {});
  const keys = { acme: createKey(), batch: createKey(), globex: createKey() };
  const path = join(await newFolder(), 'sluice.yaml');
  await writeFile(path, configuration({ redisUrl: redis.url, model, shop, keys }));
  const gateways: Gateway[] = [];
  for (let n = 0; n < replicaCount; n += 1) gateways.push(await startGateway(path));
  const [shown] = gateways;
  if (shown === undefined) throw new Error('a scene needs a replica');
  let senders: NodeJS.Timeout[] = [];
  let sent = 0;
  const call = ({ workspace, upstream }: Traffic): void => {
    const gateway = gateways[sent++ % gateways.length] ?? shown;
    void callOnce(gateway.url, keys[workspace].key, upstream);
  };
  const stopSending = (): void => {
    for (const sender of senders) clearInterval(sender);
    senders = [];
  };
  return {
    pageUrl: `${shown.adminUrl}/`,
    model,
    shop,
    send(traffic) {
      stopSending();
      senders = traffic.map((each) =>
        setInterval(
          () => {
            for (let n = 0; n < each.together; n += 1) call(each);
          },
          (60_000 / each.perMinute) * each.together,
        ),
      );
    },
    stopRedis: () => stopServer(redis),
    async end() {
      stopSending();
      for (const gateway of gateways) gateway.signal('SIGKILL');
      await Promise.all(gateways.map((gateway) => gateway.ended()));
      model.stop();
      shop.stop();
      await stopServer(redis);
    },
  };
}

/** One call and its whole response. A refusal is part of the picture, and so is a connection that the end of the scene cuts. */
async function callOnce(base: string, key: string, upstream: Traffic['upstream']): Promise<void> {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  try {
    const response =
      upstream === 'openai'
        ? await fetch(`${base}/via/openai/v1/chat/completions`, {
            method: 'POST',
            headers,
            body: JSON.stringify({
              model: 'gpt-4o',
              max_tokens: 16,
              messages: [{ role: 'user', content: 'Summarise this order in one line.' }],
            }),
          })
        : await fetch(`${base}/via/shop/admin/api/2026-10/orders.json?limit=5`, { headers });
    await response.arrayBuffer();
  } catch {
    // The replica has been ended.
  }
}

function configuration(parts: {
  readonly redisUrl: string;
  readonly model: Simulator;
  readonly shop: Simulator;
  readonly keys: Readonly<Record<Traffic['workspace'], { readonly hash: string }>>;
}): string {
  const { redisUrl, model, shop, keys } = parts;
  return `
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
redis: { url: "${redisUrl}" }
privacy: { labelKey: "the pictures of the documentation" }
log: { sampleSuccesses: 0 }
upstreams:
  openai:
    kind: language-model
    origins: ["${model.url}"]
    allowPrivateAddresses: true
    credential: { header: authorization, value: "Bearer sk-sim" }
    limits: { requestsPerMinute: ${modelQuota.rpm}, tokensPerMinute: ${modelQuota.tpm}, requestsPerDay: 50000 }
  shop:
    kind: commerce
    origins: ["${shop.url}"]
    allowPrivateAddresses: true
    credential: { header: x-shopify-access-token, value: "shpat_sim" }
    limits: { requestsPerMinute: 120 }
workspaces:
  acme: { keys: [{ hash: "${keys.acme.hash}" }], upstreams: [openai, shop] }
  globex: { keys: [{ hash: "${keys.globex.hash}" }], upstreams: [openai, shop] }
  batch:
    keys: [{ hash: "${keys.batch.hash}" }]
    upstreams: [openai]
    requestsPerMinute: { openai: ${batchPerMinute} }
`;
}
