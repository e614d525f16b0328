/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an
 * admission.
 *
 * Owns: keys, expiry, chunks, what is remembered of other replicas while somebody looks. Refuses to own: cells.
 * Keeps: names in Redis are digests and opaque replica ids, values are numbers; every key expires within 70 minutes; a
 * failing Redis is counted, never thrown: the view is then of this replica alone, and what was not stored is stored later.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis } from '../limiter/redis-connection.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import { addInto, emptyCell, type Cell } from './cell.ts';
import { callsOfText, callsText, cellOfText, cellText } from './cell-text.ts';
import type { ActivityKey, LaneCalls, SharedActivity } from './shared.ts';

/** Minutes in one key of a lane: an hour is seven reads, and no key is read for longer than it is good for. */
const blockMinutes = 10;
const hourMinutes = 61;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long is not counted any more. Four publications. */
const aliveMs = 20_000;
/** Others publish every 5 s: what was read is good for a part of that. */
const readGoodMs = 2_000;
/** After a failure nothing is read for this long: a page with many lanes waits for one timeout, not for hundreds. */
const pauseMs = 5_000;
const cellsPerRequest = 200;
/** Cells kept for a later publication while Redis fails: the oldest are given up. */
const maxPending = 10_000;
/** As many lanes as a recorder remembers; of one replica read at once, and remembered while somebody looks. */
const maxLanes = 1_000;

/** One slot of a Cluster holds all of it, so that a pipeline may touch any of it. The number is the layout. */
const prefix = 'sluice:{activity}:1:';
const replicasKey = `${prefix}replicas`;
const aliveKey = (replica: string): string => `${prefix}alive:${replica}`;
const callsKey = (replica: string): string => `${prefix}calls:${replica}`;
const lanesKey = (replica: string): string => `${prefix}lanes:${replica}`;
const cellsKey = (lane: ActivityKey, block: number): string => `${prefix}cells:${lane}:${block}`;
const blockOf = (minute: number): number => Math.floor(minute / blockMinutes);

export interface RedisActivity extends SharedActivity {
  close(): void;
}

export interface RedisActivityParts {
  readonly settings: RedisSettings;
  readonly clock: Clock;
  readonly random: Random;
  /** Opaque name of this replica, new with every start of the process. */
  readonly replica: string;
  readonly onError: (kind: RedisErrorKind) => void;
  readonly onCommand: (command: RedisCommand, durationMs: number) => void;
}

type Words = readonly (string | number)[];
type LaneCells = readonly { readonly replica: string; readonly cell: Cell }[];

