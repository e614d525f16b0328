/** Small decisions of the desk that are worth a name. Pure. */

/**
 * Places at which a ceiling counts as nearly used: from here on every taken place is told to the scheduler, which then
 * lets no more grants be outstanding than places are left.
 */
export const edgeOf = (limit: number): number => Math.max(16, Math.ceil(limit / 10));

/**
 * Even a call that will not wait at all has this long to pass through the desk, milliseconds: the stores' replies take a
 * moment. Whether it has to wait is decided before, by its own measure.
 */
export const passageMs = 100;
