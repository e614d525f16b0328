/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an
 * admission.
 *
 * Owns: how much is written with one request, the cells that wait to be written, and a cache of what other replicas
 * published. Does not own: cells, and the keys and commands (`redis-ts`).
 * Keeps: a failure of Redis is counted, never thrown: activity then shows this replica alone.
 */
import { z } from 'zod';
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { digest } from '../identity.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import { kindOf } from '../redis/health.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import { addInto, cellOfText, cellText, emptyCell, type Cell } from './cell.ts';
import { Remembered } from './remembered.ts';
import type { ActivityKey, LaneCalls, LaneCell, Publication, SharedActivity } from './shared.ts';

/** How long a reading of Redis is used again: less than the 5 s between two publications of a replica. Milliseconds. */
const cacheMs = 2_000;
/** Pause after a failed reading: a page with many lanes waits for one timeout, not for hundreds. Milliseconds. */
const pauseMs = 5_000;
const cellsPerRequest = 200;
/** Lanes whose cells are cached: as many as a recorder remembers. */
const maxReads = 1_000;

export interface RedisActivityParts {
  readonly settings: RedisSettings;
  readonly labelKey: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Opaque name of this replica, new with every start of the process. */
  readonly replica: string;
  readonly onError: (kind: RedisErrorKind) => void;
  readonly onCommand: (command: RedisCommand, durationMs: number) => void;
}

export class RedisActivity implements SharedActivity {
  readonly #parts: RedisActivityParts;
  readonly #connection: RedisConnection;
  readonly #replicasKey: string;
  readonly #cells: Remembered<readonly Cell[]>;
  readonly #announced: Remembered<Announced>;
  readonly #others: Remembered<readonly string[]>;
  /** End of the pause after a failure, monotonic milliseconds; `null` = there is none. */
  #pausedUntil: number | null = null;
  #closed = false;

  constructor(parts: RedisActivityParts) {
    const { settings, clock, random, onError } = parts;
    this.#parts = parts;
    this.#replicasKey = replicasKeyOf(parts.labelKey);
    this.#connection = connectRedis(settings, { clock, random }, () => onError('connection'));
    this.#cells = new Remembered(clock, cacheMs, maxReads);
    this.#announced = new Remembered(clock, cacheMs, 1);
    this.#others = new Remembered(clock, cacheMs, 1);
  }

  async publish(publication: () => Publication): Promise<boolean> {
    if (this.#closed) return true;
    const { clock, replica, onCommand } = this.#parts;
    const { totals, lanes, calls, busiest } = publication();
    const commands = [
      ...totals.map((entry) => storeCommands(replica, entry)),
      ...lanes.map((entry) => [...storeCommands(replica, entry), ...listCommands(replica, entry)]),
    ];
    this.#cells.forgetOld();
    const startedAt = clock.monotonic();
    try {
      for (let from = 0; from < commands.length; from += cellsPerRequest)
        await this.#send(commands.slice(from, from + cellsPerRequest).flat());
      await this.#send(
        announceCommands(this.#replicasKey, replica, this.#minute(), announcementText(calls, busiest)),
      );
      // Redis replies again: a reader of activity need not wait for the end of the pause.
      this.#pausedUntil = null;
      onCommand('publish', clock.monotonic() - startedAt);
      return true;
    } catch (failure) {
      this.#noteFailure(failure);
      return false;
    }
  }

  async others(lane: ActivityKey, fromMinute: number, readSince?: number): Promise<readonly Cell[]> {
    const cells = await this.#cells.of(lane, () => this.#ask(() => this.#readCells(lane), []), readSince);
    return cells.filter(({ minute }) => minute >= fromMinute);
  }

  async callsOf(lane: ActivityKey): Promise<LaneCalls> {
    return (await this.#ofOthers()).calls.get(lane) ?? { waiting: 0, inFlight: 0 };
  }

  active(fromMinute: number): Promise<ReadonlySet<ActivityKey>> {
    return this.#ask<ReadonlySet<ActivityKey>>(async () => {
      const others = await this.#otherReplicas();
      const replies = await this.#send(others.map((replica) => lanesCommand(replica, fromMinute)));
      return new Set(replies.flatMap(texts));
    }, new Set());
  }

