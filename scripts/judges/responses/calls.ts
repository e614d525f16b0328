/** The calls whose responses are judged. Those of one list may be sent in any order, and at the same time. */
import type { Gateways } from './gateways.ts';
import type { Asked } from './record.ts';
import { askedWith, kinds } from './upstream-responses.ts';

const proxied = (origin: string, path: string): string =>
  `/proxy?target=${encodeURIComponent(`${origin}${path}`)}`;

/** Every kind of response of an upstream on both routes, to GET and HEAD, on kept connections, and to an HTTP/1.0 client. */
export function passing({ gateway: { url: base }, key, origin }: Gateways): readonly Asked[] {
  return Object.entries(kinds).flatMap(([kind, { status }]) => {
    const fields = [`Authorization: Bearer ${key}`, ...(askedWith[kind] ?? [])];
    const method =
      kind === 'created' || kind === 'accepted' ? 'POST' : kind === 'options' ? 'OPTIONS' : 'GET';
    const common = { base, fields, expected: String(status) };
    const via = `/via/any/${kind}`;
    return [
      { ...common, name: `${kind} by /proxy`, method, path: proxied(origin, `/${kind}`) },
      { ...common, name: `${kind} by /via, kept`, method, path: via, connection: 'kept' as const },
      ...(method === 'GET'
        ? [
            { ...common, name: `${kind} by /via, HEAD`, method: 'HEAD', path: via },
            { ...common, name: `${kind} by /via, HTTP/1.0`, path: via, version: '1.0' as const },
          ]
        : []),
    ];
  });
}

