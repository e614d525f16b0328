/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an admission. A failure of
 * Redis is counted, never thrown: activity then shows this replica alone.
 */
import { setImmediate } from 'node:timers/promises';
import { z } from 'zod';
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import { kindOf } from '../redis/health.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import { Cell } from './cell.policy.ts';
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
import { minuteMs } from '../time-units.ts';

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

const count = z.int().nonnegative();
const publishedLive = z.record(z.string(), z.tuple([count, count]));
const counts = z.record(z.string(), z.number().nonnegative());
const publishedMinute = z.record(z.string(), z.object({ counts, seconds: z.array(count) }));

/** What the other replicas counted in a minute, read at this time, monotonic milliseconds. */
interface ReadMinute {
  readonly readAt: number;
  readonly cells: ReadonlyMap<CellName, Cell>;
}

export class RedisActivity implements SharedActivity {
  readonly #parts: RedisActivityParts;
  readonly #connection: RedisConnection;
  /**
   * `{activity}` puts all keys into one hash slot of a Redis Cluster; `4` is the layout version. Replicas with different label keys share no
   * limit, so they do not count each other.
   */
  readonly #prefix: string;
  #minutes: ReadonlyMap<number, ReadMinute> = new Map();
  #reading: { readonly until: number; readonly others: Promise<Others> } | null = null;
  #isClosed = false;

  constructor(parts: RedisActivityParts) {
    const { settings, clock, random, labelKey, onError } = parts;
    this.#parts = parts;
    this.#prefix = `sluice:{activity}:4:${digest(labelKey, 'activity').slice(0, 16)}`;
    this.#connection = connectRedis(settings, { clock, random }, () => onError('connection'));
  }

  async publish({ live, minutes }: Publication): Promise<boolean> {
    const { clock, replica, onCommand, onError } = this.#parts;
    if (this.#isClosed || !this.#connection.isReady()) return this.#isClosed;
    const minute = Math.floor(clock.now() / minuteMs);
    const startedAt = clock.monotonic();
    const writing = this.#connection.client.pipeline();
    const counted = ({ counts, seconds }: Cell) => ({ counts, seconds: [...seconds] });
    for (const [each, cells] of minutes)
      writing.set(this.#key(replica, each), textOf(cells, counted), 'EX', expirySeconds);
    writing.set(
      this.#key(replica),
      textOf(live, ({ waiting, inFlight }) => [waiting, inFlight]),
      'PX',
      aliveMs,
    );
    writing.zadd(this.#replicas, minute, replica);
    writing.zremrangebyscore(this.#replicas, '-inf', String(minute - keptMinutes));
    writing.expire(this.#replicas, expirySeconds);
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
    const { client } = this.#connection;
    if (this.#isClosed || !this.#connection.isReady()) return nobody;
    const listed = await client.zrange(this.#replicas, '0', '-1');
    const replicas = listed.filter((name) => name !== this.#parts.replica);
    if (replicas.length === 0) return nobody;
    const said = await client.mget(replicas.map((replica) => this.#key(replica)));
    const alive = said.filter((text) => text !== null);
    const live = new Map<CellName, LaneCalls>();
    for (const text of alive)
      for (const [name, [waiting, inFlight]] of parsed(publishedLive, text))
        addCalls(live, name, { waiting, inFlight });
    return { replicas: alive.length, live, minutes: await this.#readMinutes(replicas) };
  }

  async #readMinutes(replicas: readonly string[]): Promise<Minutes> {
    const { clock } = this.#parts;
    const last = Math.floor(clock.now() / minuteMs);
    const readAt = clock.monotonic();
    const minutes = new Map(
      [...this.#minutes].filter(
        ([minute, known]) =>
          minute > last - keptMinutes && minute < last - 1 && readAt - known.readAt < pastGoodMs,
      ),
    );
    const all = Array.from({ length: keptMinutes }, (_, at) => last - at);
    const wanted = all.filter((each) => !minutes.has(each));
    const keys = wanted.flatMap((minute) => replicas.map((replica) => this.#key(replica, minute)));
    const texts = await this.#connection.client.mget(keys);
    for (const [at, minute] of wanted.entries()) {
      // What many replicas say of many workspaces takes milliseconds to read: calls do not wait for all of it.
      await setImmediate();
      const cells = new Map<CellName, Cell>();
      for (const text of texts.slice(at * replicas.length, (at + 1) * replicas.length)) {
        for (const [name, counted] of parsed(publishedMinute, text)) {
          const cell = cells.get(name) ?? new Cell(minute);
          cell.addAll(counted);
          cells.set(name, cell);
        }
      }
      minutes.set(minute, { readAt, cells });
    }
    this.#minutes = minutes;
    return new Map(Array.from(minutes, ([minute, { cells }]) => [minute, cells]));
  }

  get #replicas(): string {
    return `${this.#prefix}:replicas`;
  }

  /** What a replica counted in a minute, and without one its calls now. */
  #key(replica: string, minute?: number): string {
    return `${this.#prefix}:${replica}:${minute ?? 'live'}`;
  }
}

const textOf = <T>(all: Iterable<readonly [CellName, T]>, said: (of: T) => unknown): string =>
  JSON.stringify(Object.fromEntries(Array.from(all, ([name, of]) => [name, said(of)] as const)));

/** What another replica published; one that writes it otherwise says nothing. */
function parsed<T>(
  schema: z.ZodType<Record<string, T>>,
  text: string | null,
): readonly (readonly [CellName, T])[] {
  try {
    return text === null ? [] : Object.entries(schema.parse(JSON.parse(text)));
  } catch {
    return [];
  }
}
