/**
 * Orders and chats of three replicas while their token, which lives 5 s and ends the one before, is renewed by a refresh token that
 * works once, at an endpoint that now and then fails, is slow or breaks off: it takes as long as with fixed credentials, in the same run.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import type { LogEntry } from '../../simulators/log.ts';
import {
  chatBody,
  chatPath,
  count,
  makespan,
  ordersPath,
  type CallResponse,
} from '../../test/support/redis-fleet.ts';
import { startTokenEndpoint, type Manner } from '../../test/support/token-endpoint.ts';
import { drive } from './load.ts';
import { logStates } from './log-states.ts';
import { newFolder, startSimulator } from './processes.ts';
import { allSucceeded, seconds, summary, type Row, type Scenario } from './row.ts';
import { common, run, setups, type Configure } from './setups.ts';
import { wait } from './worlds.ts';

/** Calls at once and per second, of both upstreams. */
const shop = { limit: 40, perSecond: 2 };
const chats = { limit: 120, perSecond: 2 };
const lifeSeconds = 5;
const atMost = 1.05;
const fixedTokens = { shop: 'shpat_sim', chats: 'sk-sim' };

const failed: Manner = { kind: 'answer', status: 500, body: 'oops' };
const throttled: Manner = { kind: 'answer', status: 429, body: '', headers: { 'retry-after': '1' } };
const slow: Manner = { kind: 'issue', afterMs: 900 };
const good: Manner = { kind: 'issue' };
const rough: readonly Manner[] = [good, failed, good, slow, { kind: 'cut' }, good, throttled];

const storesOf = (tokens: readonly string[]) => ({
  stores: { '127.0.0.1': { plan: { limit: shop.limit, leak: shop.perSecond }, apps: { app: [...tokens] } } },
});
const orgsOf = (tokens: readonly string[]) => ({
  orgs: { org: { projects: { project: { keys: [...tokens] } } } },
});

interface Seen {
  readonly responses: readonly CallResponse[];
  readonly orders: readonly LogEntry[];
  readonly asked: readonly LogEntry[];
  readonly issued: number;
  /** Refresh tokens that were sent once too often. */
  readonly refusedGrants: number;
  /** Requests to the token endpoint at once, at most. */
  readonly maxAtOnce: number;
  /** Buckets of the replicas: another one for a new token would have to be probed. */
  readonly buckets: number;
}

/** The load for so long, with the credential of this configuration. */
async function underLoad(forSeconds: number, isRenewed: boolean): Promise<Seen> {
  const latency = { minMs: 30, maxMs: 60 };
  const store = await startSimulator('commerce', { latency, ...storesOf([fixedTokens.shop]) });
  const model = await startSimulator('language-model', {
    ...orgsOf([fixedTokens.chats]),
    models: { 'gpt-4o': { rpm: chats.limit, tpm: 100_000_000 } },
    latency: { baseMs: 40, perTokenMs: 0, jitter: 0 },
  });
  let known = Promise.resolve();
  const endpoint = await startTokenEndpoint({
    lifeSeconds,
    isRotating: true,
    refresh: 'single_use',
    onChange(valid) {
      known = known
        .then(() => Promise.all([store.configure(storesOf(valid)), model.configure(orgsOf(valid))]))
        .then(
          () => {},
          () => {},
        );
      return known;
    },
  });
  endpoint.respond(...Array.from({ length: forSeconds }, () => rough).flat());
  const file = join(await newFolder(), 'refresh-token');
  await writeFile(file, endpoint.refreshTokens[0] ?? '', { mode: 0o600 });
  const oauth = `oauth: { tokenUrl: "${endpoint.url}", clientId: client-sim, clientSecret: secret-of-the-client, refreshTokenFile: "${file}" }`;
  const configure = common({
    modelUrl: model.url,
    shopUrl: store.url,
    modelLimits: 'requestsPerDay: 1000000, tokensPerMinute: 100000000',
    workspace: '    requestsPerMinute: { openai: 100000, shop: 100000 }',
  });
  const { fleet, redisUrl, end } = await run(
    setups.replicas,
    isRenewed ? renewing(configure, oauth) : configure,
  );
  const load = { to: fleet.gateways, everyMs: 20, key: fleet.keys['acme'] ?? '', headers: wait(600) };
  const responses = await Promise.all([
    drive({ ...load, name: 'order', path: ordersPath, calls: shop.limit + shop.perSecond * forSeconds }),
    drive({
      ...load,
      name: 'chat',
      path: chatPath,
      body: chatBody,
      calls: chats.limit + chats.perSecond * forSeconds,
    }),
  ]);
  const [orders, asked] = await Promise.all([store.log(), model.log()]);
  const buckets = await bucketsIn(redisUrl ?? '');
  await end(store, model);
  await endpoint.close();
  const { refusedGrants, maxAtOnce } = endpoint;
  const issued = endpoint.issued.length;
  return { responses: responses.flat(), orders, asked, issued, refusedGrants, maxAtOnce, buckets };
}

