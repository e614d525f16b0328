/**
 * Judges paced calls by when they came at the earliest, which no stall of a process makes earlier. What comes late on a busy machine
 * may come close to the next one: that a window of the upstream never holds too many is judged on virtual time
 * (`test/simulation/`).
 */

export interface Judged {
  readonly requests: number;
  readonly seconds: number;
  readonly kind?: 'rolling' | 'fixed';
}

/** Calls that came before windows which were empty at `startedAt` had room for them, with by how many milliseconds. */
export function tooEarly(
  log: readonly { readonly at: number }[],
  startedAt: number,
  windows: readonly Judged[],
): readonly string[] {
  return windows.flatMap(({ requests, seconds, kind = 'rolling' }) => {
    const windowMs = seconds * 1000;
    const from = kind === 'fixed' ? Math.floor(startedAt / windowMs) * windowMs : startedAt;
    return log.flatMap(({ at }, index) => {
      const earliest = from + Math.floor(index / requests) * windowMs;
      return at < earliest ? [`call ${index} by ${earliest - at} ms, window of ${seconds} s`] : [];
    });
  });
}
