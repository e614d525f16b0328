/**
 * Which fields pass. Towards the upstream they do by default, but never hop-by-hop ones, never one that carries an API key of ours, never a
 * second credential beside an injected one; and framing is written here from the buffered length, whatever the client says in `Connection`.
 * Towards the client repeats and order are kept; an upstream can neither speak for Sluice nor change framing.
 */
import { showsApiKey, isCarrier } from '../credential-carriers.policy.ts';
import type { Call, InjectedField, Route } from '../call.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { wordsOf } from '../words.policy.ts';

// Lists of field names

/** Texts of names and of their beginnings, separated by blanks, lower case; and what others look like. */
interface FieldNames {
  readonly names: readonly string[];
  readonly prefixes: readonly string[];
  readonly pattern: RegExp;
}

/** Names whose judgement is remembered, and the longest of them, characters: calls bring the same few again and again. */
const namesKept = 2_000;
const maxNameKept = 64;

/**
 * True for names of a list: a name that is listed, begins as listed, or fits a pattern; `name` in lower case. Servers that hand fields on
 * as variables read `_` as `-`, so that both spellings count. Also true for every field that passes in neither direction: it speaks to the
 * next machine only (RFC 9110 §7.6.1 and what is used like it), to or of a proxy, or in the name of Sluice.
 */
function neverPasses({ names, prefixes, pattern }: FieldNames): (name: string) => boolean {
  const listed = new Set(
    wordsOf('connection keep-alive te trailer transfer-encoding upgrade http2-settings', ...names),
  );
  const begins = new RegExp(`^(?:proxy-|sluice-|${wordsOf(...prefixes).join('|')})`);
  const judge = (name: string): boolean => {
    const hyphened = name.replaceAll('_', '-');
    return listed.has(hyphened) || begins.test(hyphened) || pattern.test(hyphened);
  };
  const known = new Map<string, boolean>();
  return (name) => {
    const remembered = known.get(name);
    if (remembered !== undefined) return remembered;
    if (known.size >= namesKept) known.clear();
    const isListed = judge(name);
    if (name.length <= maxNameKept) known.set(name, isListed);
    return isListed;
  };
}

// Towards the upstream

/** Our name in `Via`; a call that already carries it came back to us. */
export const pseudonym = 'sluice';

/** Lower-case names; an array for a repeated field. No prototype, so that no name can mean anything but itself. */
export type OutgoingFields = Record<string, string | string[]>;

export interface OutgoingInput {
  readonly call: Pick<Call, 'form' | 'method' | 'rawFields'>;
  readonly route: Pick<Route, 'host'> & {
    readonly credential: InjectedField | null;
    readonly upstream: Pick<Route['upstream'], 'cookies' | 'propagateTrace' | 'carriers'>;
  };
  /** Lower-case names of fields that carried the API key. */
  readonly dropFields: readonly string[];
  /** Length of the buffered body; 0 = none. */
  readonly bodyBytes: number;
  /** `traceparent` of the attempt's span; sent only where the upstream's configuration asks for it. */
  readonly traceparent: string | null;
  /** Values that go upstream in the place of the client's own, by lower-case name; absent or `null` = none. */
  readonly replacedFields?: ReadonlyMap<string, string> | null;
}

/**
 * Makes objects without inherited members that V8 keeps in its fast form; `Object.create(null)` makes a hash table, which
 * the proxy and Node then copy and walk several times per call.
 */
const EmptyFields = function () {} as unknown as new () => OutgoingFields;
EmptyFields.prototype = Object.create(null);

/** Methods that expect a body: a request of theirs without one says so with `Content-Length: 0` (RFC 9110 §8.6). */
const announcesEmptyBody = new Set(['POST', 'PUT', 'PATCH']);

