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

export interface LaneCell {
  readonly lane: ActivityKey;
  readonly cell: Cell;
}

/** What a replica publishes to the others every few seconds. */
export interface Publication {
  /** Changed cells of everybody together. What they count is never given up. */
  readonly totals: readonly LaneCell[];
  /** Changed cells of single lanes. */
  readonly lanes: readonly LaneCell[];
  /** Lanes with calls waiting or in flight. */
  readonly calls: ReadonlyMap<ActivityKey, LaneCalls>;
  /** The busiest workspaces, by label, and how busy they are (`telemetry/labels.ts`). */
  readonly busiest: ReadonlyMap<string, number>;
}

export interface SharedActivity {
  /**
   * Replaces this replica's cells of these minutes, and says that it is there. Called every few seconds, also when nothing
   * changed; a store without other replicas does not ask for it. False: it could not be stored, or in part. Never rejects.
   */
  publish(publication: () => Publication): Promise<boolean>;
  /**
   * Cells of a lane on the *other* replicas, from `fromMinute` on. They may have been read a moment ago, but not before
   * `readSince` (monotonic milliseconds), if given.
   */
  others(lane: ActivityKey, fromMinute: number, readSince?: number): Promise<readonly Cell[]>;
  /** Calls of a lane on the *other* replicas together, a few seconds old. */
  callsOf(lane: ActivityKey): Promise<LaneCalls>;
  /** Lanes that other replicas remember and recorded anything for since `fromMinute`. */
  active(fromMinute: number): Promise<ReadonlySet<ActivityKey>>;
  /** The busiest workspaces of the *other* replicas, by label, added up; a few seconds old. */
  busiest(): Promise<ReadonlyMap<string, number>>;
  /** Replicas that published lately, this one included. */
  replicas(): Promise<number>;
  /** Leaves the store; nothing is published any more. */
  close(): void;
}

/** One process: there are no others. */
export const embeddedActivity: SharedActivity = {
  publish: () => Promise.resolve(true),
  others: () => Promise.resolve([]),
  callsOf: () => Promise.resolve({ waiting: 0, inFlight: 0 }),
  active: () => Promise.resolve(new Set()),
  busiest: () => Promise.resolve(new Map()),
  replicas: () => Promise.resolve(1),
  close: () => {},
};
