/**
 * Work on very many items while calls go on: a slice of the items, then other work of the event loop, then the next slice.
 *
 * Owns: how long a slice may be. Does not own: what is done with an item; one item is never interrupted.
 * Invariant: a slice has at most {@link maxItems} items, and begins no further item after {@link maxMs}.
 */
import type { Clock } from './clock.ts';

/** Items of one slice at most: a millisecond of work that takes ten microseconds for each. */
export const maxItems = 100;
/** A slice ends after the item with which it has taken so long, milliseconds. */
export const maxMs = 5;

export interface Slices {
  /**
   * Does `work` for every item, in order. Rejects with what `work` throws; the items after it are left out. With no more
   * items than fit into one slice nobody else gets a turn in between.
   */
  forEach<T>(items: Iterable<T>, work: (item: T) => void): Promise<void>;
}

/** `onSlice` gets how many items each slice had. */
export function createSlices(
  clock: Pick<Clock, 'monotonic' | 'after'>,
  onSlice: (items: number) => void = () => {},
): Slices {
  const yieldToOthers = (): Promise<void> => new Promise((resume) => void clock.after(0, resume));
  return {
    async forEach(items, work) {
      let done = 0;
      let since = clock.monotonic();
      for (const item of items) {
        if (done === maxItems || clock.monotonic() - since >= maxMs) {
          onSlice(done);
          await yieldToOthers();
          done = 0;
          since = clock.monotonic();
        }
        work(item);
        done += 1;
      }
      onSlice(done);
    },
  };
}
