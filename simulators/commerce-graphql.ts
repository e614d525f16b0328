/**
 * GraphQL Admin and Storefront: cost, points, responses.
 *
 * Owns: the steps of a GraphQL call after authentication. Does not own: reading documents (`graphql-document.ts`).
 * Invariants: the whole requested cost is taken before the work and the difference given back after it; a throttled
 * or too expensive query takes nothing; the response's numbers are those after the refund.
 */
import { faultTarget, latencyMs, maxWorkMs, record, send } from './commerce/context.ts';
import type { CommerceContext, StoreCall } from './commerce/context.ts';
import { answeredByFault } from './commerce/faults.ts';
import { readDocument, type Plan } from './commerce/graphql-document.ts';
import type { Fault, FaultKind } from './faults.ts';
import { objectOf, parseJson, textOf, type Json } from './json.ts';
import type { LogEntry } from './log.ts';
import { nonceIn } from './recorder.ts';

const maxQueryCost = 1000;
const documentation = 'https://shopify.dev/api/usage/rate-limits';

const faultsAfterCheck: ReadonlySet<FaultKind> = new Set<FaultKind>([
  'internal',
  '500',
  '502-html',
  '503',
  'reset-before-response',
  'hang',
  'slow',
]);
const changes: ReadonlySet<FaultKind> = new Set<FaultKind>(['reduce', 'otherConsumer']);

type Points = ReturnType<CommerceContext['buckets']['of']>;

interface Query {
  readonly call: StoreCall;
  readonly body: Json;
  readonly plan: Plan;
  readonly points: Points;
}

/** `POST /admin/api/{version}/graphql.json` of a known app. */
export async function respondToGraphql(call: StoreCall, context: CommerceContext): Promise<void> {
  const now = context.clock.monotonic();
  changeLimits(call, context, now);
  const points = context.buckets.of(call.store, call.app, 'graphql', now);
  if (answeredByFault(call, context, points.name)) return;
  const reading = read(call, context);
  if ('message' in reading) {
    record(call, context, points.name, { decision: 'invalid' });
    send(call.exchange, reading.status, call.fields, JSON.stringify({ errors: reading.errors }));
    return;
  }
  const query = { call, ...reading, points };
  const { requested } = query.plan;
  const usedBefore = { graphql: points.bucket.level(now) };
  const facts = {
    cost: { graphql: requested },
    usedBefore,
    usedAfter: usedBefore,
    nonce: nonceIn(query.body),
  };
  if (requested > maxQueryCost) {
    record(call, context, points.name, { ...facts, decision: 'max-cost' });
    send(call.exchange, 200, call.fields, JSON.stringify({ errors: [maxCostError(requested)] }));
    return;
  }
  const waitMs = points.bucket.waitMs(requested, now);
  if (waitMs > 0) {
    record(call, context, points.name, { ...facts, decision: 'throttled', metric: 'graphql', waitMs });
    throttle(query, waitMs, context);
    return;
  }
  points.bucket.take(requested, now);
  const usedAfter = { graphql: points.bucket.level(now) };
  const executed = query.plan.operation === 'mutation';
  const entry = record(call, context, points.name, { ...facts, decision: 'admitted', usedAfter, executed });
  await run(query, entry, context);
}

type Read =
  | { readonly body: Json; readonly plan: Plan }
  | { readonly message: string; readonly status: 200 | 400; readonly errors: unknown };

function read(call: StoreCall, { settings }: CommerceContext): Read {
  const body = objectOf(parseJson(call.exchange.body.toString('utf8')));
  const text = textOf(body?.['query']);
  if (body === undefined || text === undefined) {
    const message = 'Required parameter missing or invalid';
    return { message, status: 400, errors: { query: message } };
  }
  const variables = objectOf(body['variables']) ?? {};
  const reading = readDocument(text, variables, textOf(body['operationName']), settings.graphql.rows);
  if ('plan' in reading) return { body, plan: reading.plan };
  return { message: reading.message, status: 200, errors: [{ message: reading.message }] };
}

async function run(query: Query, entry: LogEntry, context: CommerceContext): Promise<void> {
  const { call, plan, points } = query;
  const fault = context.faults.take(faultsAfterCheck, faultTarget(call));
  if (fault !== undefined) entry.fault = fault.kind;
  const key = plan.idempotencyKey;
  const scope = `${call.store}|${call.app}`;
  const payload = JSON.stringify([query.body['query'], query.body['variables'] ?? null]);
  const check = key === null ? ({ kind: 'new' } as const) : context.keys.check(scope, key, payload);
  entry.executed = check.kind === 'new';
  if (fault?.kind === 'hang') return;
  const workMs = (plan.ms ?? latencyMs(context)) + (fault?.kind === 'slow' ? (fault.ms ?? 0) : 0);
  const connected = await call.exchange.sleep(Math.min(workMs, maxWorkMs));
  if (key !== null && check.kind === 'new') context.keys.done(scope, key, plan.data);
  points.bucket.take(plan.actual - plan.requested, context.clock.monotonic());
  if (!connected) return;
  if (workMs > maxWorkMs) {
    send(call.exchange, 504, call.fields, '{"errors":"Gateway Timeout"}');
    return;
  }
  if (fault !== undefined && answeredByLateFault(call, fault)) return;
  if (check.kind === 'conflict') {
    const extensions = { code: check.code };
    const errors = [{ message: 'The idempotency key cannot be used for this request.', extensions }];
    reply(query, { errors }, context);
    return;
  }
  reply(query, { data: check.kind === 'replay' ? check.data : plan.data }, context);
}

