/**
 * The port through which replicas share what they recorded, so that every replica can answer for all. Keys are digests:
 * a store learns neither workspace nor upstream. Cells are per minute of the wall clock, so that replicas' minutes add up.
 */
import type { Cell } from './cell.ts';

/** A lane of the recorder, as a keyed digest. */
export type ActivityKey = string;

/** Calls of a lane that wait and that are in flight, on one replica. */
export interface LaneCalls {
  readonly waiting: number;
  readonly inFlight: number;
}

export interface SharedActivity {
  /**
   * Replaces this replica's cells of these minutes, and says that it is there. Called every few seconds with the cells
   * that changed, perhaps none, and all lanes with calls waiting or in flight. A store that fails keeps the cells for later
   * and does not reject.
   */
  publish(
    cells: readonly { readonly lane: ActivityKey; readonly cell: Cell }[],
    calls?: ReadonlyMap<ActivityKey, LaneCalls>,
  ): Promise<void>;
  /** Cells of the *other* replicas, from `fromMinute` on. */
  others(
    lanes: readonly ActivityKey[],
    fromMinute: number,
  ): Promise<ReadonlyMap<ActivityKey, readonly Cell[]>>;
  /** Calls of a lane on the *other* replicas together, a few seconds old. */
  callsOf(lane: ActivityKey): Promise<LaneCalls>;
  /** Lanes that other replicas recorded anything for since `fromMinute`. */
  active(fromMinute: number): Promise<readonly ActivityKey[]>;
  /** Replicas that published lately, this one included. */
  replicas(): Promise<number>;
}

/** One process: there are no others. */
export const embeddedActivity: SharedActivity = {
  publish: () => Promise.resolve(),
  others: () => Promise.resolve(new Map()),
  callsOf: () => Promise.resolve({ waiting: 0, inFlight: 0 }),
  active: () => Promise.resolve([]),
  replicas: () => Promise.resolve(1),
};
