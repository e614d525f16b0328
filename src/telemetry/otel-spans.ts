/**
 * What a call's spans say: SERVER for the call, INTERNAL for each wait, CLIENT for each attempt, in stable HTTP
 * semantic-convention names. Owns attributes and links; does not own whom a link leads to
 * (`latest-attempts.ts`) and the field of a trace (`traceparent.ts`). Loaded only when traces are exported.
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
  type ContextManager,
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
import type { AdmissionRecord, Call, Throttle } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { FailureReason } from '../errors.ts';
import type { CallEnd } from './events.ts';
import { LatestAttempts, type LatestAttempt } from './latest-attempts.ts';
import { isSampled, type Sampling } from './sampling.policy.ts';
import type { CallSpans, Tracing } from './spans.ts';
import { parentOf, traceparentOf } from './traceparent.ts';

const knownMethods = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'QUERY']);
const routes: Record<Call['form'], string> = {
  proxy: '/proxy',
  via: '/via/{upstream}/{path}',
  activity: '/activity',
};

/** A context manager that manages none: spans are given their parents explicitly. */
export const noContext: ContextManager = {
  active: () => ROOT_CONTEXT,
  with: (_context, run, self, ...given) => run.call(self as ThisParameterType<typeof run>, ...given),
  bind: (_context, target) => target,
  enable: () => noContext,
  disable: () => noContext,
};

export interface OtelOptions {
  readonly sampling: Sampling;
  /** Uniform in [0, 1): draws the calls that are traced. */
  readonly draw: () => number;
  /** Ends the SDK behind the tracer. */
  readonly close: () => Promise<void>;
}

