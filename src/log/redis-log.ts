/**
 * A log in Redis, as one replica follows it. Redis puts the batches of all replicas into one order and decides nothing
 * (`lua/append.lua`); each replica has a copy of the log's end: sequence and mark of the last entry that its follower was told.
 *
 * One thing at a time is asked of Redis: an append, or what a copy needs to join. What is appended meanwhile goes with the next batch
 * (group commit). Published entries are told at once if they follow the copy by sequence and mark, and are asked for if one is missing;
 * a message that is lost is brought by the reply to the next append.
 *
 * A copy joins with an entry of its own that has no events. It is a fence: an attempt of an earlier batch that arrives later finds it
 * and appends nothing, so that the follower knows what of its own is in the log. A copy that has more than Redis begins a new life of
 * the log from a snapshot of its follower; a copy that Redis' log does not continue is replaced by the log's.
 */
import type { CancelTimer, Clock, Random } from '../clock.ts';
import type { ReplicaId } from '../ids.ts';
import type { RedisClient, RedisConnection } from '../redis/connection.ts';
import type { RedisHealth } from '../redis/health.ts';
import type { Log as Journal } from '../telemetry/events.ts';
import {
  eventsText,
  follows,
  MalformedEntry,
  readEntry,
  type SentBatch,
  type StampedEntry,
} from './entry.ts';
import { LogClock } from './log-clock.ts';
import type { Follower, Log, Urgency } from './log.ts';
import {
  append,
  begin,
  namesOf,
  readHead,
  readParts,
  saved,
  snapshotKey,
  subscribers,
  writeParts,
  type AppendReply,
  type CopyEnd,
  type LogName,
  type Snapshot,
} from './redis-commands.ts';

/** A batch has so many events at most, and so many characters unless it is one event. */
const maxEvents = 256;
const maxCharacters = 65_536;
/** How long events that nobody waits for are held back for another one to go with. Milliseconds. */
const soonMs = 20;
/** Parts of a snapshot that are read, or made and written, together: a quarter of a megabyte. */
const partsAtOnce = 4;
/** The log since the last snapshot may be so long, or as long as that snapshot. */
const defaultMaxLogBytes = 1_048_576;
/** How much more than its own clock a replica allows the log's time to go on with one entry. Milliseconds. */
const slackMs = 1_000;
/** As much as the keys live: the replica that asks does not know how long the log was idle. Milliseconds. */
const unknownMs = 3_600_000;
/** How long a replica without a copy leaves an empty log to those who may have one, and how often it looks. Milliseconds. */
const othersMs = 1_000;
const lookMs = 50;
/** After an error that sending again does not mend, and before a log that cannot be read is replaced. Milliseconds. */
const repairMs = 1_000;
/** A log that is left is kept for so long at least: others may follow it yet, and joining it is quicker than beginning one. Milliseconds. */
const minKeptMs = 60_000;
/** A copy that has not joined for so long is without its log, although Redis answers. Milliseconds. */
const joinLimitMs = 2_000;
/** Published by a replica without a copy that finds no log: who has a copy looks, and begins from it. */
const who = 'who';

export interface RedisLogParts<Event> {
  readonly name: LogName;
  readonly replica: ReplicaId;
  /** While the log is away its follower does what others have to hear of: a term begins when it is back. */
  readonly actsAlone: boolean;
  readonly redis: Pick<RedisHealth, 'run' | 'watch' | 'isUp'>;
  readonly connection: Pick<RedisConnection, 'subscribe'>;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Pick<Journal, 'bug'>;
  /** Turns a value of JSON into an event; throws for what is none. */
  readonly readEvent: (value: unknown) => Event;
  readonly maxLogBytes?: number;
}

interface Joining {
  readonly kind: 'joining';
  /** The follower was told that the log is away. */
  readonly returns: boolean;
  /** End of the copy when it began to join. */
  readonly before: CopyEnd | null;
  /** The copy was replaced since by the log's. */
  readonly isReplaced: boolean;
}

