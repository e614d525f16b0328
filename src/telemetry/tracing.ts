/**
 * The spans of a call: SERVER for the call, INTERNAL for each wait, CLIENT for each attempt, in stable HTTP semantic-convention names;
 * and where they go: nowhere, until somebody has configured it.
 *
 * Never in a span: the target's URL, path or query, a host under a wildcard origin, field values, bodies, workspace
 * ids, baggage. Nothing is read from a call but its method, form and `traceparent`.
 */
import { ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags } from '@opentelemetry/api';
import type { Attributes, Span, SpanContext, Tracer } from '@opentelemetry/api';
import type { AdmissionRecord, Call, Throttle } from '../call.ts';
import type { UpstreamSettings } from '../config/settings.ts';
import type { FailureReason } from '../errors.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { knownMethods, type CallEnd } from './events.ts';

const routes: Record<Call['form'], string> = {
  proxy: '/proxy',
  via: '/via/{upstream}/{path}',
  activity: '/activity',
};

/** The registered tracer, whose sampler decides which calls are recorded. */
export interface Tracing {
  readonly tracer: Tracer;
  /** Exports what is buffered and stops. Called once, when the process drains. */
  close(): Promise<void>;
}

/**
 * Spans of one call, one method for each step. A step whose predecessor was not reported is ignored. A call that is not sampled has one
 * span, which records nothing.
 */
export class CallSpans {
  /** 32 hex digits when the call is sampled, else `null`: a log line must lead to a trace that exists. */
  readonly traceId: string | null;
  readonly #tracer: Tracer;
  readonly #server: Span;
  readonly #method: string;
  readonly #upstream: UpstreamSettings | null;
  #wait: Span | null = null;
  #attempt: Span | null = null;

  /**
   * `startTime`: when the call came, Unix milliseconds. `workspace`: its label; `null` = it has no valid API key, and its `traceparent`
   * counts for nothing: a stranger chooses no trace and forces none.
   */
  constructor(
    tracer: Tracer,
    { id, method, form, rawFields }: Pick<Call, 'id' | 'method' | 'form' | 'rawFields'>,
    of: {
      readonly startTime: number;
      readonly workspace: string | null;
      readonly upstream: UpstreamSettings | null;
    },
  ) {
    const { startTime, workspace, upstream } = of;
    this.#tracer = tracer;
    const parent = workspace === null ? null : parentOf(rawFields);
    this.#upstream = upstream;
    this.#method = knownMethods.has(method) ? method : 'HTTP';
    const within = parent === null ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent);
    const kind = { kind: SpanKind.SERVER, startTime };
    this.#server = tracer.startSpan(`${this.#method} ${routes[form]}`, kind, within);
    this.traceId = this.#server.isRecording() ? this.#server.spanContext().traceId : null;
    if (this.traceId === null) return;
    // Few calls are sampled, so that the others do not make them.
    this.#server.setAttributes({
      ...this.#attributes(),
      'http.route': routes[form],
      'sluice.request_id': id,
    });
    if (workspace !== null) this.#server.setAttribute('sluice.workspace', workspace);
  }

  waiting(): void {
    if (this.traceId !== null) this.#wait = this.#begin('wait', SpanKind.INTERNAL, this.#ofUpstream());
  }

  /** The call waits no longer: it was granted, or has ended. */
  waitEnded(): void {
    this.#wait?.end();
    this.#wait = null;
  }

  /** `resends`: attempts before this one. */
  sent(resends: number): void {
    if (this.traceId === null) return;
    const attributes = this.#attributes();
    if (resends > 0) attributes['http.request.resend_count'] = resends;
    const [origin, ...others] = this.#upstream?.origins ?? [];
    // Only where configuration leaves one possible server: a host the client chose is the client's business.
    if (origin !== undefined && others.length === 0 && !origin.wildcard) {
      attributes['server.address'] = origin.host;
      attributes['server.port'] = origin.port;
    }
    this.#attempt = this.#begin(this.#method, SpanKind.CLIENT, attributes);
  }

  /** `traceparent` of the attempt in flight; `null` where the call is not sampled. */
  traceparent(): string | null {
    return this.traceId === null ? null : traceparentOf((this.#attempt ?? this.#server).spanContext());
  }

  answered(status: number, throttle: Throttle['kind'] | null): void {
    const attempt = this.#attempt;
    if (attempt === null) return;
    attempt.setAttribute('http.response.status_code', status);
    if (throttle !== null) attempt.setAttribute('sluice.throttle', throttle);
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
  }

  ended({ outcome, status, code }: CallEnd, { waitedMs, attempts, absorbed, held }: AdmissionRecord): void {
    if (this.traceId === null) return;
    this.#server.setAttributes({
      'sluice.outcome': outcome,
      'sluice.waited_ms': Math.round(waitedMs),
      'sluice.attempts': attempts,
      'sluice.absorbed': absorbed,
    });
    const [longest] = held;
    if (longest !== undefined) this.#server.setAttribute('sluice.held_by', longest.cause);
    if (status > 0) this.#server.setAttribute('http.response.status_code', status);
    if (code !== null) this.#server.setAttribute('sluice.code', code);
    // A server span is an error only when the server is at fault: 5xx.
    if (status >= 500) fail(this.#server, code ?? String(status));
    this.#server.end();
  }

  #begin(name: string, kind: SpanKind, attributes: Attributes): Span {
    return this.#tracer.startSpan(name, { kind, attributes }, trace.setSpan(ROOT_CONTEXT, this.#server));
  }

  #ofUpstream(): Attributes {
    return this.#upstream === null ? {} : { 'sluice.upstream': this.#upstream.name };
  }

  #attributes(): Attributes {
    const method = this.#method === 'HTTP' ? '_OTHER' : this.#method;
    return { 'http.request.method': method, ...this.#ofUpstream() };
  }
}

