/**
 * Which request heads are refused before anything else reads them.
 *
 * Owns: what Node's parser lets through and Sluice must not, because two layers could read it differently (RFC 9112
 * §3.2, §6.1, §9.6): doubled identity fields, unclear framing, unusual request-target forms, protocol switches.
 * Does not own: what a target may be (`target/`), who is calling (`auth/`).
 * Invariant: judged from the raw field lines, never from a joined or de-duplicated view of them.
 */
import { Refusal } from '../errors.ts';

/** A request head as it came off the wire; Node's `IncomingMessage` is one. */
export interface RequestHead {
  readonly method?: string | undefined;
  /** The request target as received. */
  readonly url?: string | undefined;
  /** `1.1`, `1.0`, or whatever the request line claimed. */
  readonly httpVersion: string;
  /** Field lines, name and value alternating. */
  readonly rawHeaders: readonly string[];
}

const invalid = (detail: string, status = 400): Refusal => new Refusal('request_invalid', { detail, status });

const unserved = {
  version: invalid('Only HTTP/1.1 and HTTP/1.0 are served here.'),
  method: new Refusal('method_not_allowed', { detail: 'This method is not served.' }),
  target: invalid(
    'The request target must be a path with an optional query, without a fragment. Sluice is no HTTP_PROXY: call /proxy?target=… or /via/{upstream}/….',
  ),
  repeated: invalid('A field that must be unique was sent more than once.'),
  noHost: invalid('The Host field is missing.'),
};

/** Printable ASCII without `#`, starting with one slash: origin-form (RFC 9112 §3.2.1). */
const originForm = /^\/[\x21\x22\x24-\x7e]*$/;
/** RFC 3986 reg-name or bracketed address, and a port. No path, no user info, not empty. */
const hostForm = /^(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?$/;

/** Fields whose first value some layer takes and whose last value another one takes. */
const alwaysSingle: ReadonlySet<string> = new Set([
  'authorization',
  'content-length',
  'host',
  'sluice-key',
  'sluice-upstream-authorization',
  'transfer-encoding',
]);

/** True for a list that names nothing but these, in lower case. */
const namesOnly = (value: string, known: readonly string[]): boolean =>
  known.includes(value) || value.split(',').every((member) => known.includes(member.trim().toLowerCase()));

/** Options a client may name; any other could name a framing or identity field away. */
const connectionOptions = ['keep-alive', 'close', '', 'te', 'upgrade', 'http2-settings'];

type Rule = readonly [isGood: (value: string, httpVersion: string) => boolean, refusal: Refusal];

/** When the value of a field is good, and how one that is not is refused. */
const rules: ReadonlyMap<string, Rule> = new Map(
  Object.entries<Rule>({
    host: [
      (value) => hostForm.test(value),
      invalid('The Host field must be a host name and an optional port.'),
    ],
    'transfer-encoding': [
      (value, httpVersion) => httpVersion !== '1.0' && value.toLowerCase() === 'chunked',
      invalid('The only transfer coding is chunked, and HTTP/1.0 has none.'),
    ],
    connection: [
      (value) => namesOnly(value, connectionOptions),
      invalid('The Connection field names an unknown option.'),
    ],
    // An offer of h2c may be declined by silence (RFC 9110 §7.8); everything else wants another protocol.
    upgrade: [
      (value) => namesOnly(value, ['h2c', '']),
      new Refusal('upgrade_unsupported', { detail: 'Send a plain HTTP/1.1 request.' }),
    ],
    expect: [
      (value, httpVersion) => httpVersion === '1.0' || namesOnly(value, ['100-continue']),
      invalid('The only expectation understood is 100-continue.', 417),
    ],
  }),
);

/**
 * Judges one request head.
 * @param credentialFields lower-case names of the fields in which upstream credentials are injected; an API key may
 *   arrive in them, so two of one would let two layers disagree about the workspace.
 * @returns why it is refused, or `null`.
 */
export function judgeHead(head: RequestHead, credentialFields: ReadonlySet<string>): Refusal | null {
  const { method, url = '', httpVersion, rawHeaders } = head;
  if (httpVersion !== '1.1' && httpVersion !== '1.0') return unserved.version;
  if (method === 'TRACE' || method === 'CONNECT') return unserved.method;
  if (!originForm.test(url)) return unserved.target;
  const seen: string[] = [];
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] ?? '').toLowerCase();
    if (alwaysSingle.has(name) || credentialFields.has(name)) {
      if (seen.includes(name)) return unserved.repeated;
      seen.push(name);
    }
    const rule = rules.get(name);
    if (rule !== undefined && !rule[0](rawHeaders[at + 1] ?? '', httpVersion)) return rule[1];
  }
  return httpVersion === '1.1' && !seen.includes('host') ? unserved.noHost : null;
}
