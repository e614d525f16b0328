import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from '@jest/globals';
import { trace, TraceFlags } from '@opentelemetry/api';
import { parentOf, startTracing, tracingConfigured } from '../../src/telemetry/tracing.ts';
import { workspaceLabel } from '../../src/identity.ts';
import { otlpSink, type SinkSpan } from './otlp-sink.ts';
import { callAt, driven, entered, lm, shop } from './drive.ts';

const caller = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
const server = 2;
const client = 3;

const before = { ...process.env };
/** A receiver that the standard variables name from now on. */
async function namedSink() {
  const sink = await otlpSink();
  const named = { OTEL_EXPORTER_OTLP_ENDPOINT: sink.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json' };
  Object.assign(process.env, named);
  return sink;
}
function unnamed(): void {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  trace.disable();
}

describe('the spans of a queued, twice-throttled, streamed call, as an OTLP receiver gets them', () => {
  let spans: readonly SinkSpan[] = [];
  let exported = '';
  let resource: Record<string, unknown> = {};
  const upstreamSaw: (string | null)[] = [];
  let traceIdInLog: unknown;

  beforeAll(async () => {
    const sink = await namedSink();
    process.env['OTEL_RESOURCE_ATTRIBUTES'] = 'deployment.environment.name=test';
    const tracing = await startTracing(process.env, 'replica-1');
    const given = driven({ tracing });

    const call = entered(given, {
      rawFields: ['traceparent', caller, 'baggage', 'canary=baggage', 'cookie', 'canary'],
    });
    for (const wait of [1, 2]) {
      call.queued();
      upstreamSaw.push(call.sent());
      call.answered(429, { kind: 'rate', waitMs: wait, meter: null });
      call.absorbed();
    }
    call.queued();
    call.sent();
    call.answered(200, null);
    call.ended({ outcome: 'ok', status: 200, code: null });

    const wild = entered(given, {
      method: 'CANARY',
      form: 'via',
      workspace: 'canary-workspace',
      upstream: shop,
    });
    wild.sent();
    wild.attemptFailed('upstream_unreachable', 'refused');
    wild.ended({ outcome: 'failed', status: 502, code: 'upstream_unreachable' });

    traceIdInLog = given.lines().find((line) => line['absorbed'] === 2)?.['traceId'];
    await given.telemetry.close();
    spans = sink.spans;
    exported = sink.bodies.join('\n');
    resource = spans[0]?.resource ?? {};
    await sink.close();
  });

  afterAll(unnamed);

  const ofCall = () => spans.filter((span) => span.traceId === '4bf92f3577b34da6a3ce929d0e0e4736');
  const named = (name: string) => ofCall().filter((span) => span.name === name);

  test('have one server span that continues the trace of the client and is named in the log line', () => {
    const [span, ...others] = ofCall().filter((each) => each.kind === server);
    expect(others).toEqual([]);
    expect(span).toMatchObject({ name: 'POST /proxy', parentSpanId: '00f067aa0ba902b7' });
    expect(span?.attributes).toEqual({
      'http.request.method': 'POST',
      'http.route': '/proxy',
      'http.response.status_code': 200,
      'sluice.request_id': '0123456789abcdef0123456789abcdef',
      'sluice.workspace': workspaceLabel('a label key of a test', 'acme'),
      'sluice.upstream': 'lm',
      'sluice.outcome': 'ok',
      'sluice.waited_ms': 0,
      'sluice.attempts': 3,
      'sluice.absorbed': 2,
    });
    expect(traceIdInLog).toBe('4bf92f3577b34da6a3ce929d0e0e4736');
  });

  test('have one internal span per wait, and one client span per attempt with its resend count, status and server', () => {
    expect(named('wait').map((span) => span.kind)).toEqual([1, 1, 1]);
    const attempts = named('POST');
    expect(attempts.map((span) => span.kind)).toEqual([client, client, client]);
    expect(attempts.map((span) => span.attributes['http.request.resend_count'])).toEqual([undefined, 1, 2]);
    expect(attempts.map((span) => span.attributes['http.response.status_code'])).toEqual([429, 429, 200]);
    expect(attempts.map((span) => span.attributes['error.type'])).toEqual(['429', '429', undefined]);
    expect(attempts.map((span) => span.status.code)).toEqual([2, 2, 0]);
    expect(attempts[0]?.attributes).toMatchObject({ 'server.address': 'api.example', 'server.port': 443 });
  });

  test('give the upstream the context of the attempt, where configuration asks for it', () => {
    const ids = named('POST').map((span) => `00-${span.traceId}-${span.spanId}-01`);
    expect(upstreamSaw).toEqual(ids.slice(0, 2));
  });

  test('leave a host under a wildcard origin and an invented method unknown', () => {
    const attempt = spans.find(
      (span) => span.kind === client && span.attributes['sluice.upstream'] === 'shop',
    );
    expect(attempt?.attributes).not.toHaveProperty(['server.address']);
    expect(attempt).toMatchObject({
      name: 'HTTP',
      attributes: { 'error.type': 'upstream_unreachable', 'sluice.reason': 'refused' },
    });
  });

  test('contain no canary, and the resource names service and replica only', () => {
    expect(exported).not.toMatch(/canary/i);
    expect(resource).toMatchObject({
      'service.name': 'sluice',
      'service.instance.id': 'replica-1',
      'deployment.environment.name': 'test',
    });
    expect(Object.keys(resource).filter((key) => /^(host|process)\./.test(key))).toEqual([]);
  });
});

describe('tracing', () => {
  test('is off until the standard variables name an exporter or endpoint', async () => {
    expect(tracingConfigured({})).toBe(false);
    expect(tracingConfigured({ OTEL_TRACES_EXPORTER: 'none', OTEL_EXPORTER_OTLP_ENDPOINT: 'http://x' })).toBe(
      false,
    );
    expect(tracingConfigured({ OTEL_SDK_DISABLED: 'true', OTEL_TRACES_EXPORTER: 'otlp' })).toBe(false);
    expect(tracingConfigured({ OTEL_TRACES_EXPORTER: 'console' })).toBe(true);
    expect(tracingConfigured({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'http://x' })).toBe(true);
    expect(await startTracing({}, 'id')).toBeNull();
  });

  test.each([
    ['00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', true],
    ['cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later', true],
    ['00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later', false],
    ['ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', false],
    ['00-00000000000000000000000000000000-00f067aa0ba902b7-01', false],
    ['00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01', false],
    ['00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01', false],
    ['', false],
  ])('reads traceparent %p as the W3C specification says', (value, valid) => {
    expect(parentOf(['Traceparent', value]) !== null).toBe(valid);
  });

  test('keeps only the sampled flag, and trusts no traceparent when there are two', () => {
    const flags = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe';
    expect(parentOf(['traceparent', flags])?.traceFlags).toBe(TraceFlags.NONE);
    expect(parentOf(['traceparent', caller, 'traceparent', caller])).toBeNull();
  });
});

describe('the sampler that the standard variables name', () => {
  let sink: Awaited<ReturnType<typeof otlpSink>>;
  /** Telemetry whose spans go to the sink, by this sampler. */
  async function sampled(name: string, argument: string) {
    Object.assign(process.env, { OTEL_TRACES_SAMPLER: name, OTEL_TRACES_SAMPLER_ARG: argument });
    return driven({ tracing: await startTracing(process.env, 'replica-1') });
  }

  beforeEach(async () => {
    sink = await namedSink();
  });
  afterEach(() => {
    unnamed();
    return sink.close();
  });

  test.each([
    ['parentbased_always_off', ''],
    ['traceidratio', '0'],
  ])('hands an unsampled trace on as unsampled, and exports none of it (%s %s)', async (name, argument) => {
    const given = await sampled(name, argument);
    const withoutParent = entered(given);
    const rawFields = ['traceparent', `${caller.slice(0, -2)}00`, 'baggage', 'a=b'];
    const withParent = entered(given, { upstream: { ...lm, propagateTrace: true }, rawFields });
    for (const call of [withoutParent, withParent]) call.queued();
    expect([withoutParent.sent(), withoutParent.traceId]).toEqual([null, null]);
    expect([withParent.sent(), withParent.traceId]).toEqual([`${caller.slice(0, -2)}00`, null]);
    for (const call of [withoutParent, withParent]) call.ended({ outcome: 'ok', status: 200, code: null });
    await given.telemetry.close();
    expect(sink.spans).toEqual([]);
    expect(await given.scrape('openmetrics')).not.toContain('trace_id');
  });

  test.each([
    ['parentbased_traceidratio', '0', 0],
    ['traceidratio', '0', 0],
    ['parentbased_always_off', '', 0],
    ['parentbased_traceidratio', '1', 1],
  ])('lets no call without a valid key choose or force a trace (%s %s)', async (name, argument, drawn) => {
    const given = await sampled(name, argument);
    const chosen = '4bf92f3577b34da6ffffffffffffffff';
    for (const flags of ['00', '01', 'ff']) {
      const rawFields = ['traceparent', `00-${chosen}-00f067aa0ba902b7-${flags}`];
      const call = given.telemetry.begin(callAt(given.clock, { rawFields }));
      expect(call.sent()).toBeNull();
      call.ended({ outcome: 'rejected', status: 401, code: 'unauthenticated' });
    }
    await given.telemetry.close();
    expect(sink.spans).toHaveLength(3 * drawn);
    expect(sink.spans.map(({ traceId }) => traceId)).not.toContain(chosen);
    expect(given.lines().map((line) => line['traceId'])).toEqual(
      drawn === 0 ? [null, null, null] : sink.spans.map(({ traceId }) => traceId),
    );
  });
});

test('where nobody traces, a call stays in the trace of its client for upstreams that are to see it', async () => {
  const given = driven();
  const seeing = { ...lm, propagateTrace: true };
  const sentWith = (...rawFields: string[]) => entered(given, { upstream: seeing, rawFields }).sent();
  expect(sentWith('traceparent', caller)).toBe(caller);
  expect(sentWith('traceparent', 'of no form')).toBeNull();
  expect(entered(given, { rawFields: ['traceparent', caller] }).sent()).toBeNull();
  await given.telemetry.close();
});
