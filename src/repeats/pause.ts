import type { CallSignal } from '../call-abort.ts';
import type { Clock } from '../clock.ts';

/** Resolves after so many milliseconds; rejects with the signal's reason when it is aborted before. */
export function pause(clock: Clock, ms: number, signal: CallSignal): Promise<void> {
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
