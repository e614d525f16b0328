/**
 * A token of an OAuth client: fetched when the first call needs it, renewed before it ends while calls use it.
 *
 * Owns: the token, its life, one fetch at a time and the wait after one that failed. Does not own: how a token is fetched
 * (`fetch` of its parts), what a response of the endpoint means (`token-reply.policy.ts`).
 * Keeps: a token that has ended, or that the upstream refused, is not given out; nobody's call waits inside this file.
 */
import type { Clock, Random } from '../clock.ts';
import type { CredentialFault } from '../errors.ts';
import { RefusalGap, renewAtAgeMs, retryAfterFailureMs, sendableForMs } from './renewal.policy.ts';
import type { Source, SourceEvents, CredentialState } from './source.ts';
import type { NoToken, Token } from './token-reply.policy.ts';

/** What one fetch brought. */
export type Fetched = FetchedToken | NoToken;
export interface FetchedToken extends Token {
  /** Monotonic milliseconds from which its life counts: no later than the endpoint counts it. */
  readonly issuedAt: number;
  /** Another replica fetched it. */
  readonly isShared: boolean;
}

export interface OAuthParts extends SourceEvents {
  readonly clock: Clock;
  readonly random: Random;
  /** Stands before the token. */
  readonly prefix: string;
  /**
   * Fetches a token. `unwanted`: the one in use, which ends or was refused; it must not come again. Never rejects but with a
   * bug, and takes a bounded time.
   */
  readonly fetch: (unwanted: string | null, signal: AbortSignal) => Promise<Fetched>;
  /** The token that another replica has fetched, if there is one; `unwanted` as above. Never rejects but with a bug. */
  readonly readShared: (unwanted: string | null) => Promise<Fetched | null>;
  readonly onBug: (bug: unknown) => void;
}

interface TokenInUse {
  readonly token: string;
  readonly version: number;
  /** Monotonic milliseconds: from when it is renewed, until when it is sent, when it ends. `null` = not known. */
  readonly renewAt: number | null;
  readonly sendableUntil: number | null;
  readonly endsAt: number | null;
}

interface Failure {
  readonly fault: CredentialFault;
  readonly count: number;
  /** Monotonic milliseconds. */
  readonly retryAt: number;
}

export class OAuthSource implements Source {
  readonly #parts: OAuthParts;
  readonly #closing = new AbortController();
  #token: TokenInUse | null = null;
  #versions = 0;
  #isFetching = false;
  /** Calls have asked for the token since it was fetched. */
  #isUsed = false;
  /** The upstream refused the token in use. */
  #isRefused = false;
  #failure: Failure | null = null;
  readonly #refusals = new RefusalGap();
  #cancelTimer = (): void => {};

  constructor(parts: OAuthParts) {
    this.#parts = parts;
  }

