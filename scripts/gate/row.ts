/**
 * One row of the gate: three replicas, one Redis (or several), one upstream, one load, one fault, and the judgements of `judge.ts`.
 * Rows differ in the fault, in where Redis is, and in what the fault explains.
 */
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import type { RedisServer } from '../../test/support/redis.ts';
import { inWords, makeCall, type Attempt, type Call, type Ended } from '../fleet/calls.ts';
import { startFleet, yamlOf, type Fleet, type Gateway } from '../fleet/gateways.ts';
import { eventually } from '../fleet/processes.ts';
import { stopServer } from '../fleet/redis.ts';
import { remainsOf, type Access } from '../fleet/remains.ts';
import { stalls } from '../fleet/stalls.ts';
import { startUpstream, type Upstream } from '../fleet/upstream.ts';
import { tally } from '../report.ts';
import { violations } from './judge.ts';

/** The Redis of a row, and its fault. */
export interface Stage {
  /** YAML of the section `redis`, without its braces. */
  readonly redis: string;
  readonly servers: readonly RedisServer[];
  /** Ports of the servers that take writes. */
  ports(): Promise<readonly number[]>;
  readonly access?: Access;
  /** The fault, while the load runs; resolves with what it did, where the judgement depends on it. */
  strike(scene: Scene): Promise<Struck | void>;
}

export interface Scene {
  /** The replica whose serialized call is in flight at the upstream; waits for one. */
  holder(): Promise<Gateway>;
}

export interface Struck {
  readonly killed?: Gateway;
  readonly stopped?: Gateway;
}

export interface Row {
  readonly name: string;
  readonly stage: () => Promise<Stage>;
  /**
   * Whose order on the serialized lane is promised. `all` (default) · `before`: calls sent before the fault · `each replica`: only
   * among the calls of one replica, because the replicas cannot know of each other.
   */
  readonly order?: 'all' | 'before' | 'each replica';
  /** Calls with an idempotency key are made twice, at two replicas. */
  readonly pairs?: true;
  /** Two of three clients hang up. */
  readonly leaving?: true;
  /** Seconds that calls to `open` may wait: over a minute, and the ceiling is judged over two windows. */
  readonly openWaitSeconds?: number;
  /** Calls to `open`, and the time in which they are made. Milliseconds. */
  readonly openCalls?: number;
  readonly openForMs?: number;
  /** The upstream's credential, YAML; a fixed one by default. */
  readonly credential?: (upstream: Upstream) => Promise<Credential>;
}

export interface Credential {
  readonly yaml: string;
  /** What was wrong with how the credential was fetched, in words. */
  problems(): readonly string[];
  stop(): Promise<void>;
}

export interface Judged {
  readonly violations: readonly string[];
  readonly words: string;
}

const replicas = 3;
const ceiling = 60;
const serialCalls = 30;
const serialEveryMs = 120;
/** Longer than the lease of a serialized lane and whatever a fault takes. */
const serialWaitSeconds = 180;
/** The load runs so long before the fault, milliseconds. */
const strikeAfterMs = 1_500;
/** So long, and so many times, what is left behind may take to go. Milliseconds, and calls of each lane in between. */
const cleanForMs = 15_000;
const cleanRounds = 8;

const fixed: Credential = {
  yaml: '"Bearer of-the-gate"',
  problems: () => [],
  stop: () => Promise.resolve(),
};

interface Parts {
  readonly upstream: Upstream;
  readonly stage: Stage;
  readonly credential: Credential;
  readonly fleet: Fleet;
  readonly key: string;
}

