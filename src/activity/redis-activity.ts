/**
 * Shares activity through Redis, on a connection of its own: a long read for the page never stands in front of an
 * admission.
 *
 * Owns: how much is written with one request, the cells that wait to be written, and a cache of what other replicas
 * published. Does not own: cells, and the keys and commands (`redis-layout.ts`).
 * Keeps: a failure of Redis is counted, never thrown: activity then shows this replica alone, and cells that could not be
 * written are written later.
 */
import type { Clock, Random } from '../clock.ts';
import type { RedisSettings } from '../config/settings.ts';
import { connectRedis, type RedisConnection } from '../redis/connection.ts';
import type { RedisCommand, RedisErrorKind } from '../telemetry/events.ts';
import { addInto, emptyCell, type Cell } from './cell.ts';
import { busiestOfText, busiestText, callsOfText, callsText, cellOfText } from './cell-text.ts';
import * as layout from './redis-layout.ts';
import { Remembered } from './remembered.ts';
import type { ActivityKey, LaneCalls, LaneCell, Publication, SharedActivity } from './shared.ts';

/** How long a reading of Redis is used again: less than the 5 s between two publications of a replica. Milliseconds. */
const cacheMs = 2_000;
/** Pause after a failed reading: a page with many lanes waits for one timeout, not for hundreds. Milliseconds. */
const pauseMs = 5_000;
const cellsPerRequest = 200;
/** Cells of lanes kept for a later publication while Redis fails: the oldest are given up. */
const maxPending = 10_000;
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
  /** Cells that are not in Redis yet, by lane and minute. */
  readonly #totals = new Map<string, LaneCell>();
  readonly #lanes = new Map<string, LaneCell>();
  readonly #dropped = new Set<ActivityKey>();
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

  async publish({ totals, lanes, dropped, calls, busiest }: Publication): Promise<void> {
    if (this.#closed) return;
    this.#cells.forgetOld();
    this.#keep(totals(), this.#totals);
    this.#drop(dropped);
    this.#keep(lanes(), this.#lanes);
    const startedAt = this.#parts.clock.monotonic();
    const { replica } = this.#parts;
    try {
      const announced = { calls: callsText(calls()), busiest: busiestText(busiest()) };
      const gone = [...this.#dropped];
      await this.#send(layout.unlistCommands(replica, gone));
      for (const lane of gone) this.#dropped.delete(lane);
      await this.#store(this.#totals, (entry) => layout.storeCommands(replica, entry));
      await this.#store(this.#lanes, (entry) => [
        ...layout.storeCommands(replica, entry),
        ...layout.listCommands(replica, entry),
      ]);
      await this.#send(layout.announceCommands(replica, this.#minute(), announced));
      // Redis replies again: a reader of activity need not wait for the end of the pause.
      this.#pausedUntil = null;
      this.#parts.onCommand('publish', this.#parts.clock.monotonic() - startedAt);
    } catch (failure) {
      this.#noteFailure(failure);
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
      const replies = await this.#ofOthers((replica) => layout.lanesCommand(replica, fromMinute));
      return new Set(replies.flatMap(layout.texts));
    }, new Set());
  }

  busiest(): Promise<ReadonlyMap<string, number>> {
    return this.#ask<ReadonlyMap<string, number>>(async () => {
      const sums = new Map<string, number>();
      for (const reply of await this.#ofOthers(layout.busiestCommand)) {
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
        return 1 + Number((await this.#send([layout.aliveCountCommand(others)]))[0]);
      }, 1),
    );
  }

  close(): void {
    this.#closed = true;
    this.#connection.close();
  }

  /** Adds cells to those that wait to be written. Drops cells older than an hour, and of lanes the oldest beyond `maxPending`. */
  #keep(cells: Iterable<LaneCell>, pending: Map<string, LaneCell>): void {
    for (const entry of cells) {
      pending.set(`${entry.lane}:${entry.cell.minute}`, entry);
      this.#dropped.delete(entry.lane);
    }
    const oldest = this.#minute() - layout.hourMinutes;
    for (const [name, { cell }] of pending) {
      const isTooMuch = pending === this.#lanes && pending.size > maxPending;
      if (isTooMuch || cell.minute < oldest) pending.delete(name);
    }
  }

  /** Lanes that the recorder has forgotten are taken off the list in Redis, and their pending cells are not written. */
  #drop(dropped: readonly ActivityKey[]): void {
    for (const lane of dropped) this.#dropped.add(lane);
    // A lane that stays in the list is read in vain, until it leaves the list an hour after its last call.
    if (this.#dropped.size > maxPending) this.#dropped.clear();
    if (dropped.length === 0) return;
    for (const [name, { lane }] of this.#lanes) if (this.#dropped.has(lane)) this.#lanes.delete(name);
  }

  async #store(
    pending: Map<string, LaneCell>,
    wordsOf: (entry: LaneCell) => layout.RedisCommandWords[],
  ): Promise<void> {
    while (pending.size > 0) {
      const part = [...pending].slice(0, cellsPerRequest);
      await this.#send(part.flatMap(([, entry]) => wordsOf(entry)));
      for (const [name] of part) pending.delete(name);
    }
  }

  /** Cells that the other replicas recorded for a lane, added up for each minute. */
  async #readCells(lane: ActivityKey): Promise<readonly Cell[]> {
    if ((await this.#otherReplicas()).length === 0) return [];
    const byMinute = new Map<number, Cell>();
    for (const reply of await this.#send(layout.cellsCommands(lane, this.#minute()))) {
      for (const [field, text] of layout.fieldsOf(reply)) {
        const { replica, minute } = layout.ownerOf(field);
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
    for (const reply of await this.#ofOthers(layout.callsCommand)) {
      for (const [lane, own] of callsOfText(reply)) {
        const sum = sums.get(lane) ?? { waiting: 0, inFlight: 0 };
        sums.set(lane, { waiting: sum.waiting + own.waiting, inFlight: sum.inFlight + own.inFlight });
      }
    }
    return sums;
  }

  /** Replies to one command for each other replica. */
  async #ofOthers(wordsFor: (replica: string) => layout.RedisCommandWords): Promise<readonly unknown[]> {
    return this.#send((await this.#otherReplicas()).map(wordsFor));
  }

  /** Replicas that published within the hour, without this one. */
  #otherReplicas(): Promise<readonly string[]> {
    return this.#others.of('', async () =>
      layout
        .texts((await this.#send([layout.replicasCommand()]))[0])
        .filter((name) => name !== this.#parts.replica),
    );
  }

  /** Replies of a pipeline; rejects when any of its commands failed. */
  async #send(commands: readonly layout.RedisCommandWords[]): Promise<readonly unknown[]> {
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
    const kind = errorKindOf(failure);
    if (kind !== null) this.#parts.onError(kind);
  }

  #minute(): number {
    return Math.floor(this.#parts.clock.now() / 60_000);
  }
}

/** There is no connection now: it is still being made, or the driver has reported why not. */
class RedisNotReady extends Error {}

/** `null`: the driver has reported the error already. */
function errorKindOf(failure: unknown): RedisErrorKind | null {
  if (failure instanceof RedisNotReady) return null;
  if (!(failure instanceof Error)) return 'other';
  if (failure.name === 'ReplyError') return 'reply';
  return /timed? ?out/i.test(failure.message) ? 'timeout' : 'connection';
}
