/**
 * Shares what this replica saw with the others, again and again, one time after the other.
 *
 * Owns: the pace. Refuses to own: what is shared. Keeps: after `stop` nothing is begun any more.
 */
import type { CancelTimer, Clock } from '../clock.ts';

/** Activity is shared this often, milliseconds. */
const shareEveryMs = 5_000;

export interface Sharing {
  stop(): void;
}

/** @param share one round; a failure of it is reported to `onBug` and does not keep the next one from coming. */
export function startSharing(
  clock: Clock,
  share: () => Promise<void>,
  onBug: (bug: unknown) => void,
): Sharing {
  let next: CancelTimer | null = null;
  let isStopped = false;
  const plan = (): void => {
    if (isStopped) return;
    next = clock.after(shareEveryMs, () => void share().catch(onBug).finally(plan));
  };
  plan();
  return {
    stop() {
      isStopped = true;
      next?.();
    },
  };
}
