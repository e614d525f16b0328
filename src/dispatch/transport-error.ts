/**
 * How a sending can fail, in the few classes that decisions need.
 *
 * Owns: the typed error and the translation of Node's errors into it. Keeps: no text of the upstream, no host, no
 * address: only Node's error code, a closed vocabulary, comes along for the log.
 */

import type { ExchangePhase, TransportFault } from './failure-reason.policy.ts';

export type { ExchangePhase, TransportFault } from './failure-reason.policy.ts';

/** What is known of a failed sending. */
export class TransportError extends Error {
  readonly kind: TransportFault;
  readonly phase: ExchangePhase;
  /** True when no byte of the request can have reached the upstream: repeating cannot run it twice. */
  readonly neverSent: boolean;
  /** True when the connection had carried an earlier exchange, so that its end may have crossed our request. */
  readonly reusedSocket: boolean;
  /**
   * The upstream closed a kept connection under the request, and not a byte of response came: most likely it read nothing
   * of it, but nothing proves that.
   */
  readonly stale: boolean;
  /** Node's code of the cause (`ECONNREFUSED`, `HPE_INVALID_CONSTANT`), or `null`. */
  readonly code: string | null;

  constructor(facts: Omit<TransportError, keyof Error>) {
    super(`upstream ${facts.kind} (${facts.phase})`);
    this.name = 'TransportError';
    this.kind = facts.kind;
    this.phase = facts.phase;
    this.neverSent = facts.neverSent;
    this.reusedSocket = facts.reusedSocket;
    this.stale = facts.stale;
    this.code = facts.code;
  }
}

/** The address check said no; nothing was connected. Thrown by `agents.ts`, seen by the exchange. */
export class AddressDeniedError extends Error {
  readonly code = 'ERR_ADDRESS_DENIED';

  constructor() {
    super('address denied');
    this.name = 'AddressDeniedError';
  }
}

/** A name that has no address, or was not resolved in time; with the code that Node's own resolver has for it. */
export class NameError extends Error {
  readonly code: 'ENODATA' | 'ETIMEOUT';

  constructor(code: 'ENODATA' | 'ETIMEOUT') {
    super('the name was not resolved');
    this.name = 'NameError';
    this.code = code;
  }
}

/** Node's error code, when there is one. */
export function codeOf(error: unknown): string | null {
  const code: unknown = typeof error === 'object' && error !== null && 'code' in error ? error.code : null;
  return typeof code === 'string' ? code : null;
}

/** Codes with which Node's client refuses to write a request: our side's fault, nothing was sent. */
const unwritable = new Set([
  'ERR_INVALID_CHAR',
  'ERR_INVALID_HTTP_TOKEN',
  'ERR_UNESCAPED_CHARACTERS',
  'ERR_HTTP_INVALID_HEADER_VALUE',
  'ERR_HTTP_TRAILER_INVALID',
]);

/** What kind of failure an error of Node's is, given how far the exchange was. */
export function faultOf(error: unknown, phase: ExchangePhase): TransportFault {
  const code = codeOf(error);
  if (code === 'ERR_ADDRESS_DENIED') return 'address_denied';
  if (code !== null && (unwritable.has(code) || code.startsWith('HPE_'))) return 'invalid';
  return phase === 'connect' ? 'unreachable' : 'reset';
}

/**
 * Whatever ended a response's body, as a {@link TransportError}. Node itself ends a cut body with its own error; a body
 * that ended with any error at all must never be passed on as complete.
 */
export function bodyError(error: unknown): TransportError {
  if (error instanceof TransportError) return error;
  return new TransportError({
    kind: faultOf(error, 'body'),
    phase: 'body',
    neverSent: false,
    reusedSocket: false,
    stale: false,
    code: codeOf(error),
  });
}
