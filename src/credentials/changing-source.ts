/**
 * A credential that changes: the text of a file, or a token of an OAuth client. It is fetched when the first call needs it, and renewed
 * before it ends while calls use it.
 *
 * Owns: the value, its life, one fetch at a time and the wait after one that failed. Does not own: how a value is fetched
 * (`fetch` of its parts).
 * Keeps: a token that has ended, or that the upstream refused, is not given out; nobody's call waits inside this file; a fetch that fails
 * replaces nothing.
 */
import type { Clock, Random } from '../clock.ts';
import type { CredentialFault } from '../errors.ts';
import type { RenewalOutcome } from '../telemetry/events.ts';
import { noToken, sendableForMs, type Fetched, type FetchedToken, type NoToken } from './token-endpoint.ts';

/** A token is renewed in the last quarter of its life, at most so long before its end. Milliseconds. */
const maxLeadMs = 300_000;
/**
 * First and longest wait after a failure, milliseconds: of the way to the endpoint, of a client that it does not accept, and of a refresh
 * token that has ended, where the endpoint is asked again only when the file has another one.
 */
const backoffs = { passing: [250, 60_000], refused: [60_000, 900_000], grant_ended: [1_000, 4_000] } as const;
/** A wait that the endpoint states is believed up to an hour. Milliseconds. */
const maxStatedMs = 3_600_000;
/** First and longest time between renewals that only refusals of an upstream ask for, while they do not help. Milliseconds. */
const refusalGapMs = { min: 1_000, max: 300_000 };

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

export interface SourceParts {
  readonly clock: Clock;
  readonly random: Random;
  /** Stands before the value. */
  readonly prefix: string;
  /** Fetches a value. `unwanted`: the one in use, which ends or was refused. Never rejects but with a bug, and takes a bounded time. */
  readonly fetch: (unwanted: string | null, signal: AbortSignal) => Promise<Fetched>;
  /** A value was renewed or could not be. Never carries the value. */
  readonly onRenewal: (outcome: RenewalOutcome) => void;
  readonly onBug: (bug: unknown) => void;
}

interface InUse extends FetchedToken {
  readonly version: number;
  /** Monotonic milliseconds: from when it is renewed. `null` = not known. */
  readonly renewAt: number | null;
}

export class ChangingSource {
  readonly #parts: SourceParts;
  readonly #closing = new AbortController();
  /**
   * When a refusal of the upstream last asked for a renewal, monotonic milliseconds, and how long none may again: ever longer while they follow
   * each other. An upstream also refuses calls that the client has no right to, and no new token changes that.
   */
  #lastRefusal = { at: -Infinity, gapMs: refusalGapMs.min };
  #inUse: InUse | null = null;
  #isFetching = false;
  /** Calls have asked for the value since it was fetched. */
  #isUsed = false;
  /** The upstream refused the value in use. */
  #isRefused = false;
  /** The last fetch failed. `retryAt`: monotonic milliseconds. */
  #failure: { readonly fault: CredentialFault; readonly count: number; readonly retryAt: number } | null =
    null;
  #cancelTimer = (): void => {};

  constructor(parts: SourceParts) {
    this.#parts = parts;
  }

