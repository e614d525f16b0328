/**
 * Both simulated upstreams and a gateway in front of them, in this process, and a plain HTTP client.
 *
 * Owns: what every journey test needs to begin, and what must hold at the end of each: no fault inside a simulator, no
 * error in the gateway's log, no API key at an upstream.
 */
import { expect } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import {
  createCommerceSimulator,
  type CommerceOptions,
  type CommerceSimulator,
} from '../../simulators/commerce.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelOptions,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

export interface WorldOptions {
  /** Of the gateway and both upstreams. Default: as fast as ours, but it waits for this process where that is slow. */
  readonly clock?: Clock;
  readonly model?: LanguageModelOptions;
  readonly shop?: CommerceOptions;
  /** Content of the upstreams' `limits`, YAML flow style without the braces. */
  readonly modelLimits?: string;
  readonly shopLimits?: string;
  /** Further keys of each upstream, YAML lines indented by four blanks. */
  readonly modelMore?: string;
  readonly shopMore?: string;
  /** Further upstreams, YAML indented by two blanks. */
  readonly upstreams?: string;
  /** YAML of each workspace beside `keys`, indented by four blanks. Default: `acme` with ceilings out of the way. */
  readonly workspaces?: Readonly<Record<string, string>>;
  readonly server?: string;
}

