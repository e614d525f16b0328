/**
 * A commerce API with real limits: REST Admin, GraphQL Admin, Storefront, any number of stores.
 *
 * Owns: who may call which store, the state of a store, what `configure`, `reset`, `drain`, `fault` do.
 * Refuses to own: the call bucket's steps (`commerce-rest.ts`), the points' steps (`commerce-graphql.ts`).
 * Invariant: every decision is made at one instant of the given clock and is in the log.
 */
import type { Clock } from '../clock.ts';
import { answerGraphql, answerStorefront } from './commerce-graphql.ts';
import { answerAdminRest } from './commerce-rest.ts';
import { record, send, type CommerceContext, type StoreCall } from './commerce/context.ts';
import { IdempotencyKeys } from './commerce/idempotency.ts';
import { settle, type CommerceOptions, type CommerceSettings } from './commerce/options.ts';
import { Resources } from './commerce/resources.ts';
import { appOf, LastMinute, storeOf, StoreBuckets, tokenOf, type Api } from './commerce/stores.ts';
import { createControl, controlPrefix } from './control.ts';
import { FaultQueue, type Fault } from './faults.ts';
import { numberOf, textOf, type Json } from './json.ts';
import type { LogEntry } from './log.ts';
import { Recorder, type ArrivalNote } from './recorder.ts';
import { seededRandom } from './seeded-random.ts';
import { createHost, type Exchange, type Handler, type Listening } from './server.ts';

export type { CommerceOptions, CommerceSettings } from './commerce/options.ts';

/** Which bucket an outside consumer takes from; default: REST of the first app in the first store. */
export interface CommerceDrain {
  readonly store?: string;
  readonly app?: string;
  readonly api?: Api;
}

export interface CommerceSimulator {
  /** Loopback; port 0 takes a free one. @throws the listen error. */
  listen(port?: number): Promise<Listening>;
  readonly log: readonly LogEntry[];
  state(): CommerceState;
  /** Empties buckets, log, faults, resources; settings go back to the options of the start. */
  reset(): void;
  /** Changes settings from the next call on; levels stay. `stores` are merged by name. */
  configure(options: Partial<CommerceSettings>): void;
  /** @throws Error on an unknown kind. */
  fault(fault: Fault): void;
  /** Someone else takes `units` (calls or points) now, never beyond the limit. */
  drain(units: number, from?: CommerceDrain): void;
  /** Closes every socket; resolves when none is left. */
  close(): Promise<void>;
}

export interface CommerceState {
  readonly buckets: Readonly<Record<string, { readonly limit: number; readonly used: number }>>;
  readonly decisions: number;
  readonly faults: readonly Fault[];
  /** Errors of the simulator itself; must stay empty. */
  readonly failures: readonly string[];
}

export function createCommerceSimulator(options: CommerceOptions = {}): CommerceSimulator {
  return new Simulator(options);
}

const badToken = '[API] Invalid API key or access token (unrecognized login or wrong password)';

class Simulator implements CommerceSimulator {
  readonly #initial: CommerceSettings;
  readonly #clock: Clock;
  readonly #seed: number;
  readonly #recorder: Recorder;
  readonly #faults = new FaultQueue();
  readonly #buckets: StoreBuckets;
  readonly #lastMinute = new LastMinute();
  readonly #host;
  #context: CommerceContext;

  constructor(options: CommerceOptions) {
    const { settings, fixed } = settle(options);
    this.#initial = settings;
    this.#clock = fixed.clock;
    this.#seed = fixed.seed;
    this.#recorder = new Recorder(fixed.clock, fixed.logLimit, fixed.recordHeaders);
    this.#buckets = new StoreBuckets(settings);
    this.#context = this.#fresh(settings);
    const control = createControl({
      state: () => this.state(),
      entries: () => this.log,
      reset: () => this.reset(),
      // Untyped data enters here, from tests only.
      configure: (part) => this.configure(part as Partial<CommerceSettings>),
      drain: (part) => this.drain(numberOf(part['units']) ?? 0, drainOf(part)),
      fault: (fault) => this.fault(fault),
      faults: () => this.#faults.waiting,
      clearFaults: () => this.#faults.clear(),
    });
    const calls: Handler = {
      arrive: (arrival) => this.#recorder.arrive(arrival, tokenOf(arrival.request.headers)),
      handle: async (exchange, note) => await this.#handle(exchange, note as ArrivalNote),
      failed: (error) => this.#recorder.failed(error),
    };
    this.#host = createHost(fixed.clock, (path) => (path.startsWith(controlPrefix) ? control : calls));
  }

