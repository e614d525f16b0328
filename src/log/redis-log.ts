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
  follows,
  readEntry,
  type StampedEntry,
  append,
  begin,
  namesOf,
  read,
  save,
  type AppendReply,
  type CopyEnd,
  type LogName,
  type Problem,
} from './redis-commands.ts';
import type { Follower, Log, Urgency } from './log.ts';

/** A batch has so many events at most. */
const maxEvents = 256;
/** How long events that nobody waits for are held back for another one to go with. Milliseconds. */
const soonMs = 20;
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
/** Published by a replica without a copy that finds no log: who has a copy looks, and begins from it. */
const who = 'who';
/** Events of the entry that a copy joins with. */
const fence = '[]';
const lifeBytes = 6;

export interface RedisLogParts {
  readonly name: LogName;
  readonly replica: ReplicaId;
  /** While the log is away its follower does what others have to hear of: a term begins when it is back. */
  readonly actsAlone: boolean;
  readonly redis: Pick<RedisHealth, 'run' | 'watch' | 'isUp'>;
  readonly connection: Pick<RedisConnection, 'subscribe'>;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Pick<Journal, 'bug'>;
  readonly maxLogBytes?: number;
}

interface Joining {
  readonly kind: 'joining';
  /** The follower was told that the log is away. */
  readonly returns: boolean;
}

/** `closed`: what is pending is still sent. */
type State = { readonly kind: 'unfollowed' | 'joined' | 'away' | 'closed' } | Joining;

export class RedisLog<Event> implements Log<Event> {
  readonly mayLose = true;
  readonly #parts: RedisLogParts;
  readonly #names;
  #time = new LogClock();
  #follower: Follower<Event> | null = null;
  #state: State = { kind: 'unfollowed' };
  /** `null` = there is no copy. */
  #end: CopyEnd | null = null;
  /** Events not yet sent, as JSON. */
  #pending: string[] = [];
  /** Runs out when events that nobody waits for have been held back long enough; `null` = what is pending is due. */
  #cancelHolding: CancelTimer | null = null;
  /** Number of the latest batch, and of the latest that was told. */
  #batch = 0;
  #toldBatch = 0;
  /** Something was heard that did not follow: the log has to be asked. */
  #mustRead = false;
  #working: Promise<void> | null = null;
  /** Of what is appended last; `null` = the log is in use. */
  #keptMs: number | null = null;
  #leave: (() => void) | null = null;
  #unwatch = (): void => {};
  /** Of the next attempt while the log is away. */
  #cancelComingBack = (): void => {};

  constructor(parts: RedisLogParts) {
    this.#parts = parts;
    this.#names = namesOf(parts.name);
  }

