/**
 * This replica among the others: its name, its heartbeat once a second, how many others are heard of, and whether Redis
 * has lost what it held (a new epoch).
 *
 * Owns: the presence record. Refuses to own: what a loss means for tickets, leases and ceilings (they watch).
 * Keeps: durations only; the start of an epoch is on Redis' clock and is compared with nothing else.
 */
import type { Clock, Random } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import { amountOf, listOf, numberOf, textOf } from './malformed-reply.ts';
import { runOwn } from './redis-commands.ts';
import type { RedisClient, RedisConnection } from './redis-connection.ts';
import { serverFacts } from './redis-server.policy.ts';
import { StoreClock } from './store-clock.ts';

const beatMs = 1_000;
/** A replica is heard of for this long (`presence.lua`). Milliseconds. */
const lifeMs = 5_000;
/** How long after a loss newcomers still hear of it: longer than any lease. Milliseconds. */
const rememberedMs = 60_000;
export const presenceKeys = [
  'sluice:{presence}:1:epoch',
  'sluice:{presence}:1:replicas',
  'sluice:{presence}:1:back',
] as const;

export interface Replica {
  /** Opaque, new with every start of the process. */
  readonly id: string;
  /** Redis' time: each heartbeat tells it, and whoever else hears it. */
  readonly storeClock: StoreClock;
  /** Replicas heard of lately, this one included. At least 1; kept while Redis is away. */
  count(): number;
  /** Monotonic milliseconds at which Redis last lost data, as far as known; `null` = never in this time. */
  lostAt(): number | null;
  /** Monotonic milliseconds at which the first replica was back on Redis after its latest absence; `null` = not lately. */
  backAt(): number | null;
  /** Makes itself heard now and learns of losses. `comesBack`: this replica was without Redis. */
  beat(client: RedisClient, comesBack?: boolean): Promise<void>;
  /** Which server serves now; rejects when it cannot be used. */
  look(): Promise<void>;
  onLoss(told: () => void): void;
  start(run: (beat: (client: RedisClient) => Promise<void>) => Promise<void>): void;
  close(): void;
}

/** Redis is there but must not be used: wrong version, or it evicts keys. The message is for the operator. */
export class RedisUnusable extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'RedisUnusable';
  }
}

export function createReplica(dependencies: {
  readonly connection: RedisConnection;
  readonly clock: Clock;
  readonly random: Random;
  readonly telemetry: Telemetry;
}): Replica {
  const { connection, clock, random, telemetry } = dependencies;
  const id = `r${random.hex(12)}`;
  const storeClock = new StoreClock();
  const watchers: (() => void)[] = [];
  let replicas = 1;
  /** When so many were last heard of, or this one came back and waits for the others. Monotonic milliseconds. */
  let fullAt = -Infinity;
  let runId: string | null = null;
  let epoch: string | null = null;
  let lostAt: number | null = null;
  let backAt: number | null = null;
  let primaries = '';
  let cancel = (): void => {};
  let closed = false;

  const lost = (agoMs: number): void => {
    lostAt = clock.monotonic() - agoMs;
    telemetry.log.warn('Redis began a new epoch');
    for (const told of watchers) told();
  };

  /**
   * Fewer are believed when nobody has been heard of for as long as a replica lives without a word. Redis may have lost the
   * record; the first ones back would else be alone with the whole of every limit if it goes away again.
   */
  const heardOf = (count: number, comesBack: boolean): number => {
    const now = clock.monotonic();
    if (comesBack || count >= replicas) fullAt = now;
    return count >= replicas || now - fullAt > lifeMs ? Math.max(1, count) : replicas;
  };

  const beat = async (client: RedisClient, comesBack = false): Promise<void> => {
    if (runId === null) await look();
    const argv = [id, runId ?? 'unknown', epoch ?? '', '', comesBack ? '1' : ''];
    const sentAt = clock.monotonic();
    const reply = listOf(await runOwn(client, 'presence', presenceKeys, argv));
    // Everything is read before anything is believed.
    const [since, kind, now, count] = [
      textOf(reply[0]),
      textOf(reply[1]),
      numberOf(reply[2]),
      amountOf(reply[3]),
    ];
    storeClock.note(now, sentAt, clock.monotonic());
    const backAgoMs = reply[4] === '' || reply[4] === undefined ? null : amountOf(reply[4]);
    const agoMs = now - numberOf(since);
    backAt = backAgoMs === null ? null : sentAt - backAgoMs;
    replicas = heardOf(count, comesBack);
    const known = epoch;
    epoch = since;
    const isNews = known === null ? kind === 'change' && agoMs < rememberedMs : known !== epoch;
    if (isNews) lost(agoMs);
    noticePrimaries();
  };

  /** In a Cluster a shard may change its primary without this replica's record noticing. */
  const noticePrimaries = (): void => {
    const now = connection.primaries();
    if (primaries !== '' && now !== '' && primaries !== now) lost(0);
    if (now !== '') primaries = now;
  };

  const look = async (): Promise<void> => {
    const facts = serverFacts(await connection.info());
    if (facts.fault !== null) throw new RedisUnusable(facts.fault);
    runId = connection.primaries() === '' ? facts.runId : 'cluster';
  };

  // Every new connection may lead to another server.
  connection.client.on('ready', () => {
    runId = null;
  });

  return {
    id,
    storeClock,
    count: () => replicas,
    lostAt: () => (lostAt === null || clock.monotonic() - lostAt > rememberedMs ? null : lostAt),
    backAt: () => backAt,
    beat,
    look,
    onLoss: (told) => void watchers.push(told),
    start(run) {
      const next = (): void => {
        if (closed) return;
        cancel = clock.after(beatMs, () => {
          // A failure is counted where it happened; the next beat tries again.
          run((client) => beat(client)).then(next, next);
        });
      };
      next();
    },
    close() {
      closed = true;
      cancel();
    },
  };
}
