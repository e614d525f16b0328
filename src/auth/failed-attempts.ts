/**
 * Counts failed authentications per source, for the words of the refusal: plain at first, with a hint once a source fails too often.
 * It limits nothing: a key has 256 random bits, an attempt costs a hash, and many clients share the address of a proxy, so that a limit
 * would only shut out the others behind it. Keeps: a correct key is never affected, whatever its source did before, so there is no time
 * to wait for and none is given; memory is bounded; no address is kept.
 */
import { createHash, randomBytes } from 'node:crypto';
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import { Refusal } from '../errors.ts';
import { unauthenticated } from './authenticate.ts';

export interface FailedAttemptsOptions {
  /** Failures of one source that go unremarked per window. */
  readonly allowed?: number;
  /** Window, whole seconds (the library rounds down). */
  readonly windowSeconds?: number;
}

/**
 * Sources share this many counters: an attacker with a network of addresses cannot fill the memory. Two sources on one
 * counter only see the hint earlier.
 */
const counters = 8_192;

export class FailedAttempts {
  readonly #limiter: RateLimiterMemory;
  readonly #salt = randomBytes(16);

  constructor({ allowed = 30, windowSeconds = 60 }: FailedAttemptsOptions = {}) {
    this.#limiter = new RateLimiterMemory({ points: allowed, duration: windowSeconds });
  }

  /** Counts one failure and gives the refusal to answer with: always `unauthenticated`. */
  async refusal(source: string): Promise<Refusal> {
    try {
      await this.#limiter.consume(this.#counter(source));
      return unauthenticated();
    } catch (reply) {
      if (!(reply instanceof RateLimiterRes)) throw reply;
      const detail =
        'Too many calls without a valid API key came from here; waiting does not help, a valid key does.';
      return new Refusal('unauthenticated', { detail });
    }
  }

  #counter(source: string): string {
    const digest = createHash('sha256').update(this.#salt).update(source).digest();
    return String(digest.readUInt32BE(0) % counters);
  }
}
