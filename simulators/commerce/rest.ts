/**
 * REST Admin paths over a store's resources, with cursor pages.
 *
 * Owns: routing below `/admin/api/{version}/`, `Link`, counts. Does not own: limits, authentication.
 * Invariant: `Link` and `Location` hold absolute URLs, as the real API sends them.
 */
import { objectOf, parseJson, type Json } from '../json.ts';
import type { Exchange } from '../exchange.ts';
import {
  collections,
  singular,
  type Collection,
  type Outcome,
  type Resource,
  type Resources,
} from './resources.ts';

export interface RestResponse {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: unknown;
}

export interface RestPath {
  readonly version: string;
  /** Path below the version, without `.json`. */
  readonly rest: string;
}

/** Unversioned paths count too: they mean the oldest version. */
export function restPathOf(path: string): RestPath | undefined {
  const match = /^\/admin\/(?:api\/([\w-]+)\/)?([\w/.-]+?)(?:\.json)?$/.exec(path);
  return match === null ? undefined : { version: match[1] ?? '2026-01', rest: match[2] ?? '' };
}

export function createsOrder(method: string, path: RestPath): boolean {
  return method === 'POST' && path.rest === 'orders';
}

/** @param origin scheme and host for absolute URLs; `at` an RFC 3339 instant. */
export function respondToRest(
  exchange: Exchange,
  path: RestPath,
  resources: Resources,
  store: string,
  { origin, at }: { readonly origin: string; readonly at: string },
): RestResponse {
  const base = `${origin}/admin/api/${path.version}`;
  if (path.rest === 'shop' && exchange.method === 'GET') {
    const shop = {
      id: 9_007_199_254_740_995n,
      name: store,
      domain: store,
      myshopify_domain: store,
      currency: 'EUR',
    };
    return { status: 200, headers: {}, body: { shop } };
  }
  const [name = '', id, extra] = path.rest.split('/');
  const collection = collections.find((one) => one === name);
  if (collection === undefined || extra !== undefined) return missing();
  if (exchange.method === 'GET' || exchange.method === 'HEAD') {
    return read(exchange.query, collection, id, resources, store, base);
  }
  const body = objectOf(parseJson(exchange.body.toString('utf8')));
  if (body === undefined && exchange.method !== 'DELETE') {
    return { status: 400, headers: {}, body: { errors: 'Unparsable JSON' } };
  }
  return responseOf(
    change(exchange.method, collection, id, { resources, store, body: body ?? {}, at }),
    base,
  );
}

function change(
  method: string,
  collection: Collection,
  id: string | undefined,
  call: { readonly resources: Resources; readonly store: string; readonly body: Json; readonly at: string },
): Outcome {
  const { resources, store, body, at } = call;
  if (collection === 'inventory_levels' && method === 'POST' && (id === 'adjust' || id === 'set')) {
    return resources.stock(store, id, body, at);
  }
  if (method === 'POST' && id === undefined) return resources.create(store, collection, body, at);
  if (method === 'PUT' && id !== undefined) return resources.update(store, collection, id, body, at);
  if (method === 'DELETE' && id !== undefined) return resources.remove(store, collection, id);
  return { status: 404, errors: 'Not Found' };
}

function read(
  query: URLSearchParams,
  collection: Collection,
  id: string | undefined,
  resources: Resources,
  store: string,
  base: string,
): RestResponse {
  if (id === 'count') {
    return { status: 200, headers: {}, body: { count: resources.list(store, collection).length } };
  }
  if (id !== undefined) {
    const found = resources.get(store, collection, id);
    return found === undefined
      ? missing()
      : { status: 200, headers: {}, body: { [singular[collection]]: found } };
  }
  return page(query, collection, resources.list(store, collection), base);
}

/** `page_info` encodes an offset; as in the real API, it may stand beside `limit` only. */
function page(
  query: URLSearchParams,
  collection: Collection,
  all: readonly Resource[],
  base: string,
): RestResponse {
  const limit = Math.min(250, Math.max(1, Math.floor(Number(query.get('limit') ?? 50)) || 50));
  const cursor = query.get('page_info');
  const start = cursor === null ? 0 : offsetOf(cursor);
  if (start === undefined)
    return { status: 400, headers: {}, body: { errors: { page_info: 'Invalid value.' } } };
  const link = (offset: number, rel: string): string =>
    `<${base}/${collection}.json?limit=${limit}&page_info=${cursorAt(offset)}>; rel="${rel}"`;
  const links = [
    ...(start > 0 ? [link(Math.max(0, start - limit), 'previous')] : []),
    ...(start + limit < all.length ? [link(start + limit, 'next')] : []),
  ];
  const headers: Record<string, string> = links.length > 0 ? { link: links.join(', ') } : {};
  return { status: 200, headers, body: { [collection]: all.slice(start, start + limit) } };
}

function cursorAt(offset: number): string {
  return Buffer.from(JSON.stringify({ offset })).toString('base64url');
}

function offsetOf(cursor: string): number | undefined {
  const offset = objectOf(parseJson(Buffer.from(cursor, 'base64url').toString('utf8')))?.['offset'];
  return typeof offset === 'number' && Number.isInteger(offset) && offset >= 0 ? offset : undefined;
}

function responseOf(outcome: Outcome, base: string): RestResponse {
  if ('errors' in outcome) return { status: outcome.status, headers: {}, body: { errors: outcome.errors } };
  if (outcome.location === undefined) return { status: outcome.status, headers: {}, body: outcome.body };
  const headers = { location: `${base}/${outcome.location}`, 'retry-after': '1' };
  return { status: outcome.status, headers, body: outcome.body };
}

function missing(): RestResponse {
  return { status: 404, headers: {}, body: { errors: 'Not Found' } };
}