/** Spans made with the registered tracer provider. */
export function createOtelTracing({ sampling, draw, close }: OtelOptions): Tracing {
  const tracer = trace.getTracer('sluice');
  const latest = new LatestAttempts();
  return {
    close,
    begin(call, { isAuthenticated, startedAt }) {
      const parent = isAuthenticated ? parentOf(call.rawFields) : null;
      const decided = parent && {
        traceId: parent.traceId,
        sampled: parent.traceFlags === TraceFlags.SAMPLED,
      };
      if (!isSampled(sampling, decided, draw)) return parent === null ? null : unsampled(parent);
      const known = knownMethods.has(call.method);
      const method = known ? call.method : '_OTHER';
      const route = routes[call.form];
      const span = tracer.startSpan(
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
      return new RecordedCall(tracer, span, method, latest);
    },
  };
}

/** A call of a trace that is not recorded here: it only passes its client's context on, as not sampled. */
function unsampled(parent: SpanContext): CallSpans {
  const nothing = (): void => {};
  return {
    traceId: null,
    identified: nothing,
    routed: nothing,
    entered: nothing,
    waiting: nothing,
    waitEnded: nothing,
    sent: nothing,
    traceparent: () => traceparentOf({ ...parent, traceFlags: TraceFlags.NONE }),
    answered: nothing,
    attemptFailed: nothing,
    attemptEnded: nothing,
    ended: nothing,
  };
}

class RecordedCall implements CallSpans {
  readonly traceId: string;
  readonly #tracer: Tracer;
  readonly #server: Span;
  readonly #inServer: Context;
  readonly #method: string;
  readonly #latest: LatestAttempts;
  #address: Attributes = {};
  #lane: string | null = null;
  #wait: Span | null = null;
  #waitingSince = 0;
  #attempt: Span | null = null;
  #latestAttempt: LatestAttempt | null = null;

  constructor(tracer: Tracer, server: Span, method: string, latest: LatestAttempts) {
    this.#tracer = tracer;
    this.#server = server;
    this.#inServer = trace.setSpan(ROOT_CONTEXT, server);
    this.#method = method;
    this.#latest = latest;
    this.traceId = server.spanContext().traceId;
  }

  identified(label: string): void {
    this.#server.setAttribute('sluice.workspace', label);
  }

  routed(upstream: UpstreamSettings): void {
    this.#server.setAttribute('sluice.upstream', upstream.name);
    this.#address = { 'sluice.upstream': upstream.name };
    const [origin, ...others] = upstream.origins;
    // Only where configuration leaves one possible server: a host the client chose is the client's business.
    if (origin !== undefined && others.length === 0 && !origin.wildcard) {
      this.#address[ATTR_SERVER_ADDRESS] = origin.host;
      this.#address[ATTR_SERVER_PORT] = origin.port;
    }
  }

  entered(lane: string): void {
    this.#lane = lane;
  }

  waiting(lane: string): void {
    this.#lane = lane;
    this.#waitingSince = this.#latest.now();
    this.#wait = this.#tracer.startSpan('wait', { attributes: this.#upstreamOnly() }, this.#inServer);
  }

  waitEnded(): void {
    if (this.#wait === null) return;
    const awaited = this.#lane === null ? null : this.#latest.since(this.#lane, this.#waitingSince);
    if (awaited !== null)
      this.#wait.addLink({ context: awaited, attributes: { 'sluice.link': 'waited_for' } });
    this.#wait.end();
    this.#wait = null;
  }

  sent(resends: number): void {
    this.#attempt = this.#tracer.startSpan(
      this.#method === '_OTHER' ? 'HTTP' : this.#method,
      {
        kind: SpanKind.CLIENT,
        attributes: {
          [ATTR_HTTP_REQUEST_METHOD]: this.#method,
          ...(resends > 0 ? { [ATTR_HTTP_REQUEST_RESEND_COUNT]: resends } : {}),
          ...this.#address,
        },
      },
      this.#inServer,
    );
    this.#latestAttempt =
      this.#lane === null ? null : this.#latest.sent(this.#lane, this.#attempt.spanContext());
  }

  traceparent(): string | null {
    return traceparentOf((this.#attempt ?? this.#server).spanContext());
  }

  answered(status: number, throttle: Throttle['kind'] | null, upstreamId: string | null): void {
    const attempt = this.#attempt;
    if (attempt === null) return;
    if (this.#latestAttempt !== null) this.#latest.seen(this.#latestAttempt);
    attempt.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, status);
    if (throttle !== null) attempt.setAttribute('sluice.throttle', throttle);
    if (upstreamId !== null) attempt.setAttribute('sluice.upstream_request_id', upstreamId);
    if (status >= 400 || throttle !== null) this.#fail(attempt, status >= 400 ? String(status) : 'throttled');
  }

  attemptFailed(error: string, reason: FailureReason | null): void {
    if (this.#attempt === null) return;
    if (reason !== null) this.#attempt.setAttribute('sluice.reason', reason);
    this.#fail(this.#attempt, error);
  }

  attemptEnded(): void {
    this.#attempt?.end();
    this.#attempt = null;
    if (this.#latestAttempt !== null) this.#latest.seen(this.#latestAttempt);
    this.#latestAttempt = null;
  }

  ended(end: CallEnd, { waitedMs, attempts, absorbed }: AdmissionRecord): void {
    this.#server.setAttributes({
      'sluice.outcome': end.outcome,
      'sluice.waited_ms': Math.round(waitedMs),
      'sluice.attempts': attempts,
      'sluice.absorbed': absorbed,
    });
    if (end.status > 0) this.#server.setAttribute(ATTR_HTTP_RESPONSE_STATUS_CODE, end.status);
    if (end.code !== null) this.#server.setAttribute('sluice.code', end.code);
    // A server span is an error only when the server is at fault: 5xx.
    if (end.status >= 500) this.#fail(this.#server, end.code ?? String(end.status));
    this.#server.end();
  }

  #fail(span: Span, type: string): void {
    span.setAttribute(ATTR_ERROR_TYPE, type);
    span.setStatus({ code: SpanStatusCode.ERROR });
  }

  #upstreamOnly(): Attributes {
    const upstream = this.#address['sluice.upstream'];
    return upstream === undefined ? {} : { 'sluice.upstream': upstream };
  }
}
