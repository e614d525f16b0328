/**
 * Cookies of an upstream. To a client with a cookie jar all upstreams are one host, Sluice, so that only the path of a cookie can keep
 * it from other upstreams.
 *
 * Keeps: a cookie that was set on `/via/{upstream}/…` is sent back to that upstream alone, and within it as far as the upstream said.
 * On `/proxy` the path is the same for all upstreams: cookies do not pass there, unless the configuration says so.
 */

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
export function returnedCookie(value: string, scope: CookieScope): string | null {
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
