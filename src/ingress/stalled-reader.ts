/**
 * Notices a client that stopped reading its answer.
 *
 * Owns: the judgement that bytes for a client have not moved for too long. Refuses to own: what is done about it.
 * Invariants: a client that takes anything at all within the limit is only slow; no timer runs while nothing waits.
 */
import type { ServerResponse } from 'node:http';
import type { CancelTimer, Clock } from '../clock.ts';

export interface StalledReader {
  /** Bytes wait for the client from now on; later calls change nothing until {@link moved}. */
  waiting(): void;
  /** Nothing waits any more. */
  moved(): void;
}

/** @param maxMs how long the client may take nothing of what waits for it; `onStalled` is called once then. */
export function watchReader(
  response: Pick<ServerResponse, 'writableLength'>,
  clock: Clock,
  maxMs: number,
  onStalled: () => void,
): StalledReader {
  let cancel: CancelTimer | null = null;
  const check = (waitedBefore: number): void => {
    cancel = clock.after(maxMs, () => {
      // `drain` reports an empty buffer only; a slow client empties it bit by bit.
      const waits = response.writableLength;
      if (waits < waitedBefore) check(waits);
      else onStalled();
    });
  };
  return {
    waiting() {
      if (cancel === null) check(response.writableLength);
    },
    moved() {
      cancel?.();
      cancel = null;
    },
  };
}