export async function run(row: Row): Promise<Judged> {
  const [upstream, stage] = [await startUpstream(), await row.stage()];
  const credential = (await row.credential?.(upstream)) ?? fixed;
  const { key, hash } = createKey();
  const upstreamOf = (lane: 'open' | 'serial', more: string): string =>
    `${lane}: { origins: ["${upstream.origins[lane]}"], allowPrivateAddresses: true, ${more} }`;
  const yaml = yamlOf({
    server: ['drainSeconds: 5, drainDelaySeconds: 0'],
    redis: stage.redis,
    upstreams: [
      upstreamOf('open', `credential: ${credential.yaml}`),
      upstreamOf('serial', 'credential: "Bearer of-the-gate", limits: { maxInFlight: 1 }'),
    ],
    workspaces: [`acme: { keys: ["${hash}"], requestsPerMinute: { open: ${ceiling} } }`],
  });
  const fleet = await startFleet(replicas, yaml);
  try {
    return await judged(row, { upstream, stage, credential, fleet, key });
  } finally {
    await fleet.stop();
    await Promise.all(stage.servers.map(stopServer));
    await credential.stop();
    upstream.stop();
  }
}

async function judged(row: Row, parts: Parts): Promise<Judged> {
  const { upstream, stage, credential, fleet, key } = parts;
  const { order = 'all' } = row;
  const since = stalls.mark();
  await fleet.lagMs();
  const load = new Load(fleet.gateways, key);
  const calls = load.run(row);
  const holder = async (): Promise<Gateway> => {
    for (;;) {
      const gateway = load.sentTo.get(upstream.serialInFlight[0] ?? '');
      if (gateway !== undefined) return gateway;
      await pause(5);
    }
  };
  await pause(strikeAfterMs);
  const struckAt = systemClock.monotonic();
  const { killed = null, stopped = null } = (await stage.strike({ holder })) ?? {};
  const ended = await calls;
  const others = fleet.gateways.filter((gateway) => gateway !== stopped);
  const stalledMs = Math.max(stalls.longestSince(since), await fleet.lagMs(others));
  // A replica that goes on without Redis adds its share to what others, with Redis, may still send.
  const alone = fleet.gateways.filter(({ lines }) => lines.some((line) => line.includes('Redis is away')));
  const [overlaps = 0, madeAgain = 0, forNobody = 0] = await Promise.all(
    ['leases_lost', 'repeats_made_again', 'dispatched_after_client_gone'].map((name) =>
      fleet.metric(`sluice_${name}_total`),
    ),
  );
  const { executed } = upstream;
  const broken = violations({
    calls: ended,
    executed,
    killed,
    stopped,
    ceiling: order === 'each replica' ? ceiling + (alone.length * ceiling) / replicas : ceiling,
    overlapsCounted: overlaps,
    madeAgainCounted: madeAgain,
    stalledMs,
    standstillMs: stopped === null ? stalledMs : Math.max(stalledMs, await fleet.lagMs()),
    // Who was sent to a replica that stood still has no order.
    ordered: ended
      .filter(({ lane, at }) => lane === 'serial' && at !== stopped)
      .filter(({ sentAt }) => order !== 'before' || sentAt < struckAt),
    groupOf: ({ at }) => (order === 'each replica' ? at : null),
  });
  const behind = await leftBehind(parts, load);
  return {
    violations: [
      ...broken,
      ...(forNobody === 0 ? [] : [`${forNobody} calls were sent for clients that had left`]),
      ...credential.problems(),
      ...(behind.isClean ? [] : [behind.words]),
    ],
    words: `${tally(ended.map(({ fate }) => (fate.kind === 'answered' ? 'answered' : inWords(fate))))}; requests upstream ${executed.length}; overlaps counted ${overlaps}; longest stall ${stalledMs.toFixed(0)} ms; ${behind.words}`,
  };
}

/** Refusals of a moment: no Redis, a machine that is too busy, a repeat that comes while its call ends. */
const followed = new Set(['limiter_unavailable', 'overloaded', 'idempotency_conflict']);

class Load {
  readonly #gateways: readonly Gateway[];
  readonly #key: string;
  /** The replica of each call, by its nonce. */
  readonly sentTo = new Map<string, Gateway>();

  constructor(gateways: readonly Gateway[], key: string) {
    this.#gateways = gateways;
    this.#key = key;
  }