/**
 * Fields of a request that name the client, its network, or the hops and the trace by which it came: written by proxies, CDNs,
 * meshes and tracers in front of Sluice, or by clients that pretend to be one. They concern no upstream.
 *
 * Fields that a client's program means for the upstream pass, also where they look alike: `Fastly-Key`, `CF-Access-Client-Id`,
 * `cf-aig-*`, `X-Akamai-ACS-*`, `X-Vercel-Protection-Bypass`, `PSU-IP-Address`, `X-FAPI-Customer-IP-Address`, `Shopify-Storefront-Buyer-IP`, `X-Request-Id`.
 */
const staysHere = neverPasses({
  names: [
    'host content-length expect', // written anew for the upstream, or answered here
    'via forwarded x-forwarded forwarded-for forwarded-proto x-forward-for x-forward-proto x-scheme x-url-scheme',
    'front-end-https cdn-loop cookie2 remote-user x-remote-user x-rewrite-url x-request-start x-queue-start',
    'cf-ray cf-visitor cf-worker cf-ew-via cf-pseudo-ipv4 cf-region cf-region-code cf-metro-code cf-postal-code',
    'cf-timezone cf-access-jwt-assertion cf-access-authenticated-user-email',
    'fastly-client fastly-ff fastly-ssl fastly-temp-xff',
    'x-azure-ref x-azure-fdid x-azure-requestchain x-goog-iap-jwt-assertion x-amz-cf-id x-vercel-id',
    'x-akamai-edgescape akamai-origin-hop',
    'x-client-cert client-cert client-cert-chain x-client-dn x-client-verify',
    'x-anonymous-consumer x-credential-identifier', // Kong
    // Traces
    'traceparent tracestate baggage b3 uber-trace-id jaeger-debug-id jaeger-baggage sentry-trace correlation-context',
    'request-context x-ms-request-root-id x-amzn-trace-id x-cloud-trace-context grpc-trace-bin',
    'elastic-apm-traceparent newrelic x-newrelic-id x-newrelic-transaction x-newrelic-synthetics singularityheader',
    'x-dynatrace x-honeycomb-trace x-ot-span-context',
  ],
  prefixes: [
    'x-forwarded- x-original- x-envoy- x-appengine- x-istio- x-arr- x-ssl- ssl-client- x-client-cert- x-tls-client-',
    'x-auth-request-', // oauth2-proxy
    'x-goog-authenticated-user- tailscale-user- x-pomerium- x-webauth-',
    'x-ms-client-principal x-ms-token-', // the sign-in of Azure's App Service
    'x-consumer-', // Kong
    'l5d-', // linkerd
    'x-amzn-oidc- x-amzn-tls- x-amzn-mtls- cloudfront-',
    'x-vercel-forwarded- x-vercel-ip- x-vercel-proxied-',
    'cf-connecting- cf-ip fastly-client- fastly-orig- fly-forwarded-',
    // Traces
    'x-b3- uberctx- ot-tracer- ot-baggage- x-datadog- x-instana- x-dynatrace- pinpoint- eagleeye- sw6 sw8',
  ],
  /**
   * The address of a client by its many names: `X-Client-IP`, `True-Client-IP`, `X-Real-IP`, `X-Cluster-Client-IP`, `Ali-CDN-Real-IP`,
   * `WL-Proxy-Client-IP`, `X-Remote-Addr`, `X-NF-Client-Connection-IP`, `X-Sucuri-ClientIP`, `X-ProxyUser-IP`, `X-Azure-SocketIP`.
   */
  pattern:
    /(?:^|-)(?:client|real|remote|connecting|originating|viewer|src|proxyuser|socket)-?(?:connection-)?(?:ip|ipv4|ipv6|addr|address|port)$/,
});

