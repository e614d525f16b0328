/**
 * Reports why Redis is unavailable: when that begins, once for each further reason, and to whoever asks meanwhile. Owns: which
 * failure counts as the reason. Does not own: when Redis counts as unavailable (`health.ts`).
 */
import type { Log } from '../telemetry/events.ts';
import { redisTrouble, RedisUnusable, troubleOf, type RedisTrouble } from './trouble.policy.ts';

export class RedisTroubles {
  readonly #log: Pick<Log, 'info' | 'warn'>;
  readonly #options: { readonly tls: boolean };
  #latest: RedisTrouble | null = null;
  /** Reasons reported in this outage; `null` = Redis is available. */
  #reported: Set<string> | null = null;

  constructor(log: Pick<Log, 'info' | 'warn'>, options: { readonly tls: boolean }) {
    this.#log = log;
    this.#options = options;
  }

  /** A connection or a command failed, or the server answers but cannot be used (`RedisUnusable`). */
  note(failure: unknown): void {
    const trouble = failure instanceof RedisUnusable ? failure.trouble : redisTrouble(failure, this.#options);
    if (trouble === null) return;
    this.#latest = trouble;
    if (this.#reported !== null && !this.#reported.has(trouble.reason))
      this.#report('Redis is still away', trouble);
  }

  /** A command was answered: earlier failures are not the reason of a later absence. */
  answered(): void {
    if (this.#reported === null) this.#latest = null;
  }

  /** Redis counts as unavailable from now on. */
  unavailable(): void {
    this.#reported = new Set();
    this.#report('Redis is away', this.#latest ?? troubleOf('unknown'));
  }

  back(): void {
    this.#reported = null;
    this.#latest = null;
    this.#log.info('Redis is back');
  }

  /** Why Redis is unavailable; `null` while it is available. */
  now(): RedisTrouble | null {
    return this.#reported === null ? null : (this.#latest ?? troubleOf('unknown'));
  }

  #report(message: string, { reason, advice }: RedisTrouble): void {
    this.#reported?.add(reason);
    this.#log.warn(message, { reason, advice });
  }
}
