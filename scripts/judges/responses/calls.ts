/** The calls whose responses are judged. Those of one list may be sent in any order, and at the same time. */
import type { Asked, Gateways } from './gateway.ts';
import { askedWith, kinds } from './upstream-responses.ts';

const proxied = (origin: string, path: string): string =>
  `/proxy?target=${encodeURIComponent(`${origin}${path}`)}`;

/** A call by what has to come back, `METHOD path` (GET without one), and further field lines. */
type Ask = (expected: string, call: string, fields?: readonly string[], more?: Partial<Asked>) => Asked;

const asks =
  (base: string, prefix: string, own: readonly string[]): Ask =>
  (expected, call, fields = [], more = {}) => {
    const [path = '', method = 'GET'] = call.split(' ').toReversed();
    const name = `${prefix}${method} ${path.slice(0, 40)} (${expected})`;
    return { name, base, method, path, fields: [...own, ...fields], expected, ...more };
  };

/** Every kind of response of an upstream on both routes, to GET and HEAD, on kept connections, and to an HTTP/1.0 client. */
export function passing({ data: base, key, origin }: Gateways): readonly Asked[] {
  return Object.entries(kinds).flatMap(([kind, { status, method = 'GET' }]) => {
    const fields = [`Authorization: Bearer ${key}`, ...(askedWith[kind] ?? [])];
    const common = { base, fields, method, path: `/via/any/${kind}`, expected: String(status) };
    const ofGet: readonly Asked[] = [
      { ...common, name: `${kind} by /via, HEAD`, method: 'HEAD' },
      { ...common, name: `${kind} by /via, HTTP/1.0`, version: '1.0' },
    ];
    return [
      { ...common, name: `${kind} by /proxy`, path: proxied(origin, `/${kind}`) },
      { ...common, name: `${kind} by /via, kept`, connection: 'kept' as const },
      ...(method === 'GET' ? ofGet : []),
    ];
  });
}

/** Refusals that need nothing to have happened before. */
export function refused({ data, key, narrowKey, origin }: Gateways): readonly Asked[] {
  const bearer = `Authorization: Bearer ${key}`;
  const at = asks(data, '', [bearer]);
  const as = (...own: readonly string[]): Ask => asks(data, '', own);
  const plain = '/via/plain/x';
  const post = `POST ${plain}`;
  const chunked = ['Transfer-Encoding: chunked'];
  const noWait = ['Prefer: wait=0'];
  return [
    at('400 target_missing', '/proxy'),
    at('400 target_missing', 'HEAD /proxy'),
    at('400 target_invalid', '/proxy?target=x'),
    at('400 target_invalid', `${proxied(origin, '/json')}&more=1`),
    at('400 request_invalid', plain, [bearer]),
    at('400 request_invalid', plain, [`Sluice-Key: ${narrowKey}`]),
    at('400 request_invalid', plain, ['Transfer-Encoding: gzip']),
    at('400 request_invalid', plain, ['Host: a', 'Host: b']),
    at('400 request_invalid', plain, ['Host: a/b']),
    at('400 request_invalid', plain, ['Connection: a-field']),
    at('400 request_invalid', plain, ['X Broken: 1']),
    at('400 request_invalid', post, ['Content-Length: 1', 'Content-Length: 2'], { body: 'a' }),
    at('400 request_invalid', post, chunked, { body: 'no chunk' }),
    at('400 request_invalid', post, chunked, { version: '1.0' }),
    at('400 request_invalid', plain, [], { version: '2.0' }),
    at('400 request_invalid', 'OPTIONS *'),
    at('400 request_invalid', 'http://evil.example/proxy'),
    at('408 request_invalid', plain, [], { connection: 'cut' }),
    at('417 request_invalid', plain, ['Expect: x']),
    as()('401 unauthenticated', plain),
    as()('401 unauthenticated', `HEAD ${plain}`),
    as(`${bearer}x`)('401 unauthenticated', plain),
    as()('401 unauthenticated', '/activity'),
    at('403 target_forbidden', '/via/none/x'),
    at('403 target_forbidden', proxied('https://other.example', '/x')),
    as(`Authorization: Bearer ${narrowKey}`)('403 target_forbidden', '/via/any/json'),
    at('404 not_found', '/none'),
    at('404 not_found', 'HEAD /none'),
    at('404 not_found', 'OPTIONS /'),
    at('405 method_not_allowed', `TRACE ${plain}`),
    at('405 method_not_allowed', 'CONNECT plain.example:443'),
    at('405 method_not_allowed', 'POST /activity'),
    at('413 body_too_large', post, ['Content-Length: 200000']),
    at('413 body_too_large', post, chunked, { body: `30d40\r\n${'x'.repeat(200_000)}\r\n0\r\n\r\n` }),
    at('414 target_too_long', `/via/plain/${'x'.repeat(9_000)}`),
    at('431 headers_too_large', plain, [`X-Large: ${'x'.repeat(20_000)}`]),
    at('426 upgrade_unsupported', plain, ['Upgrade: websocket', 'Connection: upgrade']),
    at('508 loop_detected', plain, ['Via: 1.1 sluice']),
    at('502 upstream_unreachable', '/via/unreachable/x'),
    at('502 upstream_unreachable', 'POST /via/unreachable/x', [], { body: '{}' }),
    at('502 upstream_invalid', '/via/garbled/x'),
    at('502 credential_unavailable', '/via/tokenless/x', noWait),
    at('502 target_address_denied', '/via/denied/x'),
    // Nothing was left of the day and of the minute before the first of these.
    at('429 day_quota_exhausted', '/via/daily/x'),
    at('429 wait_too_long', '/via/narrow/x', noWait),
    at('429 wait_too_long', 'HEAD /via/narrow/x', noWait),
    at('504 upstream_timeout', 'POST /via/slow/x', [], { body: '{}' }),
    at('200', '/activity'),
    at('200', 'HEAD /activity'),
    at('200', '/activity', [], { connection: 'kept' }),
    at('200', post, ['Expect: 100-continue'], { body: 'a body' }),
  ];
}

/** Every route of the admin port. */
export function ofAdmin({ admin }: Gateways): readonly Asked[] {
  const [at, asOperator] = [asks(admin, 'admin ', []), asks(admin, 'admin ', ['Sluice-Admin: yes'])];
  const read = ['/livez', '/readyz', '/metrics', '/activity', '/activity?window=15m', '/'];
  return [
    ...read.flatMap((path) => [
      at('200', path),
      at('200', `HEAD ${path}`),
      at('200', path, [], { connection: 'kept' }),
    ]),
    at('200', '/metrics', ['Accept: application/openmetrics-text; version=1.0.0']),
    at('400', '/activity?window=x'),
    at('404', '/none'),
    at('404', 'HEAD /none'),
    at('403', 'POST /upstreams/plain/open'),
    at('405', '/upstreams/plain/open'),
    asOperator('404', 'POST /upstreams/none/open'),
    asOperator('400', 'POST /upstreams/plain/pause'),
    asOperator('200', 'POST /upstreams/plain/open'),
    asOperator('200', 'POST /upstreams/narrow/pause?seconds=1'),
    asOperator('200', 'POST /upstreams/narrow/resume'),
  ];
}
