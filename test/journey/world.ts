/**
 * Both simulated upstreams and a gateway in front of them, in this process, and a plain HTTP client. `scripted.ts` has upstreams that
 * answer as a test says.
 *
 * Owns: what every journey test needs to begin, and what must hold at the end of each: no fault inside a simulator, no
 * error in the gateway's log, no API key at an upstream.
 */
import { expect } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { createCommerceSimulator, type CommerceOptions } from '../../simulators/commerce.ts';
import {
  createLanguageModelSimulator,
  type LanguageModelOptions,
  type LanguageModelSimulator,
} from '../../simulators/language-model.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

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
  /** YAML of each workspace beside `keys`, indented by four blanks. Default: `acme` with ceilings out of the way. */
  readonly workspaces?: Readonly<Record<string, string>>;
}

export interface Sending {
  /** Default: `acme`, or the first one that there is. */
  readonly workspace?: string;
  readonly key?: string;
  readonly method?: string;
  readonly json?: unknown;
  readonly body?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

export type Reply = Awaited<ReturnType<typeof sendTo>>;
export type World = Awaited<ReturnType<typeof startWorld>>;

/** Ceilings that no test reaches. */
export const highCeilings =
  '    requestsPerMinute: { openai: 100000, shop: 100000 }\n    requestsPerDay: { openai: 1000000 }\n';

/** What is open, the latest last. */
export const opened: (() => Promise<unknown>)[] = [];
/** Closes all that the tests of a file have started. */
export async function closeAll(): Promise<void> {
  for (const close of opened.splice(0).toReversed()) await close();
}

export async function startWorld(options: WorldOptions = {}) {
  const { clock = fastClock(1) } = options;
  const recorded = { clock, recordHeaders: true };
  const quick = { baseMs: 0, perTokenMs: 0, jitter: 0 };
  const model = createLanguageModelSimulator({ ...recorded, latency: quick, ...options.model });
  const shop = createCommerceSimulator({ ...recorded, latency: { minMs: 0, maxMs: 0 }, ...options.shop });
  const { url: modelUrl } = await model.listen();
  const { url: shopUrl } = await shop.listen();
  const upstream = (name: string, kind: string, url: string, credential: string, limits = '', more = '') =>
    `  ${name}:\n    kind: ${kind}\n    origins: ["${url}"]\n    allowPrivateAddresses: true\n    credential: { ${credential} }\n${limits === '' ? '' : `    limits: { ${limits} }\n`}${more}`;
  const bearer = 'header: authorization, value: "Bearer sk-sim"';
  const token = 'header: x-shopify-access-token, value: shpat_sim';
  const { modelLimits, modelMore, shopLimits, shopMore } = options;
  const gateway = await startGateway({
    clock,
    upstreams:
      upstream('openai', 'language-model', modelUrl, bearer, modelLimits, modelMore) +
      upstream('shop', 'commerce', shopUrl, token, shopLimits, shopMore),
    workspaces: options.workspaces ?? { acme: highCeilings },
  });

  /** Sends a call of a workspace and reads the whole response. */
  const call = (path: string, sending: Sending = {}) =>
    sendTo(gateway, clock, path, {
      workspace: 'acme',
      ...sending,
      headers: { authorization: `Bearer ${keyOf(gateway, sending)}`, ...sending.headers },
    });
  const nonced = (at: number | string, { headers }: Sending) => ({ 'x-nonce': String(at), ...headers });
  /** One REST read of the shop; `at` comes back as `nonce` in the simulator's log. */
  const orders = (at: number | string, sending: Sending = {}) =>
    call('/via/shop/admin/api/2026-10/orders.json?limit=1', { ...sending, headers: nonced(at, sending) });
  /** Occupies the shop's lane of `acme` with a read that is never answered; the returned function lets it go. */
  const occupy = async () => {
    const before = shop.log.length;
    shop.fault({ kind: 'hang' });
    const leaving = new AbortController();
    const occupied = orders('occupied', { signal: leaving.signal }).catch(() => {});
    await until(() => shop.log.length > before);
    return async () => {
      leaving.abort();
      await occupied;
    };
  };
  /** Resolves when so many calls wait, and are in flight, in the lanes of all buckets. */
  const settled = (waiting: number, inFlight?: number): Promise<void> =>
    until(() => {
      const all = bucketsOf(gateway);
      const isSo = sum(all.map((each) => each.waiting)) === waiting;
      return isSo && (inFlight === undefined || sum(all.map((each) => each.inFlight)) === inFlight);
    });
  opened.push(async () => {
    await gateway.close();
    await model.close();
    await shop.close();
    expect([...model.state().failures, ...shop.state().failures]).toEqual([]);
    expect(gateway.logs.filter((line) => line.includes('"level":"error"'))).toEqual([]);
    const seen = JSON.stringify([...model.log, ...shop.log]);
    expect(Object.values(gateway.keys).filter((key) => seen.includes(key))).toEqual([]);
  });

  return {
    clock,
    gateway,
    model,
    shop,
    modelUrl,
    shopUrl,
    call,
    /** One chat; `at` as in `orders`. */
    chat: (
      at: number | string,
      { model: name = 'gpt-4o', ...sending }: Sending & { readonly model?: string } = {},
    ) =>
      call('/via/openai/v1/chat/completions', {
        json: { model: name, messages: [{ role: 'user', content: `call ${at}` }] },
        ...sending,
        headers: nonced(at, sending),
      }),
    orders,
    /** One GraphQL document. */
    graphql: (query: string) => call('/via/shop/admin/api/2026-10/graphql.json', { json: { query } }),
    occupy,
    /** Sends these calls behind an occupied shop, each when the one before it waits, and lets them go. */
    async behindOccupied(
      names: readonly (number | string)[],
      send: (name: string) => Promise<Reply> = orders,
      meanwhile = async (): Promise<void> => {},
    ) {
      const release = await occupy();
      const from = shop.log.length;
      const calls: Promise<Reply>[] = [];
      for (const [at, name] of names.entries()) {
        calls.push(send(String(name)));
        await settled(at + 1, 1);
      }
      await meanwhile();
      await release();
      return { replies: await Promise.all(calls), log: shop.log.slice(from) };
    },
    settled,
  };
}

export const keyOf = ({ keys }: TestGateway, { key, workspace }: Sending): string =>
  key ?? keys[workspace ?? 'acme'] ?? Object.values(keys)[0] ?? '';

/** Sends a call and reads the whole response. */
export async function sendTo(
  { url }: Pick<TestGateway, 'url'>,
  clock: Pick<Clock, 'monotonic'>,
  path: string,
  {
    method,
    json,
    body = json === undefined ? null : JSON.stringify(json),
    headers,
    signal = null,
  }: Omit<Sending, 'signal' | 'body'> & { body?: string | null; signal?: AbortSignal | null },
) {
  const startedAt = clock.monotonic();
  const response = await fetch(url + path, {
    method: method ?? (body === null ? 'GET' : 'POST'),
    headers: { ...(json === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    body,
    signal,
  });
  const text = await response.text();
  const field = (name: string): string | null => response.headers.get(name);
  return {
    status: response.status,
    headers: response.headers,
    text,
    json: parsed(text) as unknown,
    /** By the clock of the gateway. */
    tookMs: clock.monotonic() - startedAt,
    /** The code, where Sluice made the response. */
    error: field('sluice-error'),
    shouldRetry: field('x-should-retry'),
    admission: field('sluice-admission') ?? '',
  };
}

/** What the buckets of an upstream, or of all, show. */
export const bucketsOf = ({ service }: Pick<TestGateway, 'service'>, name?: string) =>
  service.gateway.parts.pressure
    .buckets()
    .filter(({ upstream }) => name === undefined || upstream === name)
    .map(({ snapshot }) => snapshot);

/** What an address of the admin port shows. */
export const adminText = async ({ adminUrl }: Pick<TestGateway, 'adminUrl'>, path: string): Promise<string> =>
  (await fetch(adminUrl + path)).text();

/** Asks the admin port to do something. */
export const adminPost = ({ adminUrl }: Pick<TestGateway, 'adminUrl'>, path: string): Promise<Response> =>
  fetch(adminUrl + path, { method: 'POST', headers: { 'Sluice-Admin': 'yes' } });

/** The log line of a call, once it is written. */
export async function logged(
  { logs }: Pick<TestGateway, 'logs'>,
  { headers }: Pick<Reply, 'headers'>,
): Promise<Record<string, unknown>> {
  const id = headers.get('sluice-request-id') ?? '';
  const line = (): string | undefined => logs.find((each) => each.includes(id));
  await until(() => line() !== undefined);
  return JSON.parse(line() ?? '') as Record<string, unknown>;
}

/** Tells a simulator to answer the next call with a 429. */
export function refuseOnce(
  upstream: Pick<LanguageModelSimulator, 'fault'>,
  headers: Readonly<Record<string, string>>,
): void {
  const error = { message: 'Rate limit reached', type: 'requests', code: 'rate_limit_exceeded' };
  upstream.fault({ kind: 'answer', status: 429, headers, body: { error } });
}

export const many = <Result>(count: number, make: (at: number) => Result): Result[] =>
  Array.from({ length: count }, (_, at) => make(at));

export const nonces = (log: readonly LogEntry[]): readonly string[] => log.map(({ nonce }) => nonce);

/** Calls that an upstream had at once, at most. */
export const maxInFlight = (log: readonly LogEntry[]): number =>
  Math.max(...log.map(({ inFlight }) => inFlight.scope));

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

/** The sum of the series of this metric, or of those that begin so. */
export async function metric(gateway: Pick<TestGateway, 'adminUrl'>, series: string): Promise<number> {
  const lines = (await adminText(gateway, '/metrics')).split('\n');
  const found = lines.filter(
    (line) => line.startsWith(series) && !/^\w\w/.test(line.slice(series.length - 1)),
  );
  return sum(found.map((line) => Number(line.slice(line.lastIndexOf(' ') + 1))));
}
