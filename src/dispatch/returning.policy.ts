/**
 * Which fields of an upstream's response reach the client.
 *
 * Owns: cleaning response heads, and turning absolute URLs of the same upstream into their `/via/` form. Does not own:
 * the fields that Sluice adds. Keeps: repeats and order; an upstream can neither speak for Sluice nor change framing.
 */
import { returnedCookie, type CookieScope } from './cookies.policy.ts';
import { isHopByHop } from './field-names.policy.ts';
import { privateCacheControl, varyWith } from './shared-caches.policy.ts';
import { isWithheld } from './withheld-fields.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

export interface ReturningInput {
  readonly rawFields: readonly string[];
  readonly status: number;
  /** True when our own `RateLimit` and `RateLimit-Policy` are added: two of them would contradict each other. */
  readonly addsRateLimit: boolean;
  /** Lower-case names of the fields in which an API key may come: whoever caches the response must tell them apart. */
  readonly keyFields: readonly string[];
  readonly cookies: CookieScope;
  /** Set for calls of the `/via/` form. */
  readonly via: ViaRewrite | null;
}

/** How to keep a client that follows links on its way through Sluice. */
export interface ViaRewrite {
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
  const { rawFields, status, via } = input;
  const named = namedByConnection(rawFields);
  const fields: string[] = [];
  const cacheControl: string[] = [];
  const vary: string[] = [];
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at] ?? '';
    const value = rawFields[at + 1] ?? '';
    const lower = name.toLowerCase();
    if (isHopByHop(lower) || /^sluice[-_]/.test(lower) || isWithheld(lower)) continue;
    if (named.includes(lower) && !notNameable.has(lower)) continue;
    if (input.addsRateLimit && (lower === 'ratelimit' || lower === 'ratelimit-policy')) continue;
    if (lower === 'content-length' && (status === 204 || status === 205)) continue;
    if (lower === 'set-cookie') {
      const cookie = returnedCookie(value, input.cookies);
      if (cookie !== null) fields.push(name, cookie);
    } else if (lower === 'cache-control') cacheControl.push(value);
    else if (lower === 'vary') vary.push(value);
    else fields.push(name, via === null ? value : rewritten(lower, value, via));
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
  return value;
}

const withAuthority = /^(?:https?:)?\/\/[^/?#]+/i;

/** Exchanges the origin and leaves every other byte alone. References relative to the path need nothing. */
function rewriteUrl(text: string, via: ViaRewrite): string {
  const written = withAuthority.exec(text)?.[0];
  if (written === undefined && !text.startsWith('/')) return text;
  const origin = URL.parse(written ?? '/', via.origin);
  const base = origin === null ? null : via.baseFor(origin);
  return base === null ? text : base + text.slice(written?.length ?? 0);
}
