/**
 * This replica's copy of one log: the state folded from its entries, the log's times as times of this process, and which events
 * of this replica have not come back as entries yet.
 *
 * Owns: giving each event of this replica its reply, ticking when a grant is due. Does not own: what the calls make of it (`shard.ts`).
 */
import type { Clock } from '../../clock.ts';
import type { ReplicaId } from '../../ids.ts';
import type { Entry, Follower, Log, Urgency } from '../../log/log.ts';
import type { EventReply } from '../policy/bucket-state.policy.ts';
import type { SortedNames } from '../policy/sorted.policy.ts';
import {
  createState,
  fold,
  memoryMsOf,
  type EntryEffects,
  type LogEvent,
  restore,
  type SharedState,
  snapshot,
} from './fold.ts';

/** What became of an event: the reply to it (`null` = no bucket knew of it), or it is not in the log and never will be. */
export type Heard = EventReply | null | 'lost';

/** Who uses a copy. */
export interface CopyUser extends Pick<Follower<LogEvent>, 'onJoined' | 'onAway' | 'awaitsOthers'> {
  /** An entry was applied; the replies to own events were given before. It was heard `agoMs` milliseconds after its time. */
  onApplied(effects: EntryEffects, entry: Entry<LogEvent>, agoMs: number): void;
}

export interface CopyParts {
  readonly clock: Clock;
  readonly replica: ReplicaId;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
}

/** The smallest difference between two arrivals that still makes an order. Milliseconds. */
const arrivalStepMs = 1 / 64;

export class Copy implements Follower<LogEvent> {
  readonly log: Log<LogEvent>;
  readonly #parts: CopyParts;
  readonly #user: CopyUser;
  /** Changed here alone, as what follows. */
  state: SharedState;
  isJoined = false;
  /** Of the last entry of the copy; 0 = none since it was restored. */
  sequence = 0;
  #said: ((heard: Heard) => void)[] = [];
  #lastArrival = { at: -Infinity, reading: -Infinity };
  #cancelTick = (): void => {};

  /** @param state to begin with; left out, the log says it */
  constructor(parts: CopyParts, log: Log<LogEvent>, user: CopyUser, state = createState(parts.leaseMs)) {
    this.#parts = parts;
    this.#user = user;
    this.log = log;
    this.state = state;
  }

  /** The monotonic time of this process at a time of the log. */
  monotonicAt(at: number): number {
    return this.#parts.clock.monotonic() + at - this.log.now();
  }

  /** The log's time of an arrival. Arrivals keep their order when what this replica knows of the log's time changes. */
  arrivalAt(monotonic: number): number {
    const last = this.#lastArrival;
    const reading = this.log.now() + monotonic - this.#parts.clock.monotonic();
    if (monotonic === last.at) return last.reading;
    if (monotonic < last.at) return Math.min(reading, last.reading - arrivalStepMs);
    this.#lastArrival = { at: monotonic, reading: Math.max(reading, last.reading + arrivalStepMs) };
    return this.#lastArrival.reading;
  }

  /** Appends an event. `hear` is called once: with the reply to it, or when it was lost. */
  say(event: LogEvent, hear: (heard: Heard) => void = () => {}, urgency: Urgency = 'now'): void {
    if (!this.isJoined) return hear('lost');
    this.#said.push(hear);
    this.log.append(event, urgency);
  }

  /** Follows the log from now on. */
  begin(): void {
    this.log.follow(this);
  }

  /** Leaves the log, which is kept for as long as somebody may need what it has. */
  async close(): Promise<void> {
    this.#leave();
    await this.log.close(memoryMsOf(this.state, this.log.now()));
  }

  onEntry(entry: Entry<LogEvent>): void {
    const agoMs = this.log.now() - entry.at;
    const effects = fold(this.state, entry);
    this.sequence = entry.sequence;
    // What is read while the copy catches up is old. What it did to the calls here is found in the state when the copy has joined.
    if (!this.isJoined) return;
    if (entry.replica === this.#parts.replica) {
      const said = this.#said.splice(0, entry.events.length);
      for (const [index, hear] of said.entries()) hear(effects.replies[index] ?? null);
    }
    this.#user.onApplied(effects, entry, agoMs);
    if (this.isJoined) this.#tickAt(effects.nextAt);
  }

  onRestore(saved: string | null): void {
    this.#leave();
    this.sequence = 0;
    this.state = saved === null ? createState(this.#parts.leaseMs) : restore(saved);
  }

  onJoined(term: number): void {
    this.#leave();
    this.isJoined = true;
    this.#user.onJoined(term);
  }

  onAway(): void {
    this.#leave();
    this.#user.onAway();
  }

  awaitsOthers(): boolean {
    return this.#user.awaitsOthers();
  }

  snapshot(): string {
    return snapshot(this.state);
  }

  #leave(): void {
    this.#cancelTick();
    this.isJoined = false;
    for (const hear of this.#said.splice(0)) hear('lost');
  }

  /**
   * Time is an event, too: when a grant is due, one of the replicas appends a tick. Which one follows from the state, and so they agree: the
   * one of the lowest name among those heard of lately; the others wait a little longer, each by its rank, in case that one is gone.
   */
  #tickAt(at: number | null): void {
    const { clock, replica } = this.#parts;
    this.#cancelTick();
    if (at === null) return;
    const now = this.log.now();
    const inMs = Math.max(0, at - now) + rankOf(replica, this.state.replicas, now) * stepMs;
    this.#cancelTick = clock.after(inMs, () => this.say({ kind: 'tick' }));
  }
}

/** A replica that uses the log is heard of once a second; one that was not for this time may be gone. Milliseconds. */
const heardWithinMs = 2_500;
/** How much longer each further replica waits. Longer than it takes to hear the tick of the one before. Milliseconds. */
const stepMs = 40;

/** How many replicas tick before this one. */
export function rankOf(replica: ReplicaId, replicas: SortedNames<ReplicaId>, now: number): number {
  return replicas.between(now - heardWithinMs, Infinity).filter((other) => other < replica).length;
}
