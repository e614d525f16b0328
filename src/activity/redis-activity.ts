/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an
 * admission.
 *
 * Owns: how much is written with one request, the cells that wait to be written, and a cache of what other replicas
 * published. Does not own: cells, and the keys and commands (`redis-ts`).
 * Keeps: a failure of Redis is counted, never thrown: activity then shows this replica alone.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
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
  readonly #cells: Remembered<readonly Cell[]>;
  readonly #calls: Remembered<ReadonlyMap<ActivityKey, LaneCalls>>;
  readonly #others: Remembered<readonly string[]>;
  readonly #alive: Remembered<number>;
  /** End of the pause after a failure, monotonic milliseconds; `null` = there is none. */
  #pausedUntil: number | null = null;
  #closed = false;

  constructor(parts: RedisActivityParts) {
    const { settings, clock, random, onError } = parts;
    this.#parts = parts;
    this.#connection = connectRedis(settings, { clock, random }, () => onError('connection'));
    this.#cells = new Remembered(clock, cacheMs, maxReads);
    this.#calls = new Remembered(clock, cacheMs, 1);
    this.#others = new Remembered(clock, cacheMs, 1);
    this.#alive = new Remembered(clock, cacheMs, 1);
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
      const announced = { calls: callsText(calls), busiest: busiestText(busiest) };
      await this.#send(announceCommands(replica, this.#minute(), announced));
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
    const all = await this.#calls.of('', () => this.#ask(() => this.#readCalls(), new Map()));
    return all.get(lane) ?? { waiting: 0, inFlight: 0 };
  }

  active(fromMinute: number): Promise<ReadonlySet<ActivityKey>> {
    return this.#ask<ReadonlySet<ActivityKey>>(async () => {
      const replies = await this.#ofOthers((replica) => lanesCommand(replica, fromMinute));
      return new Set(replies.flatMap(texts));
    }, new Set());
  }

  busiest(): Promise<ReadonlyMap<string, number>> {
    return this.#ask<ReadonlyMap<string, number>>(async () => {
      const sums = new Map<string, number>();
      for (const reply of await this.#ofOthers(busiestCommand)) {
        for (const [label, busy] of busiestOfText(reply)) sums.set(label, (sums.get(label) ?? 0) + busy);
      }
      return sums;
    }, new Map());
  }

  replicas(): Promise<number> {
    return this.#alive.of('', () =>
      this.#ask(async () => {
        const others = await this.#otherReplicas();
        if (others.length === 0) return 1;
        return 1 + Number((await this.#send([aliveCountCommand(others)]))[0]);
      }, 1),
    );
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
      for (const [field, text] of fieldsOf(reply)) {
        const { replica, minute } = ownerOf(field);
        const cell = replica === this.#parts.replica ? null : cellOfText(minute, text);
        if (cell === null) continue;
        const total = byMinute.get(minute) ?? emptyCell(minute);
        addInto(total, cell);
        byMinute.set(minute, total);
      }
    }
    return [...byMinute.values()];
  }

  /** Calls on the other replicas, added up. A replica that was killed is forgotten when its key expires. */
  async #readCalls(): Promise<ReadonlyMap<ActivityKey, LaneCalls>> {
    const sums = new Map<ActivityKey, LaneCalls>();
    for (const reply of await this.#ofOthers(callsCommand)) {
      for (const [lane, own] of callsOfText(reply)) {
        const sum = sums.get(lane) ?? { waiting: 0, inFlight: 0 };
        sums.set(lane, { waiting: sum.waiting + own.waiting, inFlight: sum.inFlight + own.inFlight });
      }
    }
    return sums;
  }

  /** Replies to one command for each other replica. */
  async #ofOthers(wordsFor: (replica: string) => RedisCommandWords): Promise<readonly unknown[]> {
    return this.#send((await this.#otherReplicas()).map(wordsFor));
  }

  /** Replicas that published within the hour, without this one. */
  #otherReplicas(): Promise<readonly string[]> {
    return this.#others.of('', async () =>
      texts((await this.#send([replicasCommand()]))[0]).filter((name) => name !== this.#parts.replica),
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
 * `{activity}` puts all keys into one hash slot of a Redis Cluster, so that one pipeline may use any of them. `2` is the
 * layout version.
 */
const prefix = 'sluice:{activity}:2:';
const replicasKey = `${prefix}replicas`;
const aliveKey = (replica: string): string => `${prefix}alive:${replica}`;
const callsKey = (replica: string): string => `${prefix}calls:${replica}`;
const busiestKey = (replica: string): string => `${prefix}busiest:${replica}`;
const lanesKey = (replica: string): string => `${prefix}lanes:${replica}`;
const cellsKey = (lane: ActivityKey, block: number): string => `${prefix}cells:${lane}:${block}`;
const blockOf = (minute: number): number => Math.floor(minute / blockMinutes);

/** Announces that a replica is running, with its live calls and its busiest workspaces. */
const announceCommands = (
  replica: string,
  minute: number,
  announced: { calls: string; busiest: string },
): RedisCommandWords[] => [
  ['set', aliveKey(replica), 1, 'px', aliveMs],
  ['zadd', replicasKey, minute, replica],
  ['zremrangebyscore', replicasKey, '-inf', `(${minute - hourMinutes}`],
  ['expire', replicasKey, expirySeconds],
  ['zremrangebyscore', lanesKey(replica), '-inf', `(${minute - hourMinutes}`],
  ['set', callsKey(replica), announced.calls, 'px', aliveMs],
  ['set', busiestKey(replica), announced.busiest, 'px', aliveMs],
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
const replicasCommand = (): RedisCommandWords => ['zrange', replicasKey, 0, -1];
/** How many of these replicas have published within {@link aliveMs}. */
const aliveCountCommand = (replicas: readonly string[]): RedisCommandWords => [
  'exists',
  ...replicas.map(aliveKey),
];
const callsCommand = (replica: string): RedisCommandWords => ['get', callsKey(replica)];
const busiestCommand = (replica: string): RedisCommandWords => ['get', busiestKey(replica)];
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

/** Fields of a hash: the driver replies with an object, or with a list of names and values in turn. */
function fieldsOf(reply: unknown): readonly (readonly [string, string])[] {
  if (!Array.isArray(reply)) {
    return typeof reply === 'object' && reply !== null
      ? Object.entries(reply).map(([field, value]) => [field, String(value)] as const)
      : [];
  }
  const words = texts(reply);
  return words.flatMap((word, i) => (i % 2 === 0 ? [[word, words[i + 1] ?? ''] as const] : []));
}

/** `<activity key>:<waiting>:<in flight>` for each key, joined by commas. */
function callsText(calls: ReadonlyMap<ActivityKey, LaneCalls>): string {
  return [...calls].map(([key, { waiting, inFlight }]) => `${key}:${waiting}:${inFlight}`).join(',');
}

/** Reads what {@link callsText} wrote; skips every part that has another form. */
function callsOfText(text: unknown): readonly (readonly [ActivityKey, LaneCalls])[] {
  if (typeof text !== 'string') return [];
  return text.split(',').flatMap((part) => {
    const match = /^([0-9a-f]{32}):(\d{1,9}):(\d{1,9})$/.exec(part);
    return match === null
      ? []
      : [[match[1] ?? '', { waiting: Number(match[2]), inFlight: Number(match[3]) }] as const];
  });
}

/** `<label>:<busyness>` for each workspace, the busyness to a tenth of a call, joined by commas. */
function busiestText(busiest: ReadonlyMap<string, number>): string {
  return [...busiest].map(([label, busy]) => `${label}:${Math.round(busy * 10) / 10}`).join(',');
}

/** Reads what {@link busiestText} wrote; skips every part that has another form. */
function busiestOfText(text: unknown): readonly (readonly [string, number])[] {
  if (typeof text !== 'string') return [];
  return text.split(',').flatMap((part) => {
    const match = /^(w_[0-9a-f]{16}):(\d{1,12}(?:\.\d)?)$/.exec(part);
    return match === null ? [] : [[match[1] ?? '', Number(match[2])] as const];
  });
}