export interface Sending {
  readonly workspace?: string;
  readonly key?: string;
  readonly method?: string;
  readonly json?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

export interface Reply {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly json: unknown;
  /** By the world's clock. */
  readonly tookMs: number;
}

export interface World {
  readonly clock: Clock;
  readonly gateway: TestGateway;
  readonly model: LanguageModelSimulator;
  readonly shop: CommerceSimulator;
  readonly modelUrl: string;
  readonly shopUrl: string;
  /** Sends a call of a workspace (default `acme`) and reads the whole response. */
  call(path: string, sending?: Sending): Promise<Reply>;
  /** One chat; `at` comes back as `nonce` in the simulator's log. */
  chat(at: number | string, sending?: Sending & { readonly model?: string }): Promise<Reply>;
  /** One REST read of the shop; `at` as above. */
  orders(at: number | string, sending?: Sending): Promise<Reply>;
  /** One GraphQL document. */
  graphql(query: string, sending?: Sending & { readonly variables?: unknown }): Promise<Reply>;
  /** Occupies the shop's lane of `acme` with a read that is never answered; the returned function lets it go. */
  occupy(): Promise<() => Promise<void>>;
  /** Resolves when `count` calls wait or are in flight in the lanes of all buckets. @throws Error after 30 s. */
  settled(waiting: number, inFlight?: number): Promise<void>;
  close(): Promise<void>;
}

/** Ceilings that no test reaches. */
export const highCeilings =
  '    requestsPerMinute: { openai: 100000, shop: 100000 }\n    requestsPerDay: { openai: 1000000 }\n';

export async function startWorld(options: WorldOptions = {}): Promise<World> {
  const { clock = fastClock(1) } = options;
  const quick = { baseMs: 0, perTokenMs: 0, jitter: 0 };
  const model = createLanguageModelSimulator({
    clock,
    latency: quick,
    recordHeaders: true,
    ...options.model,
  });
  const shop = createCommerceSimulator({
    clock,
    latency: { minMs: 0, maxMs: 0 },
    recordHeaders: true,
    ...options.shop,
  });
  const { url: modelUrl } = await model.listen();
  const { url: shopUrl } = await shop.listen();
  const upstream = (name: string, kind: string, url: string, credential: string, more = ''): string =>
    `  ${name}:\n    kind: ${kind}\n    origins: ["${url}"]\n    allowPrivateAddresses: true\n${credential}${more}`;
  const limits = (text = ''): string => (text === '' ? '' : `    limits: { ${text} }\n`);
  const gateway = await startGateway({
    clock,
    upstreams:
      upstream(
        'openai',
        'language-model',
        modelUrl,
        '    credential: { header: authorization, value: "Bearer sk-sim" }\n',
        limits(options.modelLimits) + (options.modelMore ?? ''),
      ) +
      upstream(
        'shop',
        'commerce',
        shopUrl,
        '    credential: { header: x-shopify-access-token, value: shpat_sim }\n',
        limits(options.shopLimits) + (options.shopMore ?? ''),
      ) +
      (options.upstreams ?? ''),
    workspaces: options.workspaces ?? { acme: highCeilings },
    ...(options.server === undefined ? {} : { server: options.server }),
  });

  const call = async (path: string, sending: Sending = {}): Promise<Reply> => {
    const { workspace = 'acme', json, headers, signal } = sending;
    const startedAt = clock.monotonic();
    const response = await fetch(gateway.url + path, {
      method: sending.method ?? (json === undefined ? 'GET' : 'POST'),
      headers: {
        authorization: `Bearer ${sending.key ?? gateway.keys[workspace] ?? ''}`,
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(json === undefined ? {} : { body: JSON.stringify(json) }),
      ...(signal === undefined ? {} : { signal }),
    });
    const text = await response.text();
    const tookMs = clock.monotonic() - startedAt;
    return { status: response.status, headers: response.headers, text, json: parsed(text), tookMs };
  };

  const orders: World['orders'] = (at, sending = {}) =>
    call('/via/shop/admin/api/2026-10/orders.json?limit=1', {
      ...sending,
      headers: { 'x-nonce': String(at), ...sending.headers },
    });

  return {
    clock,
    gateway,
    model,
    shop,
    modelUrl,
    shopUrl,
    call,
    chat: (at, { model: name = 'gpt-4o', ...sending } = {}) =>
      call('/via/openai/v1/chat/completions', {
        json: { model: name, messages: [{ role: 'user', content: `call ${at}` }] },
        ...sending,
        headers: { 'x-nonce': String(at), ...sending.headers },
      }),
    orders,
    async occupy() {
      const before = shop.log.length;
      shop.fault({ kind: 'hang' });
      const leaving = new AbortController();
      const occupied = orders('occupied', { signal: leaving.signal }).catch(() => {});
      while (shop.log.length === before) await new Promise((resolve) => setTimeout(resolve, 2));
      return async () => {
        leaving.abort();
        await occupied;
      };
    },
    graphql: (query, { variables, ...sending } = {}) =>
      call('/via/shop/admin/api/2026-10/graphql.json', { json: { query, variables }, ...sending }),
    async settled(waiting, inFlight) {
      const stopAt = performance.now() + 30_000;
      for (;;) {
        const all = gateway.service.gateway.parts.pressure.buckets().map(({ snapshot }) => snapshot);
        const now = {
          waiting: sum(all.map((each) => each.waiting)),
          inFlight: sum(all.map((each) => each.inFlight)),
        };
        if (now.waiting === waiting && (inFlight === undefined || now.inFlight === inFlight)) return;
        if (performance.now() > stopAt) throw new Error(`still ${JSON.stringify(now)}`);
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    },
    async close() {
      await gateway.close();
      await model.close();
      await shop.close();
      expect([...model.state().failures, ...shop.state().failures]).toEqual([]);
      expect(gateway.logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
      const keys = Object.values(gateway.keys);
      const leaked = [...model.log, ...shop.log].filter((entry) => {
        const seen = JSON.stringify(entry);
        return keys.some((key) => seen.includes(key));
      });
      expect(leaked).toEqual([]);
    },
  };
}

/** Calls that reached the upstream behind one with a higher number. */
export function inversions(log: readonly LogEntry[]): number {
  let latest = -1;
  let count = 0;
  for (const { nonce } of log) {
    if (Number(nonce) < latest) count += 1;
    else latest = Number(nonce);
  }
  return count;
}

/** Entries that came while a `Retry-After` of their bucket was running. */
export const insideRetryAfter = (log: readonly LogEntry[]): readonly LogEntry[] =>
  log.filter((entry) => entry.insideRetryAfter);

/** How often each status was answered. */
export function tally(replies: readonly { readonly status: number }[]): Record<number, number> {
  const counts: Record<number, number> = {};
  for (const { status } of replies) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