type State =
  | { readonly kind: 'unfollowed' | 'joined' | 'away' }
  | Joining
  /** What is pending is still sent. */
  | { readonly kind: 'closed' };

type Whole = Extract<AppendReply, { kind: 'whole' | 'more' }>;
/** Why a copy does not go on. */
type Problem = Exclude<AppendReply, Whole>['kind'];

export class RedisLog<Event> implements Log<Event> {
  readonly mayLose = true;
  readonly #parts: RedisLogParts<Event>;
  readonly #names;
  readonly #time = new LogClock();
  #follower: Follower<Event> | null = null;
  #state: State = { kind: 'unfollowed' };
  /** `null` = there is no copy. */
  #end: CopyEnd | null = null;
  /** Monotonic milliseconds at which the copy was last known to be whole. */
  #wholeAt = 0;
  /** Events not yet sent. */
  #pending: { readonly event: Event; readonly text: string }[] = [];
  /** Runs out when events that nobody waits for have been held back long enough; `null` = what is pending is due. */
  #cancelHolding: CancelTimer | null = null;
  /** The latest batch. */
  #sent: SentBatch<Event>;
  /** Number of the latest batch that was told. */
  #toldBatch = 0;
  /** Highest sequence of a published entry that did not follow. */
  #heard = 0;
  /** The log has to be asked whether it is still there. */
  #mustRead = false;
  #working: Promise<void> | null = null;
  #isSaving = false;
  /** Of what is appended last; `null` = the log is in use. */
  #keptMs: number | null = null;
  #leave: (() => void) | null = null;
  #unwatch = (): void => {};
  /** Of the next attempt while the log is away, or of the limit of joining. */
  #cancelTimer = (): void => {};

  constructor(parts: RedisLogParts<Event>) {
    this.#parts = parts;
    this.#names = namesOf(parts.name);
    this.#sent = { replica: parts.replica, batch: 0, events: [] };
  }