/** Builds the fields of one attempt. Values of the client are passed on as they are, also empty ones. */
export function outgoingFields(input: OutgoingInput): OutgoingFields {
  const { call, route, dropFields, bodyBytes } = input;
  const { form, method, rawFields } = call;
  const { credential, upstream } = route;
  // Each upstream has a path of its own on `/via`; one jar for all of `/proxy` would show cookies to others.
  const passesCookies = form === 'via' || upstream.cookies === 'pass';
  const fields = new EmptyFields();
  fields['host'] = route.host;
  let brought: string | null = null;

  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at]?.toLowerCase() ?? '';
    const value = rawFields[at + 1] ?? '';
    if (name === 'sluice-upstream-authorization') brought = value;
    if (name === 'cookie' && !passesCookies) continue;
    if (dropFields.includes(name) || staysHere(name)) continue;
    // Two credentials make upstreams refuse the call, or judge it by the client's own.
    if (credential !== null && (name === credential.field || isCarrier(name, upstream.carriers))) continue;
    // Also when the client sends its key a second time, in another field.
    if (showsApiKey(value)) continue;
    append(fields, name, input.replacedFields?.get(name) ?? value);
  }

  if (credential !== null) fields[credential.field] = credential.value;
  else if (brought !== null && !showsApiKey(brought)) fields['authorization'] = brought;
  if (bodyBytes > 0 || announcesEmptyBody.has(method)) fields['content-length'] = String(bodyBytes);
  fields['via'] = `1.1 ${pseudonym}`;
  // `tracestate` belongs to the trace that the client began and means nothing without its `traceparent`.
  if (upstream.propagateTrace && input.traceparent !== null) {
    fields['traceparent'] = input.traceparent;
    for (const value of valuesOf(rawFields, 'tracestate')) append(fields, 'tracestate', value);
  }
  return fields;
}

function append(fields: OutgoingFields, name: string, value: string): void {
  const earlier = fields[name];
  if (earlier === undefined) fields[name] = value;
  else if (typeof earlier === 'string') fields[name] = [earlier, value];
  else earlier.push(value);
}

// Towards the client

export interface ReturningInput {
  readonly rawFields: readonly string[];
  readonly status: number;
  /** True when our own `RateLimit` and `RateLimit-Policy` are added: two of them would contradict each other. */
  readonly addsRateLimit: boolean;
  /** Lower-case names of the fields in which an API key may come: whoever caches the response must tell them apart. */
  readonly keyFields: readonly string[];
  readonly cookies: CookieScope;
  readonly links: Links;
}

/** How a client that follows links of the response stays on its way. */
export interface Links {
  /** The URL that was called, base of relative references. */
  readonly target: string;
  /**
   * What stands for the origin of this URL, e.g. `https://gateway.example/via/shop/acme.example`, without a trailing
   * slash; `null` when the URL is not an origin of the call's upstream. None: a call of the `/proxy` form, whose links stay, but for a
   * relative `Location`, which would be taken for a path of Sluice.
   */
  readonly baseFor: BaseFor | null;
}

type BaseFor = (url: URL) => string | null;

/** Nothing an upstream writes into `Connection` may take these away. */
const notNameable = new Set(['content-length', 'content-type', 'content-encoding']);

/** Cleans a response's fields. Returns name and value alternating, ready for `writeHead`. */
export function returningFields(input: ReturningInput): string[] {
  const { rawFields, status, links } = input;
  const named = namedByConnection(rawFields);
  const fields: string[] = [];
  const cacheControl: string[] = [];
  const vary: string[] = [];
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at] ?? '';
    const value = rawFields[at + 1] ?? '';
    const lower = name.toLowerCase();
    if (staysWithSluice(lower)) continue;
    if (named.includes(lower) && !notNameable.has(lower)) continue;
    if (input.addsRateLimit && (lower === 'ratelimit' || lower === 'ratelimit-policy')) continue;
    if (lower === 'content-length' && (status === 204 || status === 205)) continue;
    if (lower === 'set-cookie') {
      const cookie = returnedCookie(value, input.cookies);
      if (cookie !== null) fields.push(name, cookie);
    } else if (lower === 'cache-control') cacheControl.push(value);
    else if (lower === 'vary') vary.push(value);
    else fields.push(name, rewritten(lower, value, links));
  }
  const varies = [...vary.filter((line) => line.trim() !== ''), ...input.keyFields].join(', ');
  fields.push('Cache-Control', privateCacheControl(cacheControl), 'Vary', varies);
  // RFC 9110 §15.3.6: a 205 has no content, and says so because its framing allows one.
  if (status === 205) fields.push('content-length', '0');
  return fields;
}

