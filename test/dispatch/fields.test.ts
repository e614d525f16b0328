import { describe, expect, test } from '@jest/globals';
import fc from 'fast-check';
import { readCarriers, usualCarriers } from '../../src/credential-carriers.policy.ts';
import { outgoingFields, type OutgoingInput } from '../../src/dispatch/fields.policy.ts';

const key = `slc_acme1_${'k'.repeat(43)}`;
const base: OutgoingInput = {
  call: { form: 'via', method: 'GET', rawFields: [] },
  route: {
    host: 'api.example',
    credential: null,
    upstream: { cookies: 'scoped', propagateTrace: false, carriers: usualCarriers },
  },
  dropFields: ['authorization'],
  bodyBytes: 0,
  traceparent: null,
};
type Changes = Partial<OutgoingInput & OutgoingInput['call']>;
const outgoing = (changes: Changes) => ({
  ...outgoingFields({ ...base, ...changes, call: { ...base.call, ...changes } }),
});
const own = { host: 'api.example', via: '1.1 sluice' };
const withCredential = (field: string): OutgoingInput['route'] => ({
  ...base.route,
  credential: { field, value: 'injected' },
});
describe('fields sent upstream', () => {
  test('are the client’s by default, in lower case, repeats kept in order', () => {
    const rawFields = 'Accept */* X-A 1 Cookie a=b x-a 2 Prefer wait=5 X-A 3'.split(' ');
    const expected = { accept: '*/*', 'x-a': ['1', '2', '3'], cookie: 'a=b', prefer: 'wait=5' };
    expect(outgoing({ rawFields })).toEqual({ ...own, ...expected });
  });

  test.each([
    'Connection', 'Keep-Alive', 'Proxy-Connection', 'Proxy-Authorization', 'Proxy-Anything', 'TE', 'Trailer',
    'Transfer-Encoding', 'Upgrade', 'HTTP2-Settings', 'Expect', 'Via', 'Forwarded', 'X-Forwarded-For', 'X-Forwarded-Proto',
    'X-Real-IP', 'Host', 'Content-Length', 'Sluice-Key', 'Sluice-Anything', 'Authorization', 'traceparent', 'tracestate',
    'baggage',
  ])('never include the client’s %s', (name) => {
    for (const spelling of [name, name.toLowerCase(), name.toUpperCase()]) {
      expect(JSON.stringify(outgoing({ rawFields: [spelling, 'canary'] }))).not.toContain('canary');
    }
  }); // prettier-ignore

  test.each([
    'CF-Connecting-IP', 'CF-Connecting-IPv6', 'CF-IPCountry', 'CF-Ray', 'CF-Visitor', 'True-Client-IP', 'X-Client-IP', 'Client-IP',
    'X-Cluster-Client-IP', 'Fastly-Client-IP', 'Fly-Client-IP', 'Ali-CDN-Real-IP', 'WL-Proxy-Client-IP', 'X-Remote-Addr', 'X-Remote-IP',
    'X-Originating-IP', 'X-ProxyUser-IP', 'X-Azure-ClientIP', 'X-Azure-SocketIP', 'X-Sucuri-ClientIP', 'X-NF-Client-Connection-IP',
    'CloudFront-Viewer-Address', 'X-Forwarded', 'X-Forwarded-Host', 'X-Forwarded-Client-Cert', 'Forwarded-For', 'X-Original-URL',
    'X-Original-Forwarded-For', 'X-Rewrite-URL', 'X-Envoy-External-Address', 'X-AppEngine-User-IP', 'X-Auth-Request-Email', 'X-Remote-User',
    'X-Amzn-OIDC-Identity', 'CF-Access-JWT-Assertion', 'CDN-Loop', 'X-Vercel-Forwarded-For', 'Client-Cert',
    'b3', 'X-B3-TraceId', 'X-B3-Sampled', 'uber-trace-id', 'uberctx-user', 'jaeger-debug-id', 'x-datadog-trace-id', 'x-datadog-sampling-priority',
    'sentry-trace', 'X-Amzn-Trace-Id', 'X-Cloud-Trace-Context', 'ot-tracer-spanid', 'ot-baggage-user', 'newrelic', 'elastic-apm-traceparent',
    'X-Forward-For', 'X-Scheme', 'Front-End-Https', 'X-MS-Client-Principal', 'X-MS-Client-Principal-Name', 'X-MS-Token-AAD-Access-Token',
    'X-Consumer-Username', 'X-Anonymous-Consumer', 'X-Pomerium-Jwt-Assertion', 'X-WebAuth-User', 'Tailscale-User-Login', 'l5d-client-id',
    'X-TLS-Client-Cert', 'X-Client-DN', 'eagleeye-traceid', 'Sluice-Key', 'Sluice-Upstream-Anything',
    'X-Instana-T', 'X-Dynatrace', 'grpc-trace-bin', 'sw8', 'Correlation-Context',
  ])('never name the client or trace it: %s', (name) => {
    for (const spelling of [name, name.toLowerCase(), name.toUpperCase(), name.replaceAll('-', '_')]) {
      expect(outgoing({ rawFields: [spelling, 'canary', 'X-A', '1'] })).toEqual({ ...own, 'x-a': '1' });
    }
  }); // prettier-ignore

  test.each([
    'User-Agent', 'X-Request-Id', 'X-Client-Request-Id', 'X-Stainless-Retry-Count', 'OpenAI-Organization', 'anthropic-beta', 'X-Goog-Api-Client',
    'X-Goog-User-Project', 'X-Goog-Request-Params', 'X-Amz-Date', 'X-Amz-Content-Sha256', 'amz-sdk-invocation-id', 'X-Amzn-Bedrock-Trace',
    'x-ms-client-request-id', 'Stripe-Account', 'Idempotency-Key', 'X-Shopify-Storefront-Something', 'Shopify-Storefront-Buyer-IP', 'PSU-IP-Address',
    'X-FAPI-Customer-IP-Address', 'Fastly-Key', 'CF-Access-Client-Id', 'CF-Access-Client-Secret', 'cf-aig-metadata', 'X-Akamai-ACS-Action',
    'X-Vercel-Protection-Bypass', 'Origin', 'Referer', 'X-HTTP-Method-Override', 'X-Client-Info', 'X-Real-Estate', 'X-Client-Version',
    'X-Portkey-Trace-Id', 'Helicone-Session-Id', 'Prefer', 'If-None-Match', 'Range', 'Cache-Control', 'X-Account-Id', 'B3-Product',
  ])('are what the client’s program means for the upstream: %s', (name) => {
    expect(outgoing({ rawFields: [name, 'x'] })).toEqual({ ...own, [name.toLowerCase()]: 'x' });
  }); // prettier-ignore

  test('include cookies only where they belong to the upstream', () => {
    const rawFields = ['Cookie', 'a=1', 'COOKIE', 'b=2', 'Cookie2', '$Version=1'];
    expect(outgoing({ rawFields })).toEqual({ ...own, cookie: ['a=1', 'b=2'] });
    expect(outgoing({ rawFields, form: 'proxy' })).toEqual(own);
  });

  test.each('content-length host via authorization x-a'.split(' '))(
    'keep %s although Connection names it',
    (name) => {
      const rawFields = ['Connection', name, 'X-A', '1'];
      const kept = { 'x-a': '1', authorization: 'injected', 'content-length': '3' };
      const route = withCredential('authorization');
      expect(outgoing({ rawFields, route, bodyBytes: 3 })).toEqual({ ...own, ...kept });
    },
  );

  test('carry the length of the buffered body whatever the client claimed', () => {
    const rawFields = ['Content-Length', '99', 'Transfer-Encoding', 'chunked'];
    for (const method of ['GET', 'DELETE', 'OPTIONS', 'HEAD', 'POST'])
      expect(outgoing({ rawFields, method, bodyBytes: 7 })).toEqual({ ...own, 'content-length': '7' });
    for (const method of ['POST', 'PUT', 'PATCH']) expect(outgoing({ method })['content-length']).toBe('0');
    for (const method of ['GET', 'DELETE', 'HEAD']) expect(outgoing({ method })).toEqual(own);
  });

  test.each([`user:${key}`, `${key}:`, `${key}:x`, `:${key}`])(
    'never hold an API key in Basic: %s',
    (text) => {
      const value = `Basic ${Buffer.from(text).toString('base64')}`;
      const rawFields = ['Authorization', value, 'X-A', value, 'Sluice-Upstream-Authorization', value];
      expect(outgoing({ rawFields, dropFields: ['sluice-key'] })).toEqual(own);
    },
  );

  test('treat names of object members as names', () => {
    const names = ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'valueOf', '__defineGetter__'];
    const fields = outgoing({ rawFields: names.flatMap((name) => [name, 'x', name, 'y']) });
    const lower = names.map((name) => name.toLowerCase());
    expect(Object.keys(fields).toSorted()).toEqual([...lower, 'host', 'via'].toSorted());
    expect(lower.filter((name) => name in outgoingFields(base))).toEqual([]);
    expect(Object.getPrototypeOf({})).toBe(Object.prototype);
    expect({}).not.toHaveProperty('x');
  });

  test('never hold anything but text, and never a secret, whatever the client sends', () => {
    const sent = 'Authorization X-Api-Key api-key Cookie Connection TE x-y Sluice-Key Host __proto__';
    const names = sent.split(' ');
    const value = fc.constantFrom('', 'a', 'close, content-length', key, `Bearer ${key}`, `x=1; y=${key}`);
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.constantFrom(...names), value)), fc.nat(3), (pairs, bodyBytes) => {
        const fields = outgoing({ rawFields: pairs.flat(), bodyBytes });
        for (const text of Object.values(fields).flat()) expect(typeof text).toBe('string');
        expect(JSON.stringify(fields)).not.toContain(key);
        expect(fields['host']).toBe('api.example');
        expect(fields['content-length']).toBe(bodyBytes > 0 ? String(bodyBytes) : undefined);
      }),
    );
  });
});

