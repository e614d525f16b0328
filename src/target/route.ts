/**
 * Combines who calls with where to: a caller and a request line become a {@link Route}.
 *
 * Owns: the judgement of targets, the choice of credential and the loop guard. Does not own: addresses (`address.policy.ts`).
 * Keeps: a credential is only ever paired with an origin of the upstream it was configured for.
 */
import type { Call, Caller, Route } from '../call.ts';
import { withoutCredentials } from '../credential-carriers.policy.ts';
import { Refusal, type RefusalCode } from '../errors.ts';
import type { WorkspaceSettings } from '../config/settings.ts';
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { pseudonym } from '../dispatch/fields.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { nearest } from '../nearest.policy.ts';
import { allowsInside } from './address.policy.ts';

/** Decisions kept: calls come to the same few targets again and again, and deciding costs a URL parse. */
const routesKept = 1_000;
/** Longer request targets are decided each time, so that what is kept stays below a megabyte. */
const maxUrlKept = 512;

/** @param upstreams the validated configuration; build a new finder when it is reloaded. */
export function createRouteFinder(upstreams: ReadonlyMap<string, UpstreamSettings>) {
  const lately = new LRUCache<string, { readonly workspace: WorkspaceSettings; readonly route: Route }>(
    atMost(routesKept),
  );
  const decide = (call: Pick<Call, 'form' | 'rawUrl'>, workspace: WorkspaceSettings): Route => {
    const target = decideTarget(call, upstreams, ({ name }) => workspace.upstreams.has(name));
    if (target instanceof Refusal) throw target;
    const { upstream, pathAndQuery } = target;
    const credential = workspace.credentials.get(upstream.name) ?? upstream.credential;
    // Beside an injected credential no other one goes upstream.
    const sent = credential === null ? pathAndQuery : withoutCredentials(pathAndQuery, upstream.carriers);
    return { ...target, pathAndQuery: sent, credential };
  };
  return {
    /**
     * Decides once where a call goes.
     *
     * @throws Refusal `target_missing` `target_invalid` `target_forbidden` `target_too_long` `loop_detected`
     */
    find(call: Pick<Call, 'form' | 'rawUrl' | 'rawFields'>, { workspace }: Pick<Caller, 'workspace'>): Route {
      // A loop would wait for the lease that it holds itself.
      if (passedThrough(call.rawFields)) throw new Refusal('loop_detected');
      if (call.rawUrl.length > maxUrlKept) return decide(call, workspace);
      const key = `${workspace.id} ${call.form} ${call.rawUrl}`;
      const known = lately.get(key);
      if (known?.workspace === workspace) return known.route;
      const route = decide(call, workspace);
      lately.set(key, { workspace, route });
      return route;
    },
    /** `/via/…` prefix of an absolute URL if it is an origin of this upstream, else `null`; for rewriting responses. */
    viaPrefix: (upstream: UpstreamSettings, url: URL) => viaPrefix(upstreams, upstream, url),
  };
}

// Where does this request line point to?
//
// One parse decides the origin, and path and query go on as the client's own bytes or the call is refused; nothing later parses the target
// again. Who may call which upstream is handed in (`allowed`).

/** Longest target, in characters (all of them ASCII, so bytes too). */
const maxTargetLength = 8 * 1024;

type UpstreamSettings = Route['upstream'];
/** Those of the configuration, by name. */
type Upstreams = ReadonlyMap<string, UpstreamSettings>;
/** Which upstreams the workspace may use. */
type Allowed = (upstream: UpstreamSettings) => boolean;

/** A target that passed every check. */
type Target = Omit<Route, 'credential'>;

/** Why not. `detail` is one fixed sentence for the client and never quotes the target. */
const refuse = (code: RefusalCode, detail: string): Refusal => new Refusal(code, { detail, param: 'target' });

const invalid = (detail: string): Refusal => refuse('target_invalid', detail);
const missing = (detail: string): Refusal => refuse('target_missing', detail);

const forbidden = refuse(
  'target_forbidden',
  'The origin is not configured, or not allowed to this workspace: the operator can add it to `upstreams`.',
);

const hostForbidden = refuse(
  'target_forbidden',
  'What follows /via/{upstream} is no host of its origins. Name one, /via/{upstream}/{host}/{path}, or ask the operator to add it.',
);

/** Names of upstreams that are compared with one that is not known, at most. */
const maxCompared = 200;

/** Everything outside visible ASCII, and the backslash that URL parsers read as a slash. */
const unusableCharacter = /[^\x21-\x7e]|\\/;

const schemeAndRest = /^([a-z][a-z0-9+.-]*):(.*)$/i;

