/** Three replicas on one Redis with a shop and a model behind them, and clients that go round them. */
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { createCommerceSimulator, type CommerceSimulator } from '../../simulators/commerce.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { serviceOf } from '../support/gateway.ts';
import { clientAgent, ordersPath, pause, send, type CallResponse } from '../support/redis-fleet.ts';
import type { RedisServer } from '../support/redis.ts';

const server =
  'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }';

/** A shop, and a model, that take no token before they are told which. */
export async function startUpstreams() {
  const storesOf = (tokens: readonly string[]) => ({
    '127.0.0.1': { plan: { limit: 4_000, leak: 200 }, apps: { 'app-sim': [...tokens] } },
  });
  const orgsOf = (tokens: readonly string[]) => ({ org: { projects: { project: { keys: [...tokens] } } } });
  const shop: CommerceSimulator = createCommerceSimulator({
    latency: { minMs: 1, maxMs: 3 },
    stores: storesOf([]),
  });
  const model: LanguageModelSimulator = createLanguageModelSimulator({
    models: { 'gpt-4o': { rpm: 600_000, tpm: 100_000_000 } },
    latency: { baseMs: 1, perTokenMs: 0, jitter: 0 },
    orgs: orgsOf([]),
  });
  return {
    shop,
    model,
    shopUrl: (await shop.listen()).url,
    modelUrl: (await model.listen()).url,
    accept(tokens: readonly string[]): void {
      shop.configure({ stores: storesOf(tokens) });
      model.configure({ orgs: orgsOf(tokens) });
    },
    close: () => Promise.all([shop.close(), model.close()]),
  };
}
export type Upstreams = Awaited<ReturnType<typeof startUpstreams>>;

const { key, hash } = createKey();

/** A configuration with these credentials, each in braces; without one for the model there is no model. */
export function yamlOf(
  redis: RedisServer,
  { shopUrl, modelUrl }: Upstreams,
  { shop, model, timeoutMs = 2_000 }: { shop?: string; model?: string; timeoutMs?: number },
): string {
  const upstream = (name: string, url: string, credential: string | undefined, more: string): string =>
    credential === undefined
      ? ''
      : `  ${name}: { origins: ["${url}"], allowPrivateAddresses: true, credential: ${credential}, ${more} }\n`;
  const ofShop =
    'kind: commerce, limits: { requestsPerMinute: 100000, bucket: { capacity: 4000, leakPerSecond: 200 } }';
  const ofModel =
    'kind: language-model, limits: { requestsPerMinute: 100000, requestsPerDay: 10000000, tokensPerMinute: 100000000 }';
  return `${server}
redis: { url: "${redis.url}", commandTimeoutMs: ${timeoutMs} }
privacy: { labelKey: "a label key for tests only" }
upstreams:
${upstream('shop', shopUrl, shop, ofShop)}${upstream('openai', modelUrl, model, ofModel)}workspaces:
  acme: { keys: ["${hash}"] }`;
}

export const orders = { path: `${ordersPath}?limit=1` };
export const clients = 6;
/** Number of the replica that a call was sent to. */
export const replicaOf = ({ nonce }: { readonly nonce: string }): number => Number(nonce.split('-')[0]);

/**
 * Clients of which each sends the next call, to the next replica, `pauseMs` after the response to the last one, while it goes on; with
 * what was not answered with 200.
 */
export async function load(
  urls: readonly string[],
  goesOn: () => boolean,
  { call = orders, pauseMs = 10 }: { call?: { path: string; body?: unknown }; pauseMs?: number } = {},
): Promise<readonly CallResponse[]> {
  const agent = clientAgent();
  const failed: CallResponse[] = [];
  const client = async (at: number): Promise<void> => {
    for (let n = at; goesOn(); n += 1) {
      const replica = n % urls.length;
      const headers = { prefer: 'wait=100' };
      const nonce = `${replica}-${at}-${n}`;
      const response = await send({ ...call, url: urls[replica] ?? '', key, nonce, agent, headers });
      if (response.status !== 200) failed.push(response);
      await pause(pauseMs);
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, at) => client(at)));
  agent.destroy();
  return failed;
}

/** The replicas of these configurations in this process, whose log lines go to `logs`. */
export async function startReplicas(yamls: readonly string[], logs: string[]) {
  const services: readonly Service[] = await Promise.all(yamls.map((yaml) => serviceOf(yaml, logs)));
  const urlOf = ({ port }: { readonly port: number }): string => `http://127.0.0.1:${port}`;
  return {
    urls: services.map(({ dataAddress }) => urlOf(dataAddress)),
    adminUrls: services.map(({ adminAddress }) => urlOf(adminAddress)),
    /** Names of the buckets that each replica knows. */
    buckets: () =>
      services.map(({ gateway }) => gateway.parts.pressure.buckets().map(({ snapshot }) => snapshot.bucket)),
    close: () => Promise.all(services.map((service) => service.close())),
  };
}
export type Replicas = Awaited<ReturnType<typeof startReplicas>>;

export const mostAtOnce = (log: readonly LogEntry[]): number =>
  Math.max(...log.map(({ inFlight }) => inFlight.scope));

/** The metrics, activity and page of each admin port, as one text. */
export async function shownAt(adminUrls: readonly string[]): Promise<string> {
  const pages = adminUrls.flatMap((url) =>
    ['metrics', 'activity', ''].map(async (path) => (await fetch(`${url}/${path}`)).text()),
  );
  return (await Promise.all(pages)).join('\n');
}