describe('the credential sent upstream', () => {
  const ownField = 'Sluice-Upstream-Authorization';
  const withKey = ['Authorization', `Bearer ${key}`];
  const besideKey = ['Sluice-Key', key, 'Authorization'];
  const keyInOther = { dropFields: ['sluice-key'] };
  const mine = { authorization: 'Bearer mine' };
  const injected = { 'x-api-key': 'injected' };
  const byOperator = { route: withCredential('x-api-key') };
  test.each<[string, readonly string[], Partial<OutgoingInput>, object]>([
    ['is the configured one, and the API key stays here', withKey, byOperator, injected],
    ['is never the client’s own when one is configured', [ownField, 'Bearer mine'], byOperator, injected],
    ['is the client’s own else', [...withKey, ownField, 'Bearer mine'], {}, mine],
    ['is its Authorization beside Sluice-Key', [...besideKey, 'Bearer mine'], keyInOther, mine],
    ['is no key sent twice', ['X-Other', key, ownField, key, ...besideKey, `Bearer ${key}`], keyInOther, {}],
  ])('%s: %j', (_, rawFields, changes, expected) => {
    expect(outgoing({ rawFields, ...changes })).toEqual({ ...own, ...expected });
  });

  const others = 'Authorization X-Api-Key api-key x-goog-api-key PRIVATE-TOKEN x-acme-access-token';
  test.each(others.split(' '))('is the only one: the client’s own in %s is left out', (name) => {
    for (const field of ['authorization', 'x-api-key', 'x-figma-token', name.toLowerCase()]) {
      const rawFields = ['Sluice-Key', key, name, 'own', name.toLowerCase(), 'twice'];
      const fields = outgoing({ rawFields, route: withCredential(field), ...keyInOther });
      expect(fields).toEqual({ ...own, [field]: 'injected' });
    }
  });

  test('leaves alone what the configuration says carries none, and takes out what it adds', () => {
    const carriers = readCarriers(['x-acme', '-Authorization'], 'generic');
    const route = { ...withCredential('x-api-key'), upstream: { ...base.route.upstream, carriers } };
    const rawFields = ['Authorization', 'Basic abc', 'X-Acme', 'own', 'X-Plain', '1'];
    const kept = { authorization: 'Basic abc', 'x-plain': '1', ...injected };
    expect(outgoing({ rawFields, route, ...keyInOther })).toEqual({ ...own, ...kept });
  });
});

test('the trace context sent upstream is Sluice’s own with the client’s tracestate, where that is asked for', () => {
  const rawFields = ['traceparent', 'client', 'tracestate', 'a=1', 'tracestate', 'b=2', 'baggage', 'user=1'];
  const route = { ...base.route, upstream: { ...base.route.upstream, propagateTrace: true } };
  const traced = { traceparent: 'ours', tracestate: ['a=1', 'b=2'] };
  expect(outgoing({ rawFields, traceparent: 'ours', route })).toEqual({ ...own, ...traced });
  expect(outgoing({ rawFields, traceparent: 'ours' })).toEqual(own);
  expect(outgoing({ rawFields, route })).toEqual(own);
});