function reply(query: Query, body: Json, context: CommerceContext): void {
  const debug = query.call.exchange.request.headers['shopify-graphql-cost-debug'] === '1';
  const { requested, actual, fields } = query.plan;
  const cost = {
    requestedQueryCost: requested,
    actualQueryCost: actual,
    throttleStatus: throttleStatus(query.points, context.clock.monotonic()),
    ...(debug ? { fields } : {}),
  };
  send(query.call.exchange, 200, query.call.fields, JSON.stringify({ ...body, extensions: { cost } }));
}

function throttleStatus({ bucket, perSecond }: Points, now: number): unknown {
  return {
    maximumAvailable: bucket.limit,
    currentlyAvailable: bucket.remaining(now),
    restoreRate: perSecond,
  };
}

/** 200 with an error: `Throttled`, with or without code and cost; or 429, by the switches. */
function throttle({ call, plan, points }: Query, waitMs: number, context: CommerceContext): void {
  const { legacyThrottle, bareThrottle, http429 } = context.settings.graphql;
  const now = context.clock.monotonic();
  const error = legacyThrottle
    ? { message: 'Throttled' }
    : { message: 'Throttled', extensions: { code: 'THROTTLED', documentation } };
  const cost = {
    requestedQueryCost: plan.requested,
    actualQueryCost: null,
    throttleStatus: throttleStatus(points, now),
  };
  const body = JSON.stringify({ errors: [error], ...(bareThrottle ? {} : { extensions: { cost } }) });
  if (!http429) {
    send(call.exchange, 200, call.fields, body);
    return;
  }
  const seconds = Math.max(1, Math.ceil(waitMs / 1000));
  context.recorder.retryAfters.sent(points.name, seconds * 1000, now);
  send(call.exchange, 429, { ...call.fields, 'retry-after': `${seconds}.0` }, body);
}

function maxCostError(cost: number): unknown {
  return {
    message: `Query cost is ${cost}, which exceeds the single query max cost limit (${maxQueryCost}).\n\nSee https://shopify.dev/concepts/about-apis/rate-limits for more information on how the\ncost of a query is calculated.`,
    extensions: {
      code: 'MAX_COST_EXCEEDED',
      cost,
      maxCost: maxQueryCost,
      documentation: 'https://shopify.dev/api/usage/limits#rate-limits',
    },
  };
}

/** `reduce` and `otherConsumer`: the bucket is another one from this call on. */
function changeLimits(call: StoreCall, context: CommerceContext, now: number): void {
  const fault = context.faults.take(changes, faultTarget(call));
  if (fault === undefined) return;
  const { name } = context.buckets.of(call.store, call.app, 'graphql', now);
  if (fault.kind === 'reduce') context.buckets.reduce(name, fault.factor ?? 0.1, now + (fault.ms ?? 60_000));
  else context.buckets.otherConsumer(name, fault.perSecond ?? 0);
}

/** True when the fault has answered; the work is done by then. */
function answeredByLateFault({ exchange, fields }: StoreCall, { kind }: Fault): boolean {
  if (kind === 'reset-before-response') exchange.cut();
  else if (kind === 'internal') {
    const extensions = { code: 'INTERNAL_SERVER_ERROR', requestId: fields['x-request-id'] };
    send(exchange, 200, fields, JSON.stringify({ errors: [{ message: 'Internal error.', extensions }] }));
  } else if (kind === '500' || kind === '502-html' || kind === '503') {
    const status = kind === '500' ? 500 : kind === '503' ? 503 : 502;
    exchange.reply(status, { ...fields, 'content-type': 'text/html' }, `<html><body>${status}</body></html>`);
  } else return false;
  return true;
}

/** `POST /api/{version}/graphql.json`: no bucket for buyers, only the limits against bots. */
export async function respondToStorefront(call: StoreCall, context: CommerceContext): Promise<void> {
  const now = context.clock.monotonic();
  const bucket = `${call.store}|storefront`;
  const { anonymousPerMinute, cartsPerMinute } = context.settings.storefront;
  const anonymous = call.exchange.request.headers['shopify-storefront-buyer-ip'] === undefined;
  if (
    anonymous &&
    anonymousPerMinute !== null &&
    context.lastMinute.add(`${bucket}|ip`, now) > anonymousPerMinute
  ) {
    record(call, context, bucket, { decision: 'state' });
    send(call.exchange, 430, call.fields, '{"errors":"Shopify Security Rejection"}');
    return;
  }
  const reading = read(call, context);
  if ('message' in reading) {
    record(call, context, bucket, { decision: 'invalid' });
    send(call.exchange, reading.status, call.fields, JSON.stringify({ errors: reading.errors }));
    return;
  }
  const { plan } = reading;
  const nonce = nonceIn(reading.body);
  if (call.note.key === '' && plan.requested > maxQueryCost) {
    record(call, context, bucket, { decision: 'max-cost', nonce });
    send(call.exchange, 200, call.fields, JSON.stringify({ errors: [maxCostError(plan.requested)] }));
    return;
  }
  const cart = plan.rootFields.includes('cartCreate');
  if (cart && cartsPerMinute !== null && context.lastMinute.add(`${bucket}|cart`, now) > cartsPerMinute) {
    record(call, context, bucket, { decision: 'throttled', metric: 'carts', nonce });
    send(call.exchange, 200, call.fields, '{"errors":[{"message":"Throttled"}]}');
    return;
  }
  record(call, context, bucket, { decision: 'admitted', executed: plan.operation === 'mutation', nonce });
  if (await call.exchange.sleep(latencyMs(context))) {
    send(call.exchange, 200, call.fields, JSON.stringify({ data: plan.data }));
  }
}
