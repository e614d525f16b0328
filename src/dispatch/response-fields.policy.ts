/**
 * Which fields of an upstream's response reach the client. Repeats and order are kept; an upstream can neither speak for Sluice nor
 * change framing.
 */
import { valuesOf } from '../field-lines.policy.ts';
import { endsHere, namesIn, remembered } from './field-names.policy.ts';

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
export type Links =
  /** A call of the `/via/` form: links to the upstream lead through Sluice. */
  | ViaRewrite
  /** A call of the `/proxy` form: a relative `Location` would be taken for a path of Sluice. The URL that was called. */
  | { readonly form: 'proxy'; readonly target: string };

export interface ViaRewrite {
  readonly form: 'via';
  /** Origin of the call, `scheme://host`: base of references without a host. */
  readonly origin: string;
  /**
   * What stands for the origin of this URL, e.g. `https://gateway.example/via/shop/acme.example`, without a trailing
   * slash; `null` when the URL is not an origin of the call's upstream.
   */
  readonly baseFor: (url: URL) => string | null;
}

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
    if (staysHere(lower)) continue;
    if (named.includes(lower) && !notNameable.has(lower)) continue;
    if (input.addsRateLimit && (lower === 'ratelimit' || lower === 'ratelimit-policy')) continue;
    if (lower === 'content-length' && (status === 204 || status === 205)) continue;
    if (lower === 'set-cookie') {
      const cookie = returnedCookie(value, input.cookies);
      if (cookie !== null) fields.push(name, cookie);
    } else if (lower === 'cache-control') cacheControl.push(value);
    else if (lower === 'vary') vary.push(value);
    else
      fields.push(name, links.form === 'via' ? rewritten(lower, value, links) : located(lower, value, links));
  }
  fields.push('Cache-Control', privateCacheControl(cacheControl), 'Vary', varyWith(vary, input.keyFields));
  // RFC 9110 §15.3.6: a 205 has no content, and says so because its framing allows one.
  if (status === 205) fields.push('content-length', '0');
  return fields;
}

const namedByConnection = (rawFields: readonly string[]): readonly string[] =>
  valuesOf(rawFields, 'connection')
    .flatMap((value) => value.split(','))
    .map((option) => option.trim().toLowerCase());

function rewritten(name: string, value: string, via: ViaRewrite): string {
  if (name === 'location' || name === 'content-location') return rewriteUrl(value, via);
  // Link targets stand in angle brackets and cannot contain one themselves.
  if (name === 'link') return value.replace(/<([^<>]*)>/g, (_, url: string) => `<${rewriteUrl(url, via)}>`);
  // What begins with an origin is the address of something: of an upload, an operation, a file. Origins for browsers are not followed.
  return /^https?:\/\//i.test(value) && !name.startsWith('access-control-') ? rewriteUrl(value, via) : value;
}

const located = (name: string, value: string, { target }: { readonly target: string }): string =>
  name === 'location' ? (URL.parse(value, target)?.href ?? value) : value;

