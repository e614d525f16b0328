/** Replicas in this process that share nothing but one real Redis, empty when a test begins. What a test opens is closed when it ends. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach } from '@jest/globals';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import type { Clock } from '../../src/clock.ts';
import type { Service } from '../../src/service.ts';
import { createLanguageModelSimulator } from '../../simulators/language-model.ts';
import { bucketsOf, metric as sumOf } from '../journey/world.ts';
import { serviceOf } from '../support/gateway.ts';
import { chatBody, chatPath } from '../support/redis-fleet.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';

/** Sections of the configuration, as its file has them. */
interface Sections {
  readonly upstreams: Readonly<Record<string, object>>;
  readonly workspaces?: Readonly<Record<string, object>>;
  readonly redis?: object;
  readonly idempotency?: object;
}

interface FleetOptions extends Sections {
  readonly replicas?: number;
  readonly clock?: Clock;
}

interface Sending {
  readonly workspace?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** As JSON, unless it is a text. */
  readonly body?: unknown;
  readonly signal?: AbortSignal;
}

export type Reply = Awaited<ReturnType<typeof read>>;
export const read = async (response: Response) => ({
  status: response.status,
  code: response.headers.get('sluice-error'),
  headers: response.headers,
  text: await response.text(),
});

/** Different statuses and codes: `200`, `429 wait_too_long`. */
export const kinds = (replies: readonly Reply[]): readonly string[] =>
  [...new Set(replies.map(({ status, code }) => (code === null ? `${status}` : `${status} ${code}`)))].sort();

export type Fleet = ReturnType<typeof createFleet>;
function createFleet({ clock, ...sections }: Omit<FleetOptions, 'replicas'>) {
  const services: Service[] = [];
  const logs: string[] = [];
  const made = Object.keys(sections.workspaces ?? { acme: {} }).map((name) => [name, createKey()] as const);
  const keys: Readonly<Record<string, string>> = Object.fromEntries(
    made.map(([name, one]) => [name, one.key]),
  );
  const hashes = new Map(made.map(([name, { hash }]) => [name, hash]));
  const of = (replica: number): Service => {
    const service = services[replica % services.length];
    if (service === undefined) throw new Error('no replica has started');
    return service;
  };
  const text = (): string => {
    const { upstreams, workspaces = { acme: {} }, ...more } = sections;
    const each = (list: Readonly<Record<string, object>>, usual: (name: string) => object): object =>
      Object.fromEntries(Object.entries(list).map(([name, own]) => [name, { ...usual(name), ...own }]));
    return JSON.stringify({
      server: { host: '127.0.0.1', adminHost: '127.0.0.1', port: 0, adminPort: 0, drainDelaySeconds: 0 },
      privacy: { labelKey: 'a label key for tests only' },
      log: { sampleSuccesses: 0 },
      ...more,
      upstreams: each(upstreams, () => ({ allowPrivateAddresses: true, credential: 'Bearer sk-sim' })),
      workspaces: each(workspaces, (name) => ({ keys: [hashes.get(name)] })),
    });
  };
  const send = (replica: number, path: string, sending: Sending = {}): Promise<Response> => {
    const { workspace = 'acme', headers, body, signal = null } = sending;
    const isText = typeof body === 'string';
    return fetch(`http://127.0.0.1:${of(replica).dataAddress.port}/via/${path}`, {
      ...(body === undefined ? {} : { method: 'POST', body: isText ? body : JSON.stringify(body) }),
      headers: {
        'sluice-key': keys[workspace] ?? '',
        ...(body === undefined || isText ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      signal,
    });
  };
  const call = async (replica: number, path: string, sending?: Sending) =>
    read(await send(replica, path, sending));
  const admin = async (replica: number, path: string) =>
    read(await fetch(`http://127.0.0.1:${of(replica).adminAddress.port}${path}`));
  /** Sum over all replicas of what stands in lines of `/metrics` that begin so. */
  const metric = async (line: string): Promise<number> => {
    const sums = await Promise.all(
      services.map(({ adminAddress: { port } }) => sumOf({ adminUrl: `http://127.0.0.1:${port}` }, line)),
    );
    return sums.reduce((sum, one) => sum + one, 0);
  };
  const buckets = (replica: number) => bucketsOf({ service: of(replica) });
  return {
    services,
    logs,
    keys,
    text,
    fetch: send,
    call,
    admin,
    metric,
    buckets,
    chat: (replica: number, headers: Readonly<Record<string, string>> = {}) =>
      call(replica, chatPath.slice('/via/'.length), { body: chatBody, headers }),
    async join(): Promise<void> {
      services.push(await serviceOf(text(), logs, clock === undefined ? {} : { clock }));
    },
  };
}

/** A language model that refuses nothing unless it is told to, and what the gateway is told of it. */
export const plenty = { requestsPerMinute: 100_000, requestsPerDay: 1_000_000, tokensPerMinute: 10_000_000 };
export const model = (url: string, limits: object = plenty) => ({
  openai: { kind: 'language-model', origins: [url], limits },
});

export function onRedis() {
  let server: RedisServer;
  let probe: Redis;
  const open: (() => unknown)[] = [];
  beforeAll(async () => {
    server = await startRedis();
    probe = new Redis(server.url);
  });
  beforeEach(() => probe.flushall());
  afterEach(async () => {
    for (const close of open.splice(0).toReversed()) await close();
  });
  afterAll(async () => {
    probe.disconnect();
    await server.stop();
  });

  async function started<T extends { listen(): Promise<{ url: string }>; close(): Promise<void> }>(it: T) {
    const { url } = await it.listen();
    open.push(() => it.close());
    return url;
  }
  return {
    /** Closed at the end of the test, the last one first. */
    open,
    started,
    redis: () => server,
    probe: () => probe,

    async fleet({ replicas = 2, redis = {}, ...options }: FleetOptions) {
      const fleet = createFleet({
        ...options,
        redis: { url: server.url, commandTimeoutMs: 2_000, ...redis },
      });
      open.push(() => Promise.all(fleet.services.map((service) => service.close())));
      for (let n = 0; n < replicas; n += 1) await fleet.join();
      return fleet;
    },

    async languageModel() {
      const simulator = createLanguageModelSimulator({
        models: { 'gpt-4o': { rpm: 100_000, tpm: 10_000_000 } },
        latency: { baseMs: 5, perTokenMs: 0, jitter: 0 },
        orgs: { 'org-sim': { projects: { proj_sim: { keys: ['sk-sim', 'sk-two'] } } } },
      });
      return { simulator, url: await started(simulator) };
    },

    /** An upstream; `respond` is called with the whole body of each request. */
    async upstream(respond: (response: ServerResponse, request: IncomingMessage, body: string) => void) {
      const http = createServer((request, response) => {
        let body = '';
        request.on('data', (chunk: Buffer) => (body += chunk.toString()));
        request.on('end', () => respond(response, request, body));
      });
      // On every address: origins of one server may differ in theirs.
      await new Promise<void>((resolve) => http.listen(0, resolve));
      open.push(() => new Promise((resolve) => http.close(resolve).closeAllConnections()));
      const { port } = http.address() as AddressInfo;
      return { port, url: `http://127.0.0.1:${port}` };
    },
  };
}
