/**
 * This replica among the others: its name, its heartbeat once a second, how many others are heard of, and whether Redis
 * has lost what it held (a new epoch).
 *
 * Owns: the presence record. Does not own: what a loss means for tickets, leases and ceilings (they watch).
 * Invariant: durations only; the start of an epoch is on Redis' clock and is compared with nothing else.
 */
import type { Clock, Random } from '../../clock.ts';
import type { Telemetry } from '../../telemetry/events.ts';
import { replicaId, type ReplicaId } from '../../ids.ts';
import { amountOf, listOf, numberOf, textOf } from '../../redis/malformed-reply.ts';
import { runOwn } from './protocol/commands.ts';
import type { RedisClient, RedisConnection } from '../../redis/connection.ts';
import { serverFacts } from '../../redis/server-info.policy.ts';
import type { Replica } from './replica.ts';
import { RedisUnusable } from '../../redis/redis-unusable.ts';
import { StoreClock } from './store-clock.ts';

const beatMs = 1_000;
/** A replica counts as alive for this long after a heartbeat (`presence.lua`). Milliseconds. */
const lifeMs = 5_000;
/** How long a new replica learns of a past loss: longer than any lease. Milliseconds. */
const rememberedMs = 60_000;
export const presenceKeys = [
  'sluice:{presence}:1:epoch',
  'sluice:{presence}:1:replicas',
  'sluice:{presence}:1:back',
  'sluice:{presence}:1:hold',
] as const;

export interface PresenceParts {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
  /** How long a lease lives, milliseconds. */
  readonly leaseMs: number;
  /** Shows new replicas that this one lives (`livingChannel`). */
  readonly livingChannel: string;
}

/** How many replicas are alive, and since when that number is known. */
interface Census {
  readonly replicas: number;
  /** When that many were last heard of, or when this replica came back and began to wait for the others. Monotonic milliseconds. */
  readonly fullAt: number | null;
}

/** The reply of `presence.lua`. */
interface Beat {
  readonly epoch: string;
  readonly isChange: boolean;
  readonly now: number;
  readonly count: number;
  readonly backAgoMs: number | null;
  readonly heldAgoMs: number;
}

export class Presence implements Replica {
  readonly id: ReplicaId;
  readonly storeClock = new StoreClock();
  readonly #parts: PresenceParts;
  readonly #watchers: (() => void)[] = [];
  #census: Census = { replicas: 1, fullAt: null };
  /** Which life of which server this is; `null` = to be asked. */
  #runId: string | null = null;
  /** The epoch of Redis' data as known. */
  #epoch: string | null = null;
  /** True when the epoch began with a loss of data. A replica that knew the earlier epoch may learn of it later than this one. */
  #isChange = false;
  #lostAt: number | null = null;
  /** Monotonic milliseconds at which the hold of serialized calls began that all replicas share; `null` = none did. */
  #heldSince: number | null = null;
  /** Monotonic milliseconds at which a Cluster last changed a primary: only this replica's hold. */
  #changedAt: number | null = null;
  /** How many losses were noticed. */
  #losses = 0;
  #backAt: number | null = null;
  #primaries = '';
  #cancel = (): void => {};
  #isClosed = false;

  constructor(parts: PresenceParts) {
    this.#parts = parts;
    this.id = replicaId(`r${parts.random.hex(12)}`);
    // Every new connection may lead to another server.
    parts.connection.client.on('ready', () => {
      this.#runId = null;
    });
  }

  count(): number {
    return this.#census.replicas;
  }

  lostAt(): number | null {
    return this.#lately(this.#lostAt);
  }

