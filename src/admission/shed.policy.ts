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

/** Seconds asked for by `Prefer: wait=<seconds>` (RFC 7240), or `null`. Malformed preferences are ignored, as the RFC asks. */
export function preferredWaitSeconds(prefer: string | undefined): number | null {
  if (prefer === undefined) return null;
  for (const preference of prefer.split(/[,;]/)) {
    const found = /^\s*wait\s*=\s*"?(\d{1,7})"?\s*$/i.exec(preference);
    if (found?.[1] !== undefined) return Number(found[1]);
  }
  return null;
}

/**
 * How long a call may wait, milliseconds: what it asks for up to the ceiling, else the default; never beyond what its
 * own client will wait for (`x-stainless-timeout`, seconds, less five for the answer).
 */
export function waitOf(
  asked: { readonly preferSeconds: number | null; readonly clientTimeoutSeconds: number | null },
  limits: { readonly maxWaitSeconds: number; readonly maxWaitCeilingSeconds: number },
): number {
  const seconds =
    asked.preferSeconds === null
      ? limits.maxWaitSeconds
      : Math.min(asked.preferSeconds, limits.maxWaitCeilingSeconds);
  const patience =
    asked.clientTimeoutSeconds === null ? Infinity : Math.max(1, asked.clientTimeoutSeconds - 5);
  return Math.min(seconds, patience) * 1000;
}

/** Urgency of `Priority: u=0..7` (RFC 9218), 3 when absent or malformed. */
export function urgencyOf(priority: string | undefined): number {
  const found = /(?:^|[,\s])u\s*=\s*([0-7])(?=$|[,;\s])/.exec(priority ?? '');
  return found?.[1] === undefined ? 3 : Number(found[1]);
}
