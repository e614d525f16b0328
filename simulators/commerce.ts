/**
 * A commerce API with real limits: REST Admin, GraphQL Admin, Storefront, any number of stores.
 *
 * Owns: who may call which store, the state of a store, what `configure` and `reset` do, which bucket is meant.
 * Does not own: the call bucket's steps (`commerce-rest.ts`), the points' steps (`commerce-graphql.ts`).
 * Invariant: every decision is made at one instant of the given clock and is in the log.
 */
import { respondToGraphql, respondToStorefront } from './commerce-graphql.ts';
import { respondToAdminRest } from './commerce-rest.ts';
import { record, send, type CommerceContext, type StoreCall } from './commerce/context.ts';
import { IdempotencyKeys } from './commerce/idempotency.ts';
import { commerceDefaults, type CommerceOptions, type CommerceSettings } from './commerce/options.ts';
import { Resources } from './commerce/resources.ts';
import { appOf, LastMinute, storeOf, StoreBuckets, tokenOf, type Api } from './commerce/stores.ts';
import { FaultQueue } from './faults.ts';
import { textOf, type Json } from './json.ts';
import { Recorder, type ArrivalNote } from './recorder.ts';
import { SeededRandom } from './seeded-random.ts';
import type { Exchange } from './exchange.ts';
import { createSimulator, settle, type Simulator } from './simulator.ts';

export type { CommerceOptions, CommerceSettings } from './commerce/options.ts';

/** Which bucket an outside consumer takes from or closes; default: REST of the first app in the first store. */
export interface CommerceBucketChoice {
  readonly store?: string;
  readonly app?: string;
  readonly api?: Api;
}

export type CommerceSimulator = Simulator<CommerceSettings, CommerceBucketChoice>;

export function createCommerceSimulator(options: CommerceOptions = {}): CommerceSimulator {
  const { settings: initial, fixed } = settle(options, commerceDefaults);
  const { clock, seed } = fixed;
  const recorder = new Recorder(clock, fixed.logLimit, fixed.recordHeaders);
  const faults = new FaultQueue();
  const buckets = new StoreBuckets(initial);
  const lastMinute = new LastMinute();
  const fresh = (): CommerceContext => ({
    clock,
    random: new SeededRandom(seed),
    settings: initial,
    recorder,
    faults,
    buckets,
    resources: new Resources(initial.seededResources),
    keys: new IdempotencyKeys(),
    lastMinute,
  });
  let context = fresh();
  return createSimulator({
    clock,
    recorder,
    faults,
    keyOf: tokenOf,
    respond: async (exchange, note) => await respond(exchange, note, context),
    buckets: (now) => buckets.snapshot(now),
    reset() {
      buckets.reset();
      lastMinute.clear();
      buckets.configure(initial);
      context = fresh();
    },
    configure(part) {
      const stores = { ...context.settings.stores, ...part.stores };
      const settings = { ...context.settings, ...part, stores };
      buckets.configure(settings);
      context = { ...context, settings };
    },
    bucketOf(which, now) {
      const { stores } = context.settings;
      const store = which.store ?? Object.keys(stores)[0] ?? '';
      const app = which.app ?? Object.keys(stores[store]?.apps ?? {})[0] ?? '';
      return buckets.of(store, app, which.api ?? 'rest', now).bucket;
    },
    choiceOf,
  });
}

const badToken = '[API] Invalid API key or access token (unrecognized login or wrong password)';

async function respond(exchange: Exchange, note: ArrivalNote, context: CommerceContext): Promise<void> {
  const { settings, random } = context;
  const store = storeOf(exchange.request.headers, settings);
  const app = store === undefined ? undefined : appOf(store, note.key, settings);
  const fields = responseFields(exchange.path, store ?? '', app ?? '', random.hex(16));
  const call: StoreCall = { exchange, note, store: store ?? '', app: app ?? '', fields };
  if (store === undefined) {
    refuse(call, context, 'not-found', [404, 'Not Found']);
  } else if (/^\/api\/[\w-]+\/graphql(\.json)?$/.test(exchange.path) && exchange.method === 'POST') {
    await respondToStorefront(call, context);
  } else if (app === undefined) refuse(call, context, 'unauthenticated', [401, badToken]);
  else if (!stopped(call, context)) {
    const graphql = /^\/admin\/api\/([\w-]+\/)?graphql(\.json)?$/.test(exchange.path);
    if (graphql && exchange.method === 'POST') await respondToGraphql(call, context);
    else await respondToAdminRest(call, context);
  }
}

/** Answers the calls of a store that is frozen, locked or rejected, without its bucket. Too many refusals lock it for the app. */
function stopped(call: StoreCall, context: CommerceContext): boolean {
  const { settings, lastMinute, clock } = context;
  const state = settings.stores[call.store]?.state ?? 'ok';
  const refusals = lastMinute.count(`refusals|${call.store}|${call.app}`, clock.monotonic());
  const locked =
    state === 'locked' ||
    (settings.maxRefusalsPerMinute !== null && refusals > settings.maxRefusalsPerMinute);
  if (state === 'frozen') refuse(call, context, 'state', [402, 'Unavailable Shop']);
  else if (state === 'security') refuse(call, context, 'state', [430, 'Shopify Security Rejection']);
  else if (locked) refuse(call, context, 'state', [423, 'This shop is unavailable']);
  else return false;
  return true;
}

function refuse(
  call: StoreCall,
  context: CommerceContext,
  decision: 'not-found' | 'unauthenticated' | 'state',
  [status, errors]: [number, string],
): void {
  record(call, context, `${call.store}|${call.app}`, { decision });
  send(call.exchange, status, call.fields, JSON.stringify({ errors }));
}

/** The usual fields. The app's id is the same for all of its tokens, which shows that they share a bucket. */
function responseFields(path: string, store: string, app: string, id: string): Record<string, string> {
  const uuid = `${id.slice(0, 8)}-${id.slice(8, 12)}-${id.slice(12, 16)}-${id.slice(16, 20)}-${id.slice(20, 32)}`;
  return {
    'x-request-id': uuid,
    'X-Shopify-Api-Version': /\/api\/([\w-]+)\//.exec(path)?.[1] ?? '2026-01',
    'X-Shopify-Stage': 'production',
    'X-ShopId': String(checksum(store)),
    'X-ShardId': '3',
    'X-Stats-ApiClientId': String(checksum(app)),
  };
}

function checksum(text: string): number {
  let sum = 0;
  for (const letter of text) sum = (sum * 31 + (letter.codePointAt(0) ?? 0)) % 99_999_989;
  return sum;
}

function choiceOf(part: Json): CommerceBucketChoice {
  const store = textOf(part['store']);
  const app = textOf(part['app']);
  const api = part['api'] === 'graphql' ? 'graphql' : 'rest';
  return { api, ...(store === undefined ? {} : { store }), ...(app === undefined ? {} : { app }) };
}