  heldSince(): number | null {
    const starts = [this.#lately(this.#heldSince), this.#lately(this.#changedAt)].filter((at) => at !== null);
    return starts.length === 0 ? null : Math.max(...starts);
  }

  losses(): number {
    return this.#losses;
  }

  backAt(): number | null {
    return this.#backAt;
  }

  async beat(client: RedisClient, comesBack = false): Promise<void> {
    const { clock, leaseMs, connection, livingChannel } = this.#parts;
    if (this.#runId === null) await this.checkServer();
    const sentAt = clock.monotonic();
    const heldSince = this.#heldSince;
    const isShared = heldSince !== null && this.heldSince() === heldSince;
    const heldAgoText = isShared ? String(sentAt - heldSince) : '';
    const isBack = comesBack ? '1' : '';
    const knows = this.#epoch ?? '';
    const hold = [heldAgoText, String(leaseMs)];
    const argv = [this.id, this.#runId ?? 'unknown', knows, '', isBack, ...hold, livingChannel];
    // Everything is read before anything is believed.
    const { epoch, isChange, now, count, backAgoMs, heldAgoMs } = beatOf(
      await runOwn(client, 'presence', { keys: presenceKeys, argv }),
    );
    this.storeClock.note(now, sentAt, clock.monotonic());
    const agoMs = now - numberOf(epoch);
    this.#backAt = backAgoMs === null ? null : sentAt - backAgoMs;
    this.#census = this.#counted(count, comesBack);
    // Another heartbeat may have been answered meanwhile.
    const known = this.#epoch;
    const wasChange = known === epoch && this.#isChange;
    this.#epoch = epoch;
    this.#isChange = isChange || wasChange;
    // Not before: presence.lua would count this replica itself.
    if (known === null) connection.join(livingChannel);
    const isOtherEpoch = known !== null && known !== epoch;
    const isNews = isOtherEpoch || (isChange && !wasChange && agoMs < rememberedMs);
    if (isNews) {
      this.#heldSince = clock.monotonic() - heldAgoMs;
      this.#noteLoss(agoMs);
    }
    this.#noticePrimaries();
  }

  async checkServer(): Promise<void> {
    const { connection } = this.#parts;
    const facts = serverFacts(await connection.info());
    if (facts.fault !== null) throw new RedisUnusable(facts.fault);
    this.#runId = connection.primaries() === '' ? facts.runId : 'cluster';
  }

  onLoss(watcher: () => void): void {
    this.#watchers.push(watcher);
  }

  start(run: (beat: (client: RedisClient) => Promise<void>) => Promise<void>): void {
    if (this.#isClosed) return;
    this.#cancel = this.#parts.clock.after(beatMs, () => {
      const again = (): void => this.start(run);
      // A failure is counted where it happened; the next beat tries again.
      run((client) => this.beat(client)).then(again, again);
    });
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel();
  }

  /** A time that was not long ago. */
  #lately(at: number | null): number | null {
    return at === null || this.#parts.clock.monotonic() - at > rememberedMs ? null : at;
  }

  #noteLoss(agoMs: number): void {
    const { clock, telemetry } = this.#parts;
    this.#losses += 1;
    this.#lostAt = clock.monotonic() - agoMs;
    telemetry.log.warn('Redis began a new epoch');
    for (const watcher of this.#watchers) watcher();
  }

  /**
   * Fewer replicas than before are believed only when the others have been silent for as long as a replica lives without a
   * word. Redis may have lost the record, and the first replicas back would be alone with the whole of every limit if it
   * became unavailable again.
   */
  #counted(count: number, comesBack: boolean): Census {
    const now = this.#parts.clock.monotonic();
    const { replicas } = this.#census;
    const fullAt = comesBack || count >= replicas ? now : this.#census.fullAt;
    const isBelieved = count >= replicas || fullAt === null || now - fullAt > lifeMs;
    return { replicas: isBelieved ? Math.max(1, count) : replicas, fullAt };
  }

  /** In a Cluster a shard may change its primary without this replica's record noticing. */
  #noticePrimaries(): void {
    const now = this.#parts.connection.primaries();
    if (this.#primaries !== '' && now !== '' && this.#primaries !== now) {
      this.#changedAt = this.#parts.clock.monotonic();
      this.#noteLoss(0);
    }
    if (now !== '') this.#primaries = now;
  }
}

function beatOf(reply: unknown): Beat {
  const [epoch, kind, now, count, backAgoMs, heldAgoMs] = listOf(reply);
  return {
    epoch: textOf(epoch),
    isChange: textOf(kind) === 'change',
    now: numberOf(now),
    count: amountOf(count),
    backAgoMs: backAgoMs === '' || backAgoMs === undefined ? null : amountOf(backAgoMs),
    // The clock of Redis may have been set back.
    heldAgoMs: Math.max(0, numberOf(heldAgoMs)),
  };
}
