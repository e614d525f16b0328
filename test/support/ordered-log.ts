/** One log in memory, followed by replicas that a test stops or keeps away from it; it can lose what came last. */
import { replicaId, type ReplicaId } from '../../src/ids.ts';
import type { Entry, Follower, Log, Urgency } from '../../src/log/log.ts';
import type { ManualClock } from './manual-clock.ts';

export class OrderedLog<Event> {
  readonly clock: ManualClock;
  readonly entries: Entry<Event>[] = [];
  readonly #ends = new Set<LogEnd<Event>>();
  #term = 1;

  constructor(clock: ManualClock) {
    this.clock = clock;
  }

  get term(): number {
    return this.#term;
  }

  open(replica: string): LogEnd<Event> {
    const end = new LogEnd<Event>(this, replicaId(replica));
    this.#ends.add(end);
    return end;
  }

  forget(end: LogEnd<Event>): void {
    this.#ends.delete(end);
  }

  put({ replica, batch, events }: Pick<Entry<Event>, 'replica' | 'batch' | 'events'>): void {
    const last = this.entries.at(-1);
    const at = Math.max(last?.at ?? 0, this.clock.now());
    this.entries.push({ sequence: this.entries.length + 1, term: this.#term, at, replica, batch, events });
    for (const end of this.#ends) end.read();
  }

  /** Loses all entries but the first ones; a term begins, and every replica joins again. */
  keepOnly(kept: number): void {
    this.entries.splice(kept);
    this.#term += 1;
    for (const end of this.#ends) end.rejoin();
  }
}

export class LogEnd<Event> implements Log<Event> {
  readonly mayLose = true;
  readonly replica: ReplicaId;
  /** Of each event, how soon it has to be said. */
  readonly urgencies: Urgency[] = [];
  readonly #log: OrderedLog<Event>;
  #follower: Follower<Event> | null = null;
  #next: Event[] = [];
  #batch = 0;
  #read = 0;
  #place: 'joined' | 'away' | 'stopped' = 'joined';

  constructor(log: OrderedLog<Event>, replica: ReplicaId) {
    this.#log = log;
    this.replica = replica;
  }

  follow(follower: Follower<Event>): void {
    this.#follower = follower;
    this.rejoin();
  }

  append(event: Event, urgency: Urgency = 'now'): void {
    this.urgencies.push(urgency);
    this.#next.push(event);
    if (this.#next.length === 1) queueMicrotask(() => this.#send());
  }

  now(): number {
    return this.#log.clock.now();
  }

  async close(): Promise<void> {
    this.#send();
    this.#follower = null;
    this.#log.forget(this);
  }

  /** The log cannot be reached from now on. */
  goAway(): void {
    this.#place = 'away';
    this.#next = [];
    this.#follower?.onAway();
  }

  /** The log can be reached again; what has been appended meanwhile is read. */
  comeBack(): void {
    this.#place = 'joined';
    this.read();
    this.#follower?.onJoined(this.#log.term);
  }

  /** Nothing is heard nor said from now on, and the replica does not know. */
  stop(): void {
    this.#place = 'stopped';
  }

  goOn(): void {
    this.#place = 'joined';
    this.read();
    this.#send();
  }

  rejoin(): void {
    if (this.#place !== 'joined') return;
    this.#readAgain();
    this.#follower?.onJoined(this.#log.term);
  }

  /** The log goes away when it has been read again and is not joined yet. */
  goAwayRejoining(): void {
    this.#place = 'joined';
    this.#readAgain();
    this.goAway();
  }

  #readAgain(): void {
    this.#next = [];
    this.#read = 0;
    this.#follower?.onRestore(null);
    this.read();
  }

  read(): void {
    if (this.#place !== 'joined' || this.#follower === null) return;
    for (; this.#read < this.#log.entries.length;) {
      const entry = this.#log.entries[this.#read];
      this.#read += 1;
      if (entry !== undefined) this.#follower.onEntry(structuredClone(entry));
    }
  }

  #send(): void {
    if (this.#place !== 'joined' || this.#next.length === 0) return;
    const events = structuredClone(this.#next);
    this.#next = [];
    this.#batch += 1;
    this.#log.put({ replica: this.replica, batch: this.#batch, events });
  }
}
