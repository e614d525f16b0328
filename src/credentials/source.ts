/**
 * What a credential can be asked, whatever its value comes from. Types and the fixed value; `file-source.ts` and
 * `oauth-source.ts` are those that change.
 */
import type { CredentialFault } from '../errors.ts';
import type { RenewalOutcome } from '../telemetry/events.ts';

/** The value of a credential at an instant, or why there is none. */
export type CredentialState =
  | {
      readonly kind: 'usable';
      /** The whole field value. */
      readonly value: string;
      /** Differs for each value of one source. */
      readonly version: number;
    }
  | {
      readonly kind: 'unavailable';
      /** `null`: it has not failed, a value is being fetched. */
      readonly fault: CredentialFault | null;
      /** Time until a value may be there, milliseconds; 0 = it is being fetched now. */
      readonly retryInMs: number;
    };

export interface Source {
  /** The value to send now. Asking for one that is not there begins to fetch it. */
  now(): CredentialState;
  /**
   * The upstream refused a call that carried this version, as expired or invalid. Resolves with true when the call may be sent
   * again, because another value is there or is being fetched; with false when there is none to expect. Never rejects.
   */
  refused(version: number): Promise<boolean>;
  /** A call that had been refused was accepted with this version: renewing it had helped. */
  accepted(version: number): void;
  /** Time until the value ends, milliseconds, negative when it has; `null` = not known, or nobody uses it. */
  expiresInMs(): number | null;
}

/** What a source reports of itself. */
export interface SourceEvents {
  /** A value was renewed or could not be. Never carries the value. */
  readonly onRenewal: (outcome: RenewalOutcome) => void;
}

/** A value that never changes; a refusal of it is final. */
export function createFixedSource(value: string): Source {
  const state: CredentialState = { kind: 'usable', value, version: 0 };
  return {
    now: () => state,
    refused: () => Promise.resolve(false),
    accepted: () => {},
    expiresInMs: () => null,
  };
}
