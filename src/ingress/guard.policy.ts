/**
 * Which request heads are refused before anything else reads them.
 *
 * Owns: what Node's parser lets through and Sluice must not, because two layers could read it differently (RFC 9112
 * §3.2, §6.1, §9.6): doubled identity fields, unclear framing, unusual request-target forms, protocol switches.
 * Does not own: what a target may be (`target/`), who is calling (`auth/`).
 * Invariant: judged from the raw field lines, never from a joined or de-duplicated view of them.
 */
import type { RefusalCode } from '../errors.ts';

/** A request head as it came off the wire. */
export interface RequestHead {
  readonly method: string;
  /** The request target as received. */
  readonly url: string;
  /** `1.1`, `1.0`, or whatever the request line claimed. */
  readonly httpVersion: string;
  /** Field lines, name and value alternating. */
  readonly rawFields: readonly string[];
}

/** Why a head is refused. `status` differs from the code's own only for 417. */
export interface GuardFinding {
  readonly code: Extract<RefusalCode, 'request_invalid' | 'method_not_allowed' | 'upgrade_unsupported'>;
  readonly status: number;
  readonly detail: string;
}

/** Fields whose first value some layer takes and whose last value another one takes. */
const alwaysSingle: ReadonlySet<string> = new Set([
  'authorization',
  'content-length',
  'sluice-key',
  'sluice-upstream-authorization',
]);

/** Options a client may name; any other could name a framing or identity field away. */
const knownConnectionOptions: ReadonlySet<string> = new Set([
  '',
  'close',
  'keep-alive',
  'te',
  'upgrade',
  'http2-settings',
]);

/** RFC 3986 reg-name or bracketed address, and a port. No path, no user info, not empty. */
const hostForm = /^(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?$/;

/** Printable ASCII without `#`, starting with one slash: origin-form (RFC 9112 §3.2.1). */
const originForm = /^\/[\x21\x22\x24-\x7e]*$/;

const invalid = (detail: string): GuardFinding => ({ code: 'request_invalid', status: 400, detail });

const membersOf = (value: string): string[] => value.split(',').map((member) => member.trim().toLowerCase());

function judgeLine(head: RequestHead): GuardFinding | null {
  if (head.httpVersion !== '1.1' && head.httpVersion !== '1.0')
    return invalid('Only HTTP/1.1 and HTTP/1.0 are served here.');
  if (head.method === 'TRACE' || head.method === 'CONNECT')
    return { code: 'method_not_allowed', status: 405, detail: 'This method is not served.' };
  if (!originForm.test(head.url))
    return invalid(
      'The request target must be a path with an optional query, without a fragment. Sluice is no HTTP_PROXY: call /proxy?target=… or /via/{upstream}/….',
    );
  return null;
}

function judgeField(name: string, value: string, head: RequestHead): GuardFinding | null {
  switch (name) {
    case 'host':
      return hostForm.test(value)
        ? null
        : invalid('The Host field must be a host name and an optional port.');
    case 'transfer-encoding':
      if (head.httpVersion === '1.0') return invalid('HTTP/1.0 has no transfer codings.');
      return value.toLowerCase() === 'chunked' ? null : invalid('The only transfer coding is chunked.');
    case 'connection':
      return membersOf(value).every((option) => knownConnectionOptions.has(option))
        ? null
        : invalid('The Connection field names an unknown option.');
    case 'upgrade':
      // An offer of h2c may be declined by silence (RFC 9110 §7.8); everything else wants another protocol.
      return membersOf(value).every((protocol) => protocol === 'h2c' || protocol === '')
        ? null
        : { code: 'upgrade_unsupported', status: 426, detail: 'Send a plain HTTP/1.1 request.' };
    case 'expect':
      return head.httpVersion === '1.0' || membersOf(value).every((member) => member === '100-continue')
        ? null
        : {
            code: 'request_invalid',
            status: 417,
            detail: 'The only expectation understood is 100-continue.',
          };
    default:
      return null;
  }
}

/**
 * Judges one request head.
 * @param credentialFields lower-case names of the fields in which upstream credentials are injected; an API key may
 *   arrive in them, so two of one would let two layers disagree about the workspace.
 * @returns why it is refused, or `null`.
 */
export function judgeHead(head: RequestHead, credentialFields: ReadonlySet<string>): GuardFinding | null {
  const line = judgeLine(head);
  if (line !== null) return line;
  const seen = new Set<string>();
  for (let at = 0; at < head.rawFields.length; at += 2) {
    const name = (head.rawFields[at] ?? '').toLowerCase();
    const single =
      name === 'host' || name === 'transfer-encoding' || alwaysSingle.has(name) || credentialFields.has(name);
    if (single && seen.has(name)) return invalid('A field that must be unique was sent more than once.');
    if (single) seen.add(name);
    const finding = judgeField(name, head.rawFields[at + 1] ?? '', head);
    if (finding !== null) return finding;
  }
  if (!seen.has('host') && head.httpVersion === '1.1') return invalid('The Host field is missing.');
  return null;
}
