/**
 * The two wishes of whoever runs a command: end in order, and end now. Owns telling them apart; what they mean is the
 * command's business. A process that listens does not live on because of it.
 */
import { systemClock, type Clock } from '../clock.ts';

/**
 * A signal this soon after the first is the same wish, milliseconds: Ctrl-C reaches a script of npm twice, from the
 * terminal and from npm, which hands its signals on.
 */
const sameWishMs = 500;

export interface EndSignals {
  /** Resolves at the first SIGTERM or SIGINT. */
  readonly first: Promise<void>;
  /** Resolves at one that comes later than an echo of the first. */
  readonly again: Promise<void>;
}

/** Listens from now on, until the process ends. */
export function endSignals(
  clock: Pick<Clock, 'monotonic'> = systemClock,
  source: { on(name: 'SIGTERM' | 'SIGINT', heard: () => void): unknown } = process,
): EndSignals {
  const first = Promise.withResolvers<void>();
  const again = Promise.withResolvers<void>();
  let firstAt: number | null = null;
  const heard = (): void => {
    firstAt ??= clock.monotonic();
    first.resolve();
    if (clock.monotonic() - firstAt >= sameWishMs) again.resolve();
  };
  for (const name of ['SIGTERM', 'SIGINT'] as const) source.on(name, heard);
  return { first: first.promise, again: again.promise };
}