  follow(follower: Follower<Event>): void {
    const { redis } = this.#parts;
    this.#follower = follower;
    this.#unwatch = redis.watch({
      onUnavailable: () => this.#goAway(),
      onAvailable: () => this.#comeBack(),
    });
    if (redis.isUp) this.#join(false);
    else this.#goAway();
  }

  append(event: Event, urgency: Urgency = 'now'): void {
    if (this.#state.kind !== 'joined') return;
    const isFirst = this.#pending.length === 0;
    this.#pending.push(JSON.stringify(event));
    if (urgency === 'now') this.#appendNow();
    else if (isFirst) this.#cancelHolding = this.#parts.clock.after(soonMs, () => this.#appendNow());
  }

  now(): number {
    return this.#time.at(this.#parts.clock.monotonic());
  }

  async close(keptMs: number | null = null): Promise<void> {
    if (keptMs !== null) this.#keptMs = Math.max(keptMs, minKeptMs);
    if (this.#state.kind !== 'joined') this.#drop();
    this.#release();
    this.#state = { kind: 'closed' };
    this.#leave?.();
    this.#unwatch();
    this.#cancelComingBack();
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
      if (this.#state.kind === 'joining') await this.#joinStep(this.#state);
      else await this.#appendPending(this.#state);
    }
    this.#working = null;
  }

  #hasWork(): boolean {
    switch (this.#state.kind) {
      case 'joining':
        return true;
      case 'joined':
        return this.#mustRead || (this.#pending.length > 0 && this.#cancelHolding === null);
      case 'closed':
        return this.#pending.length > 0;
      case 'unfollowed':
      case 'away':
        return false;
    }
  }

  async #appendPending(state: State): Promise<void> {
    this.#release();
    this.#mustRead = false;
    const batch = this.#pending.splice(0, maxEvents);
    if (batch.length > 0) this.#batch = nextBatch();
    const events = batch.length > 0 ? `[${batch.join(',')}]` : null;
    for (;;) {
      const reply = await this.#ask(events, false);
      if (reply === null || (this.#state !== state && this.#state.kind !== 'closed')) return;
      // The reason comes up again when the copy joins, and what was pending is said again where it is needed.
      if (this.#apply(reply) !== null) return this.#join(false);
      if (reply.kind === 'more') continue;
      if (reply.kind === 'whole' && reply.dueBytes !== null) this.#save(reply.dueBytes);
      return;
    }
  }

  /** Appends the events as the current batch, or only reads (`null`). Returns `null` when Redis cannot be reached. */
  async #ask(events: string | null, returns: boolean): Promise<AppendReply | null> {
    const { redis, replica, clock, actsAlone, maxLogBytes: maxBytes = defaultMaxLogBytes } = this.#parts;
    const number = this.#batch;
    const reply = await redis.run('append', async (client) => {
      const end = this.#knownEnd();
      // An earlier attempt may have been heard as a message, although its reply did not come.
      const unheard = this.#toldBatch === number ? null : events;
      const maxMs = this.#time.isKnown ? Math.max(0, this.now() - end.at) + slackMs : unknownMs;
      const batch = { replica, number, events: unheard, maxMs, maxBytes, keptMs: this.#keptMs };
      const sentAt = clock.monotonic();
      const found = await append(client, this.#names, end, { ...batch, returns: returns && actsAlone });
      if (found.kind === 'whole' && found.appendedAt !== null)
        this.#time.noteOwn(found.appendedAt, sentAt, clock.monotonic());
      return found;
    });
    if (reply === null) this.#goAway();
    return reply;
  }

  #knownEnd(): CopyEnd {
    if (this.#end === null) throw new TypeError('a log is asked without a copy');
    return this.#end;
  }

  // --- entries

  /** A message of the channel. What comes before the copy has joined is brought by the replies that it joins with. */
  #hear(text: string): void {
    if (this.#state.kind !== 'joined') return;
    const end = this.#knownEnd();
    if (Number.parseInt(text, 10) <= end.sequence) return;
    const entry = readEntry<Event>(text);
    // Another primary, or a life that began from another copy, has numbers of its own.
    if (entry === null || !follows(entry, end)) this.#look();
    else if (!this.#isTold(entry)) this.#join(false);
  }

  #look(): void {
    if (this.#state.kind !== 'joined') return;
    this.#mustRead = true;
    this.#wake();
  }

  /** Tells the entries of a reply that were not heard meanwhile. Returns why the copy does not go on; `null` = it does. */
  #apply(reply: AppendReply): Problem | null {
    if (reply.kind !== 'whole' && reply.kind !== 'more') return reply.kind;
    this.#end = { ...this.#knownEnd(), life: reply.life };
    for (const text of reply.entries) {
      const end = this.#knownEnd();
      if (Number.parseInt(text, 10) <= end.sequence) continue;
      const entry = readEntry<Event>(text);
      // The script has compared the marks at the copy's end, so that what comes behind it follows.
      if (entry === null || !follows(entry, end) || !this.#isTold(entry)) return 'damaged';
    }
    return null;
  }

  /** False: the follower could not take it, and there is no copy any more. */
  #isTold(entry: StampedEntry<Event>): boolean {
    const { sequence, mark, term, at, replica, batch } = entry;
    this.#time.noteHeard(at, this.#parts.clock.monotonic());
    this.#end = { life: this.#knownEnd().life, sequence, mark, term, at };
    if (replica === this.#parts.replica) this.#toldBatch = batch;
    try {
      if (this.#state.kind !== 'closed') this.#follower?.onEntry(entry);
      return true;
    } catch (failure) {
      this.#parts.log.bug('an entry of a log cannot be taken', failure);
      this.#end = null;
      return false;
    }
  }

  // --- joining

  #join(returns: boolean): void {
    this.#drop();
    if (this.#state.kind === 'closed') return;
    this.#state = { kind: 'joining', returns };
    this.#wake();
  }

  /** One step towards the log. */
  async #joinStep(state: Joining): Promise<void> {
    if (this.#end === null) return this.#restore(state);
    this.#batch = nextBatch();
    const reply = await this.#ask(fence, state.returns);
    if (reply === null || this.#state !== state) return;
    switch (this.#apply(reply)) {
      case null:
        if (reply.kind === 'whole') this.#joined(reply.term);
        return;
      case 'none':
      case 'short':
        return this.#begin(reply.life, false);
      case 'damaged':
        return this.#repair(state, reply.life);
      case 'far':
      case 'fork':
        this.#end = null;
    }
  }

  #joined(term: number): void {
    this.#state = { kind: 'joined' };
    this.#leave ??= this.#parts.connection.subscribe(this.#names.channel, {
      onMessage: (text) => this.#hear(text),
      // What was published before is brought by a reply.
      onReady: () => this.#look(),
      mayWait: () => this.#follower?.awaitsOthers() !== true,
    });
    this.#follower?.onJoined(term);
  }

  /** Replaces the copy by the one that the log has, or begins a log where there is none. */
  async #restore(state: Joining): Promise<void> {
    const found = await this.#run(state, (client) => read(client, this.#names));
    if (found === null) return;
    if (found.kind !== 'saved')
      return found.kind === 'none' ? this.#beginAnew(state) : this.#repair(state, found.life);
    try {
      this.#follower?.onRestore(found.snapshot === '' ? null : found.snapshot);
    } catch (failure) {
      this.#parts.log.bug('a snapshot of a log cannot be read', failure);
      return this.#repair(state, found.end.life);
    }
    this.#time = new LogClock();
    this.#time.noteHeard(found.end.at, this.#parts.clock.monotonic());
    this.#end = found.end;
  }

  /** A replica without a copy finds no log. Who hears it has a copy, and gets a moment to begin from it. */
  async #beginAnew(state: Joining): Promise<void> {
    const { clock } = this.#parts;
    const until = clock.monotonic() + othersMs;
    while (clock.monotonic() < until) {
      // In a Cluster only those count who hear it at the same node; a life that began with nothing gives way to the others' copies.
      const others = await this.#run(state, (client) => client.publish(this.#names.channel, who));
      if (others === null) return;
      // After an absence of Redis others may be on their way back, and are not subscribed yet.
      if (others === 0 && !state.returns) break;
      await this.#pause(lookMs);
      const found = await this.#run(state, (client) => read(client, this.#names));
      if (found?.kind !== 'none') return;
    }
    if (this.#state === state) await this.#begin('', false);
  }

  /** The log cannot be read. Another replica may replace it; if none does, this one begins again from its copy, or with nothing. */
  async #repair(state: Joining, life: string): Promise<void> {
    await this.#pause(repairMs);
    if (this.#state === state) await this.#begin(life, true);
  }

  /** Begins a life from the copy, or with nothing where there is none. Whether it did shows at the next step. */
  async #begin(over: string, isForced: boolean): Promise<void> {
    const life = this.#parts.random.hex(lifeBytes);
    const end = this.#end === null ? null : { ...this.#end, at: Math.max(this.#end.at, this.now()) };
    const snapshot = end === null ? '' : (this.#follower?.snapshot() ?? '');
    const beginning = { over, life, end, snapshot, isForced };
    const hasBegun = await this.#run(this.#state, (client) => begin(client, this.#names, beginning));
    if (hasBegun === true && end !== null) this.#end = { ...end, life };
  }

  /**
   * Makes the snapshot of this moment the one that new copies begin from. If that fails, another replica does it. The follower of a closed
   * log is not told of its last entries any more, so that its state is none of theirs.
   */
  #save(logBytes: number): void {
    if (this.#follower === null || this.#state.kind === 'closed') return;
    const [end, snapshot] = [this.#knownEnd(), this.#follower.snapshot()];
    void this.#run(this.#state, (client) => save(client, this.#names, end, snapshot, logBytes));
  }

  // --- Redis

  /** `null` when Redis cannot be reached, or this is no longer the state. */
  async #run<T>(state: State, send: (client: RedisClient) => Promise<T>): Promise<T | null> {
    const reply = await this.#parts.redis.run('other', send);
    if (reply === null) this.#goAway();
    return this.#state === state ? reply : null;
  }

  #goAway(): void {
    const { redis, clock } = this.#parts;
    this.#drop();
    if (this.#state.kind === 'away' || this.#state.kind === 'closed') return;
    const isTold = this.#state.kind === 'joining' && this.#state.returns;
    this.#state = { kind: 'away' };
    this.#cancelComingBack();
    // Redis answers others: an error of this log only, which sending again did not mend.
    if (redis.isUp) this.#cancelComingBack = clock.after(repairMs, () => this.#comeBack());
    if (!isTold) this.#follower?.onAway();
  }

  #comeBack(): void {
    if (this.#state.kind !== 'away') return;
    this.#cancelComingBack();
    this.#join(true);
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => void this.#parts.clock.after(ms, resolve));
  }
}

/** Over all logs of the process: a replica that leaves a log and follows it again later goes on behind its earlier batches. */
let batches = 0;
const nextBatch = (): number => (batches += 1);

// The log's time as this replica knows it. The reply to an own append names a time between its sending and its arrival, so an estimate
// is wrong by half of the round trip at most (the rule of NTP, RFC 5905 §10); the one from the fastest round trip is kept.

/** How fast two clocks may drift apart: an estimate is worth less with each second. Milliseconds per millisecond. */
const drift = 1e-4;

interface Estimate {
  /** The log's time less this process' monotonic time, milliseconds. */
  readonly offsetMs: number;
  readonly roundTripMs: number;
  /** Monotonic milliseconds. */
  readonly at: number;
}

export class LogClock {
  #estimate: Estimate | null = null;
  /** The latest time that an entry had, milliseconds. */
  #latest = 0;

  /** An own entry of the time `at` was sent at `sentAt`, and its reply read at `readAt` (monotonic). */
  noteOwn(at: number, sentAt: number, readAt: number): void {
    const made = { offsetMs: at - (sentAt + readAt) / 2, roundTripMs: readAt - sentAt, at: readAt };
    const known = this.#estimate;
    if (known === null || made.roundTripMs <= errorMs(known, readAt) || contradicts(known, made))
      this.#estimate = made;
    this.#latest = Math.max(this.#latest, at);
  }

  /** There is an entry of this time, heard at `heardAt` (monotonic). */
  noteHeard(at: number, heardAt: number): void {
    this.#latest = Math.max(this.#latest, at);
    const known = this.#estimate;
    if (known !== null && heardAt + known.offsetMs < at)
      this.#estimate = { ...known, offsetMs: at - heardAt, at: heardAt };
  }

  /** False before the first own entry: then the time stands still between entries. */
  get isKnown(): boolean {
    return this.#estimate !== null;
  }

  /**
   * The log's time at this monotonic time, milliseconds. Never less than an entry's; less than was given before where the log's time
   * has gone on by less than this process'.
   */
  at(monotonic: number): number {
    return this.#estimate === null
      ? this.#latest
      : Math.max(this.#latest, monotonic + this.#estimate.offsetMs);
  }
}

/** What the round trip of an estimate is worth later. */
const errorMs = ({ roundTripMs, at }: Estimate, now: number): number => roundTripMs + (now - at) * drift;

/** The log's time went on otherwise than this process': the server's clock was set, or one of the two stood still. */
const contradicts = (known: Estimate, made: Estimate): boolean =>
  Math.abs(known.offsetMs - made.offsetMs) > (errorMs(known, made.at) + made.roundTripMs) / 2;
