/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an admission. A failure of
 * Redis is counted, never thrown: activity then shows this replica alone.
 *
 * Each minute is a hash of what the replicas counted in it, and one more hash has their calls now; fields are names of replicas.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import { kindOf } from '../redis/health.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import { hourMs, minuteMs } from '../time-units.ts';
import { Cell, type Counted } from './cell.policy.ts';
import {
  addCalls,
  keptMinutes,
  nobody,
  type CellName,
  type LaneCalls,
  type Minutes,
  type Others,
  type Publication,
  type SharedActivity,
} from './recorder.ts';

/** What was read is used again for so long; minutes that are over for longer, because only a replica that had lost Redis still changes them. Milliseconds. */
const goodMs = 2_000;
const pastGoodMs = 60_000;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long, which is four publications, is not counted any more. Milliseconds. */
const aliveMs = 20_000;

interface RedisActivityParts {
  readonly settings: RedisSettings;
  readonly labelKey: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Opaque name of this replica, new with every start of the process. */
  readonly replica: string;
  readonly onError: (kind: RedisErrorKind) => void;
  readonly onCommand: (command: RedisCommand, durationMs: number) => void;
}

/** What a replica says of its calls, and when, Unix milliseconds. */
interface Said {
  readonly at: number;
  readonly live: readonly (readonly [CellName, LaneCalls])[];
}

/** What the other replicas counted in a minute, read at this time, monotonic milliseconds. */
interface ReadMinute {
  readonly readAt: number;
  readonly cells: ReadonlyMap<CellName, Cell>;
}

export class RedisActivity implements SharedActivity {
  readonly #parts: RedisActivityParts;
  readonly #connection: RedisConnection;
  /**
   * `{activity}` puts all keys into one hash slot of a Redis Cluster; `5` is the layout version. Replicas with different label keys share no
   * limit, so they do not count each other.
   */
  readonly #prefix: string;
  readonly #minutes = new Map<number, ReadMinute>();
  #reading: { readonly until: number; readonly others: Promise<Others> } | null = null;
  #isClosed = false;

  constructor(parts: RedisActivityParts) {
    const { settings, clock, random, labelKey, onError } = parts;
    this.#parts = parts;
    this.#prefix = `sluice:{activity}:5:${digest(labelKey, 'activity').slice(0, 16)}`;
    this.#connection = connectRedis(settings, { clock, random }, () => onError('connection'));
  }

  async publish({ live, minutes }: Publication): Promise<boolean> {
    const { clock, replica, onCommand, onError } = this.#parts;
    if (this.#isClosed || !this.#connection.isReady()) return this.#isClosed;
    const startedAt = clock.monotonic();
    const writing = this.#connection.client.pipeline();
    const said: Said = { at: clock.now(), live: [...live] };
    for (const [of, value] of [...minutes, ['live', said] as const])
      writing.hset(this.#key(of), replica, JSON.stringify(value)).expire(this.#key(of), expirySeconds);
    try {
      const replies = (await writing.exec()) ?? [];
      for (const [failure] of replies) if (failure !== null) throw failure;
      onCommand('publish', clock.monotonic() - startedAt);
      return true;
    } catch (failure) {
      onError(kindOf(failure));
      return false;
    }
  }

  others(): Promise<Others> {
    const now = this.#parts.clock.monotonic();
    if (this.#reading === null || now >= this.#reading.until) {
      const others = this.#read().catch((failure: unknown) => {
        if (!this.#isClosed) this.#parts.onError(kindOf(failure));
        return nobody;
      });
      this.#reading = { until: now + goodMs, others };
    }
    return this.#reading.others;
  }

  close(): void {
    this.#isClosed = true;
    this.#connection.close();
  }

  async #read(): Promise<Others> {
    if (this.#isClosed || !this.#connection.isReady()) return nobody;
    const now = this.#parts.clock.now();
    const all = await this.#ofOthers<Said>('live');
    const gone = all.filter(([, { at }]) => at < now - hourMs).map(([replica]) => replica);
    if (gone.length > 0) await this.#connection.client.hdel(this.#key('live'), ...gone);
    if (all.length === 0) return nobody;
    const alive = all.filter(([, { at }]) => at > now - aliveMs);
    const live = new Map<CellName, LaneCalls>();
    for (const [name, calls] of alive.flatMap(([, said]) => said.live)) addCalls(live, name, calls);
    return { replicas: alive.length, live, minutes: await this.#readMinutes() };
  }

  async #readMinutes(): Promise<Minutes> {
    const { clock } = this.#parts;
    const last = Math.floor(clock.now() / minuteMs);
    for (const minute of this.#minutes.keys()) if (minute <= last - keptMinutes) this.#minutes.delete(minute);
    for (let minute = last; minute > last - keptMinutes; minute--) {
      const readAt = clock.monotonic();
      const goodFor = minute < last - 1 ? pastGoodMs : 0;
      if (readAt - (this.#minutes.get(minute)?.readAt ?? -Infinity) < goodFor) continue;
      const cells = new Map<CellName, Cell>();
      for (const [, counted] of await this.#ofOthers<readonly (readonly [CellName, Counted])[]>(minute)) {
        for (const [name, more] of counted) {
          const cell = cells.get(name) ?? new Cell(minute);
          cell.addAll(more);
          cells.set(name, cell);
        }
      }
      this.#minutes.set(minute, { readAt, cells });
    }
    return new Map(Array.from(this.#minutes, ([minute, { cells }]) => [minute, cells]));
  }

  /** What the other replicas say in a hash. */
  async #ofOthers<T>(of: number | 'live'): Promise<readonly (readonly [replica: string, said: T])[]> {
    const all = Object.entries(await this.#connection.client.hgetall(this.#key(of)));
    return all
      .filter(([replica]) => replica !== this.#parts.replica)
      .map(([replica, text]) => [replica, JSON.parse(text) as T]);
  }

  #key(of: number | 'live'): string {
    return `${this.#prefix}:${of}`;
  }
}
