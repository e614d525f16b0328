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

/** `SIGTERM` is how a supervisor ends a process, `SIGINT` how a person does at a terminal. */
type EndSignal = 'SIGTERM' | 'SIGINT';

/** Listens from now on, until the process ends. `first` resolves at the first signal, `second` at one that is no repetition of it. */
export function endSignals(
  clock: Pick<Clock, 'monotonic'> = systemClock,
  source: { on(name: EndSignal, heard: () => void): unknown } = process,
): { readonly first: Promise<EndSignal>; readonly second: Promise<void> } {
  const first = Promise.withResolvers<EndSignal>();
  const second = Promise.withResolvers<void>();
  let firstAt: number | null = null;
  const heard = (name: EndSignal): void => {
    firstAt ??= clock.monotonic();
    first.resolve(name);
    if (clock.monotonic() - firstAt >= sameSignalMs) second.resolve();
  };
  for (const name of ['SIGTERM', 'SIGINT'] as const) source.on(name, () => heard(name));
  return { first: first.promise, second: second.promise };
}
