/**
 * This replica among the others: its name, its heartbeat once a second, how many others are heard of, and when Redis may lack
 * what this replica has put there. What a log has lost, the log itself finds (`log/redis-log.ts`).
 */
import type { Clock, Random } from '../../clock.ts';
import { replicaId, type ReplicaId } from '../../ids.ts';
import type { RedisClient, RedisConnection } from '../../redis/connection.ts';
import { amountOf, listOf, textOf } from '../../redis/scripts.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import { runOwn } from './scripts.ts';

const beatMs = 1_000;
/** A replica counts as alive for this long after a heartbeat (`presence.lua`). Milliseconds. */
const lifeMs = 5_000;

export const replicasKey = 'sluice:{presence}:1:replicas';
export interface PresenceParts {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** The most replicas there can be: so many count as alive until Redis says otherwise. `null` = nobody has said. */
  readonly replicas: number | null;
  /** Redis may lack what this replica has put there: another server serves, its clock was set back, or data was lost. */
  readonly onDoubt: () => void;
}

export class Presence {
  readonly id: ReplicaId;
  readonly #parts: PresenceParts;
  #count: number;
  /** When that many were last heard of, or this replica came back and began to wait for them. Monotonic milliseconds. */
  #countedAt = -Infinity;
  /** The server of the latest heartbeat, and the primaries of its Cluster; `null` = none was answered. */
  #server: string | null = null;
  #beatAt = -Infinity;
  #run: ((beat: (client: RedisClient) => Promise<void>) => Promise<void>) | null = null;
  #cancel = (): void => {};
  #isClosed = false;

  constructor(parts: PresenceParts) {
    this.#parts = parts;
    this.#count = parts.replicas ?? 1;
    this.id = replicaId(`r${parts.random.hex(12)}`);
    // Every new connection may lead to another server.
    parts.connection.client.on('ready', () => {
      if (this.#server !== null) parts.onDoubt();
      this.#beatNow();
    });
  }

  /** Redis has answered a heartbeat of this replica, at any time. */
  get hasReachedRedis(): boolean {
    return this.#server !== null;
  }

  /** Number of live replicas, this one included. At least 1; stays as it is while Redis is unavailable. */
  count(): number {
    return this.#count;
  }

  /** Sends a heartbeat now. */
  async beat(client: RedisClient): Promise<void> {
    const { clock, connection, onDoubt, telemetry } = this.#parts;
    const [count, known, runId] = listOf(
      await runOwn(client, 'presence', { keys: [replicasKey], argv: [this.id] }),
    );
    this.#noteCount(Math.max(1, amountOf(count)));
    const server = `${textOf(runId)} ${connection.primaries()}`;
    const isOther = this.#server !== null && this.#server !== server;
    const wasSetBack = amountOf(known) === 2;
    const isLost = amountOf(known) === 1 && clock.monotonic() - this.#beatAt < lifeMs;
    if (wasSetBack) telemetry.log.warn('the clock of Redis was set back');
    else if (isLost) telemetry.log.warn('Redis has lost data');
    else if (isOther) telemetry.log.info('another Redis server serves');
    if (wasSetBack || isLost || isOther) onDoubt();
    this.#server = server;
    this.#beatAt = clock.monotonic();
  }

  /** Beats once a second from now on. */
  start(run: (beat: (client: RedisClient) => Promise<void>) => Promise<void>): void {
    this.#run = run;
    this.#beatIn();
  }

  /** This replica ends. */
  async leave(client: RedisClient): Promise<void> {
    await client.zrem(replicasKey, this.id);
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel();
  }

  #beatIn(): void {
    this.#cancel();
    if (!this.#isClosed) this.#cancel = this.#parts.clock.after(beatMs, () => this.#beatNow());
  }

  #beatNow(): void {
    if (this.#isClosed || this.#run === null) return;
    this.#cancel();
    const again = (): void => this.#beatIn();
    // A failure is counted where it happened; the next beat tries again.
    this.#run((client) => this.beat(client)).then(again, again);
  }

  /**
   * Fewer replicas than before are believed only when the others have been silent for as long as a replica lives: of an emptied Redis
   * the first replica would be alone with the whole of every limit if it became unavailable again.
   */
  #noteCount(count: number): void {
    const now = this.#parts.clock.monotonic();
    const isBack = now - this.#beatAt > 2 * beatMs;
    if (count >= this.#count || isBack) this.#countedAt = now;
    if (count >= this.#count || now - this.#countedAt > lifeMs) this.#count = count;
  }
}