  now(): CredentialState {
    const now = this.#parts.clock.monotonic();
    this.#isUsed = true;
    const token = this.#token;
    const { renewAt = null } = token ?? {};
    if (token === null || !this.#isSendable(token, now) || (renewAt !== null && now >= renewAt))
      this.#begin(now);
    if (token !== null && this.#isSendable(token, now))
      return { kind: 'usable', value: this.#parts.prefix + token.token, version: token.version };
    const retryInMs = this.#isFetching ? 0 : Math.max(0, (this.#failure?.retryAt ?? now) - now);
    return { kind: 'unavailable', fault: this.#failure?.fault ?? null, retryInMs };
  }

  refused(version: number): Promise<boolean> {
    if (version !== this.#token?.version || this.#isRefused) return Promise.resolve(true);
    const now = this.#parts.clock.monotonic();
    if (!this.#refusals.mayRenew(now)) return Promise.resolve(false);
    this.#isRefused = true;
    this.#begin(now);
    return Promise.resolve(true);
  }

  accepted(version: number): void {
    if (version === this.#token?.version) this.#refusals.onAccepted();
  }

  expiresInMs(): number | null {
    const endsAt = this.#token?.endsAt ?? null;
    const isFailing = this.#failure !== null;
    if (this.#token === null || this.#isRefused) return isFailing ? 0 : null;
    if (endsAt === null) return null;
    const leftMs = endsAt - this.#parts.clock.monotonic();
    // A token that no call has used may end without being renewed.
    return leftMs <= 0 && !isFailing ? null : leftMs;
  }

  /** Another replica reports a new token, which may have revoked the token in use here. */
  storedElsewhere(): void {
    if (this.#isFetching || this.#closing.signal.aborted) return;
    this.#isFetching = true;
    const { readShared, onBug } = this.#parts;
    readShared(this.#token?.token ?? null)
      .catch((bug: unknown) => {
        onBug(bug);
        return null;
      })
      .then(
        (fetched) => {
          this.#isFetching = false;
          if (fetched !== null) this.#take(fetched);
        },
        (bug: unknown) => onBug(bug),
      );
  }

  /** What tokens are fetched with (a refresh token) has changed: the wait after a failure ends. */
  retry(): void {
    if (this.#failure === null || this.#isFetching) return;
    this.#failure = null;
    this.#begin(this.#parts.clock.monotonic());
  }

  close(): void {
    this.#cancelTimer();
    this.#closing.abort();
  }

  #isSendable({ sendableUntil }: TokenInUse, now: number): boolean {
    return !this.#isRefused && (sendableUntil === null || now < sendableUntil);
  }

  /** Fetches a token, unless one is being fetched or the wait after a failure is not over. */
  #begin(now: number): void {
    if (this.#isFetching || this.#closing.signal.aborted) return;
    if (this.#failure !== null && now < this.#failure.retryAt) return;
    this.#isFetching = true;
    this.#cancelTimer();
    const { fetch, onBug } = this.#parts;
    fetch(this.#token?.token ?? null, this.#closing.signal).then(
      (fetched) => this.#take(fetched),
      (bug: unknown) => {
        onBug(bug);
        this.#take({ kind: 'failed', fault: 'invalid', statedMs: null });
      },
    );
  }

  #take(fetched: Fetched): void {
    this.#isFetching = false;
    if (this.#closing.signal.aborted) return;
    if (fetched.kind === 'failed') return this.#fail(fetched.fault, fetched.statedMs);
    const { clock, random, onRenewal } = this.#parts;
    const { token, lifeMs, issuedAt, isShared } = fetched;
    // A life that was over on arrival: without the wait after a failure such tokens would be fetched without pause.
    if (lifeMs !== null && clock.monotonic() >= issuedAt + sendableForMs(lifeMs))
      return this.#fail('invalid', null);
    const at = (age: number | null): number | null => (age === null ? null : issuedAt + age);
    this.#token = {
      token,
      version: (this.#versions += 1),
      renewAt: at(lifeMs === null ? null : renewAtAgeMs(lifeMs, random.next())),
      sendableUntil: at(lifeMs === null ? null : sendableForMs(lifeMs)),
      endsAt: at(lifeMs),
    };
    this.#failure = null;
    this.#isRefused = false;
    this.#isUsed = false;
    onRenewal(isShared ? 'shared' : 'renewed');
    this.#renewAt(this.#token.renewAt);
  }

  #fail(fault: CredentialFault, statedMs: number | null): void {
    const { clock, random, onRenewal } = this.#parts;
    const kind = fault === 'refused' || fault === 'grant_ended' ? 'refused' : 'passing';
    const count = this.#failure?.fault === fault ? this.#failure.count + 1 : 1;
    const waitMs = retryAfterFailureMs(kind, count, { statedMs, chance: random.next() });
    const retryAt = clock.monotonic() + waitMs;
    this.#failure = { fault, count, retryAt };
    onRenewal(fault);
    this.#renewAt(retryAt);
  }

  /** Plans the renewal of a token at `at`. A token that no call uses is not renewed: the next call fetches one. */
  #renewAt(at: number | null): void {
    this.#cancelTimer();
    if (at === null) return;
    const { clock } = this.#parts;
    this.#cancelTimer = clock.after(at - clock.monotonic(), () => {
      if (this.#isUsed) this.#begin(clock.monotonic());
    });
  }
}