export function createRedisActivity(parts: RedisActivityParts): RedisActivity {
  const { settings, clock, random, replica, onError, onCommand } = parts;
  const connection = connectRedis(settings, { clock, random }, () => onError('connection'));
  const pending = new Map<string, { readonly lane: ActivityKey; readonly cell: Cell }>();
  const reads = new Map<ActivityKey, { readonly at: number; readonly cells: Promise<LaneCells> }>();
  let calls: { readonly at: number; readonly ofLanes: Promise<ReadonlyMap<ActivityKey, LaneCalls>> } | null =
    null;
  let members: { readonly at: number; readonly alive: Promise<number> } | null = null;
  let quietUntil = -Infinity;
  let closed = false;
  const minuteNow = (): number => Math.floor(clock.now() / 60_000);

  /** Replies of a pipeline; rejects when any of its commands failed. */
  const send = async (commands: readonly Words[]): Promise<readonly unknown[]> => {
    if (!connection.isReady()) throw new Unready();
    const replies = await connection.client.pipeline(commands.map((words) => [...words])).exec();
    return (replies ?? []).map(([failure, reply]) => {
      if (failure !== null) throw failure;
      return reply;
    });
  };

  /** `fallback` instead of what a failing Redis does not tell. */
  const ask = async <T>(read: () => Promise<T>, fallback: T): Promise<T> => {
    if (closed || clock.monotonic() < quietUntil) return fallback;
    try {
      return await read();
    } catch (failure) {
      noteFailure(failure);
      return fallback;
    }
  };

  const noteFailure = (failure: unknown): void => {
    if (closed) return;
    quietUntil = clock.monotonic() + pauseMs;
    onError(kindOf(failure));
  };

  const memberNames = async (): Promise<readonly string[]> =>
    texts((await send([['zrange', replicasKey, 0, -1]]))[0]);

  const aliveNow = async (): Promise<number> => {
    const others = (await memberNames()).filter((name) => name !== replica);
    if (others.length === 0) return 1;
    return 1 + Number((await send([['exists', ...others.map(aliveKey)]]))[0]);
  };

  const readLane = async (lane: ActivityKey): Promise<LaneCells> => {
    const last = blockOf(minuteNow());
    const blocks = Math.ceil(hourMinutes / blockMinutes) + 1;
    const commands = Array.from({ length: blocks }, (_, i) => ['hgetall', cellsKey(lane, last - i)]);
    const found: { replica: string; cell: Cell }[] = [];
    for (const reply of await send(commands)) {
      for (const [field, text] of fieldsOf(reply)) {
        const [name = '', minute = ''] = field.split(':');
        const cell = name === replica ? null : cellOfText(Number(minute), text);
        if (cell !== null) found.push({ replica: name, cell });
      }
    }
    return found;
  };

  /** Calls on the other replicas, added up. A replica that was killed is forgotten when its key expires. */
  const callsNow = async (): Promise<ReadonlyMap<ActivityKey, LaneCalls>> => {
    const others = (await memberNames()).filter((name) => name !== replica);
    const sums = new Map<ActivityKey, LaneCalls>();
    for (const reply of await send(others.map((name) => ['get', callsKey(name)]))) {
      for (const [lane, own] of callsOfText(reply)) {
        const sum = sums.get(lane) ?? { waiting: 0, inFlight: 0 };
        sums.set(lane, { waiting: sum.waiting + own.waiting, inFlight: sum.inFlight + own.inFlight });
      }
    }
    return sums;
  };

  /** What others recorded in a lane, read at most every {@link readGoodMs}. */
  const laneCells = (lane: ActivityKey): Promise<LaneCells> => {
    const now = clock.monotonic();
    let known = reads.get(lane);
    if (known === undefined || now - known.at >= readGoodMs) {
      if (reads.size >= maxLanes) forgetReads();
      if (reads.size >= maxLanes) reads.clear();
      reads.set(lane, (known = { at: now, cells: ask(() => readLane(lane), []) }));
    }
    return known.cells;
  };

  /** Nobody looks any more: memory goes back. */
  const forgetReads = (): void => {
    const now = clock.monotonic();
    for (const [lane, { at }] of reads) if (now - at >= readGoodMs) reads.delete(lane);
  };

  const announce = (minute: number): Words[] => [
    ['set', aliveKey(replica), 1, 'px', aliveMs],
    ['zadd', replicasKey, minute, replica],
    ['zremrangebyscore', replicasKey, '-inf', `(${minute - hourMinutes}`],
    ['expire', replicasKey, expirySeconds],
    ['zremrangebyscore', lanesKey(replica), '-inf', `(${minute - hourMinutes}`],
  ];

  const store = ({ lane, cell }: { readonly lane: ActivityKey; readonly cell: Cell }): Words[] => {
    const key = cellsKey(lane, blockOf(cell.minute));
    return [
      ['hset', key, `${replica}:${cell.minute}`, cellText(cell)],
      ['expire', key, expirySeconds],
      ['zadd', lanesKey(replica), 'gt', cell.minute, lane],
      ['expire', lanesKey(replica), expirySeconds],
    ];
  };

  return {
    async publish(cells, live = new Map()) {
      forgetReads();
      const minute = minuteNow();
      for (const entry of cells) pending.set(`${entry.lane}:${entry.cell.minute}`, entry);
      for (const [name, { cell }] of pending) {
        if (pending.size > maxPending || cell.minute < minute - hourMinutes) pending.delete(name);
      }
      if (closed) return;
      const startedAt = clock.monotonic();
      try {
        while (pending.size > 0) {
          const part = [...pending].slice(0, cellsPerRequest);
          await send(part.flatMap(([, entry]) => store(entry)));
          for (const [name] of part) pending.delete(name);
        }
        await send([...announce(minute), ['set', callsKey(replica), callsText(live), 'px', aliveMs]]);
        onCommand('publish', clock.monotonic() - startedAt);
      } catch (failure) {
        noteFailure(failure);
      }
    },

    async others(lanes, fromMinute) {
      const found = new Map<ActivityKey, readonly Cell[]>();
      for (const lane of lanes) {
        const byMinute = new Map<number, Cell>();
        for (const { cell } of await laneCells(lane)) {
          if (cell.minute < fromMinute) continue;
          const total = byMinute.get(cell.minute) ?? emptyCell(cell.minute);
          addInto(total, cell);
          byMinute.set(cell.minute, total);
        }
        found.set(lane, [...byMinute.values()]);
      }
      return found;
    },

    async callsOf(lane) {
      const now = clock.monotonic();
      if (calls === null || now - calls.at >= readGoodMs) {
        calls = { at: now, ofLanes: ask(callsNow, new Map()) };
      }
      return (await calls.ofLanes).get(lane) ?? { waiting: 0, inFlight: 0 };
    },

    active: (fromMinute) =>
      ask(async () => {
        const others = (await memberNames()).filter((name) => name !== replica);
        const replies = await send(
          others.map((name) => ['zrangebyscore', lanesKey(name), fromMinute, '+inf', 'limit', 0, maxLanes]),
        );
        return [...new Set(replies.flatMap(texts))];
      }, []),

    replicas() {
      const now = clock.monotonic();
      if (members === null || now - members.at >= readGoodMs) {
        members = { at: now, alive: ask(aliveNow, 1) };
      }
      return members.alive;
    },

    close() {
      closed = true;
      connection.close();
    },
  };
}

/** There is no connection now; the driver tells of that itself. */
class Unready extends Error {}

function kindOf(failure: unknown): RedisErrorKind {
  if (failure instanceof Unready) return 'connection';
  if (!(failure instanceof Error)) return 'other';
  if (failure.name === 'ReplyError') return 'reply';
  return /timed? ?out/i.test(failure.message) ? 'timeout' : 'connection';
}

const texts = (reply: unknown): readonly string[] => (Array.isArray(reply) ? reply.map(String) : []);

/** Fields of a hash, whichever of the driver's two forms it comes in. */
function fieldsOf(reply: unknown): readonly (readonly [string, string])[] {
  if (!Array.isArray(reply)) {
    return typeof reply === 'object' && reply !== null
      ? Object.entries(reply).map(([field, value]) => [field, String(value)] as const)
      : [];
  }
  const words = texts(reply);
  return words.flatMap((word, i) => (i % 2 === 0 ? [[word, words[i + 1] ?? ''] as const] : []));
}