  follow(follower: Follower<Event>): void {
    const { redis } = this.#parts;
    this.#follower = follower;
    this.#unwatch = redis.watch({
      onUnavailable: () => this.#goAway(),
      onAvailable: () => this.#comeBack(),
    });
    if (redis.isUp) this.#startJoining(false);
    else this.#goAway();
  }

  append(event: Event, urgency: Urgency = 'now'): void {
    if (this.#state.kind !== 'joined') return;
    const isFirst = this.#pending.length === 0;
    this.#pending.push({ event, text: JSON.stringify(event) });
    if (urgency === 'now') this.#appendNow();
    else if (isFirst) this.#cancelHolding = this.#parts.clock.after(soonMs, () => this.#appendNow());
  }

  now(): number {
    return this.#time.at(this.#parts.clock.monotonic());
  }

  staleMs(): number {
    return this.#state.kind === 'joined' ? this.#parts.clock.monotonic() - this.#wholeAt : Infinity;
  }

  async close(keptMs: number | null = null): Promise<void> {
    if (keptMs !== null) this.#keptMs = Math.max(keptMs, minKeptMs);
    if (this.#state.kind !== 'joined') this.#drop();
    this.#release();
    this.#state = { kind: 'closed' };
    this.#leave?.();
    this.#unwatch();
    this.#cancelTimer();
    this.#wake();
    await this.#working;
  }

  // --- one thing at a time

  #appendNow(): void {
    this.#release();
    this.#wake();
  }

  /** What is pending is held back no longer. */
  #release(): void {
    this.#cancelHolding?.();
    this.#cancelHolding = null;
  }

  /** What is pending will not be appended. */
  #drop(): void {
    this.#release();
    this.#pending = [];
  }

  #wake(): void {
    this.#working ??= this.#work().catch((failure: unknown) => {
      this.#working = null;
      this.#parts.log.bug('a copy of a log is given up', failure);
      this.#end = null;
      this.#goAway();
    });
  }

  async #work(): Promise<void> {
    // Gathers what is appended in this turn.
    await Promise.resolve();
    while (this.#hasWork()) {
      if (this.#state.kind === 'joining') await this.#join(this.#state);
      else await this.#appendPending(this.#state);
    }
    this.#working = null;
  }

  #hasWork(): boolean {
    switch (this.#state.kind) {
      case 'joining':
        return true;
      case 'joined':
        return this.#isDue || this.#mustRead || this.#heard > (this.#end?.sequence ?? 0);
      case 'closed':
        return this.#pending.length > 0;
      case 'unfollowed':
      case 'away':
        return false;
    }
  }

  get #isDue(): boolean {
    return this.#pending.length > 0 && this.#cancelHolding === null;
  }

  async #appendPending(state: State): Promise<void> {
    const events = this.#nextBatch();
    this.#mustRead = false;
    this.#heard = 0;
    for (;;) {
      const reply = await this.#ask(events, false);
      if (reply === null || (this.#state !== state && this.#state.kind !== 'closed')) return;
      const applied = this.#apply(reply);
      if (applied !== 'told') return this.#doesNotGoOn();
      if (reply.kind === 'more') continue;
      if (reply.kind === 'whole' && reply.dueBytes !== null) this.#save(reply.dueBytes);
      return;
    }
  }

  /** The copy joins again: the reason comes up again there, and what was pending is said again where it is needed. */
  #doesNotGoOn(): void {
    this.#drop();
    if (this.#state.kind !== 'closed') this.#startJoining(false);
  }

  #nextBatch(): string | null {
    if (this.#pending.length === 0) return null;
    this.#release();
    let count = 0;
    for (let characters = 0; count < Math.min(maxEvents, this.#pending.length); count += 1) {
      characters += this.#pending[count]?.text.length ?? 0;
      if (count > 0 && characters > maxCharacters) break;
    }
    const batch = this.#pending.splice(0, count);
    this.#sent = this.#numbered(batch.map(({ event }) => event));
    return eventsText(batch.map(({ text }) => text));
  }

  #numbered(events: readonly Event[]): SentBatch<Event> {
    return { replica: this.#parts.replica, batch: nextBatchNumber(), events };
  }

  /** Appends the events of the current batch, or only reads (`null`). Returns `null` when Redis cannot be reached. */
  async #ask(events: string | null, returns: boolean): Promise<AppendReply | null> {
    const { redis, replica, clock, actsAlone, maxLogBytes: maxBytes = defaultMaxLogBytes } = this.#parts;
    const number = this.#sent.batch;
    const reply = await redis.run('append', (client) => {
      // An earlier attempt may have been heard as a message, although its reply did not come.
      const isTold = this.#toldBatch === number;
      const batch = {
        replica,
        number,
        events: isTold ? null : events,
        maxMs: this.#maxMs(),
        returns: returns && actsAlone,
        maxBytes,
        keptMs: this.#keptMs,
      };
      return append(client, this.#names, { end: this.#knownEnd(), batch });
    });
    if (reply.kind === 'unavailable') {
      this.#goAway();
      return null;
    }
    const { value, sentAt } = reply;
    if (value.kind === 'whole') {
      this.#wholeAt = Math.max(this.#wholeAt, sentAt);
      if (value.appendedAt !== null) this.#time.noteOwn(value.appendedAt, sentAt, clock.monotonic());
    }
    return value;
  }

  #knownEnd(): CopyEnd {
    if (this.#end === null) throw new TypeError('a log is asked without a copy');
    return this.#end;
  }

  #maxMs(): number {
    return this.#time.isKnown ? Math.max(0, this.now() - this.#knownEnd().at) + slackMs : unknownMs;
  }

  // --- entries

  /** A message of the channel. What comes before the copy has joined is brought by the replies that it joins with. */
  #hear(text: string): void {
    if (this.#state.kind !== 'joined') return;
    const end = this.#knownEnd();
    const sequence = sequenceIn(text);
    if (sequence !== null && sequence <= end.sequence) return;
    if (sequence === null) this.#mustRead = true;
    else if (!this.#isToldNext(text)) this.#heard = Math.max(this.#heard, sequence);
    if (this.#hasWork()) this.#wake();
  }

  /** Tells a published entry if it is the next one. Others, also those that cannot be read, are asked for. */
  #isToldNext(text: string): boolean {
    const entry = this.#read(text);
    if (entry instanceof MalformedEntry) return false;
    // Another primary, or a life that began from another copy, has numbers of its own.
    if (!follows(entry, this.#knownEnd())) return false;
    const heardAt = this.#parts.clock.monotonic();
    this.#time.noteHeard(entry.at, heardAt);
    this.#wholeAt = Math.max(this.#wholeAt, heardAt - Math.max(0, this.now() - entry.at));
    this.#tell(entry);
    return true;
  }

  #read(text: string): StampedEntry<Event> | MalformedEntry {
    try {
      return readEntry(text, this.#parts.readEvent, this.#sent);
    } catch (failure) {
      if (failure instanceof MalformedEntry) return failure;
      throw failure;
    }
  }

  /** Tells the entries of a reply that were not heard meanwhile. */
  #apply(reply: AppendReply): 'told' | Problem {
    if (reply.kind !== 'whole' && reply.kind !== 'more') return reply.kind;
    this.#end = { ...this.#knownEnd(), life: reply.life };
    for (const text of reply.entries) {
      const end = this.#knownEnd();
      const sequence = sequenceIn(text);
      if (sequence !== null && sequence < end.sequence) continue;
      const entry = this.#read(text);
      if (entry instanceof MalformedEntry) {
        this.#parts.log.bug('an entry of a log cannot be read', entry);
        return 'damaged';
      }
      if (sequence === end.sequence && entry.mark === end.mark) continue;
      // The script has compared the marks at the copy's end, so that what comes behind it follows.
      if (!follows(entry, end)) return 'damaged';
      this.#time.noteHeard(entry.at, this.#parts.clock.monotonic());
      this.#tell(entry);
    }
    return 'told';
  }

  #tell(entry: StampedEntry<Event>): void {
    const { sequence, mark, term, at, replica, batch } = entry;
    this.#end = { life: this.#knownEnd().life, sequence, mark, term, at };
    if (replica === this.#parts.replica) this.#toldBatch = batch;
    if (this.#state.kind !== 'closed') this.#follower?.onEntry(entry);
  }

  // --- joining

  #startJoining(returns: boolean): void {
    this.#state = { kind: 'joining', returns, before: this.#end, isReplaced: false };
    this.#cancelTimer();
    if (!returns) this.#cancelTimer = this.#parts.clock.after(joinLimitMs, () => this.#doesNotJoin());
    this.#wake();
  }

  /** The follower goes on without the log, until it has joined. */
  #doesNotJoin(): void {
    if (this.#state.kind !== 'joining') return;
    this.#state = { ...this.#state, returns: true };
    this.#follower?.onAway();
  }

  /** One step towards the log. */
  async #join(state: Joining): Promise<void> {
    if (this.#end === null) return this.#restore(state);
    this.#sent = this.#numbered([]);
    const reply = await this.#ask(fence, state.returns);
    if (reply === null || this.#state !== state) return;
    const applied = this.#apply(reply);
    switch (applied) {
      case 'told':
        if (reply.kind === 'whole') this.#joined(state, reply);
        return;
      case 'none':
      case 'short':
        return this.#begin({ over: reply.life, isForced: false });
      case 'damaged':
        return this.#repair(state, reply.life);
      case 'far':
      case 'fork':
        this.#end = null;
    }
  }

  #joined({ before, isReplaced }: Joining, log: Whole): void {
    this.#cancelTimer();
    this.#state = { kind: 'joined' };
    this.#leave ??= this.#parts.connection.subscribe(this.#names.channel, {
      onMessage: (text) => this.#hear(text),
      // What was published before is brought by a reply.
      onReady: () => this.#look(),
      mayWait: () => this.#follower?.awaitsOthers() !== true,
    });
    const kept = isReplaced ? keptOf(before, log) : (before?.sequence ?? 0);
    this.#follower?.onJoined({ term: log.term, termBegan: kept });
  }

  #look(): void {
    if (this.#state.kind !== 'joined') return;
    this.#mustRead = true;
    this.#wake();
  }

  /** Replaces the copy by the one that the log has, or begins a log where there is none. */
  async #restore(state: Joining): Promise<void> {
    const head = await this.#run(state, (client) => readHead(client, this.#names));
    if (head === null) return;
    if (!('end' in head))
      return head.kind === 'none' ? this.#beginAnew(state) : this.#repair(state, head.life);
    const parts: string[] = [];
    for (let from = 0; from < head.parts; from += partsAtOnce) {
      const slice = { from, to: Math.min(head.parts, from + partsAtOnce) };
      const key = snapshotKey(this.#names, head.end);
      const some = await this.#run(state, (client) => readParts(client, key, slice));
      if (some === null) return;
      if (some === 'gone') return this.#isGone(state, head.end);
      parts.push(...some);
    }
    try {
      this.#follower?.onRestore(parts);
    } catch (failure) {
      this.#parts.log.bug('a snapshot of a log cannot be read', failure);
      return this.#repair(state, head.end.life);
    }
    this.#time.reset();
    this.#time.noteHeard(head.end.at, this.#parts.clock.monotonic());
    this.#end = head.end;
    this.#state = { ...state, isReplaced: true };
  }

  /** Parts of a snapshot are missing: it has been replaced by the next one, or somebody deleted it. */
  async #isGone(state: Joining, { life, sequence }: CopyEnd): Promise<void> {
    const head = await this.#run(state, (client) => readHead(client, this.#names));
    if (head === null || !('end' in head)) return;
    if (head.end.life === life && head.end.sequence === sequence) return this.#repair(state, life);
  }

  /** A replica without a copy finds no log. Who is subscribed has a copy, and gets a moment to begin from it. */
  async #beginAnew(state: Joining): Promise<void> {
    const { clock } = this.#parts;
    const until = clock.monotonic() + othersMs;
    while (clock.monotonic() < until) {
      const others = await this.#run(state, (client) => subscribers(client, this.#names));
      if (others === null) return;
      // After an absence of Redis others may be on their way back, and are not subscribed yet.
      if (others === 0 && !state.returns) break;
      const sent = await this.#run(state, (client) => client.publish(this.#names.channel, who));
      if (sent === null) return;
      await this.#pause(lookMs);
      const head = await this.#run(state, (client) => readHead(client, this.#names));
      if (head === null || !('kind' in head && head.kind === 'none')) return;
    }
    if (this.#state === state) await this.#begin({ over: '', isForced: false });
  }

  /** The log cannot be read. Another replica may replace it; if none does, this one begins again from its copy, or with nothing. */
  async #repair(state: Joining, life: string): Promise<void> {
    await this.#pause(repairMs);
    if (this.#state === state) await this.#begin({ over: life, isForced: true });
  }

  /** Begins a life from the copy, or with nothing where there is none. Whether it did shows at the next step. */
  async #begin({ over, isForced }: { readonly over: string; readonly isForced: boolean }): Promise<void> {
    const state = this.#state;
    const life = this.#parts.random.hex(lifeBytes);
    const end = this.#end === null ? null : { ...this.#end, at: Math.max(this.#end.at, this.now()) };
    const snapshot = end === null ? [] : (this.#follower?.snapshot() ?? []);
    const key = snapshotKey(this.#names, { life, sequence: end?.sequence ?? 0 });
    const written = await this.#write(state, key, snapshot);
    if (written === null) return;
    const beginning = { over, life, end, parts: written.parts, isForced };
    const hasBegun = await this.#run(state, (client) => begin(client, this.#names, beginning));
    if (hasBegun === false) await this.#run(state, (client) => client.unlink(key));
    if (hasBegun === true && end !== null) this.#end = { ...end, life };
  }

  // --- snapshots

  /**
   * Makes the snapshot of this moment the one that new copies begin from. If that fails, another replica does it. The follower of a closed
   * log is not told of its last entries any more, so that its state is none of theirs.
   */
  #save(logBytes: number): void {
    if (this.#isSaving || this.#follower === null || this.#state.kind === 'closed') return;
    this.#isSaving = true;
    const made = { end: this.#knownEnd(), logBytes };
    void this.#writeSaved(this.#follower.snapshot(), made).finally(() => {
      this.#isSaving = false;
    });
  }

  async #writeSaved(snapshot: Iterable<string>, made: Pick<Snapshot, 'end' | 'logBytes'>): Promise<void> {
    const state = this.#state;
    const key = snapshotKey(this.#names, made.end);
    const written = await this.#write(state, key, snapshot);
    if (written === null) return;
    const isTaken = await this.#run(state, (client) => saved(client, this.#names, { ...made, ...written }));
    if (isTaken === false) await this.#run(state, (client) => client.unlink(key));
  }

  /** How much was written; `null` = not all. In slices: others get a turn after each. */
  async #write(
    state: State,
    key: string,
    snapshot: Iterable<string>,
  ): Promise<Pick<Snapshot, 'parts' | 'bytes'> | null> {
    let [parts, bytes] = [0, 0];
    for (const slice of slicesOf(snapshot)) {
      const written = await this.#run(state, (client) =>
        writeParts(client, key, { from: parts, parts: slice }),
      );
      if (written === null) return null;
      parts += slice.length;
      for (const part of slice) bytes += Buffer.byteLength(part);
    }
    return { parts, bytes };
  }

  // --- Redis

  /** `null` when Redis cannot be reached, or this is no longer the state. */
  async #run<T extends NonNullable<unknown>>(
    state: State,
    send: (client: RedisClient) => Promise<T>,
  ): Promise<T | null> {
    const reply = await this.#parts.redis.run('other', send);
    if (reply.kind === 'unavailable') this.#goAway();
    return reply.kind === 'unavailable' || this.#state !== state ? null : reply.value;
  }

  #goAway(): void {
    const { redis, clock } = this.#parts;
    this.#drop();
    if (this.#state.kind === 'away' || this.#state.kind === 'closed') return;
    const isTold = this.#state.kind === 'joining' && this.#state.returns;
    this.#state = { kind: 'away' };
    this.#cancelTimer();
    // Redis answers others: an error of this log only, which sending again did not mend.
    if (redis.isUp) this.#cancelTimer = clock.after(repairMs, () => this.#comeBack());
    if (!isTold) this.#follower?.onAway();
  }

  #comeBack(): void {
    if (this.#state.kind === 'away') this.#startJoining(true);
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => void this.#parts.clock.after(ms, resolve));
  }
}

/** Over all logs of the process: a replica that leaves a log and follows it again later goes on behind its earlier batches. */
let batches = 0;
const nextBatchNumber = (): number => (batches += 1);

/** Events of the entry that a copy joins with. */
const fence = eventsText([]);
const lifeBytes = 6;

function* slicesOf(parts: Iterable<string>): Generator<readonly string[]> {
  let slice: string[] = [];
  for (const part of parts) {
    slice.push(part);
    if (slice.length < partsAtOnce) continue;
    yield slice;
    slice = [];
  }
  if (slice.length > 0) yield slice;
}

function sequenceIn(text: string): number | null {
  const [, digits] = /^(\d{1,15}) /.exec(text) ?? [];
  return digits === undefined ? null : Number(digits);
}

/** Up to which sequence the log has what a copy had that was replaced by the log's. */
function keptOf(before: CopyEnd | null, { life, previous, term, termBegan }: Whole): number {
  if (before === null || (before.life !== life && before.life !== previous)) return 0;
  if (before.life === life && before.term === term) return before.sequence;
  // With more terms between them each may have begun at another sequence.
  return before.term + 1 === term ? Math.min(before.sequence, termBegan) : 0;
}
