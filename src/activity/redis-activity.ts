/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an admission. A failure of
 * Redis is counted, never thrown: activity then shows this replica alone.
 *
 * Each minute is a hash of what the replicas counted in it, and one more hash has their calls now; fields are names of replicas.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { connectRedis } from '../redis/connection.ts';
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
  type SharedActivity,
} from './recorder.ts';

/** What was read is used again for so long; minutes that are over for longer, because only a replica that had lost Redis still changes them. Milliseconds. */
const goodMs = 2_000;
const pastGoodMs = 60_000;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long, which is four publications, is not counted any more. Milliseconds. */
const aliveMs = 20_000;

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

/** `replica`: its opaque name, new with every start of the process. */
export function createRedisActivity(parts: {
  readonly settings: RedisSettings;
  readonly labelKey: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly replica: string;
  readonly onError: (kind: RedisErrorKind) => void;
  readonly onCommand: (command: RedisCommand, durationMs: number) => void;
}): SharedActivity {
  const { settings, clock, random, labelKey, replica, onError, onCommand } = parts;
  const connection = connectRedis(settings, { clock, random }, () => onError('connection'));
  const { client } = connection;
  /**
   * `{activity}` puts all keys into one hash slot of a Redis Cluster; `5` is the layout version. Replicas with different label keys share no
   * limit, so they do not count each other.
   */
  const prefix = `sluice:{activity}:5:${digest(labelKey, 'activity').slice(0, 16)}`;
  const keyOf = (of: number | 'live'): string => `${prefix}:${of}`;
  const known = new Map<number, ReadMinute>();
  let reading: { readonly until: number; readonly others: Promise<Others> } | null = null;
  let isClosed = false;

  /** What the other replicas say in a hash. */
  async function ofOthers<T>(of: number | 'live'): Promise<readonly (readonly [replica: string, said: T])[]> {
    const all = Object.entries(await client.hgetall(keyOf(of)));
    return all.filter(([name]) => name !== replica).map(([name, text]) => [name, JSON.parse(text) as T]);
  }

  async function read(): Promise<Others> {
    if (isClosed || !connection.isReady()) return nobody;
    const now = clock.now();
    const all = await ofOthers<Said>('live');
    const gone = all.filter(([, { at }]) => at < now - hourMs).map(([name]) => name);
    if (gone.length > 0) await client.hdel(keyOf('live'), ...gone);
    if (all.length === 0) return nobody;
    const alive = all.filter(([, { at }]) => at > now - aliveMs);
    const live = new Map<CellName, LaneCalls>();
    for (const [name, calls] of alive.flatMap(([, said]) => said.live)) addCalls(live, name, calls);
    return { replicas: alive.length, live, minutes: await readMinutes() };
  }

  async function readMinutes(): Promise<Minutes> {
    const last = Math.floor(clock.now() / minuteMs);
    for (const minute of known.keys()) if (minute <= last - keptMinutes) known.delete(minute);
    for (let minute = last; minute > last - keptMinutes; minute--) {
      const readAt = clock.monotonic();
      const goodFor = minute < last - 1 ? pastGoodMs : 0;
      if (readAt - (known.get(minute)?.readAt ?? -Infinity) < goodFor) continue;
      const cells = new Map<CellName, Cell>();
      const said = await ofOthers<readonly (readonly [CellName, Counted])[]>(minute);
      for (const [name, counted] of said.flatMap(([, of]) => of)) {
        const cell = cells.get(name) ?? new Cell(minute);
        cell.addAll(counted);
        cells.set(name, cell);
      }
      known.set(minute, { readAt, cells });
    }
    return new Map(Array.from(known, ([minute, { cells }]) => [minute, cells]));
  }

  return {
    async publish({ live, minutes }) {
      if (isClosed || !connection.isReady()) return isClosed;
      const startedAt = clock.monotonic();
      const writing = client.pipeline();
      const said: Said = { at: clock.now(), live: [...live] };
      for (const [of, value] of [...minutes, ['live', said] as const])
        writing.hset(keyOf(of), replica, JSON.stringify(value)).expire(keyOf(of), expirySeconds);
      try {
        const replies = (await writing.exec()) ?? [];
        for (const [failure] of replies) if (failure !== null) throw failure;
        onCommand('publish', clock.monotonic() - startedAt);
        return true;
      } catch (failure) {
        onError(kindOf(failure));
        return false;
      }
    },
    others() {
      const now = clock.monotonic();
      if (reading === null || now >= reading.until) {
        const others = read().catch((failure: unknown) => {
          if (!isClosed) onError(kindOf(failure));
          return nobody;
        });
        reading = { until: now + goodMs, others };
      }
      return reading.others;
    },
    close() {
      isClosed = true;
      connection.close();
    },
  };
}
