/**
 * Looks at the process again and again: how late its timers are, and how full its memory is.
 *
 * Owns: the reading and its pace. Does not own: what is concluded (`overload.policy.ts`).
 */
import { getHeapStatistics } from 'node:v8';
import type { CancelTimer, Clock } from '../clock.ts';
import { checkEveryMs, type LoadSample } from './overload.policy.ts';

/** Gives a sample each {@link lookEveryMs}, until it is cancelled. */
export type LoadWatch = (onSample: (sample: LoadSample) => void) => CancelTimer;

/** What a process takes beside heap and buffers: code, stacks, the tables of its sockets. Bytes, measured at the start. */
const processBytes = 64 * 1_048_576;

/**
 * Used share of the memory that the process may have: of V8's heap, or of the container's, whichever is fuller. Resident
 * memory is not looked at: it stays high after memory was freed, and calls would be refused for ever. V8 collects before it
 * is half-way between what is alive and its limit, so a heap at 0.85 has at least 0.7 alive.
 */
export function memoryRatio(constrainedBytes: number): number {
  const { used_heap_size, heap_size_limit, external_memory } = getHeapStatistics();
  const held = used_heap_size + external_memory + processBytes;
  // Without a limit of its own the system reports one beyond any machine.
  const container = constrainedBytes > 0 ? held / constrainedBytes : 0;
  return Math.max(used_heap_size / heap_size_limit, container);
}

/**
 * The limit of the container is read again after so many looks: the system answers from files, in a quarter of a millisecond, and a
 * limit changes seldom, if ever.
 */
const looksPerLimit = 50;

/** The watch of this process. */
export const watchProcess =
  (clock: Clock): LoadWatch =>
  (onSample) => {
    let cancel: CancelTimer = () => {};
    let looks = 0;
    let constrainedBytes = 0;
    const plan = (): void => {
      const plannedAt = clock.monotonic();
      cancel = clock.after(checkEveryMs, () => {
        plan();
        const delayMs = Math.max(0, clock.monotonic() - plannedAt - checkEveryMs);
        if (looks % looksPerLimit === 0) constrainedBytes = process.constrainedMemory();
        looks += 1;
        onSample({ delayMs, memoryRatio: memoryRatio(constrainedBytes) });
      });
    };
    plan();
    return () => cancel();
  };
