/**
 * The log of a process that is alone: an entry is made and told to the follower before `append` returns. Nothing is lost here, so
 * there is one term, and the copy is always the whole log.
 */
import type { Clock } from '../clock.ts';
import type { ReplicaId } from '../ids.ts';
import type { Entry, Follower, Log } from './log.ts';

export interface MemoryLogParts {
  readonly clock: Pick<Clock, 'now' | 'monotonic'>;
  readonly replica: ReplicaId;
  /** The follower's state is the one after this entry, and goes on from it. Left out: the follower begins with a new state. */
  readonly after?: Pick<Entry<unknown>, 'sequence' | 'term' | 'at'>;
}

export class MemoryLog<Event> implements Log<Event> {
  readonly mayLose = false;
  readonly #parts: MemoryLogParts;
  /** The log's time less this process' monotonic time, milliseconds. */
  readonly #offsetMs: number;
  #last: NonNullable<MemoryLogParts['after']>;
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
      if (this.#parts.after === undefined) follower.onRestore(null);
      follower.onJoined(this.#last.term);
    });
  }

  append(event: Event): void {
    if (this.#waiting !== null) this.#waiting.push(event);
    else this.#inOrder([event], () => {});
  }

  now(): number {
    return this.#parts.clock.monotonic() + this.#offsetMs;
  }

  async close(): Promise<void> {
    this.#follower = null;
  }

  /** Does the work, then makes an entry of each event, also of those that come meanwhile. */
  #inOrder(events: Event[], work: () => void): void {
    this.#waiting = events;
    try {
      work();
      for (let event = events.shift(); event !== undefined; event = events.shift()) {
        const { sequence, term, at } = this.#last;
        this.#last = { sequence: sequence + 1, term, at: Math.max(at, this.now()) };
        const { replica } = this.#parts;
        this.#follower?.onEntry({ ...this.#last, replica, batch: this.#last.sequence, events: [event] });
      }
    } finally {
      this.#waiting = null;
    }
  }
}
