/**
 * Why an attempt failed, for whoever has to mend it. Owns: the class of a failure and its words. Does not own: what the
 * failure means for the call (`resend.policy.ts`). Keeps: no host, address or upstream text, only a closed set of words.
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

/** The facts of a failed attempt from which its reason follows. */
interface Failure {
  readonly kind: TransportFault;
  readonly phase: ExchangePhase;
  /** Node's code of the cause, or `null`. */
  readonly code: string | null;
}

/** Codes of the system's resolver (`EAI_*`), of Node's own (`ENODATA` and others) and of ours (`agents.ts`). */
const ofNames =
  /^(EAI_\w+|ENOTFOUND|ENODATA|ENONAME|EBADNAME|EBADRESP|EFORMERR|ENOTIMP|EREFUSED|ESERVFAIL|ETIMEOUT)$/;
/** No connection could be begun: the port is closed, or no route leads there. */
const ofRefusals = /^(ECONNREFUSED|EHOSTUNREACH|EHOSTDOWN|ENETUNREACH|ENETDOWN|EADDRNOTAVAIL|EACCES|EPERM)$/;
/** X.509 errors as Node documents them (tls, "X509 certificate error codes"). */
const ofCertificates =
  /^(CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|ERROR_IN_C|ERR_TLS_CERT_|INVALID_CA$|INVALID_PURPOSE$|PATH_LENGTH_EXCEEDED$|HOSTNAME_MISMATCH$)/;
/** The other side does not speak TLS, or none that we do. */
const ofHandshakes = /^(EPROTO$|ERR_SSL_|ERR_TLS_)/;
const ofTimeouts = /^(ETIMEDOUT|ESOCKETTIMEDOUT)$/;

/** The class; `null` where the failure is no fault of the way there: the caller left, or our address check said no. */
export function failureReason({ kind, code }: Failure): FailureReason | null {
  switch (kind) {
    case 'aborted':
    case 'address_denied':
      return null;
    case 'timeout':
      return 'timeout';
    case 'invalid':
      return 'protocol';
    case 'unreachable':
    case 'reset':
      return reasonOfCode(code ?? '');
  }
}

function reasonOfCode(code: string): FailureReason {
  if (ofNames.test(code)) return 'dns';
  if (ofRefusals.test(code)) return 'refused';
  if (ofCertificates.test(code)) return 'certificate';
  if (ofHandshakes.test(code)) return 'protocol';
  if (ofTimeouts.test(code)) return 'timeout';
  return 'reset';
}

const denied =
  'The address of the upstream is a private one that its `allowPrivateAddresses` does not allow, or one that is never connected to: link-local, of a metadata service, or Sluice itself.';

/** One sentence that says what to look at, and the class where there is one; `null` where the caller left. */
export function failureWords(failure: Failure): string | null {
  if (failure.kind === 'address_denied') return denied;
  const reason = failureReason(failure);
  return reason === null ? null : `${sentence(reason, failure.phase)} Reason: ${reason}.`;
}

function sentence(reason: FailureReason, phase: ExchangePhase): string {
  switch (reason) {
    case 'refused':
      return 'The connection to the upstream was refused, or no route leads there: does it run, and are host and port of its origin right?';
    case 'dns':
      return 'The name of the upstream could not be resolved: is its origin right, and does name resolution work?';
    case 'certificate':
      return 'The certificate of the upstream is not trusted, has expired, or is for another name: `caFile` of the upstream names further authorities.';
    case 'reset':
      return phase === 'connect'
        ? 'The connection to the upstream ended before it was complete.'
        : 'The upstream ended the connection before its response was complete.';
    case 'timeout':
      return lateness[phase];
    case 'protocol':
      return phase === 'connect'
        ? 'The upstream does not speak TLS as we do: is the scheme of its origin (http or https) right?'
        : 'What the upstream sent is not a valid HTTP response.';
  }
}

const lateness: Record<ExchangePhase, string> = {
  connect: 'No connection to the upstream came about within `timeouts.connectSeconds`.',
  sent: 'The upstream did not begin its response within `timeouts.headSeconds`.',
  body: 'The upstream did not go on with its response within `timeouts.idleSeconds` or `timeouts.totalSeconds`.',
};
