/**
 * A log of a simulated replica: the port over `log-server.ts`, by commands that may be lost, late or repeated, and messages that
 * may be lost or come in another order. It does what the log in Redis does.
 *
 * Owns: one command at a time, joining, beginning a life from the copy, which entry is next. Does not own: what entries mean.
 */
import type { CancelTimer, Clock } from '../../src/clock.ts';
import type { ReplicaId } from '../../src/ids.ts';
import type { Entry, Follower, Log } from '../../src/log/log.ts';
import {
  firstMark,
  markAfter,
  type Append,
  type Appended,
  type Begin,
  type Read,
  type Saved,
} from './log-server.ts';

/** The way to the server. Each operation rejects when its reply does not come in time: it may have been carried out. */
export interface LogLink {
  /** Changes when the server may have lost what came last; rejects while it cannot be reached. */
  run(): Promise<string>;
  append(asked: Append): Promise<Appended>;
  begin(asked: Begin): Promise<string>;
  saved(saved: Saved): Promise<unknown>;
  read(): Promise<Read>;
  /** Other replicas that listen to the log. */
  others(): Promise<number>;
}

export interface SimulatedLogParts {
  readonly link: LogLink;
  readonly clock: Clock;
  readonly replica: ReplicaId;
}

type Place =
  /** `begins`: the log has less than the copy, or nothing: a life begins from it. */
  | { readonly kind: 'outside'; readonly begins: { readonly over: string | null } | null }
  | { readonly kind: 'inside'; readonly life: string };

interface Batch<Event> {
  readonly number: number;
  readonly events: readonly Event[];
}

/** Without a reply for so long, the log counts as away. Milliseconds. */
const awayMs = 500;
const pauseMs = 20;
/** A replica without a copy leaves it to others for so long to begin a life from theirs. Milliseconds. */
const leaveToOthersMs = 1_000;
/** A snapshot is saved every so many entries: seldom in production, often where joining is to be tried. */
const saveEvery = 40;

export class SimulatedLog<Event> implements Log<Event> {
  readonly #parts: SimulatedLogParts;
  readonly #openedAt: number;
  #follower: Follower<Event> | null = null;
  #place: Place = { kind: 'outside', begins: null };
  #run: string | null = null;
  #lives = 0;
  #sequence = 0;
  #mark = firstMark;
  #term = 0;
  #at: number | null = null;
  #heardAt = 0;
  #batches = 0;
  /** What is appended next, and what was sent and has no reply. */
  #next: Event[] = [];
  #underWay: Batch<Event> | null = null;
  #isWorking = false;
  #isBehind = false;
  #isSaving = false;
  #isAway = false;
  #isClosed = false;
  #wholeAt = -Infinity;
  #repliedAt: number;
  #cancelPause: CancelTimer = () => {};

  constructor(parts: SimulatedLogParts) {
    this.#parts = parts;
    this.#openedAt = parts.clock.monotonic();
    this.#repliedAt = this.#openedAt;
  }

  follow(follower: Follower<Event>): void {
    this.#follower = follower;
    this.#wakeUp();
  }

  append(event: Event): void {
    this.#next.push(event);
    this.#wakeUp();
  }