const renewing =
  (configure: Configure, oauth: string): Configure =>
  (redisUrl) => {
    const config = configure(redisUrl);
    const yaml: typeof config.yaml = (...ports) =>
      config
        .yaml(...ports)
        .replace('value: "Bearer sk-sim"', oauth)
        .replace('value: "shpat_sim"', oauth);
    return { ...config, yaml };
  };

async function bucketsIn(redisUrl: string): Promise<number> {
  const redis = new Redis(redisUrl);
  const states = await logStates(redis, await redis.keys('*'));
  redis.disconnect();
  return states.reduce((sum, { buckets }) => sum + buckets.size, 0);
}

/** How often a token was refused, at most. */
function maxRefusals(entries: readonly LogEntry[]): number {
  const refused = entries.filter(({ decision }) => decision === 'unauthenticated');
  return Math.max(0, ...[...Map.groupBy(refused, ({ key }) => key).values()].map(({ length }) => length));
}

const renewal = (forSeconds: number): Scenario => ({
  name: `tokens of ${lifeSeconds} s are renewed under ${forSeconds} s of orders and chats`,
  async run(): Promise<Row> {
    const fixed = await underLoad(forSeconds, false);
    const renewed = await underLoad(forSeconds, true);
    const [orders, asked] = [makespan(renewed.orders), makespan(renewed.asked)];
    const slower = Math.max(orders / makespan(fixed.orders), asked / makespan(fixed.asked));
    const inFlight = Math.max(...renewed.orders.map(({ inFlight: { scope } }) => scope));
    const throttles = count(renewed.orders, 'throttled') + count(renewed.asked, 'throttled');
    const throttlesFixed = count(fixed.orders, 'throttled') + count(fixed.asked, 'throttled');
    return {
      holds:
        allSucceeded([...fixed.responses, ...renewed.responses]) &&
        renewed.issued >= forSeconds / lifeSeconds &&
        renewed.refusedGrants === 0 &&
        renewed.maxAtOnce === 1 &&
        inFlight === 1 &&
        maxRefusals(renewed.orders) <= 1 &&
        renewed.buckets === fixed.buckets,
      holdsWhenQuiet: slower <= atMost && throttles <= throttlesFixed + 1,
      figures: [
        `makespan ${slower.toFixed(3)} × that with fixed credentials (orders ${seconds(orders)}, chats ${seconds(asked)})`,
        `${renewed.issued} tokens, ${renewed.refusedGrants} refresh tokens refused; ${summary(renewed.responses)}; in flight per store at most ${inFlight}`,
        `a token refused at most ${maxRefusals(renewed.orders)} times for orders, ${maxRefusals(renewed.asked)} for chats`,
        `upstream 429s ${throttles}, with fixed credentials ${throttlesFixed}; buckets ${renewed.buckets}`,
      ].join('; '),
      measured: [{ name: 'makespan', value: slower, unit: '× fixed credentials' }],
    };
  },
});

export const renewals = { short: renewal(30), long: renewal(180) };
