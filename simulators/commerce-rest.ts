/**
 * REST Admin: the call bucket and the work behind it.
 *
 * Owns: the steps of a REST call after authentication. Does not own: resources and paths (`commerce/`).
 * Invariants: a refused call takes no slot; the work of an admitted call is done even if the client has left, once;
 * the log has the hash of each executed body.
 */
import { faultTarget, latencyMs, maxWorkMs, record, send } from './commerce/context.ts';
import type { CommerceContext, StoreCall } from './commerce/context.ts';
import { answeredByFault } from './commerce/faults.ts';
import { print } from './commerce/resources.ts';
import {
  respondToRest,
  createsOrder,
  restPathOf,
  type RestResponse,
  type RestPath,
} from './commerce/rest.ts';
import type { Fault, FaultKind } from './faults.ts';
import { objectOf, parseJson } from './json.ts';
import { nonceIn } from './recorder.ts';

const faultsAfterCheck: ReadonlySet<FaultKind> = new Set<FaultKind>([
  '500',
  '502-html',
  '503',
  'reset-before-response',
  'hang',
  'slow',
  'clock-skew',
  'no-ratelimit-headers',
  'duplicate-call-limit',
]);

type CallBucket = ReturnType<CommerceContext['buckets']['of']>;

/** Any path below `/admin/` that is not GraphQL, of a known app. */
export async function respondToAdminRest(call: StoreCall, context: CommerceContext): Promise<void> {
  const now = context.clock.monotonic();
  const calls = context.buckets.of(call.store, call.app, 'rest', now);
  if (answeredByFault(call, context, calls.name)) return;
  const path = restPathOf(call.exchange.path);
  const usedBefore = { rest: calls.bucket.level(now) };
  const facts = { cost: { rest: 1 }, usedBefore, usedAfter: usedBefore, nonce: bodyNonce(call) };
  const waitMs = calls.bucket.waitMs(1, now);
  if (waitMs > 0) {
    record(call, context, calls.name, { ...facts, decision: 'throttled', metric: 'rest', waitMs });
    refuse(call, calls, waitMs, context);
    return;
  }
  calls.bucket.take(1, now);
  const usedAfter = { rest: calls.bucket.level(now) };
  const used = `${Math.ceil(usedAfter.rest - 1e-6)}/${calls.bucket.limit}`;
  if (path !== undefined && tooManyOrders(call, path, context)) {
    record(call, context, calls.name, { ...facts, usedAfter, decision: 'secondary-limit', metric: 'orders' });
    const errors = 'Exceeded order API rate limit, please try again in a minute. Please contact support.';
    const headers = { ...call.fields, ...callLimit(used, context) };
    send(call.exchange, 429, headers, JSON.stringify({ errors }));
    return;
  }
  const fault = context.faults.take(faultsAfterCheck, faultTarget(call));
  const entry = record(call, context, calls.name, {
    ...facts,
    usedAfter,
    decision: 'admitted',
    executed: true,
  });
  entry.fault = fault?.kind ?? '';
  const response = path === undefined ? notFound : work(call, path, context);
  await reply(call, response, fault, used, context);
}

const notFound: RestResponse = { status: 404, headers: {}, body: { errors: 'Not Found' } };

function work(call: StoreCall, path: RestPath, context: CommerceContext): RestResponse {
  const called = `http://${call.exchange.request.headers.host ?? call.store}`;
  const origin = context.settings.linkOrigin === 'shop' ? `https://${call.store}` : called;
  const at = new Date(context.clock.now()).toISOString();
  return respondToRest(call.exchange, path, context.resources, call.store, { origin, at });
}

async function reply(
  call: StoreCall,
  response: RestResponse,
  fault: Fault | undefined,
  used: string,
  context: CommerceContext,
): Promise<void> {
  const { exchange, fields } = call;
  if (fault?.kind === 'hang') return;
  const workMs = latencyMs(context) + (fault?.kind === 'slow' ? (fault.ms ?? 0) : 0);
  if (!(await exchange.sleep(Math.min(workMs, maxWorkMs)))) return;
  const limit = fault?.kind === 'no-ratelimit-headers' ? {} : callLimit(used, context, fault);
  if (workMs > maxWorkMs) send(exchange, 504, { ...fields, ...limit }, '{"errors":"Gateway Timeout"}');
  else if (fault?.kind === 'reset-before-response') exchange.cut();
  else if (fault?.kind === '500') send(exchange, 500, fields, '{"errors":"Internal Server Error"}');
  else if (fault?.kind === '503') send(exchange, 503, fields, '{"errors":"Service Unavailable"}');
  else if (fault?.kind === '502-html') {
    exchange.reply(502, { 'content-type': 'text/html' }, '<html><body>502 Bad Gateway</body></html>');
  } else {
    if (fault?.kind === 'clock-skew') exchange.skewMs = (fault.seconds ?? 0) * 1000;
    send(exchange, response.status, { ...fields, ...limit, ...response.headers }, print(response.body));
  }
}

function refuse(
  call: StoreCall,
  { bucket, perSecond, name }: CallBucket,
  waitMs: number,
  context: CommerceContext,
): void {
  const { settings, recorder, clock, lastMinute } = context;
  const now = clock.monotonic();
  const seconds = settings.retryAfter === 'fixed' ? 2 : Math.ceil((waitMs - 1e-3) / 100) / 10;
  recorder.retryAfters.sent(name, seconds * 1000, now);
  lastMinute.add(`refusals|${call.store}|${call.app}`, now);
  const errors = `Exceeded ${perSecond} calls per second for api client. Reduce request rates to resume uninterrupted service.`;
  const limit = callLimit(`${bucket.limit}/${bucket.limit}`, context);
  const headers = { ...call.fields, ...limit, 'Retry-After': seconds.toFixed(1) };
  send(call.exchange, 429, headers, JSON.stringify({ errors }));
}

/** The fields of the setting; the `duplicate-call-limit` fault joins two values by a comma, as a proxy may. */
function callLimit(used: string, { settings }: CommerceContext, fault?: Fault): Record<string, string> {
  const value = fault?.kind === 'duplicate-call-limit' ? `${used}, ${used}` : used;
  const shopify = { 'X-Shopify-Shop-Api-Call-Limit': value, HTTP_X_SHOPIFY_SHOP_API_CALL_LIMIT: value };
  const commerce = { 'X-Commerce-Shop-Api-Call-Limit': value };
  switch (settings.callLimitField) {
    case 'shopify':
      return shopify;
    case 'commerce':
      return commerce;
    case 'all':
      return { ...shopify, ...commerce };
  }
}

/** Development stores: a second kind of 429, with a low call limit and no `Retry-After` (U32). */
function tooManyOrders(call: StoreCall, path: RestPath, context: CommerceContext): boolean {
  const most = context.settings.stores[call.store]?.devOrderLimit ?? null;
  if (most === null || !createsOrder(call.exchange.method, path)) return false;
  const name = `orders|${call.store}`;
  const now = context.clock.monotonic();
  if (context.lastMinute.count(name, now) >= most) return true;
  context.lastMinute.add(name, now);
  return false;
}

function bodyNonce({ exchange }: StoreCall): string {
  if (exchange.body.length === 0) return '';
  return nonceIn(objectOf(parseJson(exchange.body.toString('utf8'))) ?? {});
}