const namedByConnection = (rawFields: readonly string[]): readonly string[] =>
  valuesOf(rawFields, 'connection')
    .flatMap((value) => value.split(','))
    .map((option) => option.trim().toLowerCase());

function rewritten(name: string, value: string, { target, baseFor }: Links): string {
  if (baseFor === null) return name === 'location' ? (URL.parse(value, target)?.href ?? value) : value;
  // Link targets stand in angle brackets and cannot contain one themselves.
  if (name === 'link')
    return value.replace(/<([^<>]*)>/g, (_, url: string) => `<${rewriteUrl(url, target, baseFor)}>`);
  // What begins with an origin is the address of something: of an upload, an operation, a file. Origins for browsers are not followed.
  const isUrl = /^(?:content-)?location$/.test(name);
  const isAddress = /^https?:\/\//i.test(value) && !name.startsWith('access-control-');
  return isUrl || isAddress ? rewriteUrl(value, target, baseFor) : value;
}

const withAuthority = /^(?:https?:)?\/\/[^/?#]+/i;

/** Exchanges the origin and leaves every other byte alone. References relative to the path need nothing. */
function rewriteUrl(text: string, target: string, baseFor: BaseFor): string {
  const written = withAuthority.exec(text)?.[0];
  if (written === undefined && !text.startsWith('/')) return text;
  const origin = URL.parse(written ?? '/', target);
  const base = origin && baseFor(origin);
  return base === null ? text : base + text.slice(written?.length ?? 0);
}

// What an upstream may not say

/**
 * Fields of a response that Sluice keeps to itself, because they act beyond the response that carries them: they command the hop
 * in front of Sluice (a proxy, a CDN, a mesh), or change what a browser keeps for a whole origin. To the client that origin is
 * Sluice, behind which other upstreams are, so that no single upstream may speak for it.
 */
const staysWithSluice = neverPasses({
  names: [
    'x-forwarded forwarded edge-control xkey x-send-file x-offload-to-sendfile',
    // What a browser remembers for all of an origin
    'alt-svc alternate-protocol strict-transport-security public-key-pins public-key-pins-report-only expect-ct',
    'clear-site-data nel report-to reporting-endpoints service-worker-allowed accept-ch accept-ch-lifetime critical-ch',
    'origin-agent-cluster set-login use-as-dictionary shared-storage-write observe-browsing-topics set-cookie2',
    'attribution-reporting-register-source attribution-reporting-register-trigger',
    'no-vary-search', // lets a browser take the response to one `?target=` for that to another
  ],
  /** Beginnings of names that one server or CDN takes commands by. */
  prefixes: [
    'x-accel-', // nginx
    'x-sendfile', // Apache, lighttpd, Caddy, Rack, and their variants
    'x-lighttpd- x-litespeed- x-lsadc- x-proxy- x-envoy- x-istio-',
    'x-reproxy- x-perlbal-', // Perlbal
    'l5d-', // linkerd
    'x-appengine-', // `X-AppEngine-BlobKey` is Google's X-Sendfile
    'x-middleware-', // rewrites at the edges of Vercel
    'x-forwarded-', // a request's field: in a response it can only mislead
    'surrogate- fastly- netlify-',
    'sec-session- secure-session-', // device-bound sessions of a browser
  ],
  /** `CDN-Cache-Control` and its kind (RFC 9213), which command one class of caches, and the tags by which a CDN stores. */
  pattern: /(?:-cache-control|(?:^|-)cache-tags?)$/,
});

// What caches are told of a response that was made for one caller: no cache that several callers share may store it.

/** Directives that let a shared cache store what it otherwise may not (RFC 9111 §5.2.2). */
const ofSharing = /^(?:public|s-maxage)\s*(?:=|$)/i;

/**
 * The `Cache-Control` that the client gets for the upstream's lines of that name, in one line. Where nothing in it keeps the response from
 * shared caches, `private` comes first, so that no quote behind it, however broken, hides it.
 */
function privateCacheControl(lines: readonly string[]): string {
  if (lines.length === 0) return 'private';
  // Commas within quoted strings separate nothing. A quote that is never closed quotes nothing.
  const directives = lines.flatMap((line) => line.match(/(?:"(?:[^"\\]|\\.)*"|[^,])+/g) ?? []);
  const kept = directives.map((each) => each.trim()).filter((each) => each !== '' && !ofSharing.test(each));
  const has = (name: string): boolean => kept.some((each) => each.toLowerCase() === name);
  // With `must-understand` a cache may ignore `no-store` (RFC 9111 §5.2.2.3).
  const isPrivate = has('private') || (has('no-store') && !has('must-understand'));
  if (isPrivate && !lines.some((line) => line.includes('"'))) return kept.join(', ');
  return ['private', ...kept.filter((each) => !/^private\s*(?:=|$)/i.test(each))].join(', ');
}

// Cookies. To a client with a cookie jar all upstreams are one host, Sluice, so that only the path of a cookie can keep it from other upstreams:
// a cookie that was set on `/via/{upstream}/…` is sent back to that upstream alone, and within it as far as the upstream said. On `/proxy` the
// path is the same for all upstreams: cookies do not pass there, unless the configuration says so.

/** What becomes of the cookies of one call. */
export type CookieScope =
  /** `prefix`: the client's path up to where the upstream's begins; `path`: the upstream's path of the call, without query. */
  | { readonly kind: 'under'; readonly prefix: string; readonly path: string }
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'withheld' };

export function cookieScope({ form, rawUrl }: Pick<Call, 'form' | 'rawUrl'>, route: Route): CookieScope {
  if (form !== 'via') return { kind: route.upstream.cookies === 'pass' ? 'unchanged' : 'withheld' };
  const own = withoutQuery(rawUrl);
  const path = withoutQuery(route.pathAndQuery);
  // The client's own spelling, because it is the client that compares paths.
  return { kind: 'under', prefix: own.endsWith(path) ? own.slice(0, -path.length) : own, path };
}

/**
 * One `Set-Cookie` value as the client gets it; `null` = not at all. The path is moved and always written, the domain is left out. A
 * `__Host-` cookie is moved like any other: who enforces its prefix refuses it then, which is safer than a path that covers all upstreams.
 */
function returnedCookie(value: string, scope: CookieScope): string | null {
  if (scope.kind !== 'under') return scope.kind === 'withheld' ? null : value;
  const [pair = '', ...attributes] = value.split(';').map((each) => each.trim());
  const kept = attributes.filter((each) => each !== '' && !/^(?:path|domain)\s*(?:=|$)/i.test(each));
  // Of several the last one counts (RFC 6265 §5.3). Some clients take quotes off.
  const last = attributes.findLast((each) => /^path\s*(?:=|$)/i.test(each)) ?? '';
  const path = /^path\s*=\s*(?:"(\/.*)"|(\/.*))$/i.exec(last);
  return [pair, ...kept, `Path=${scope.prefix}${path?.[1] ?? path?.[2] ?? defaultPath(scope.path)}`].join(
    '; ',
  );
}

/** RFC 6265 §5.1.4: the path of the call up to its last slash. */
function defaultPath(path: string): string {
  const last = path.lastIndexOf('/');
  return last <= 0 ? '/' : path.slice(0, last);
}

const withoutQuery = (url: string): string => url.split('?', 1)[0] ?? '';