/** Authority and the rest; the authority must begin like a host, so `https:///x` is none. */
const authorityAndRest = /^\/\/([a-z0-9._%[][^/?#]*)(.*)$/i;

/** Port as written: no empty port, no sign, no leading zero, so that text and number are one. */
const authorityWithPort = /^(.*?)(?::([1-9]\d{0,4}))?$/;

/** `.` or `..`, also percent-encoded: what an upstream would collapse differently from us. */
const dotSegment = /^(?:\.|%2e){1,2}$/i;

/** Judges the target of a call; among equally exact entries the first allowed one is taken. */
export const decideTarget = (
  { form, rawUrl }: Pick<Call, 'form' | 'rawUrl'>,
  upstreams: Upstreams,
  allowed: Allowed,
): Target | Refusal => (form === 'proxy' ? decideProxy : decideVia)(rawUrl, upstreams, allowed);

function decideProxy(rawUrl: string, upstreams: Upstreams, allowed: Allowed): Target | Refusal {
  const queryAt = rawUrl.indexOf('?');
  const query = queryAt === -1 ? '' : rawUrl.slice(queryAt + 1);
  const parameters = query.split('&');
  const first = parameters.find((parameter) => /^target(?:=|$)/.test(parameter));
  if (first === undefined || first.length <= 'target='.length) {
    return missing('Give the upstream URL, percent-encoded, as the parameter `target`.');
  }
  if (parameters.length > 1) {
    return invalid('Only one parameter, `target`, is read; percent-encode the whole URL so that & is %26.');
  }
  const target = decodeOnce(first.slice('target='.length));
  if (target === null) return invalid('The percent-encoding of the target is broken.');
  return judge(target, upstreams, allowed);
}

/** Decodes once; `+` stays `+`, because this is a URL inside a URL and not a form. */
function decodeOnce(text: string): string | null {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

function decideVia(rawUrl: string, upstreams: Upstreams, allowed: Allowed): Target | Refusal {
  const [, name = '', rest = ''] = /^\/via\/([^/?#]*)(.*)$/s.exec(rawUrl) ?? [];
  if (name === '') return missing('Name the upstream: /via/{upstream}/{path}.');
  const upstream = upstreams.get(name);
  if (upstream === undefined || !allowed(upstream)) return notAllowed(name, upstreams, allowed);
  const judgeOwn = (target: string): Target | Refusal =>
    judge(target, upstreams, (candidate) => candidate === upstream);
  const [sole, ...others] = upstream.origins;
  if (sole !== undefined && others.length === 0 && !sole.wildcard)
    return judgeOwn(`${sole.scheme}://${sole.host}:${sole.port}${rest}`);
  const [, segment = '', path = ''] = /^\/([^/?#]*)(.*)$/s.exec(rest) ?? [];
  if (segment === '') return missing('Name the host: /via/{upstream}/{host}/{path}.');
  // The host segment carries no scheme and may leave out the port: the upstream's own entries supply both.
  for (const { scheme, port } of upstream.origins) {
    const authority = /:\d*$/.test(segment) ? segment : `${segment}:${port}`;
    const decision = judgeOwn(`${scheme}://${authority}${path}`);
    if (!(decision instanceof Refusal) || decision.code !== 'target_forbidden') return decision;
  }
  return hostForbidden;
}

/** Names what was probably meant, of the upstreams that this workspace may use. */
function notAllowed(name: string, upstreams: Upstreams, allowed: Allowed): Refusal {
  const own = [...upstreams].flatMap(([own, upstream]) => (allowed(upstream) ? [own] : []));
  const meant = nearest(name, own.slice(0, maxCompared));
  const rest = meant === null ? 'the operator can add it to `upstreams`.' : `did you mean ${meant}?`;
  return refuse('target_forbidden', `No upstream of this workspace has this name: ${rest}`);
}

/** All checks on a whole URL, in the order: what it is made of, what it means, whether it is configured. */
function judge(target: string, upstreams: Upstreams, allowed: Allowed): Target | Refusal {
  if (target.length > maxTargetLength) {
    return refuse('target_too_long', `The target is longer than ${maxTargetLength} bytes.`);
  }
  if (unusableCharacter.test(target)) {
    return invalid('Blanks, control characters, backslashes and non-ASCII must be percent-encoded.');
  }
  const [, scheme = '', afterScheme = ''] = schemeAndRest.exec(target) ?? [];
  if (scheme === '') return invalid('The target must be an absolute URL.');
  if (!/^https?$/i.test(scheme)) return forbidden;
  const [, authority = '', rest = ''] = authorityAndRest.exec(afterScheme) ?? [];
  if (authority === '') return invalid('The scheme must be followed by // and a host.');
  const fault = faultOf(authority, rest);
  if (fault !== null) return invalid(fault);

  const parsed = URL.parse(`${scheme}://${authority}`);
  if (parsed === null) return invalid('The host cannot be parsed.');
  if (parsed.hostname.endsWith('.')) return invalid('The host must not end with a dot.');
  const match = matchOrigin(upstreams, parsed, allowed);
  if (match === null) return forbidden;
  // What was matched must also be what was written: no %2e, no 127.1, no second spelling of one host.
  if (hostAsWritten(authority) !== parsed.hostname) return invalid('Write the host in its plain form.');
  return {
    upstream: match.upstream,
    host: parsed.host,
    origin: `${match.pattern.scheme}://${parsed.host}`,
    pathAndQuery: rest.startsWith('/') ? rest : `/${rest}`,
  };
}

function faultOf(authority: string, rest: string): string | null {
  if (authority.includes('@')) return 'User information does not belong into the target.';
  if (hostAsWritten(authority) === null) return 'The port of the target is not a plain number.';
  if (rest.includes('#')) return 'A fragment does not belong into the target.';
  const path = rest.split('?', 1)[0] ?? '';
  if (path.split('/').some((segment) => dotSegment.test(segment))) {
    return 'Dot segments must be resolved before the call.';
  }
  return null;
}

/** The host part of an authority in lower case, or `null` when what follows it is not a plain port. */
function hostAsWritten(authority: string): string | null {
  const host = authorityWithPort.exec(authority)?.[1]?.toLowerCase() ?? '';
  const outsideBrackets = host.startsWith('[') ? host.slice(host.indexOf(']') + 1) : host;
  return host === '' || outsideBrackets.includes(':') ? null : host;
}

// Origins. An exact entry goes before a wildcard; a wildcard stands for exactly one label of a name, never for an address, a suffix or a
// substring.

/** One label of a host name: letters, digits and inner hyphens, at most 63. */
const label = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

const defaultPorts: Readonly<Record<string, string>> = { 'https:': '443', 'http:': '80' };

/**
 * Finds the entry for a parsed URL; `null`: there is none that the workspace may use. A host that has an exact entry is never served by a wildcard: the operator who
 * named it meant that entry, also for workspaces it is closed to. Plain `http` without `allowPrivateAddresses` can never be called.
 */
export function matchOrigin(upstreams: Upstreams, url: URL, allowed: Allowed) {
  const port = Number(url.port || defaultPorts[url.protocol]);
  const parent = parentOf(url.hostname);
  const entries = [...upstreams.values()].flatMap((upstream) =>
    upstream.origins
      .filter(
        (pattern) =>
          `${pattern.scheme}:` === url.protocol &&
          pattern.port === port &&
          pattern.host.toLowerCase() === (pattern.wildcard ? parent : url.hostname) &&
          (pattern.scheme === 'https' || allowsInside(upstream.allowPrivateAddresses)),
      )
      .map((pattern) => ({ upstream, pattern })),
  );
  const exact = entries.filter(({ pattern }) => !pattern.wildcard);
  return (exact.length > 0 ? exact : entries).find(({ upstream }) => allowed(upstream)) ?? null;
}

/** The name without its first label; `null` when that label is none or this is an address. */
function parentOf(hostname: string): string | null {
  const dot = hostname.indexOf('.');
  if (dot < 1 || /^[\d.]+$/.test(hostname) || !label.test(hostname.slice(0, dot))) return null;
  return hostname.slice(dot + 1);
}

/**
 * The `/via/` prefix under which an origin of this upstream is reached, or `null` when the URL is not one of its
 * origins. Where TLS ends before the upstream, it writes `http:` for itself, and no port: then the scheme does not matter, and no port
 * stands for that of its one origin with this host. Without a trailing slash; append the raw path.
 */
export function viaPrefix(upstreams: Upstreams, upstream: UpstreamSettings, url: URL): string | null {
  const exact = upstream.origins.filter(
    ({ wildcard, host }) => !wildcard && host.toLowerCase() === url.hostname,
  );
  const ports = url.port === '' && exact.length === 1 ? exact.map(({ port }) => `:${port}`) : [];
  for (const scheme of [url.protocol, 'https:', 'http:'])
    for (const port of ['', ...ports]) {
      const written = URL.parse(`${scheme}//${url.host}${port}`);
      const match = written && matchOrigin(upstreams, written, ({ name }) => name === upstream.name);
      if (written === null || match === null) continue;
      const single = upstream.origins.length === 1 && !match.pattern.wildcard;
      return `/via/${upstream.name}${single ? '' : `/${written.host}`}`;
    }
  return null;
}

// Loops

/** One member of the list: protocol, received-by, and perhaps a comment. */
const member = /^\s*\S+[ \t]+([^\s,(]+)/;

/**
 * True for a request that has already passed through Sluice: some `Via` line (RFC 9110 §7.6.3) names it. Only the received-by
 * part counts; a comment or a longer name that contains ours does not.
 *
 * @param rawFields name and value alternating.
 */
export function passedThrough(rawFields: readonly string[]): boolean {
  return valuesOf(rawFields, 'via')
    .flatMap((value) => value.split(','))
    .some((text) => member.exec(text)?.[1]?.toLowerCase() === pseudonym);
}