  /** Makes all calls at their times, round robin over the replicas; resolves when each has ended. */
  run({ pairs, leaving, openCalls = 72, openForMs = 3_600, openWaitSeconds = 45 }: Row) {
    const work: Promise<Ended>[] = [];
    const make = (call: Call, replica: number, afterMs: number): void => {
      const waitSeconds = call.lane === 'serial' ? serialWaitSeconds : openWaitSeconds;
      work.push(pause(afterMs).then(() => this.make(call, replica, waitSeconds)));
    };
    // Two of three hang up within two seconds: while they wait, in flight, and some after their response.
    const leavesAfterMs = (n: number): number | undefined =>
      leaving === true && n % 3 !== 0 ? 10 + ((n * 613) % 2_000) : undefined;
    for (let n = 0; n < openCalls; n += 1) {
      const afterMs = (n * openForMs) / openCalls;
      const kind = { isStream: n % 3 === 2, idempotencyKey: n % 3 === 1 ? `k-${n}` : undefined };
      make({ nonce: `o-${n}`, lane: 'open', ...kind, leavesAfterMs: leavesAfterMs(n) }, n, afterMs);
      // Some firsts hang up; the twin comes before, amid and after the response to the first.
      if (pairs === true && kind.idempotencyKey !== undefined)
        make({ nonce: `o-${n}-twin`, lane: 'open', ...kind }, n + 1, afterMs + ((n * 37) % 400));
    }
    for (let n = 0; n < serialCalls; n += 1)
      make({ nonce: `s-${n}`, lane: 'serial', leavesAfterMs: leavesAfterMs(n) }, n, n * serialEveryMs);
    return Promise.all(work);
  }

  /**
   * A replica that takes no connection is passed over; a call with an idempotency key whose connection breaks is made again at the next
   * replica, as SDKs do; and a refusal of a moment is followed.
   */
  make(call: Call, replica: number, waitSeconds: number): Promise<Ended> {
    const to = (before: readonly Attempt[]): Gateway => {
      const moves = before.filter(({ ended }) => ended.kind === 'broken').length;
      const gateway = this.#gateways[(replica + moves) % replicas];
      if (gateway === undefined) throw new Error('no replica');
      this.sentTo.set(call.nonce, gateway);
      return gateway;
    };
    const again = ({ ended }: Attempt): number | null => {
      if (ended.kind === 'refused') return followed.has(ended.code) ? (ended.retryAfterMs ?? 1_000) : null;
      const isSafe =
        ended.kind === 'broken' && (ended.words === 'ECONNREFUSED' || call.idempotencyKey !== undefined);
      return isSafe ? 200 : null;
    };
    return makeCall(call, { to, again, key: this.#key, waitSeconds, maxMs: waitSeconds * 1_000 + 60_000 });
  }
}

/**
 * Polls until nothing of a call is left in Redis and in the replicas. What a killed replica left in a bucket is swept with the next
 * call in it after its lease has ended, so one call of each lane is made from time to time, as live traffic would.
 */
async function leftBehind(
  { fleet, stage }: Parts,
  load: Load,
): Promise<{ readonly isClean: boolean; readonly words: string }> {
  const gauges = ['sluice_queue_depth', 'sluice_in_flight', 'sluice_queue_bytes'];
  const look = async () => {
    const inRedis = await Promise.all((await stage.ports()).map((port) => remainsOf(port, stage.access)));
    const counts = await Promise.all(gauges.map((name) => fleet.metric(name)));
    const inReplicas = gauges.map((name, n) => `${name} ${counts[n]}`).join(', ');
    return {
      isClean: inRedis.every((one) => one.isClean) && counts.every((count) => count === 0),
      words: [...inRedis.map(({ words }) => words), `in replicas: ${inReplicas}`].join('; '),
    };
  };
  const isClean = (): Promise<boolean> => look().then((found) => found.isClean);
  for (let round = 0; !(await eventually(isClean, cleanForMs)) && round < cleanRounds; round += 1)
    for (const lane of ['open', 'serial'] as const)
      await load.make({ nonce: `later-${lane}-${round}`, lane }, round, 1);
  return look();
}