const withAuthority = /^(?:https?:)?\/\/[^/?#]+/i;

/** Exchanges the origin and leaves every other byte alone. References relative to the path need nothing. */
function rewriteUrl(text: string, via: ViaRewrite): string {
  const written = withAuthority.exec(text)?.[0];
  if (written === undefined && !text.startsWith('/')) return text;
  const origin = URL.parse(written ?? '/', via.origin);
  const base = origin === null ? null : via.baseFor(origin);
  return base === null ? text : base + text.slice(written?.length ?? 0);
}

// What an upstream may not say

/**
 * Fields of a response that Sluice keeps to itself, because they act beyond the response that carries them: they command the hop
 * in front of Sluice (a proxy, a CDN, a mesh), or change what a browser keeps for a whole origin. To the client that origin is
 * Sluice, behind which other upstreams are, so that no single upstream may speak for it.
 */
const isWithheld = namesIn({
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

const staysHere = remembered((name) => endsHere(name) || isWithheld(name));

// What caches are told of a response that was made for one caller: no cache that several callers share may store it.

/** Directives that let a shared cache store what it otherwise may not (RFC 9111 §5.2.2), and forms of `private` that name fields only. */
const sharing = /^(?:public|s-maxage|private\s*=)/i;

/** Splits at the commas outside of quoted strings. A quote that is never closed quotes nothing. */
const directivesOf = (value: string): string[] =>
  (value.match(/(?:"(?:[^"\\]|\\.)*"|[^,])+/g) ?? []).map((directive) => directive.trim());

const isBare = (directives: readonly string[], name: string): boolean =>
  directives.some((directive) => directive.toLowerCase() === name);

/**
 * The `Cache-Control` that the client gets for the upstream's lines of that name, in one line.
 *
 * `private` comes first, so that no unclosed quote behind it can hide it.
 */
function privateCacheControl(lines: readonly string[]): string {
  const given = lines.flatMap(directivesOf).filter((directive) => directive !== '');
  const kept = given.filter((directive) => !sharing.test(directive));
  const balanced = lines.every((line) => (line.match(/"/g) ?? []).length % 2 === 0);
  // With `must-understand` a cache may ignore `no-store` (RFC 9111 §5.2.2.3).
  const isNeverStored = isBare(kept, 'no-store') && !isBare(kept, 'must-understand');
  const isPrivate = isNeverStored || isBare(kept, 'private');
  if (isPrivate && balanced) return kept.join(', ');
  return ['private', ...kept.filter((directive) => directive.toLowerCase() !== 'private')].join(', ');
}

/** The `Vary` that the client gets for the upstream's lines of that name. `keyFields` in lower case. */
function varyWith(lines: readonly string[], keyFields: readonly string[]): string {
  const given = lines.flatMap((line) => line.split(',')).map((name) => name.trim());
  const names = given.filter((name) => name !== '');
  if (names.includes('*')) return '*';
  const known = new Set(names.map((name) => name.toLowerCase()));
  return [...names, ...keyFields.filter((name) => !known.has(name))].join(', ');
}

// The id of an attempt

/** OpenAI, commerce and most others; Anthropic; Azure. The first one counts. */
const idFields = ['x-request-id', 'request-id', 'apim-request-id'] as const;
const idPattern = /^[\w.:-]{1,128}$/;

/** The id that an upstream gave to one attempt, by which its own support and logs find it; `null` = none. `rawFields` alternates name and value. */
export const upstreamIdOf = (rawFields: readonly string[]): string | null =>
  idFields.flatMap((name) => valuesOf(rawFields, name)).find((value) => idPattern.test(value)) ?? null;

// Cookies. To a client with a cookie jar all upstreams are one host, Sluice, so that only the path of a cookie can keep it from other upstreams:
// a cookie that was set on `/via/{upstream}/…` is sent back to that upstream alone, and within it as far as the upstream said. On `/proxy` the
// path is the same for all upstreams: cookies do not pass there, unless the configuration says so.

/** What becomes of the cookies of one call. */
export type CookieScope =
  /** `prefix`: the client's path up to where the upstream's begins; `path`: the upstream's path of the call, without query. */
  | { readonly kind: 'under'; readonly prefix: string; readonly path: string }
  | { readonly kind: 'unchanged' }
  | { readonly kind: 'withheld' };

/** @param pathAndQuery the upstream's part of `rawUrl`, as the client wrote it */
export function cookieScope(
  { form, rawUrl }: { readonly form: 'proxy' | 'via' | 'activity'; readonly rawUrl: string },
  pathAndQuery: string,
  cookies: 'scoped' | 'pass',
): CookieScope {
  if (form !== 'via') return { kind: cookies === 'pass' ? 'unchanged' : 'withheld' };
  const own = withoutQuery(rawUrl);
  const path = withoutQuery(pathAndQuery);
  // The client's own spelling, because it is the client that compares paths.
  return { kind: 'under', prefix: own.endsWith(path) ? own.slice(0, -path.length) : own, path };
}

/** One `Set-Cookie` value as the client gets it; `null` = not at all. */
function returnedCookie(value: string, scope: CookieScope): string | null {
  if (scope.kind === 'withheld') return null;
  return scope.kind === 'unchanged' ? value : cookieUnder(value, scope);
}

/**
 * The path is moved and always written, the domain is left out. A `__Host-` cookie is moved like any other: who enforces its prefix
 * refuses it then, which is safer than a path that covers all upstreams.
 */
function cookieUnder(
  value: string,
  { prefix, path: calledPath }: Extract<CookieScope, { kind: 'under' }>,
): string {
  const [pair = '', ...attributes] = value.split(';');
  const kept = [pair.trimEnd()];
  let path: string | null = null;
  for (const attribute of attributes) {
    const equals = attribute.indexOf('=');
    const name = (equals < 0 ? attribute : attribute.slice(0, equals)).trim().toLowerCase();
    // Of several the last one counts (RFC 6265 §5.3). Some clients take quotes off.
    if (name === 'path') path = unquoted(equals < 0 ? '' : attribute.slice(equals + 1).trim());
    else if (name !== 'domain' && name !== '') kept.push(attribute.trim());
  }
  const moved = path?.startsWith('/') === true ? path : defaultPath(calledPath);
  return [...kept, `Path=${prefix}${moved}`].join('; ');
}

/** RFC 6265 §5.1.4: the path of the call up to its last slash. */
function defaultPath(path: string): string {
  const last = path.lastIndexOf('/');
  return last <= 0 ? '/' : path.slice(0, last);
}

const unquoted = (text: string): string => (/^".*"$/.test(text) ? text.slice(1, -1) : text);

function withoutQuery(url: string): string {
  const at = url.indexOf('?');
  return at < 0 ? url : url.slice(0, at);
}