/** Refusals that need nothing to have happened before. */
export function refused({ gateway: { url: base }, key, narrowKey, origin }: Gateways): readonly Asked[] {
  const bearer = `Authorization: Bearer ${key}`;
  const at = (expected: string, path: string, more: Partial<Asked> = {}): Asked => ({
    name: `${more.method ?? 'GET'} ${path.slice(0, 40)} (${expected})`,
    base,
    path,
    fields: [bearer],
    expected,
    ...more,
  });
  const plain = '/via/plain/x';
  const line = (...fields: readonly string[]) => ({ fields: [bearer, ...fields] });
  return [
    at('400 target_missing', '/proxy'),
    at('400 target_missing', '/proxy', { method: 'HEAD' }),
    at('400 target_invalid', '/proxy?target=x'),
    at('400 target_invalid', `${proxied(origin, '/json')}&more=1`),
    at('400 request_invalid', plain, line(bearer)),
    at('400 request_invalid', plain, line(`Sluice-Key: ${narrowKey}`)),
    at('400 request_invalid', plain, line('Transfer-Encoding: gzip')),
    at('400 request_invalid', plain, line('Host: a', 'Host: b')),
    at('400 request_invalid', plain, line('Host: a/b')),
    at('400 request_invalid', plain, line('Connection: a-field')),
    at('400 request_invalid', plain, line('X Broken: 1')),
    at('400 request_invalid', plain, {
      ...line('Content-Length: 1', 'Content-Length: 2'),
      method: 'POST',
      body: 'a',
    }),
    at('400 request_invalid', plain, {
      ...line('Transfer-Encoding: chunked'),
      method: 'POST',
      body: 'no chunk',
    }),
    at('400 request_invalid', plain, {
      ...line('Transfer-Encoding: chunked'),
      version: '1.0',
      method: 'POST',
    }),
    at('400 request_invalid', plain, { version: '2.0' }),
    at('400 request_invalid', '*', { method: 'OPTIONS' }),
    at('400 request_invalid', 'http://evil.example/proxy'),
    at('408 request_invalid', plain, { connection: 'cut' }),
    at('417 request_invalid', plain, line('Expect: x')),
    at('401 unauthenticated', plain, { fields: [] }),
    at('401 unauthenticated', plain, { fields: [], method: 'HEAD' }),
    at('401 unauthenticated', plain, { fields: [`${bearer}x`] }),
    at('401 unauthenticated', '/activity', { fields: [] }),
    at('403 target_forbidden', '/via/none/x'),
    at('403 target_forbidden', proxied('https://other.example', '/x')),
    at('403 target_forbidden', '/via/any/json', { fields: [`Authorization: Bearer ${narrowKey}`] }),
    at('404 not_found', '/none'),
    at('404 not_found', '/none', { method: 'HEAD' }),
    at('404 not_found', '/', { method: 'OPTIONS' }),
    at('405 method_not_allowed', plain, { method: 'TRACE' }),
    at('405 method_not_allowed', 'plain.example:443', { method: 'CONNECT' }),
    at('405 method_not_allowed', '/activity', { method: 'POST' }),
    at('413 body_too_large', plain, { ...line('Content-Length: 200000'), method: 'POST' }),
    at('413 body_too_large', plain, {
      ...line('Transfer-Encoding: chunked'),
      method: 'POST',
      body: `30d40\r\n${'x'.repeat(200_000)}\r\n0\r\n\r\n`,
    }),
    at('414 target_too_long', `/via/plain/${'x'.repeat(9_000)}`),
    at('431 headers_too_large', plain, line(`X-Large: ${'x'.repeat(20_000)}`)),
    at('426 upgrade_unsupported', plain, line('Upgrade: websocket', 'Connection: upgrade')),
    at('508 loop_detected', plain, line('Via: 1.1 sluice')),
    at('502 upstream_unreachable', '/via/unreachable/x'),
    at('502 upstream_unreachable', '/via/unreachable/x', { method: 'POST', body: '{}' }),
    at('502 upstream_invalid', '/via/garbled/x'),
    at('502 credential_unavailable', '/via/tokenless/x', line('Prefer: wait=0')),
    at('502 target_address_denied', '/via/denied/x'),
    // Nothing was left of the day and of the minute before the first of these.
    at('429 day_quota_exhausted', '/via/daily/x'),
    at('429 wait_too_long', '/via/narrow/x', line('Prefer: wait=0')),
    at('429 wait_too_long', '/via/narrow/x', { ...line('Prefer: wait=0'), method: 'HEAD' }),
    at('504 upstream_timeout', '/via/slow/x', { method: 'POST', body: '{}' }),
    at('200', '/activity'),
    at('200', '/activity', { method: 'HEAD' }),
    at('200', '/activity', { connection: 'kept' }),
    at('200', plain, { ...line('Expect: 100-continue'), method: 'POST', body: 'a body' }),
  ];
}

/** Every route of the admin port. */
export function ofAdmin({ gateway: { adminUrl: base } }: Gateways): readonly Asked[] {
  const at = (expected: string, path: string, more: Partial<Asked> = {}): Asked => ({
    name: `admin ${more.method ?? 'GET'} ${path} (${expected})`,
    base,
    path,
    expected,
    ...more,
  });
  const operator = { method: 'POST', fields: ['Sluice-Admin: yes'] };
  const read = ['/livez', '/readyz', '/metrics', '/activity', '/activity?window=15m', '/'];
  return [
    ...read.flatMap((path) => [
      at('200', path),
      at('200', path, { method: 'HEAD' }),
      at('200', path, { connection: 'kept' }),
    ]),
    at('200', '/metrics', { fields: ['Accept: application/openmetrics-text; version=1.0.0'] }),
    at('400', '/activity?window=x'),
    at('404', '/none'),
    at('404', '/none', { method: 'HEAD' }),
    at('403', '/upstreams/plain/open', { method: 'POST' }),
    at('405', '/upstreams/plain/open'),
    at('404', '/upstreams/none/open', operator),
    at('400', '/upstreams/plain/pause', operator),
    at('200', '/upstreams/plain/open', operator),
    at('200', '/upstreams/narrow/pause?seconds=1', operator),
    at('200', '/upstreams/narrow/resume', operator),
  ];
}
