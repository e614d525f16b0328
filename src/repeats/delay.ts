/** A delay that ends early when nobody waits any more. Owns nothing; an operator's pause is a matter of `control/`. */
import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';

/** Resolves after `ms` milliseconds. Rejects with the signal's reason as soon as the signal is aborted. */
export function delay(clock: Clock, ms: number, signal: CallSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      cancel();
      reject(signal.reason as unknown);
    };
    const cancel = clock.after(ms, () => {
      signal.removeEventListener('abort', leave);
      resolve();
    });
    if (signal.aborted) leave();
    else signal.addEventListener('abort', leave, { once: true });
  });
}
