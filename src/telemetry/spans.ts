/**
 * The spans of a call: SERVER for the call, INTERNAL for each wait, CLIENT for each attempt, in stable HTTP semantic-convention names.
 * Loaded only when traces are exported (`traces.ts`).
 *
 * Never in a span: the target's URL, path or query, a host under a wildcard origin, field values, bodies, workspace
 * ids, baggage. Nothing is read from a call but its method, form and `traceparent`.
 */
import {
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
  TraceFlags,
  type Attributes,
  type Context,
  type Span,
  type SpanContext,
  type Tracer,
} from '@opentelemetry/api';
import {
  ATTR_ERROR_TYPE,
  ATTR_HTTP_REQUEST_METHOD,
  ATTR_HTTP_REQUEST_RESEND_COUNT,
  ATTR_HTTP_RESPONSE_STATUS_CODE,
  ATTR_HTTP_ROUTE,
  ATTR_SERVER_ADDRESS,
  ATTR_SERVER_PORT,
} from '@opentelemetry/semantic-conventions';
import { LRUCache } from 'lru-cache';
import type { AdmissionRecord, Call, Throttle } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { FailureReason } from '../errors.ts';
import type { LaneKey } from '../ids.ts';
import type { CallEnd } from './events.ts';

const knownMethods = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'QUERY']);
const routes: Record<Call['form'], string> = {
  proxy: '/proxy',
  via: '/via/{upstream}/{path}',
  activity: '/activity',
};

/** What decides with the call how it is traced. */
export interface TracedCaller {
  /** The call has a valid API key. The `traceparent` of any other counts for nothing: a stranger chooses no trace and forces none. */
  readonly isAuthenticated: boolean;
  /** When the call came, milliseconds since the epoch. */
  readonly startedAt: number;
}

/** Makes the spans of calls with the registered tracer provider, whose sampler decides which of them are recorded. */
export class Tracing {
  /** Exports what is buffered and stops. Called once, when the process drains. */
  readonly close: () => Promise<void>;
  readonly #tracer = trace.getTracer('sluice');
  readonly #latest = new LatestAttempts();

  constructor(close: () => Promise<void>) {
    this.close = close;
  }

  begin(call: Call, { isAuthenticated, startedAt }: TracedCaller): CallSpans {
    const parent = isAuthenticated ? parentOf(call.rawFields) : null;
    const known = knownMethods.has(call.method);
    const method = known ? call.method : '_OTHER';
    const route = routes[call.form];
    const server = this.#tracer.startSpan(
      `${known ? method : 'HTTP'} ${route}`,
      {
        kind: SpanKind.SERVER,
        startTime: startedAt,
        attributes: {
          [ATTR_HTTP_REQUEST_METHOD]: method,
          [ATTR_HTTP_ROUTE]: route,
          'sluice.request_id': call.id,
        },
      },
      parent === null ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent),
    );
    return new CallSpans({ tracer: this.#tracer, server, parent, method, latest: this.#latest });
  }
}

interface CallSpansParts {
  readonly tracer: Tracer;
  readonly server: Span;
  /** The client's span; `null` = this call begins its trace. */
  readonly parent: SpanContext | null;
  readonly method: string;
  readonly latest: LatestAttempts;
}

/** Spans of one call, one method for each step. A step whose predecessor was not reported is ignored. */
export class CallSpans {
  /** 32 hex digits when the call is sampled, else `null`: an exemplar must lead to a trace that exists. */
  readonly traceId: string | null;
  readonly #parts: CallSpansParts;
  readonly #inServer: Context;
  #address: Attributes = {};
  #lane: LaneKey | null = null;
  #wait: Span | null = null;
  #waitingSince = 0;
  #attempt: Span | null = null;
  #latestAttempt: LatestAttempt | null = null;

  constructor(parts: CallSpansParts) {
    const { server } = parts;
    this.#parts = parts;
    this.#inServer = trace.setSpan(ROOT_CONTEXT, server);
    this.traceId = server.isRecording() ? server.spanContext().traceId : null;
  }

  identified(label: string): void {
    this.#parts.server.setAttribute('sluice.workspace', label);
  }

  routed(upstream: UpstreamSettings): void {
    this.#parts.server.setAttribute('sluice.upstream', upstream.name);
    this.#address = { 'sluice.upstream': upstream.name };
    const [origin, ...others] = upstream.origins;
    // Only where configuration leaves one possible server: a host the client chose is the client's business.
    if (origin !== undefined && others.length === 0 && !origin.wildcard) {
      this.#address[ATTR_SERVER_ADDRESS] = origin.host;
      this.#address[ATTR_SERVER_PORT] = origin.port;
    }
  }

  /** The lane is known, whether or not the call waits. */
  entered(lane: LaneKey): void {
    this.#lane = lane;
  }

  waiting(lane: LaneKey): void {
    this.#lane = lane;
    this.#waitingSince = this.#parts.latest.now();
    this.#wait = this.#parts.tracer.startSpan('wait', { attributes: this.#upstreamOnly() }, this.#inServer);
  }

