/**
 * How caches are bounded (`lru-cache`): at most so many entries; the one that was used longest ago goes. With the library's `max` a cache
 * would make room for all of them when it is made: milliseconds for 10,000, in each of a score of caches.
 */
export const atMost = (entries: number) => ({ maxSize: entries, sizeCalculation: one });

const one = (): number => 1;
