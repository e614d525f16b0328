/**
 * The log port. A log puts what happens at all replicas into one order and decides nothing: each replica applies the same
 * entries in the same order to its copy of a state, and so all copies are equal (state machine replication).
 *
 * There is one log for each upstream credential. One implementation keeps it in Redis (`redis-log.ts`), one in memory
 * (`memory-log.ts`).
 */
import type { ReplicaId } from '../ids.ts';

/** What one replica appended at once, at its place in the order. */
export interface Entry<Event> {
  /** 1, 2, 3 … within a life of the log. A life that begins from a copy goes on with the number of that copy. */
  readonly sequence: number;
  /** Goes up whenever something may have been lost. */
  readonly term: number;
  /** The log's time, milliseconds. Never goes back, whatever the clock of the server does. */
  readonly at: number;
  readonly replica: ReplicaId;
  /** Counts the batches of this replica: a batch that was appended again is seen once. */
  readonly batch: number;
  readonly events: readonly Event[];
}

/** The state machine of one replica: what a log is followed by. */
export interface Follower<Event> {
  /**
   * The next entry in order, also of this replica itself.
   * @throws anything for events that no replica wrote: the log then begins anew.
   */
  onEntry(entry: Entry<Event>): void;
  /**
   * From now on the state is the one that `snapshot` wrote; `null`: a new state. Entries that came later follow through `onEntry`, and
   * then `onJoined`. Called before the first entry, too.
   * @throws anything for a text that no `snapshot` wrote: the log then begins anew.
   */
  onRestore(snapshot: string | null): void;
  /**
   * The copy is up to date with the log, which is in this term. What this replica appended before and has not heard as an entry is not in the log and
   * never will be: now it appends what the state lacks of its own calls.
   */
  onJoined(term: number): void;
  /** False while nothing here waits for what others append: their entries may be told some milliseconds later, many at once. */
  awaitsOthers(): boolean;
  /** The log cannot be reached; called once. `onJoined` follows when it can be again, with `onRestore` before it where needed. */
  onAway(): void;
  /** The state as of the last entry, as text; called between two entries. */
  snapshot(): string;
}

/** `soon`: nobody waits for what the event does, so that it may go some milliseconds later, with what else is appended by then. */
export type Urgency = 'now' | 'soon';

/** An event is plain data: what JSON keeps as it is (no `undefined`, `NaN`, `Infinity` or `-0`). Nobody changes it. */
export interface Log<Event> {
  /** False: whatever was appended stays, so that nobody has to say it again. */
  readonly mayLose: boolean;
  /** Begins to tell this follower; called once, before all else. */
  follow(follower: Follower<Event>): void;
  /**
   * Appends the event together with what else is appended in this turn, and while another append is under way. Without effect
   * while the copy is not joined: `onJoined` says when, and the follower then says again what the state lacks.
   */
  append(event: Event, urgency?: Urgency): void;
  /** The log's time now, as far as this replica knows it, milliseconds. */
  now(): number;
  /**
   * Ends following: the follower hears nothing more. What was appended is still sent; resolves when it was.
   * @param keptMs how long the log is of use if nothing is appended any more, milliseconds; `null` or absent = it may be in use
   */
  close(keptMs?: number | null): Promise<void>;
}
