/**
 * The port of an operator's wishes about an upstream (pause, open), which all replicas share. Owns its words, and the store
 * of one process.
 */
import type { Clock } from '../clock.ts';

/** How long an opening is remembered: longer than any upstream closes a bucket. Milliseconds. */
export const openingMemoryMs = 86_400_000;

export interface Wish {
  /** Nobody is sent for so long; 0 = there is no pause. Milliseconds. */
  readonly pausedMs: number;
  /** What was closed up to this time of the store's clock is open; `null` = nobody asked for that. */
  readonly openedAt: number | null;
}

/** `unavailable`: Redis could not be asked; what is known stays. */
export type WishReply = Wish | 'unavailable';

/** `key`: an opaque name of the upstream. Each resolves with what holds then. */
export interface ControlsStore {
  /** Whether other processes may have changed what this one knows. */
  readonly isShared: boolean;
  read(key: string): Promise<WishReply>;
  pause(key: string, ms: number): Promise<WishReply>;
  resume(key: string): Promise<WishReply>;
  open(key: string): Promise<WishReply>;
}

/** Of one process. */
export function createEmbeddedControls(clock: Pick<Clock, 'monotonic'>): ControlsStore {
  const pauses = new Map<string, number>();
  const openings = new Map<string, number>();
  const now = (key: string): WishReply => ({
    pausedMs: Math.max(0, (pauses.get(key) ?? 0) - clock.monotonic()),
    openedAt: openings.get(key) ?? null,
  });
  return {
    isShared: false,
    read: async (key) => now(key),
    async pause(key, ms) {
      pauses.set(key, clock.monotonic() + ms);
      return now(key);
    },
    async resume(key) {
      pauses.delete(key);
      return now(key);
    },
    async open(key) {
      openings.set(key, clock.monotonic());
      return now(key);
    },
  };
}