function fail(span: Span, type: string): void {
  span.setAttribute('error.type', type);
  span.setStatus({ code: SpanStatusCode.ERROR });
}

/** The client's span, from its W3C `traceparent`; `null` where that is missing, is not well-formed or comes twice. */
export function parentOf(rawFields: readonly string[]): SpanContext | null {
  const [given, ...others] = valuesOf(rawFields, 'traceparent');
  if (given === undefined || others.length > 0) return null;
  const match =
    /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(given);
  const [, version, traceId, spanId, flags, rest] = match ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  if (version === '00' && rest !== undefined) return null;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & TraceFlags.SAMPLED, isRemote: true };
}

/** The `traceparent` field that a request carries (W3C Trace Context, level 1). */
export const traceparentOf = ({ traceId, spanId, traceFlags }: SpanContext): string =>
  `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`;

type Environment = Readonly<Record<string, string | undefined>>;

/** True when the standard variables name a place for spans and do not switch tracing off. */
export function tracingConfigured(env: Environment): boolean {
  const exporters = (env['OTEL_TRACES_EXPORTER'] ?? '').split(',').map((name) => name.trim());
  if (env['OTEL_SDK_DISABLED']?.toLowerCase() === 'true' || exporters.includes('none')) return false;
  const endpoints = [env['OTEL_EXPORTER_OTLP_ENDPOINT'], env['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT']];
  return [...exporters, ...endpoints].some((place) => place !== undefined && place !== '');
}

/**
 * Starts the SDK when `env` configures an exporter, else gives `null` and loads nothing: it costs 0.2 s of CPU and 20 MB to load, and started
 * without configuration it would export to localhost. It reads the other standard variables (endpoint, protocol, headers, batching,
 * sampler, resource attributes) from the process's environment itself. Nothing is instrumented automatically, because that records target
 * URLs and script arguments and would hand the client's `baggage` to the upstream. `instanceId` names this replica in `service.instance.id`.
 */
export async function startTracing(env: Environment, instanceId: string): Promise<Tracing | null> {
  if (!tracingConfigured(env)) return null;
  const [{ NodeSDK }, resources] = await Promise.all([
    import('@opentelemetry/sdk-node'),
    import('@opentelemetry/resources'),
  ]);
  const own = { 'service.name': 'sluice', 'service.instance.id': instanceId };
  const detectors = [resources.resourceAttributesEnvDetector, resources.serviceNameEnvDetector];
  const sdk = new NodeSDK({
    resource: resources
      .defaultResource()
      .merge(resources.resourceFromAttributes(own))
      .merge(resources.detectResources({ detectors })),
    // The SDK's other detectors would add host names and the command line.
    autoDetectResources: false,
    // Spans are given their parents explicitly, and nothing is put into requests but a `traceparent`.
    textMapPropagator: null,
    instrumentations: [],
    metricReaders: [],
    logRecordProcessors: [],
  });
  sdk.start();
  return { tracer: trace.getTracer('sluice'), close: () => sdk.shutdown() };
}
