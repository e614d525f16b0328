/**
 * This replica among the others: its name, its heartbeat once a second, how many others are heard of, whether Redis has lost
 * what it held (a new epoch), and whether it may have (a doubt, in which every replica checks what it holds). `presence.lua`
 * says when either begins and ends.
 *
 * Owns: the presence record. Does not own: what a loss means for tickets, leases and ceilings (they watch), how a replica checks.
 * Invariants: durations only; the start of an epoch is on Redis' clock and is compared with nothing else. What this replica
 * knows of the record never goes back, and it declares nothing by itself: it reports what it knows, and the script compares.
 */
import type { Clock, Random } from '../../clock.ts';
import type { Telemetry } from '../../telemetry/telemetry.ts';
import { replicaId, type ReplicaId } from '../../ids.ts';
import { amountOf, listOf, numberOf, textOf } from '../../redis/malformed-reply.ts';
import { runOwn } from './scripts.ts';
import type { RedisClient, RedisConnection } from '../../redis/connection.ts';
import { serverFacts } from '../../redis/server-info.policy.ts';
import type { Found, Replica } from './replica.ts';
import { RedisUnusable } from '../../redis/redis-unusable.ts';

const beatMs = 1_000;
/** Heartbeats follow each other so fast while this replica waits for the end of a doubt. Milliseconds. */
const doubtBeatMs = 100;
/** A replica counts as alive for this long after a heartbeat (`presence.lua`). Milliseconds. */
const lifeMs = 5_000;
/** How long a new replica learns of a past loss: longer than any lease. Milliseconds. */
const rememberedMs = 60_000;
export const presenceKeys = [
  'sluice:{presence}:2:record',
  'sluice:{presence}:1:replicas',
  'sluice:{presence}:1:back',
  'sluice:{presence}:2:checking',
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

/** What this replica has read of the record: compared with it at the next heartbeat. */
interface Known {
  /** Counts the epochs. */
  readonly order: number;
  /** The start of the epoch on Redis' clock, as text. */
  readonly start: string;
  /** Counts the heartbeats of all replicas. */
  readonly beats: number;
}

/** The reply of `presence.lua`. */
interface Beat extends Known {
  readonly isChange: boolean;
  readonly now: number;
  readonly count: number;
  readonly heldAgoMs: number;
  /** The doubt that is open, and since when; `null` = none is. */
  readonly doubt: { readonly name: string; readonly agoMs: number } | null;
}

/** How far this replica is with its part in a doubt. */
type Doubt =
  | { readonly kind: 'none' }
  | {
      readonly kind: 'open';
      readonly name: string;
      /** Monotonic milliseconds. */
      readonly since: number;
      /** `null` = this replica is still checking, or could not: it tries again at the next heartbeat. */
      readonly found: Found | null;
      readonly isChecking: boolean;
    };

export class Presence implements Replica {
  readonly id: ReplicaId;
  readonly #parts: PresenceParts;
  readonly #watchers: (() => void)[] = [];
  #census: Census = { replicas: 1, fullAt: null };
  /** `null` = no heartbeat has been answered. */
  #known: Known | null = null;
  #doubt: Doubt = { kind: 'none' };
  #check: () => Promise<Found | null> = () => Promise.resolve('whole');
  /** A heartbeat was answered on the connection that is open now. Before that nobody knows what that server has. */
  #isServerKnown = false;
  /** A primary of the Cluster changed, and no heartbeat has reported that yet. */
  #mustDoubt = false;
  /** Monotonic milliseconds at which the hold of serialized calls began that all replicas share; `null` = none did. */
  #heldSince: number | null = null;
  /** How many losses were noticed. */
  #losses = 0;
  #primaries = '';
  #run: ((beat: (client: RedisClient) => Promise<void>) => Promise<void>) | null = null;
  #cancel = (): void => {};
  #isClosed = false;

  constructor(parts: PresenceParts) {
    this.#parts = parts;
    this.id = replicaId(`r${parts.random.hex(12)}`);
    const { client } = parts.connection;
    client.on('close', () => {
      this.#isServerKnown = false;
    });
    // Every new connection may lead to another server: the heartbeat is the first command there.
    client.on('ready', () => this.#beatNow());
  }

  count(): number {
    return this.#census.replicas;
  }

  heldSince(): number | null {
    return this.#lately(this.#heldSince);
  }

  losses(): number {
    return this.#losses;
  }

  async beat(client: RedisClient, comesBack = false): Promise<void> {
    const { clock, leaseMs, livingChannel } = this.#parts;
    this.#noticePrimaries();
    const sentAt = clock.monotonic();
    const heldSince = this.heldSince();
    const heldAgoText = heldSince === null ? '' : String(sentAt - heldSince);
    const before = this.#known;
    const knows = before === null ? ['', '', ''] : [String(before.order), before.start, String(before.beats)];
    const checked =
      this.#doubt.kind === 'open' && this.#doubt.found !== null
        ? [this.#doubt.name, this.#doubt.found]
        : ['', ''];
    const mustDoubt = this.#mustDoubt;
    const isBack = comesBack ? '1' : '';
    const hold = [heldAgoText, String(leaseMs)];
    const argv = [this.id, ...knows, '', isBack, ...hold, livingChannel, ...checked, mustDoubt ? '1' : ''];
    // Everything is read before anything is believed.
    const beat = beatOf(await runOwn(client, 'presence', { keys: presenceKeys, argv }));
    if (mustDoubt) this.#mustDoubt = false;
    this.#census = this.#counted(beat.count, comesBack);
    // Another heartbeat may have been answered meanwhile: what is known never goes back.
    if (isOlder(beat, this.#known)) return;
    this.#noticeEpoch(beat);
    this.#noticeDoubt(beat, sentAt);
    this.#isServerKnown = true;
  }

  async checkServer(): Promise<void> {
    const { fault } = serverFacts(await this.#parts.connection.info());
    if (fault !== null) throw new RedisUnusable(fault);
  }

  onLoss(watcher: () => void): void {
    this.#watchers.push(watcher);
  }

  onDoubt(check: () => Promise<Found | null>): void {
    this.#check = check;
  }

  start(run: (beat: (client: RedisClient) => Promise<void>) => Promise<void>): void {
    this.#run = run;
    this.#beatIn(beatMs);
  }

  /** This replica ends, and nothing of it is in flight any more: nobody waits for it to check anything. */
  async leave(client: RedisClient): Promise<void> {
    const [, replicas, , checking] = presenceKeys;
    await Promise.all([client.zrem(replicas, this.id), client.zrem(checking, this.id)]);
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel();
  }

  #beatIn(ms: number): void {
    this.#cancel();
    if (!this.#isClosed) this.#cancel = this.#parts.clock.after(ms, () => this.#beatNow());
  }

  /** Sends a heartbeat, and plans the next one. */
  #beatNow(): void {
    if (this.#isClosed || this.#run === null) return;
    this.#cancel();
    const again = (): void =>
      this.#beatIn(this.#isServerKnown && this.#doubt.kind === 'none' ? beatMs : doubtBeatMs);
    // A failure is counted where it happened; the next beat tries again.
    this.#run((client) => this.beat(client)).then(again, again);
  }

  #noticeEpoch(beat: Beat): void {
    const { clock, connection, livingChannel } = this.#parts;
    const known = this.#known;
    const agoMs = Math.max(0, beat.now - numberOf(beat.start));
    this.#known = { order: beat.order, start: beat.start, beats: beat.beats };
    // Not before: presence.lua would count this replica itself.
    if (known === null) connection.join(livingChannel);
    const isOther = known !== null && (known.order !== beat.order || known.start !== beat.start);
    if (!isOther && !(known === null && beat.isChange && agoMs < rememberedMs)) return;
    this.#heldSince = clock.monotonic() - beat.heldAgoMs;
    this.#noteLoss();
  }

  #noticeDoubt({ doubt }: Beat, sentAt: number): void {
    const known = this.#doubt;
    if (doubt === null) this.#doubt = { kind: 'none' };
    else if (known.kind === 'none' || known.name !== doubt.name) {
      const since = sentAt - doubt.agoMs;
      this.#parts.telemetry.log.info('another Redis server serves: checking whether it has everything');
      this.#checkIn({ kind: 'open', name: doubt.name, since, found: null, isChecking: true });
    } else if (known.found === null && !known.isChecking) this.#checkIn({ ...known, isChecking: true });
  }

  #checkIn(doubt: Extract<Doubt, { kind: 'open' }>): void {
    this.#doubt = doubt;
    const end = (found: Found | null): void => {
      if (this.#doubt.kind === 'none' || this.#doubt.name !== doubt.name) return;
      this.#doubt = { ...doubt, found, isChecking: false };
      if (found === null) this.#beatIn(doubtBeatMs);
      else this.#beatNow();
    };
    this.#check().then(end, (failure: unknown) => {
      this.#parts.telemetry.log.bug('what Redis has could not be checked', failure);
      end(null);
    });
  }

  /** A time that was not long ago. */
  #lately(at: number | null): number | null {
    return at === null || this.#parts.clock.monotonic() - at > rememberedMs ? null : at;
  }

  #noteLoss(): void {
    const { telemetry } = this.#parts;
    this.#losses += 1;
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

  /** In a Cluster another shard may change its primary without the record noticing. */
  #noticePrimaries(): void {
    const now = this.#parts.connection.primaries();
    if (now === '') return;
    if (this.#primaries !== '' && this.#primaries !== now) this.#mustDoubt = true;
    this.#primaries = now;
  }
}

const isOlder = (beat: Known, known: Known | null): boolean =>
  known !== null && (beat.order < known.order || (beat.order === known.order && beat.beats < known.beats));

function beatOf(reply: unknown): Beat {
  const [order, start, kind, beats, now, count, , heldAgoMs, doubt, doubtAgoMs] = listOf(reply);
  return {
    order: amountOf(order),
    start: textOf(start),
    beats: amountOf(beats),
    isChange: textOf(kind) === 'change',
    now: numberOf(now),
    count: amountOf(count),
    // The clock of Redis may have been set back.
    heldAgoMs: Math.max(0, numberOf(heldAgoMs)),
    doubt: doubt === '' ? null : { name: textOf(doubt), agoMs: Math.max(0, numberOf(doubtAgoMs)) },
  };
}
