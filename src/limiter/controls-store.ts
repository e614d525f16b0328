/**
 * The port of an operator's controls of an upstream (pause, open), which all replicas share. Owns: its types, and the store of one
 * process.
 */
import type { Clock } from '../clock.ts';

/** How long an opening is remembered: longer than any upstream closes a bucket. Milliseconds. */
export const openingMemoryMs = 86_400_000;

/** What an operator has asked for an upstream. */
export interface ControlState {
  /** For how long nothing is sent to the upstream, milliseconds; 0 = there is no pause. */
  readonly pausedMs: number;
  /** The latest reopening; `null` = nobody asked for one. */
  readonly opening: Opening | null;
}

/** Reopens whatever a response had closed before it. */
export interface Opening {
  /** Differs from that of every other opening of the upstream. */
  readonly id: string;
  /** How long ago it was, milliseconds. */
  readonly agoMs: number;
}

/** `unavailable`: Redis could not be asked; what is known stays. */
export type ControlReply = ControlState | 'unavailable';

/** `key`: an opaque name of the upstream. Each resolves with what holds then. */
export interface ControlsStore {
  /** True when other processes may change what this process has read. */
  readonly isShared: boolean;
  read(key: string): Promise<ControlReply>;
  pause(key: string, ms: number): Promise<ControlReply>;
  resume(key: string): Promise<ControlReply>;
  open(key: string): Promise<ControlReply>;
}

/** The store of a single process. */
export function createEmbeddedControls(clock: Pick<Clock, 'monotonic'>): ControlsStore {
  const pauses = new Map<string, number>();
  const openings = new Map<string, { readonly id: string; readonly at: number }>();
  let opened = 0;
  const now = (key: string): ControlReply => {
    const opening = openings.get(key);
    return {
      pausedMs: Math.max(0, (pauses.get(key) ?? 0) - clock.monotonic()),
      opening: opening === undefined ? null : { id: opening.id, agoMs: clock.monotonic() - opening.at },
    };
  };
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
      opened += 1;
      openings.set(key, { id: String(opened), at: clock.monotonic() });
      return now(key);
    },
  };
}
