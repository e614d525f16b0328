/**
 * The log of a process that is alone: an entry is made and told to the follower before `append` returns. Nothing is lost here, so
 * there is one term, and the copy is always the whole log.
 */
import type { Clock } from '../clock.ts';
import type { ReplicaId } from '../ids.ts';
import type { Entry, Follower, Log } from './log.ts';

/** What an entry says beside its events and author. */
export type Position = Pick<Entry<unknown>, 'sequence' | 'term' | 'at'>;

export interface MemoryLogParts {
  readonly clock: Pick<Clock, 'now' | 'monotonic'>;
  readonly replica: ReplicaId;
  /** The follower's state is the one after this entry, and goes on from it. Left out: the follower begins with a new state. */
  readonly after?: Position;
}

export class MemoryLog<Event> implements Log<Event> {
  readonly mayLose = false;
  readonly #parts: MemoryLogParts;
  /** The log's time less this process' monotonic time, milliseconds. */
  readonly #offsetMs: number;
  #last: Position;
  #batch = 0;
  #follower: Follower<Event> | null = null;
  /** Events that were appended while an entry was told; `null` = none is. */
  #waiting: Event[] | null = null;

  constructor(parts: MemoryLogParts) {
    const { clock, after } = parts;
    this.#parts = parts;
    this.#last = after ?? { sequence: 0, term: 1, at: clock.now() };
    this.#offsetMs = this.#last.at - clock.monotonic();
  }

  follow(follower: Follower<Event>): void {
    this.#follower = follower;
    this.#inOrder([], () => {
      if (this.#parts.after === undefined) follower.onRestore([]);
      follower.onJoined({ term: this.#last.term, termBegan: this.#last.sequence });
    });
  }

  append(event: Event): void {
    if (this.#waiting !== null) this.#waiting.push(event);
    else this.#inOrder([event], () => {});
  }

  now(): number {
    return this.#parts.clock.monotonic() + this.#offsetMs;
  }

  staleMs(): number {
    return this.#follower === null ? Infinity : 0;
  }

  close(): Promise<void> {
    this.#follower = null;
    return Promise.resolve();
  }

  /** Does the work, then makes an entry of each event, also of those that come meanwhile. */
  #inOrder(events: Event[], work: () => void): void {
    this.#waiting = events;
    try {
      work();
      for (let event = events.shift(); event !== undefined; event = events.shift()) this.#tell(event);
    } finally {
      this.#waiting = null;
    }
  }

  #tell(event: Event): void {
    const { replica } = this.#parts;
    this.#batch += 1;
    const { sequence, term, at } = this.#last;
    const entry = {
      sequence: sequence + 1,
      term,
      at: Math.max(at, this.now()),
      replica,
      batch: this.#batch,
      events: [event],
    };
    this.#last = entry;
    this.#follower?.onEntry(entry);
  }
}