  /** The value to send now. Asking for one that is not there begins to fetch it. */
  now(): CredentialState {
    const now = this.#parts.clock.monotonic();
    this.#isUsed = true;
    const inUse = this.#inUse;
    const isUsable = inUse !== null && !this.#isRefused && now < sendableUntil(inUse);
    if (!isUsable || (inUse.renewAt !== null && now >= inUse.renewAt)) this.#begin();
    if (isUsable) return { kind: 'usable', value: this.#parts.prefix + inUse.token, version: inUse.version };
    const { fault = null, retryAt = now } = this.#failure ?? {};
    return { kind: 'unavailable', fault, retryInMs: this.#isFetching ? 0 : Math.max(0, retryAt - now) };
  }

  /**
   * The upstream refused a call that carried this version, as expired or invalid. True when the call may be sent again, because
   * another value is there or is being fetched; false when there is none to expect.
   */
  refused(version: number): boolean {
    if (version !== this.#inUse?.version || this.#isRefused) return true;
    const now = this.#parts.clock.monotonic();
    const { at, gapMs } = this.#lastRefusal;
    if (now < at + gapMs) return false;
    const isLong = now > at + 2 * gapMs;
    this.#lastRefusal = { at: now, gapMs: isLong ? refusalGapMs.min : Math.min(gapMs * 2, refusalGapMs.max) };
    this.#isRefused = true;
    this.retry();
    return true;
  }

  /** Time until the value ends, milliseconds, negative when it has; `null` = not known, or nobody uses it. */
  expiresInMs(): number | null {
    const isFailing = this.#failure !== null;
    if (this.#inUse === null || this.#isRefused) return isFailing ? 0 : null;
    const { issuedAt, lifeMs } = this.#inUse;
    if (lifeMs === null) return null;
    const leftMs = issuedAt + lifeMs - this.#parts.clock.monotonic();
    // A token that no call has used may end without being renewed.
    return leftMs <= 0 && !isFailing ? null : leftMs;
  }

  /** What values are fetched with has changed, or the value may have: it is fetched, without the wait after a failure. */
  retry(): void {
    if (this.#isFetching) return;
    this.#failure = null;
    this.#begin();
  }

  close(): void {
    this.#cancelTimer();
    this.#closing.abort();
  }

  /** Fetches a value, unless one is being fetched or the wait after a failure is not over. */
  #begin(): void {
    const { fetch, onBug, clock } = this.#parts;
    if (this.#isFetching || this.#closing.signal.aborted) return;
    if (this.#failure !== null && clock.monotonic() < this.#failure.retryAt) return;
    this.#isFetching = true;
    this.#cancelTimer();
    void fetch(this.#inUse?.token ?? null, this.#closing.signal)
      .catch((bug: unknown) => {
        onBug(bug);
        return noToken('invalid');
      })
      .then((fetched) => {
        this.#isFetching = false;
        this.#take(fetched);
      });
  }

  #take(fetched: Fetched): void {
    if (this.#closing.signal.aborted) return;
    if (fetched.kind === 'failed') return this.#fail(fetched);
    const { clock, random, onRenewal } = this.#parts;
    const { token, lifeMs, issuedAt } = fetched;
    // A life that was over on arrival: without the wait after a failure such tokens would be fetched without pause.
    if (clock.monotonic() >= sendableUntil(fetched)) return this.#fail(noToken('invalid'));
    this.#failure = null;
    this.#isRefused = false;
    // A file that says what it said before.
    if (lifeMs === null && token === this.#inUse?.token) return;
    // Replicas and clients spread over a fifth of the lead either way.
    const leadMs = Math.min((lifeMs ?? 0) / 4, maxLeadMs) * (0.8 + 0.4 * random.next());
    const renewAt = lifeMs === null ? null : issuedAt + lifeMs - leadMs;
    this.#inUse = { ...fetched, renewAt, version: (this.#inUse?.version ?? 0) + 1 };
    this.#isUsed = false;
    onRenewal(fetched.isShared ? 'shared' : 'renewed');
    if (renewAt !== null) this.#renewAt(renewAt);
  }

  #fail({ fault, statedMs }: NoToken): void {
    const { clock, random, onRenewal } = this.#parts;
    const [min, max] = backoffs[fault === 'refused' || fault === 'grant_ended' ? fault : 'passing'];
    const count = this.#failure?.fault === fault ? this.#failure.count + 1 : 1;
    const backoffMs = Math.min(max, min * 2 ** Math.min(count - 1, 20)) * (0.75 + 0.5 * random.next());
    const retryAt = clock.monotonic() + Math.max(backoffMs, Math.min(statedMs ?? 0, maxStatedMs));
    this.#failure = { fault, count, retryAt };
    onRenewal(fault);
    this.#renewAt(retryAt);
  }

  /** Plans the renewal at `at`. A value that no call uses is not renewed: the next call fetches one. */
  #renewAt(at: number): void {
    this.#cancelTimer();
    const { clock } = this.#parts;
    this.#cancelTimer = clock.after(at - clock.monotonic(), () => {
      if (this.#isUsed) this.#begin();
    });
  }
}

/** Until when it is sent, monotonic milliseconds. */
const sendableUntil = ({ issuedAt, lifeMs }: FetchedToken): number =>
  lifeMs === null ? Infinity : issuedAt + sendableForMs(lifeMs);
