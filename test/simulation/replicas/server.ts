/** The Redis of a history: carries out the product's commands as its scripts do, and can lose everything, or what came last, or stand still. */
import { bucketKey, logOf } from '../../../src/ids.ts';
import { ceilingWindowMs } from '../../../src/limiter/policy/ceiling.policy.ts';
import type { LogEvent } from '../../../src/limiter/over-log/fold.ts';
import { readEntry } from '../../../src/log/redis-commands.ts';
import type { Entry } from '../../../src/log/log.ts';
import { LogStore } from './log-store.ts';
import { LogCopies, type CopyWatch, type LogCopiesParts, type StoredBucket } from './log-copies.ts';

/** Hears of each change of the data while this server is the primary, and not while a new primary is being rebuilt. */
export interface ServerWatch extends CopyWatch {
  slotTaken(key: string, id: string): void;
  slotReturned(key: string, id: string): void;
  lost(what: string): void;
  reach(state: string): void;
}

interface Command {
  readonly at: number;
  readonly clock: number;
  readonly command: string;
  readonly words: readonly string[];
  readonly server: string;
}

/** Subscriptions, which are no data: they outlast a loss of it. */
export interface Channels {
  publish(channel: string, text: string): void;
  subscribers(channel: string): number;
}

const presenceLifeMs = 5_000;
interface ServerParts {
  readonly monotonic: () => number;
  /** What its clock shows at the beginning of the history. Milliseconds. */
  readonly originMs: number;
  readonly copies: LogCopiesParts;
}

export class Server {
  readonly #watch: ServerWatch;
  readonly #channels: Channels;
  readonly #originMs: number;
  readonly monotonic: () => number;
  readonly #logs: LogStore;
  readonly #copies: LogCopies;
  readonly #lanes = new Map<string, { readonly owner: string; readonly until: number }>();
  readonly #sends = new Map<string, Map<string, number>>();
  readonly #days = new Map<string, { calls: number; until: number }>();
  readonly #replicas = new Map<string, number>();
  #log: Command[] = [];
  #silent = false;
  #skewMs = 0;
  #lives = 1;
  #histories = 1;
  /** Commands on buckets so far. */
  bucketCommands = 0;
  /** Nothing is carried out before (`hang`). */
  hangsUntil = 0;
  isDown = false;