  /** The call waits no longer: it was granted, or has ended. */
  waitEnded(): void {
    if (this.#wait === null) return;
    const awaited = this.#lane === null ? null : this.#parts.latest.since(this.#lane, this.#waitingSince);
    if (awaited !== null)
      this.#wait.addLink({ context: awaited, attributes: { 'sluice.link': 'waited_for' } });
    this.#wait.end();
    this.#wait = null;
  }

  /** `resends`: attempts before this one. */
  sent(resends: number): void {
    const { tracer, method, latest } = this.#parts;
    this.#attempt = tracer.startSpan(
      method === '_OTHER' ? 'HTTP' : method,
      {
        kind: SpanKind.CLIENT,
        attributes: {
          [ATTR_HTTP_REQUEST_METHOD]: method,
          ...(resends > 0 ? { [ATTR_HTTP_REQUEST_RESEND_COUNT]: resends } : {}),
          ...this.#address,
        },
      },
      this.#inServer,
    );
    this.#latestAttempt =
      this.#lane !== null && this.traceId !== null
        ? latest.sent(this.#lane, this.#attempt.spanContext())
        : null;
  }

  /**
   * `traceparent` of the attempt in flight. A call that is not sampled passes its client's context on, as not sampled; where its
   * client gave none, `null`.
   */
  traceparent(): string | null {
    const { server, parent } = this.#parts;
    if (this.traceId !== null) return traceparentOf((this.#attempt ?? server).spanContext());
    return parent === null ? null : traceparentOf({ ...parent, traceFlags: TraceFlags.NONE });
  }

  /** `upstreamId`: of a throttled attempt, as the upstream names it. */
  answered(status: number, throttle: Throttle['kind'] | null, upstreamId: string | null): void {
    const attempt = this.#attempt;
    if (attempt === null) return;
    if (this.#latestAttempt !== null) this.#parts.latest.seen(this.#latestAttempt);
    attempt.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, status);
    if (throttle !== null) attempt.setAttribute('sluice.throttle', throttle);
    if (upstreamId !== null) attempt.setAttribute('sluice.upstream_request_id', upstreamId);
    if (status >= 400 || throttle !== null) fail(attempt, status >= 400 ? String(status) : 'throttled');
  }

  attemptFailed(error: string, reason: FailureReason | null): void {
    if (this.#attempt === null) return;
    if (reason !== null) this.#attempt.setAttribute('sluice.reason', reason);
    fail(this.#attempt, error);
  }

  attemptEnded(): void {
    this.#attempt?.end();
    this.#attempt = null;
    if (this.#latestAttempt !== null) this.#parts.latest.seen(this.#latestAttempt);
    this.#latestAttempt = null;
  }

  ended(end: CallEnd, { waitedMs, attempts, absorbed }: AdmissionRecord): void {
    const { server } = this.#parts;
    server.setAttributes({
      'sluice.outcome': end.outcome,
      'sluice.waited_ms': Math.round(waitedMs),
      'sluice.attempts': attempts,
      'sluice.absorbed': absorbed,
    });
    if (end.status > 0) server.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, end.status);
    if (end.code !== null) server.setAttribute('sluice.code', end.code);
    // A server span is an error only when the server is at fault: 5xx.
    if (end.status >= 500) fail(server, end.code ?? String(end.status));
    server.end();
  }

  #upstreamOnly(): Attributes {
    const upstream = this.#address['sluice.upstream'];
    return upstream === undefined ? {} : { 'sluice.upstream': upstream };
  }
}

function fail(span: Span, type: string): void {
  span.setAttribute(ATTR_ERROR_TYPE, type);
  span.setStatus({ code: SpanStatusCode.ERROR });
}

/** A recorded attempt, and the step at which it was last sent, answered or ended. */
interface LatestAttempt {
  readonly context: SpanContext;
  step: number;
}

/**
 * What calls of a lane wait for: the recorded attempt that was sent, answered or ended last while they waited. An attempt of
 * which nothing was seen meanwhile is not linked: where few calls are traced, it may be an hour old. Order is counted in steps, which
 * need no clock.
 */
class LatestAttempts {
  readonly #lanes = new LRUCache<LaneKey, LatestAttempt>({ max: 2_000 });
  #step = 0;

  /** The step that was last. */
  now(): number {
    return this.#step;
  }

  /** An attempt of the lane is on its way: the latest from now on. */
  sent(lane: LaneKey, context: SpanContext): LatestAttempt {
    const latestAttempt = { context, step: ++this.#step };
    this.#lanes.set(lane, latestAttempt);
    return latestAttempt;
  }

  /** The attempt was answered or has ended. */
  seen(latestAttempt: LatestAttempt): void {
    latestAttempt.step = ++this.#step;
  }

  /** The latest attempt of a lane, if something was seen of it after `step`. */
  since(lane: LaneKey, step: number): SpanContext | null {
    const latestAttempt = this.#lanes.get(lane);
    return latestAttempt !== undefined && latestAttempt.step > step ? latestAttempt.context : null;
  }
}

/** The client's span, from its W3C `traceparent`; `null` where that is missing, is not well-formed or comes twice. */
export function parentOf(rawFields: readonly string[]): SpanContext | null {
  let found: string | null = null;
  for (let i = 0; i + 1 < rawFields.length; i += 2) {
    const name = rawFields[i];
    if (name?.length !== 11 || name.toLowerCase() !== 'traceparent') continue;
    if (found !== null) return null;
    found = rawFields[i + 1] ?? '';
  }
  if (found === null) return null;
  const match =
    /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(found);
  const [, version, traceId, spanId, flags, rest] = match ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  if (version === '00' && rest !== undefined) return null;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & TraceFlags.SAMPLED, isRemote: true };
}

/** The `traceparent` field that a request carries (W3C Trace Context, level 1). */
const traceparentOf = ({ traceId, spanId, traceFlags }: SpanContext): string =>
  `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;