  async listen(port = 0): Promise<Listening> {
    return await this.#host.listen(port);
  }

  async close(): Promise<void> {
    await this.#host.close();
  }

  get log(): readonly LogEntry[] {
    return this.#recorder.log.entries;
  }

  state(): CommerceState {
    return {
      buckets: this.#buckets.snapshot(this.#clock.monotonic()),
      decisions: this.log.length,
      faults: this.#faults.waiting,
      failures: this.#recorder.failures,
    };
  }

  reset(): void {
    this.#recorder.clear();
    this.#faults.clear();
    this.#buckets.reset();
    this.#lastMinute.clear();
    this.#buckets.configure(this.#initial);
    this.#context = this.#fresh(this.#initial);
  }

  configure(options: Partial<CommerceSettings>): void {
    const { stores } = this.#context.settings;
    const settings = { ...this.#context.settings, ...options, stores: { ...stores, ...options.stores } };
    this.#buckets.configure(settings);
    this.#context = { ...this.#context, settings };
  }

  fault(fault: Fault): void {
    this.#faults.add(fault);
  }

  drain(units: number, from: CommerceDrain = {}): void {
    const { stores } = this.#context.settings;
    const store = from.store ?? Object.keys(stores)[0] ?? '';
    const app = from.app ?? Object.keys(stores[store]?.apps ?? {})[0] ?? '';
    const now = this.#clock.monotonic();
    this.#buckets.of(store, app, from.api ?? 'rest', now).bucket.takeUpTo(units, now);
  }

  #fresh(settings: CommerceSettings): CommerceContext {
    return {
      clock: this.#clock,
      random: seededRandom(this.#seed),
      settings,
      recorder: this.#recorder,
      faults: this.#faults,
      buckets: this.#buckets,
      resources: new Resources(settings.seededResources),
      keys: new IdempotencyKeys(),
      lastMinute: this.#lastMinute,
    };
  }

  async #handle(exchange: Exchange, note: ArrivalNote): Promise<void> {
    const { settings, random } = this.#context;
    const store = storeOf(exchange.request.headers, settings);
    const app = store === undefined ? undefined : appOf(store, note.key, settings);
    const fields = answerFields(exchange.path, store ?? '', app ?? '', random.hex(16));
    const call: StoreCall = { exchange, note, store: store ?? '', app: app ?? '', fields };
    if (store === undefined) {
      this.#refuse(call, 'not-found', 404, 'Not Found');
    } else if (/^\/api\/[\w-]+\/graphql(\.json)?$/.test(exchange.path) && exchange.method === 'POST') {
      await answerStorefront(call, this.#context);
    } else if (app === undefined) this.#refuse(call, 'unauthenticated', 401, badToken);
    else if (!this.#stopped(call)) {
      const graphql = /^\/admin\/api\/([\w-]+\/)?graphql(\.json)?$/.test(exchange.path);
      if (graphql && exchange.method === 'POST') await answerGraphql(call, this.#context);
      else await answerAdminRest(call, this.#context);
    }
  }

  /** Frozen, locked, rejected: the bucket is not touched. Too many strikes lock the store for this app. */
  #stopped(call: StoreCall): boolean {
    const { settings } = this.#context;
    const state = settings.stores[call.store]?.state ?? 'ok';
    const strikes = this.#lastMinute.count(`strikes|${call.store}|${call.app}`, this.#clock.monotonic());
    const locked = state === 'locked' || (settings.strikes !== null && strikes > settings.strikes);
    if (state === 'frozen') this.#refuse(call, 'state', 402, 'Unavailable Shop');
    else if (state === 'security') this.#refuse(call, 'state', 430, 'Shopify Security Rejection');
    else if (locked) this.#refuse(call, 'state', 423, 'This shop is unavailable');
    else return false;
    return true;
  }

  #refuse(
    call: StoreCall,
    decision: 'not-found' | 'unauthenticated' | 'state',
    status: number,
    errors: string,
  ): void {
    record(call, this.#context, `${call.store}|${call.app}`, { decision });
    send(call.exchange, status, call.fields, JSON.stringify({ errors }));
  }
}

/** The usual fields. The app's id is the same for all of its tokens, which shows that they share a bucket. */
function answerFields(path: string, store: string, app: string, id: string): Record<string, string> {
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

function drainOf(part: Json): CommerceDrain {
  const store = textOf(part['store']);
  const app = textOf(part['app']);
  const api = part['api'] === 'graphql' ? 'graphql' : 'rest';
  return { api, ...(store === undefined ? {} : { store }), ...(app === undefined ? {} : { app }) };
}
