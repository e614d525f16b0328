/**
 * The upstream credential of one call, from its first sending to its last: which one it leaves with, how its lane pauses
 * while there is none, and whether a response means that it has ended.
 *
 * Owns: these decisions for the one call. Does not own: where values come from and when they are renewed (`credentials/`).
 * Keeps: a call uses the quota for which it waited: where a reload has named a credential of another quota, the call keeps the
 * credential that it entered with; no call is sent with a credential that is known to have ended.
 */
import type { Feedback, InjectedField } from '../call.ts';
import type { Settings, UpstreamCredential } from '../config/settings.ts';
import type { Credentials, CredentialUse, CredentialState } from '../credentials/credentials.ts';
import { credentialFaultWords, Refusal, type CredentialFault } from '../errors.ts';
import type { Prepared } from './prepare.ts';

/** How long a lane pauses before it asks for its credential again, milliseconds: `min` at first, doubled each time up to `max`. */
const pauseMs = { min: 20, max: 500 };

/** What a granted call may do. */
export type Readiness =
  | { readonly kind: 'ready'; readonly field: InjectedField }
  | { readonly kind: 'pause'; readonly sleepMs: number };

type Unavailable = Extract<CredentialState, { kind: 'unavailable' }>;

interface CallCredentialParts {
  readonly credentials: Credentials;
  readonly settings: () => Settings;
}

export class CallCredential {
  readonly #parts: CallCredentialParts;
  readonly #call: Pick<Prepared, 'caller' | 'route'>;
  /** The one with which the call entered. */
  readonly #entered: UpstreamCredential;
  /** What the last sending carried. */
  #sent: (CredentialUse & { readonly version: number }) | null = null;
  #wasRefused = false;
  #missing: Unavailable | null = null;
  #pauses = 0;

  constructor(
    parts: CallCredentialParts,
    call: Pick<Prepared, 'caller' | 'route'>,
    entered: UpstreamCredential,
  ) {
    this.#parts = parts;
    this.#call = call;
    this.#entered = entered;
  }

  /**
   * Says whether the call may be sent now, and with which field.
   * @param remainingMs what is left of the call's wait
   * @throws Refusal `credential_unavailable` when no credential is expected within `remainingMs`
   */
  ready(remainingMs: number): Readiness {
    const use = this.#use();
    const state = this.#parts.credentials.now(use);
    if (state.kind === 'usable') {
      this.#sent = { ...use, version: state.version };
      this.#missing = null;
      return { kind: 'ready', field: { field: use.credential.field, value: state.value } };
    }
    this.#missing = state;
    const { fault, retryInMs } = state;
    if (isFinal(fault) || retryInMs > remainingMs) throw unavailable(fault);
    const doubledMs = pauseMs.min * 2 ** Math.min(this.#pauses, 10);
    this.#pauses += 1;
    return { kind: 'pause', sleepMs: Math.min(doubledMs, pauseMs.max) };
  }

  /** True when the response says that the credential has ended, and another one is there or on its way. */
  async isRenewedAfter({ refusesCredential = false }: Feedback): Promise<boolean> {
    if (this.#sent === null) return false;
    const { version } = this.#sent;
    if (refusesCredential) {
      this.#wasRefused = true;
      return this.#parts.credentials.refused(this.#sent, version);
    }
    if (this.#wasRefused) this.#parts.credentials.accepted(this.#sent, version);
    return false;
  }

  /** The true reason of a call whose wait ran out while it had no credential. */
  reasonOf(failure: unknown): unknown {
    const ranOut =
      failure instanceof Refusal && (failure.code === 'wait_expired' || failure.code === 'wait_too_long');
    return ranOut && this.#missing !== null ? unavailable(this.#missing.fault) : failure;
  }

  /** The credential that is configured now, where it still stands for the quota that the call waited for. */
  #use(): CredentialUse {
    const { caller, route } = this.#call;
    const { upstreams, workspaces } = this.#parts.settings();
    const upstream = upstreams.get(route.upstream.name) ?? route.upstream;
    const own = workspaces.get(caller.workspace.id)?.credentials.get(upstream.name);
    const configured = own ?? upstream.credential;
    const isSame = configured?.quota === this.#entered.quota;
    return { credential: isSame ? configured : this.#entered, upstream };
  }
}

/** True for a fault that does not pass by waiting. */
const isFinal = (fault: CredentialFault | null): boolean => fault === 'refused' || fault === 'grant_ended';

function unavailable(fault: CredentialFault | null): Refusal {
  const why = fault === null ? credentialFaultWords.timeout : credentialFaultWords[fault];
  const detail = `The credential for this upstream is not available: ${why}. Nothing was sent.`;
  return new Refusal('credential_unavailable', {
    detail,
    ...(isFinal(fault) ? { shouldRetry: false } : {}),
  });
}