  async busiest(): Promise<ReadonlyMap<string, number>> {
    return (await this.#ofOthers()).busiest;
  }

  async replicas(): Promise<number> {
    return 1 + (await this.#ofOthers()).alive;
  }

  close(): void {
    this.#closed = true;
    this.#connection.close();
  }

  /** Cells that the other replicas recorded for a lane, added up for each minute. */
  async #readCells(lane: ActivityKey): Promise<readonly Cell[]> {
    if ((await this.#otherReplicas()).length === 0) return [];
    const byMinute = new Map<number, Cell>();
    for (const reply of await this.#send(cellsCommands(lane, this.#minute()))) {
      for (const [field, text] of Object.entries(Object(reply) as Record<string, unknown>)) {
        const { replica, minute } = ownerOf(field);
        const cell = replica === this.#parts.replica ? null : cellOfText(minute, String(text));
        if (cell === null) continue;
        const total = byMinute.get(minute) ?? emptyCell(minute);
        addInto(total, cell);
        byMinute.set(minute, total);
      }
    }
    return [...byMinute.values()];
  }

  /** What the other replicas say of themselves, added up. One that was killed is forgotten when its key expires. */
  #ofOthers(): Promise<Announced> {
    return this.#announced.of('', () => this.#ask(() => this.#readAnnounced(), nobody));
  }

  async #readAnnounced(): Promise<Announced> {
    const others = await this.#otherReplicas();
    if (others.length === 0) return nobody;
    const [reply] = await this.#send([['mget', ...others.map(announcedKey)]]);
    const calls = new Map<ActivityKey, LaneCalls>();
    const busiest = new Map<string, number>();
    const found = (Array.isArray(reply) ? reply : []).map(announcementOf).filter((each) => each !== null);
    for (const each of found) {
      for (const [lane, waiting, inFlight] of each.calls) {
        const sum = calls.get(lane) ?? { waiting: 0, inFlight: 0 };
        calls.set(lane, { waiting: sum.waiting + waiting, inFlight: sum.inFlight + inFlight });
      }
      for (const [label, busy] of each.busiest) busiest.set(label, (busiest.get(label) ?? 0) + busy);
    }
    return { alive: found.length, calls, busiest };
  }

  /** Replicas that published within the hour, without this one. */
  #otherReplicas(): Promise<readonly string[]> {
    return this.#others.of('', async () =>
      texts((await this.#send([replicasCommand(this.#replicasKey)]))[0]).filter(
        (name) => name !== this.#parts.replica,
      ),
    );
  }

  /** Replies of a pipeline; rejects when any of its commands failed. */
  async #send(commands: readonly RedisCommandWords[]): Promise<readonly unknown[]> {
    if (!this.#connection.isReady()) throw new RedisNotReady();
    if (commands.length === 0) return [];
    const replies = await this.#connection.client.pipeline(commands.map((words) => [...words])).exec();
    return (replies ?? []).map(([failure, reply]) => {
      if (failure !== null) throw failure;
      return reply;
    });
  }

  /** What `read` resolves with; `fallback` when Redis fails, during the pause after a failure, and after `close`. */
  async #ask<T>(read: () => Promise<T>, fallback: T): Promise<T> {
    if (this.#closed || this.#isPaused()) return fallback;
    try {
      return await read();
    } catch (failure) {
      // Several lanes are read at once: a failure that all of them see is counted once.
      if (!this.#isPaused()) this.#noteFailure(failure);
      return fallback;
    }
  }

  #isPaused(): boolean {
    return this.#pausedUntil !== null && this.#parts.clock.monotonic() < this.#pausedUntil;
  }

  #noteFailure(failure: unknown): void {
    if (this.#closed) return;
    this.#pausedUntil = this.#parts.clock.monotonic() + pauseMs;
    // Where there is no connection, the driver has reported why.
    if (!(failure instanceof RedisNotReady)) this.#parts.onError(kindOf(failure));
  }

  #minute(): number {
    return Math.floor(this.#parts.clock.now() / 60_000);
  }
}

/** There is no connection now: it is still being made, or the driver has reported why not. */
class RedisNotReady extends Error {}

/** Name and arguments of a command. */
type RedisCommandWords = readonly (string | number)[];

/**
 * Minutes in one key of a lane. The {@link hourMinutes} that end now always lie in seven keys; {@link cellsCommands} reads
 * one key more.
 */
const blockMinutes = 10;
/** The running minute and the sixty full ones before it. */
const hourMinutes = 61;
const expirySeconds = 70 * 60;
/** A replica that has not published for this long, which is four publications, is not counted any more. Milliseconds. */
const aliveMs = 20_000;
/** Lanes read of one replica: as many as a recorder remembers. */
const maxLanes = 1_000;

/**
 * `{activity}` puts all keys into one hash slot of a Redis Cluster, so that one pipeline may use any of them. `3` is the
 * layout version.
 */
