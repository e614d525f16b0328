/**
 * Redis as the logs see it: after an absence it is available when this replica's sends are put back there, so that a call which goes by
 * a log again finds the ceilings whole.
 */
import type { AvailabilityWatcher, RedisHealth } from '../../redis/health.ts';

export class RestoredRedis implements Pick<RedisHealth, 'run' | 'watch' | 'isUp'> {
  readonly run: RedisHealth['run'];
  readonly #restore: () => Promise<unknown>;
  #restored: Promise<unknown> = Promise.resolve();
  #next: Promise<unknown> | null = null;
  readonly #watchers = new Set<AvailabilityWatcher>();
  #isUp = true;

  /** `restore`: puts the sends back, and never rejects. `onSwitch`: hears of each change before the logs do. */
  constructor(redis: RedisHealth, restore: () => Promise<unknown>, onSwitch: (isUp: boolean) => void) {
    this.run = (...command) => redis.run(...command);
    this.#restore = restore;
    redis.watch({
      onUnavailable: () => {
        this.#isUp = false;
        onSwitch(false);
        for (const watcher of this.#watchers) watcher.onUnavailable();
      },
      onAvailable: () => void this.#resume(redis, onSwitch),
    });
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  watch(watcher: AvailabilityWatcher): () => void {
    this.#watchers.add(watcher);
    return () => void this.#watchers.delete(watcher);
  }

  /** Puts the sends back as they are now. Whoever asks while that is under way waits for the next time, which is one for all. */
  restoreSends(): Promise<unknown> {
    this.#next ??= this.#restored.then(() => {
      this.#next = null;
      this.#restored = this.#restore();
      return this.#restored;
    });
    return this.#next;
  }

  async #resume(redis: RedisHealth, onSwitch: (isUp: boolean) => void): Promise<void> {
    await this.restoreSends();
    // It may have gone again meanwhile, or be back for the second time.
    if (!redis.isUp || this.#isUp) return;
    this.#isUp = true;
    onSwitch(true);
    for (const watcher of this.#watchers) watcher.onAvailable();
  }
}
