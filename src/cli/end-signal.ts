/**
 * The two signals by which whoever runs a command ends it: the first asks for an orderly end, the second for an immediate one.
 * Owns: which signal is the second. Does not own: what either means for a command. Listening for signals does not keep the process alive.
 */
import { systemClock, type Clock } from '../clock.ts';

/**
 * A signal within this time of the first repeats it, milliseconds: Ctrl-C reaches a script of npm twice, from the
 * terminal and from npm, which passes signals on.
 */
const sameSignalMs = 500;

export interface EndSignals {
  /** Resolves at the first SIGTERM or SIGINT. */
  readonly first: Promise<void>;
  /** Resolves at a signal that is no repetition of the first. */
  readonly second: Promise<void>;
}

/** Listens from now on, until the process ends. */
export function endSignals(
  clock: Pick<Clock, 'monotonic'> = systemClock,
  source: { on(name: 'SIGTERM' | 'SIGINT', heard: () => void): unknown } = process,
): EndSignals {
  const first = Promise.withResolvers<void>();
  const second = Promise.withResolvers<void>();
  let firstAt: number | null = null;
  const heard = (): void => {
    firstAt ??= clock.monotonic();
    first.resolve();
    if (clock.monotonic() - firstAt >= sameSignalMs) second.resolve();
  };
  for (const name of ['SIGTERM', 'SIGINT'] as const) source.on(name, heard);
  return { first: first.promise, second: second.promise };
}