const prefix = 'sluice:{activity}:3:';
/** One list for each label key: replicas with different ones share no limit, so they do not count each other. */
const replicasKeyOf = (labelKey: string): string =>
  `${prefix}replicas:${digest(labelKey, 'activity', 'replicas').slice(0, 16)}`;
const announcedKey = (replica: string): string => `${prefix}announced:${replica}`;
const lanesKey = (replica: string): string => `${prefix}lanes:${replica}`;
const cellsKey = (lane: ActivityKey, block: number): string => `${prefix}cells:${lane}:${block}`;
const blockOf = (minute: number): number => Math.floor(minute / blockMinutes);

/** Announces that a replica is running, with its live calls and its busiest workspaces. */
const announceCommands = (
  replicasKey: string,
  replica: string,
  minute: number,
  announcement: string,
): RedisCommandWords[] => [
  ['set', announcedKey(replica), announcement, 'px', aliveMs],
  ['zadd', replicasKey, minute, replica],
  ['zremrangebyscore', replicasKey, '-inf', `(${minute - hourMinutes}`],
  ['expire', replicasKey, expirySeconds],
  ['zremrangebyscore', lanesKey(replica), '-inf', `(${minute - hourMinutes}`],
];

/** Replaces a replica's cell of a minute. */
function storeCommands(replica: string, { lane, cell }: LaneCell): RedisCommandWords[] {
  const key = cellsKey(lane, blockOf(cell.minute));
  return [
    ['hset', key, `${replica}:${cell.minute}`, cellText(cell)],
    ['expire', key, expirySeconds],
  ];
}

/** Lists a lane as one of which the replica has cells. */
const listCommands = (replica: string, { lane, cell }: LaneCell): RedisCommandWords[] => [
  ['zadd', lanesKey(replica), 'gt', cell.minute, lane],
  ['expire', lanesKey(replica), expirySeconds],
];

/** Replicas that published within the hour. */
const replicasCommand = (replicasKey: string): RedisCommandWords => ['zrange', replicasKey, 0, -1];
/** Lanes of a replica with anything recorded since `fromMinute`. */
const lanesCommand = (replica: string, fromMinute: number): RedisCommandWords => [
  'zrangebyscore',
  lanesKey(replica),
  fromMinute,
  '+inf',
  'limit',
  0,
  maxLanes,
];

/**
 * Reads all cells of a lane in the hour that ends with `minute`, and in the ten minutes before: a replay asks for the hour
 * that ended up to 15 s ago (`headrooms.ts`), which may have begun in an earlier key.
 */
function cellsCommands(lane: ActivityKey, minute: number): RedisCommandWords[] {
  const last = blockOf(minute);
  const blocks = Math.ceil(hourMinutes / blockMinutes) + 1;
  return Array.from({ length: blocks }, (_, i) => ['hgetall', cellsKey(lane, last - i)]);
}

/** The replica and the minute of a field that {@link storeCommands} wrote. */
function ownerOf(field: string): { readonly replica: string; readonly minute: number } {
  const [replica = '', minute = ''] = field.split(':');
  return { replica, minute: Number(minute) };
}

/** The elements of a list reply as text; none when the reply is no list. */
const texts = (reply: unknown): readonly string[] => (Array.isArray(reply) ? reply.map(String) : []);

/** What is known of the other replicas together. */
interface Announced {
  /** Those that published within {@link aliveMs}. */
  readonly alive: number;
  readonly calls: ReadonlyMap<ActivityKey, LaneCalls>;
  readonly busiest: ReadonlyMap<string, number>;
}
const nobody: Announced = { alive: 0, calls: new Map(), busiest: new Map() };

/** Of each lane its calls waiting and in flight, and how busy each workspace is. */
const announcement = z.object({
  calls: z.array(z.tuple([z.string().regex(/^[0-9a-f]{32}$/), z.int().nonnegative(), z.int().nonnegative()])),
  busiest: z.array(z.tuple([z.string().regex(/^w_[0-9a-f]{16}$/), z.number().nonnegative()])),
});

/** Busyness is written to a tenth of a call. */
const announcementText = (calls: Publication['calls'], busiest: Publication['busiest']): string =>
  JSON.stringify({
    calls: [...calls].map(([key, { waiting, inFlight }]) => [key, waiting, inFlight]),
    busiest: [...busiest].map(([label, busy]) => [label, Math.round(busy * 10) / 10]),
  });

/** Reads what {@link announcementText} wrote; of a replica that writes it otherwise it is known that it is there. `null`: it is not. */
function announcementOf(text: unknown): z.infer<typeof announcement> | null {
  if (typeof text !== 'string') return null;
  try {
    return announcement.parse(JSON.parse(text));
  } catch {
    return { calls: [], busiest: [] };
  }
}
