/**
 * How a sending can fail: in the few classes that decisions need, and in words for whoever has to mend it. No text of the upstream, no
 * host, no address comes along, only Node's error code, a closed vocabulary, for the log.
 */
import type { FailureReason } from '../errors.ts';

/**
 * `unreachable`: no connection (name, TCP, TLS). `address_denied`: the address check refused. `invalid`: what came is not
 * an HTTP response that may be passed on, or the request could not be written. `timeout`: one of our own limits.
 * `reset`: the connection broke. `aborted`: the caller's signal, or the transport was closed.
 */
export type TransportFault = 'unreachable' | 'address_denied' | 'invalid' | 'timeout' | 'reset' | 'aborted';

/** `connect`: no connection yet. `sent`: the request may have been read. `body`: the response's head has arrived. */
export type ExchangePhase = 'connect' | 'sent' | 'body';

/** What is known of a failed sending. */
export class TransportError extends Error {
  declare readonly kind: TransportFault;
  declare readonly phase: ExchangePhase;
  /** True when no byte of the request can have reached the upstream, or it says that it has read none: repeating cannot run it twice. */
  declare readonly neverSent: boolean;
  /**
   * The upstream closed a kept connection under the request, and not a byte of response came: most likely it read nothing
   * of it, but nothing proves that.
   */
  declare readonly stale: boolean;
  /** Node's code of the cause (`ECONNREFUSED`, `HPE_INVALID_CONSTANT`), or `null`. */
  declare readonly code: string | null;

  constructor(facts: Omit<TransportError, keyof Error>) {
    super(`upstream ${facts.kind} (${facts.phase})`);
    this.name = 'TransportError';
    Object.assign(this, facts);
  }
}

/** What the address check refused, and names without an address or not resolved in time, as Node's own resolver says it. */
export const coded = (code: 'ERR_ADDRESS_DENIED' | 'ENODATA' | 'ETIMEOUT'): Error =>
  Object.assign(new Error(`upstream ${code}`), { code });

/** Node's error code, when there is one. */
export function codeOf(error: unknown): string | null {
  const code: unknown = typeof error === 'object' && error !== null && 'code' in error ? error.code : null;
  return typeof code === 'string' ? code : null;
}

/** Codes with which Node's parser refuses a response, or its client refuses to write a request: nothing was sent then. */
const ofInvalid =
  /^(?:HPE_\w+|ERR_INVALID_CHAR|ERR_INVALID_HTTP_TOKEN|ERR_UNESCAPED_CHARACTERS|ERR_HTTP_INVALID_HEADER_VALUE|ERR_HTTP_TRAILER_INVALID)$/;

/** What kind of failure an error of Node's is, given how far the exchange was. */
export function faultOf(error: unknown, phase: ExchangePhase): TransportFault {
  const code = codeOf(error) ?? '';
  if (code === 'ERR_ADDRESS_DENIED') return 'address_denied';
  if (ofInvalid.test(code)) return 'invalid';
  return phase === 'connect' ? 'unreachable' : 'reset';
}

/**
 * Whatever ended a response's body, as a {@link TransportError}. Node itself ends a cut body with its own error; a body
 * that ended with any error at all must never be passed on as complete.
 */
export function bodyError(error: unknown): TransportError {
  if (error instanceof TransportError) return error;
  const [kind, code] = [faultOf(error, 'body'), codeOf(error)];
  return new TransportError({ kind, phase: 'body', neverSent: false, stale: false, code });
}

/** What Node's codes tell of a failure; of others the connection broke. */
const reasonOfCode: readonly (readonly [FailureReason, RegExp])[] = [
  // Of the system's resolver (`EAI_*`), of Node's own and of ours.
  [
    'dns',
    /^(?:EAI_\w+|ENOTFOUND|ENODATA|ENONAME|EBADNAME|EBADRESP|EFORMERR|ENOTIMP|EREFUSED|ESERVFAIL|ETIMEOUT)$/,
  ],
  // No connection could be begun: the port is closed, or no route leads there.
  ['refused', /^E(?:CONNREFUSED|HOSTUNREACH|HOSTDOWN|NETUNREACH|NETDOWN|ADDRNOTAVAIL|ACCES|PERM)$/],
  // X.509 errors as Node documents them (tls, "X509 certificate error codes").
  [
    'certificate',
    /^(?:CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|ERROR_IN_C|ERR_TLS_CERT_|INVALID_CA$|INVALID_PURPOSE$|PATH_LENGTH|HOSTNAME_MIS)/,
  ],
  // The other side does not speak TLS, or none that we do.
  ['protocol', /^(?:EPROTO$|ERR_SSL_|ERR_TLS_)/],
  ['timeout', /^E(?:SOCKET)?TIMEDOUT$/],
];

/** The class of a failure; `null` where it is no fault of the way there: the caller left, or our address check said no. */
export function failureReason({ kind, code }: Pick<TransportError, 'kind' | 'code'>): FailureReason | null {
  if (kind === 'aborted' || kind === 'address_denied') return null;
  if (kind === 'timeout') return 'timeout';
  if (kind === 'invalid') return 'protocol';
  return reasonOfCode.find(([, pattern]) => pattern.test(code ?? ''))?.[0] ?? 'reset';
}

/** One sentence for each class that says what to look at. */
const sentences: Readonly<Record<FailureReason, string>> = {
  refused:
    'No connection to the upstream could be begun: does it run, and are host and port of its origin right?',
  dns: 'The name of the upstream could not be resolved: is its origin right, and does name resolution work?',
  certificate:
    'The certificate of the upstream is not trusted, has expired, or is for another name: `caFile` of the upstream names further authorities.',
  reset: 'The upstream ended the connection before its response was complete.',
  timeout: 'The upstream did not answer, or did not go on, within one of its `timeouts`.',
  protocol: 'The upstream sent no valid TLS or HTTP: is the scheme of its origin (http or https) right?',
};

/** One sentence that says what to look at, and the class where there is one; `null` where the caller left. */
export function failureWords(failure: Pick<TransportError, 'kind' | 'code'>): string | null {
  if (failure.kind === 'address_denied')
    return 'The address of the upstream is a private one that its `allowPrivateAddresses` does not allow, or one that is never connected to: link-local, or of a metadata service.';
  const reason = failureReason(failure);
  return reason && `${sentences[reason]} Reason: ${reason}.`;
}
