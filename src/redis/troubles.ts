/**
 * Says why Redis is unavailable: once when that begins, and to whoever asks meanwhile. Owns: which failure counts as the reason. Does not
 * own: when Redis counts as unavailable (`health.ts`).
 */
import type { Log } from '../telemetry/events.ts';
import { redisTrouble, troubleOf, type RedisTrouble } from './trouble.policy.ts';

const unknown = troubleOf('unknown');

export class RedisTroubles {
  readonly #log: Pick<Log, 'info' | 'warn'>;
  #latest = unknown;
  #isAway = false;

  constructor(log: Pick<Log, 'info' | 'warn'>) {
    this.#log = log;
  }

  /** A connection or a command failed, or the server answers but cannot be used (`RedisUnusable`). */
  note(failure: unknown): void {
    this.#latest = redisTrouble(failure) ?? this.#latest;
  }

  /** A command was answered: earlier failures are not the reason of a later absence. */
  answered(): void {
    if (!this.#isAway) this.#latest = unknown;
  }

  /** Redis counts as unavailable from now on. */
  unavailable(): void {
    this.#isAway = true;
    const { reason, advice } = this.#latest;
    this.#log.warn('Redis is away', { reason, advice });
  }

  back(): void {
    this.#isAway = false;
    this.#log.info('Redis is back');
  }

  /** Why Redis is unavailable; `null` while it is available. */
  now(): RedisTrouble | null {
    return this.#isAway ? this.#latest : null;
  }
}