  now(): number {
    return (this.#at ?? this.#parts.clock.now()) + this.#parts.clock.monotonic() - this.#heardAt;
  }

  staleMs(): number {
    return this.#place.kind === 'inside' ? this.#parts.clock.monotonic() - this.#wholeAt : Infinity;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelPause();
  }

  /** The connection is another one: so may be the server. */
  reconnected(): void {
    this.#run = null;
  }

  /** An entry was published. */
  hear(entry: Entry<Event>): void {
    if (this.#place.kind === 'outside' || entry.sequence <= this.#sequence) return;
    if (entry.sequence === this.#sequence + 1 && markAfter(this.#mark, entry) === entry.mark) {
      return this.#take(entry);
    }
    this.#isBehind = true;
    this.#wakeUp();
  }

  #wakeUp(): void {
    if (this.#isWorking) return;
    this.#isWorking = true;
    queueMicrotask(() => void this.#work());
  }

  async #work(): Promise<void> {
    while (!this.#isClosed && this.#hasWork()) {
      try {
        await this.#step();
        this.#repliedAt = this.#parts.clock.monotonic();
      } catch {
        await this.#fail();
      }
    }
    this.#isWorking = false;
  }

  #hasWork(): boolean {
    const hasEvents = this.#next.length > 0 || this.#underWay !== null;
    return this.#place.kind === 'outside' || hasEvents || this.#isBehind || this.#isSaving;
  }

  async #step(): Promise<void> {
    this.#run ??= await this.#parts.link.run();
    if (this.#place.kind === 'inside') {
      if (this.#isSaving) return this.#save(this.#place.life);
      return this.#append(this.#place.life, this.#run);
    }
    if (this.#place.begins !== null) return this.#begin(this.#place.begins.over, this.#run);
    return this.#join(this.#run);
  }

  async #append(life: string, run: string): Promise<void> {
    this.#isBehind = false;
    if (this.#underWay === null && this.#next.length > 0) {
      this.#batches += 1;
      this.#underWay = { number: this.#batches, events: this.#next };
      this.#next = [];
    }
    const { number: batch, events } = this.#underWay ?? { number: 0, events: [] };
    const { clock, link, replica } = this.#parts;
    const askedAt = clock.monotonic();
    const reply = await link.append({ life, run, replica, batch, events, ...this.#here() });
    if (reply.kind !== 'ok')
      return this.#leave(reply.kind === 'none' || reply.kind === 'short', life, reply.kind);
    this.#underWay = null;
    for (const entry of reply.entries) this.#take(entry as Entry<Event>);
    this.#wholeAt = askedAt;
    if (this.#isAway) this.#joined(reply.termBegan);
  }

  #leave(begins: boolean, life: string, why: string): void {
    this.#place = { kind: 'outside', begins: begins ? { over: why === 'none' ? null : life } : null };
  }

  async #begin(over: string | null, run: string): Promise<void> {
    const { link, replica } = this.#parts;
    const life = `${replica}.${this.#lives}`;
    const parts = [...(this.#follower?.snapshot() ?? [])];
    const begun = await link.begin({
      over,
      life,
      run,
      term: this.#term + 1,
      at: this.#at,
      parts,
      ...this.#here(),
    });
    this.#lives += 1;
    this.#place = { kind: 'outside', begins: null };
    if (begun !== life) return;
    this.#term += 1;
    this.#enter(life, this.#sequence);
  }

  async #join(run: string): Promise<void> {
    const { clock, link } = this.#parts;
    const askedAt = clock.monotonic();
    const read = await link.read();
    if (read.kind === 'none') {
      const isNew = this.#sequence === 0 && clock.monotonic() < this.#openedAt + leaveToOthersMs;
      if (isNew && (await link.others()) > 0) return this.#pause();
      return this.#begin(null, run);
    }
    this.#sequence = read.saved.sequence;
    this.#mark = read.saved.mark;
    this.#term = read.term;
    this.#follower?.onRestore(read.saved.parts);
    for (const entry of read.entries) this.#take(entry as Entry<Event>);
    this.#wholeAt = askedAt;
    this.#enter(read.life, read.termBegan);
  }

  /** What was appended before is in the log, or never will be: each batch has its number, and its place was in a life. */
  #enter(life: string, termBegan: number): void {
    this.#place = { kind: 'inside', life };
    this.#underWay = null;
    this.#joined(termBegan);
  }

  #joined(termBegan: number): void {
    this.#next = [];
    this.#isAway = false;
    this.#follower?.onJoined({ term: this.#term, termBegan });
  }

  #take(entry: Entry<Event>): void {
    if (entry.sequence !== this.#sequence + 1) return;
    this.#sequence = entry.sequence;
    this.#mark = entry.mark;
    this.#term = entry.term;
    this.#at = entry.at;
    this.#heardAt = this.#parts.clock.monotonic();
    this.#follower?.onEntry(entry);
    if (entry.replica === this.#parts.replica && entry.sequence % saveEvery === 0) this.#isSaving = true;
  }

  async #save(life: string): Promise<void> {
    this.#isSaving = false;
    await this.#parts.link.saved({ life, ...this.#here(), parts: [...(this.#follower?.snapshot() ?? [])] });
  }

  #here(): { sequence: number; mark: string } {
    return { sequence: this.#sequence, mark: this.#mark };
  }

  async #fail(): Promise<void> {
    if (!this.#isAway && this.#parts.clock.monotonic() - this.#repliedAt >= awayMs) {
      this.#isAway = true;
      this.#follower?.onAway();
    }
    await this.#pause();
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      this.#cancelPause = this.#parts.clock.after(pauseMs, resolve);
    });
  }
}
