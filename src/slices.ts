/**
 * Work on very many items while calls go on: a slice of the items, then other work of the event loop, then the next slice.
 * Invariant: a slice has at most {@link maxItems} items, and begins no further item after {@link maxMs}.
 */
import type { Clock } from './clock.ts';

/** Items of one slice at most: a millisecond of work that takes ten microseconds for each. */
const maxItems = 100;
/** A slice ends after the item with which it has taken so long, milliseconds. */
const maxMs = 5;

/**
 * Does `work` for every item, in order. Rejects with what `work` throws; the items after it are left out. With no more
 * items than fit into one slice nobody else gets a turn in between.
 */
export async function inSlices<T>(
  clock: Pick<Clock, 'monotonic' | 'after'>,
  items: Iterable<T>,
  work: (item: T) => void,
): Promise<void> {
  let done = 0;
  let since = clock.monotonic();
  for (const item of items) {
    if (done === maxItems || clock.monotonic() - since >= maxMs) {
      await new Promise<void>((resume) => void clock.after(0, resume));
      done = 0;
      since = clock.monotonic();
    }
    work(item);
    done += 1;
  }
}