  constructor(watch: ServerWatch, channels: Channels, parts: ServerParts) {
    this.#watch = watch;
    this.#channels = channels;
    this.monotonic = parts.monotonic;
    this.#originMs = parts.originMs;
    this.#copies = new LogCopies(parts.copies, watch);
    this.#logs = new LogStore({
      onBegin: (log, copy) => this.#copies.begin(log, copy),
      onSaved: (log, copy) => this.#copies.compare(log, copy),
      onEntry: (log, entry) => this.#onEntry(log, entry),
    });
  }

  now(): number {
    return Math.max(0, this.#originMs + this.#skewMs + this.monotonic());
  }

  get models(): Iterable<StoredBucket> {
    return this.#copies.buckets;
  }

  model(bucket: string): StoredBucket {
    return this.#copies.bucket(bucket);
  }

  /** The time by which the bucket goes: the log has its own. */
  timeOf(bucket: string): number {
    return this.#logs.now(logOf(bucketKey(bucket)), this.now()) ?? this.now();
  }

  beganInMemory(log: string): void {
    this.#copies.begin(log, { sequence: 0, mark: '', text: '' });
  }

  appendedInMemory(log: string, entry: Entry<LogEvent>): void {
    this.#copies.append(log, { ...entry, mark: '' }, true);
  }

  execute(command: string, words: readonly string[]): unknown {
    const entry = { at: this.monotonic(), clock: this.now(), command, words, server: this.#runId };
    this.#log.push(entry);
    return this.#run(entry);
  }

  /** A backup is taken, or a first replica attaches: the replication id changes, and nothing else. */
  replicate(): void {
    this.#histories += 1;
  }

  promote(skewMs: number): void {
    this.#lives += 1;
    this.#histories += 1;
    this.#skewMs += skewMs;
  }

  flush(): void {
    this.#forget();
    this.#log = [];
    this.#watch.lost('FLUSHALL');
  }

  /** Another life of the process: everything gone. */
  restartEmpty(): void {
    this.flush();
    this.#lives += 1;
    this.#histories += 1;
  }

  /** Another server serves: it lacks the last `lostMs`, and its clock differs. */
  failOver(lostMs: number, skewMs: number): void {
    const kept = this.#log.filter(({ at }) => at <= this.monotonic() - lostMs);
    this.#forget();
    this.#silent = true;
    for (const entry of kept)
      try {
        this.#run(entry);
      } catch {
        // Refused then as now.
      }
    this.#silent = false;
    this.#log = kept;
    this.#lives += 1;
    this.#histories += 1;
    this.#skewMs += skewMs;
    this.#watch.lost(`failover without the last ${lostMs.toFixed(0)} ms`);
  }

  /** Slots of a ceiling, also in the memory of a process: when each was taken. */
  sendsOf(key: string): Map<string, number> {
    return this.#sendsAt(`sluice:sends:{${key}}`);
  }

  get #runId(): string {
    return `run${this.#lives}`;
  }

  #forget(): void {
    this.#logs.lose();
    this.#copies.lose();
    this.#lanes.clear();
    this.#sends.clear();
    this.#days.clear();
    this.#replicas.clear();
  }

  #run({ clock, command, words, server }: Command): unknown {
    const [key = '', ...argv] = words;
    switch (command) {
      case 'sluice_consume':
        return this.#consume(key, argv, clock);
      case 'sluice_giveback':
        return this.#giveSlotBack(key, argv, clock);
      case 'sluice_slots':
        return this.#slots(key, argv, clock);
      case 'sluice_restore':
        return this.#restore(key, argv, clock);
      case 'sluice_presence':
        return this.#presence(argv, clock, server);
      case 'sluice_takelane':
        return this.#takeLane(key, argv, clock);
      case 'sluice_freelane':
        return this.#lanes.get(key)?.owner === argv[0] && this.#lanes.delete(key) ? 1 : 0;
      case 'info':
        return `redis_version:7.2.4\r\nrun_id:${this.#runId}\r\nmaster_replid:repl${this.#histories}\r\n`;
      case 'get':
        return String(this.#day(key, clock)?.calls ?? '') || null;
      case 'pttl': {
        const day = this.#day(key, clock);
        return day === undefined ? -2 : day.until - clock;
      }
      case 'publish':
        if (!this.#silent) this.#channels.publish(key, argv[0] ?? '');
        return this.#channels.subscribers(key);
      default:
        return this.#logs.execute(command, words, { clock, server });
    }
  }

  #takeLane(key: string, [owner = '', keepMs]: string[], clock: number): number | null {
    const known = this.#lanes.get(key);
    if (known !== undefined && known.until > clock && known.owner !== owner) return known.until - clock;
    this.#lanes.set(key, { owner, until: clock + Number(keepMs) });
    return null;
  }

  /** Tells the copies of a new entry, and the replicas. */
  #onEntry(log: string, { channel, text }: { readonly channel: string; readonly text: string }): void {
    const entry = readEntry<LogEvent>(text);
    if (entry !== null) this.#copies.append(log, entry, !this.#silent);
    if (this.#silent) return;
    this.bucketCommands += 1;
    this.#channels.publish(channel, text);
  }

  #sendsAt(key: string): Map<string, number> {
    let sends = this.#sends.get(key);
    if (sends === undefined) this.#sends.set(key, (sends = new Map()));
    return sends;
  }

  #day(key: string, clock: number): { calls: number; until: number } | undefined {
    const day = this.#days.get(key);
    if (day !== undefined && day.until <= clock) this.#days.delete(key);
    return this.#days.get(key);
  }

  #consume(
    key: string,
    [dayKey = '', minute = '', day = '', window = '', dayS = '', , ...calls]: string[],
    now: number,
  ): unknown[] {
    const sends = this.#sendsAt(key);
    const windowMs = Number(window);
    const times = (): number[] => [...sends.values()].toSorted((a, b) => a - b);
    const nextMs = (): string => String(Math.max(0, (times()[0] ?? now - windowMs) + windowMs - now));
    const dayCalls = (): number => this.#day(dayKey, now)?.calls ?? 0;
    const take = (id: string, lateMs: number): unknown[] => {
      const countedAt = Math.max(now + lateMs, ...sends.values());
      if (minute !== '') {
        for (const [each, at] of sends) if (at <= now - windowMs) sends.delete(each);
        if (sends.has(id)) {
          sends.set(id, countedAt);
          if (!this.#silent) this.#watch.reach('place taken again');
          return ['taken', sends.size, nextMs()];
        }
        if (sends.size >= Number(minute)) {
          const freed = times()[sends.size - Number(minute)] ?? now;
          return ['minute', sends.size, String(Math.max(0, freed + windowMs - now))];
        }
      }
      const until = this.#day(dayKey, now)?.until;
      if (day !== '' && dayCalls() >= Number(day))
        return ['day', sends.size, String(Math.max(1, (until ?? now) - now))];
      if (minute !== '') sends.set(id, countedAt);
      if (day !== '')
        this.#days.set(dayKey, { calls: dayCalls() + 1, until: until ?? now + Number(dayS) * 1_000 });
      if (!this.#silent) this.#watch.slotTaken(nameOf(key), id);
      return ['taken', minute === '' ? 0 : sends.size, minute === '' ? '0' : nextMs()];
    };
    const dayLeft = (): unknown => (day === '' ? '' : Math.max(0, Number(day) - dayCalls()));
    return calls.flatMap((id, at) => (at % 2 === 0 ? [...take(id, Number(calls[at + 1])), dayLeft()] : []));
  }

  #giveSlotBack(key: string, [dayKey = '', id = '', alsoDay]: string[], clock: number): unknown {
    if (id !== '' && !this.#sendsAt(key).delete(id)) return 0;
    const day = this.#day(dayKey, clock);
    if (alsoDay === '1' && day !== undefined && day.calls > 0) day.calls -= 1;
    if (!this.#silent) this.#watch.slotReturned(nameOf(key), id === '' ? 'of the day' : id);
    return 1;
  }

  /** slots.lua, for windows of fewer sends than it names. */
  #slots(key: string, [dayKey = '', windowText]: string[], now: number): unknown {
    const day = this.#day(dayKey, now);
    const times = [...this.#sendsAt(key).values()].toSorted((a, b) => a - b);
    const live = times.filter((at) => at > now - Number(windowText));
    const counted = [String(day?.calls ?? 0), day === undefined ? -2 : day.until - now];
    return [live.length, ...counted, ...live.map((at) => String(now - at))];
  }

  #restore(key: string, [, ...pairs]: string[], now: number): unknown {
    const sends = this.#sendsAt(key);
    let missing = 0;
    for (const [id, at] of sends) if (at >= now + ceilingWindowMs) sends.set(id, now);
    for (let at = 0; at + 1 < pairs.length; at += 2) {
      const id = pairs[at + 1] ?? '';
      if (sends.has(id)) continue;
      sends.set(id, now - Number(pairs[at]));
      missing += 1;
    }
    return missing;
  }

  #presence([replica = '']: string[], now: number, server: string): unknown {
    const wasSetBack = (this.#replicas.get(replica) ?? now) >= now + presenceLifeMs;
    for (const [each, at] of this.#replicas) if (at >= now + presenceLifeMs) this.#replicas.delete(each);
    const isNew = !this.#replicas.has(replica);
    this.#replicas.set(replica, now);
    for (const [each, at] of this.#replicas) if (at <= now - presenceLifeMs) this.#replicas.delete(each);
    return [this.#replicas.size, wasSetBack ? 2 : Number(isNew), server];
  }
}

const nameOf = (sendsKey: string): string => sendsKey.slice('sluice:sends:{'.length, -1);

/** A send is remembered no longer than this. */
export const rememberedMs = ceilingWindowMs + 1_000;
