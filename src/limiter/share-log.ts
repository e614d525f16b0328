/**
 * The insurance of the Redis ceilings: a sliding log in this process that lets only this replica's share through. It is
 * told of everything this replica sends while Redis is there, so that the share counts the whole window from the first
 * moment on.
 */
import type { Clock } from '../clock.ts';
import { MemorySlidingLog, type PlaceTaken } from './memory-sliding-log.ts';

/** This replica's part of a limit: rounded down, at least a trickle. */
export const shareOf = (limit: number, replicas: number): number =>
  Math.max(1, Math.floor(limit / Math.max(1, replicas)));

export class ShareLog extends MemorySlidingLog {
  readonly #replicas: () => number;

  constructor(clock: Clock, replicas: () => number) {
    super({ clock, points: 0, keyPrefix: 'share' });
    this.#replicas = replicas;
  }

  /** Takes a place of the share of `options.points`. */
  override consume(
    key: string | number,
    points = 1,
    options: { readonly points?: number } = {},
  ): Promise<PlaceTaken> {
    return super.consume(key, points, { points: this.share(options.points ?? 0) });
  }

  share(limit: number): number {
    return shareOf(limit, this.#replicas());
  }

  /** Counts a send that Redis allowed. Resolves with its place here. */
  async note(key: string): Promise<number> {
    return (await super.consume(key, 1, { points: Infinity })).place;
  }
}
