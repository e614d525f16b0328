/** The spans of a queued, twice-throttled, streamed call through the real gateway, as a real OTLP receiver gets them. */
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test } from '@jest/globals';
import { trace } from '@opentelemetry/api';
import { createKey } from '../../src/cli/keys.ts';
import type { Service } from '../../src/service.ts';
import { gatewayYaml, serviceOf } from '../support/gateway.ts';
import { otlpSink, type SinkSpan } from './otlp-sink.ts';

const { key, hash } = createKey();
const caller = { trace: '4bf92f3577b34da6a3ce929d0e0e4736', span: '00f067aa0ba902b7' };
const responses: ((response: ServerResponse) => void)[] = [];
const before = { ...process.env };
let upstream: Server;
let service: Service;
let spans: readonly SinkSpan[] = [];
let exported = '';
let streamed = '';

beforeAll(async () => {
  const held = Promise.withResolvers<ServerResponse>();
  let throttles = 0;
  const throttle = (response: ServerResponse): void =>
    void response
      .writeHead(429, { 'retry-after-ms': '20', 'x-request-id': `req_${(throttles += 1)}` })
      .end('{"error":{"message":"canary text"}}');
  responses.push(held.resolve, throttle, throttle, (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'x-request-id': 'req_3' });
    response.write('data: {"n":1}\n\n');
    response.end('data: [DONE]\n\n');
  });
  upstream = createServer((request, response) => {
    request.resume().on('end', () => responses.shift()?.(response));
  });
  await new Promise<void>((done) => upstream.listen(0, '127.0.0.1', done));
  const { port } = upstream.address() as AddressInfo;
  const sink = await otlpSink();
  Object.assign(process.env, {
    OTEL_EXPORTER_OTLP_ENDPOINT: sink.endpoint,
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json',
  });
  const limits = 'limits: { requestsPerMinute: 6000, maxInFlight: 1 }';
  const yaml = gatewayYaml(
    {
      upstreams: `  model:\n    kind: language-model\n    origins: ["http://127.0.0.1:${port}"]\n    allowPrivateAddresses: true\n    credential: "Bearer canary-credential"\n    ${limits}`,
      workspaces: { 'canary-acme': '' },
    },
    { 'canary-acme': hash },
  );
  service = await serviceOf(yaml, [], { env: process.env });
  const send = (fields: Record<string, string>): Promise<Response> =>
    fetch(`http://127.0.0.1:${service.dataAddress.port}/via/model/v1/canary-path?q=canary-query`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...fields },
      body: '{"model":"canary-model","stream":true}',
    });
  const holder = send({});
  const first = await held.promise;
  const followed = send({
    traceparent: `00-${caller.trace}-${caller.span}-01`,
    baggage: 'user=canary-baggage',
    cookie: 'canary-cookie',
  });
  while (service.gateway.buckets().every(({ snapshot }) => snapshot.waiting === 0)) {
    await new Promise((resume) => setImmediate(resume));
  }
  first.writeHead(200).end('{}');
  await (await holder).text();
  streamed = await (await followed).text();
  await service.close();
  spans = sink.spans;
  exported = sink.bodies.join('\n');
  await sink.close();
});

afterAll(async () => {
  for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
  trace.disable();
  upstream.closeAllConnections();
  await new Promise<void>((done) => upstream.close(() => done()));
});

const ofCall = (kind: number): SinkSpan[] =>
  spans.filter((span) => span.traceId === caller.trace && span.kind === kind);

test('the client gets the stream of the third attempt', () => {
  expect(streamed).toBe('data: {"n":1}\n\ndata: [DONE]\n\n');
});

test('one server span continues the client’s trace and summarises the call', () => {
  const [span, ...more] = ofCall(2);
  expect(more).toEqual([]);
  expect(span).toMatchObject({ name: 'POST /via/{upstream}/{path}', parentSpanId: caller.span });
  expect(span?.attributes).toMatchObject({
    'http.request.method': 'POST',
    'http.response.status_code': 200,
    'sluice.upstream': 'model',
    'sluice.outcome': 'ok',
    'sluice.attempts': 3,
    'sluice.absorbed': 2,
  });
  expect(span?.attributes['sluice.workspace']).toMatch(/^w_[0-9a-f]{16}$/);
});

test('one client span per attempt, with its resend count, under the server span', () => {
  const attempts = ofCall(3);
  expect(attempts.map(({ name }) => name)).toEqual(['POST', 'POST', 'POST']);
  expect(attempts.map(({ attributes }) => attributes['http.request.resend_count'])).toEqual([
    undefined,
    1,
    2,
  ]);
  expect(attempts.map(({ attributes }) => attributes['http.response.status_code'])).toEqual([429, 429, 200]);
  expect(attempts.map(({ parentSpanId }) => parentSpanId)).toEqual(Array(3).fill(ofCall(2)[0]?.spanId));
});

test('the span of each absorbed attempt has the id that the upstream gave it', () => {
  const ids = ofCall(3).map(({ attributes }) => attributes['sluice.upstream_request_id']);
  expect(ids).toEqual(['req_1', 'req_2', undefined]);
});

test('the trace has one wait per attempt, and the first wait links to the attempt it waited for', () => {
  const waits = ofCall(1);
  expect(waits.map(({ name }) => name)).toEqual(['wait', 'wait', 'wait']);
  const holder = spans.find(({ kind, traceId }) => kind === 3 && traceId !== caller.trace);
  expect(holder).toBeDefined();
  expect(waits[0]?.links).toMatchObject([{ traceId: holder?.traceId, spanId: holder?.spanId }]);
});

test('the trace exports nothing of the content of the call', () => {
  expect(exported).not.toMatch(/canary/i);
  expect(exported).not.toContain(key.slice(-43));
  expect(exported).not.toContain('baggage');
});
