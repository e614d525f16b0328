/**
 * Which store a call is for, which app calls, and the buckets of both.
 *
 * Owns: host names and credentials to (store, app), one REST and one GraphQL bucket per pair.
 * Invariant: tokens of one app share its buckets in a store; different apps and stores never do.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { Bucket } from '../bucket.ts';
import { planNumbers, type CommerceSettings, type PlanNumbers } from './options.ts';

export type Api = 'rest' | 'graphql';

/** `Host`, with `x-sim-store` before it; `<store>.localhost` and `<name>.localhost` work, plain loopback is the first store. */
export function storeOf(headers: IncomingHttpHeaders, settings: CommerceSettings): string | undefined {
  const named = headers['x-sim-store'];
  const host = (typeof named === 'string' ? named : (headers.host ?? '')).replace(/:\d+$/, '').toLowerCase();
  if (Object.hasOwn(settings.stores, host)) return host;
  if (host === '127.0.0.1' || host === 'localhost' || host === '[::1]')
    return Object.keys(settings.stores)[0];
  if (!host.endsWith('.localhost')) return undefined;
  const inner = host.slice(0, -'.localhost'.length);
  return [inner, `${inner}.myshopify.com`].find((name) => Object.hasOwn(settings.stores, name));
}

/** The credential as sent: the access-token field, a storefront one, or the password of Basic. */
export function tokenOf(headers: IncomingHttpHeaders): string {
  for (const name of ['x-shopify-access-token', 'x-shopify-storefront-access-token'] as const) {
    const value = headers[name];
    if (typeof value === 'string') return value;
  }
  const basic = /^basic\s+(\S+)$/i.exec(headers.authorization ?? '')?.[1];
  if (basic === undefined) return '';
  const pair = Buffer.from(basic, 'base64').toString('utf8');
  return pair.slice(pair.indexOf(':') + 1);
}

export function appOf(store: string, token: string, settings: CommerceSettings): string | undefined {
  const apps = Object.entries(settings.stores[store]?.apps ?? {});
  return apps.find(([, tokens]) => tokens.includes(token))?.[0];
}

export class StoreBuckets {
  readonly #buckets = new Map<string, Bucket>();
  /** A reduced limit and when it ends, by bucket. */
  readonly #reduced = new Map<string, { factor: number; until: number }>();
  readonly #outside = new Map<string, number>();
  #settings: CommerceSettings;

  constructor(settings: CommerceSettings) {
    this.#settings = settings;
  }

  configure(settings: CommerceSettings): void {
    this.#settings = settings;
  }

  reset(): void {
    this.#buckets.clear();
    this.#reduced.clear();
    this.#outside.clear();
  }

  /** The bucket with the limits it has at `now`, and its restore per second. */
  of(store: string, app: string, api: Api, now: number): { bucket: Bucket; perSecond: number; name: string } {
    const name = `${store}|${app}|${api}`;
    this.#endReduction(name, store, api, now);
    const { limit, perSecond } = this.#numbers(name, store, api);
    const options = {
      limit,
      windowMs: (limit / perSecond) * 1000,
      outsidePerSecond: this.#outside.get(name) ?? this.#outsideFor(api),
    };
    const known = this.#buckets.get(name);
    const bucket = known ?? new Bucket(options, now);
    if (known === undefined) this.#buckets.set(name, bucket);
    else known.change(options, now);
    return { bucket, perSecond, name };
  }

  reduce(name: string, factor: number, until: number): void {
    this.#reduced.set(name, { factor, until });
  }

  otherConsumer(name: string, perSecond: number): void {
    this.#outside.set(name, perSecond);
  }

  snapshot(now: number): Record<string, { limit: number; used: number }> {
    const found: Record<string, { limit: number; used: number }> = {};
    for (const [name, bucket] of this.#buckets)
      found[name] = { limit: bucket.limit, used: bucket.level(now) };
    return found;
  }

  /** The bucket drained slowly until the very instant at which the reduction ended. */
  #endReduction(name: string, store: string, api: Api, now: number): void {
    const reduced = this.#reduced.get(name);
    if (reduced === undefined || reduced.until > now) return;
    this.#reduced.delete(name);
    const { limit, perSecond } = this.#numbers(name, store, api);
    this.#buckets.get(name)?.change({ limit, windowMs: (limit / perSecond) * 1000 }, reduced.until);
  }

  #numbers(name: string, store: string, api: Api): { limit: number; perSecond: number } {
    const numbers: PlanNumbers = planNumbers(this.#settings.stores[store]?.plan);
    const factor = this.#reduced.get(name)?.factor ?? 1;
    return api === 'rest'
      ? { limit: numbers.limit * factor, perSecond: numbers.leak * factor }
      : { limit: numbers.max * factor, perSecond: numbers.restore * factor };
  }

  #outsideFor(api: Api): number {
    const outside = this.#settings.outsideTraffic;
    return outside !== null && (outside.api ?? 'rest') === api ? outside.perSecond : 0;
  }
}

/** Counts events of the last 60 s by name. */
export class LastMinute {
  readonly #times = new Map<string, number[]>();

  /** Counts one more and returns how many there now are. */
  add(name: string, now: number): number {
    const recent = this.#recent(name, now);
    recent.push(now);
    this.#times.set(name, recent);
    return recent.length;
  }

  count(name: string, now: number): number {
    return this.#recent(name, now).length;
  }

  clear(): void {
    this.#times.clear();
  }

  #recent(name: string, now: number): number[] {
    return (this.#times.get(name) ?? []).filter((time) => time > now - 60_000);
  }
}
