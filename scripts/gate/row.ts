/**
 * One row of the gate: three replicas, one Redis (or several), one upstream, one load, one fault, and the judgements of `judge.ts`.
 * Rows differ in the fault, in where Redis is, and in what the fault explains.
 */
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { readMetrics, startFleet, type Fleet, type Gateway } from '../cluster/fleet.ts';
import { until } from '../cluster/processes.ts';
import { left, nothingLeft, remainsInWords, type Access, type Remains } from '../cluster/remains.ts';
import { stalls } from '../cluster/stalls.ts';
import { tally } from '../report.ts';
import { makeCall, type Call, type Ended } from './clients.ts';
import { inWords, violations, type Expected } from './judge.ts';
import { startUpstream, type GateUpstream } from './upstream.ts';

/** The Redis of a row. */
export interface Store {
  /** YAML of the section `redis`, without its braces. */
  readonly yaml: string;
  /** Ports of the servers that take writes. */
  ports(): Promise<readonly number[]>;
  readonly access?: Access;
  stop(): Promise<void>;
}

/** What a fault gets to do its work. */
export interface Scene {
  readonly fleet: Fleet;
  readonly upstream: GateUpstream;
  /** The replica whose serialized call is in flight at the upstream; waits for one. */
  holder(): Promise<Gateway>;
}

export interface Row {
  readonly name: string;
  /** Starts Redis. */
  readonly store: () => Promise<Store>;
  /** The fault, while the load runs; resolves with what it did, where the judgement depends on it. */
  readonly strike: (scene: Scene, store: Store) => Promise<Struck>;
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
  /** Calls to `open`, 72 by default, and the time in which they are made, 3.6 s by default. */
  readonly openCalls?: number;
  readonly openForMs?: number;
  /** The upstream's credential, YAML; a fixed one by default. */
  readonly credential?: (upstream: GateUpstream) => Promise<Credential>;
}

export interface Credential {
  readonly yaml: string;
  /** What was wrong with how the credential was fetched, in words. */
  problems(): readonly string[];
  stop(): Promise<void>;
}

/** `killed`, `stopped`: indexes of replicas. */
export interface Struck {
  readonly killed?: Gateway;
  readonly stopped?: Gateway;
}

export interface Judged {
  readonly name: string;
  readonly violations: readonly string[];
  readonly words: string;
}

const replicas = 3;
const ceiling = 60;
const openCallsOfMost = 72;
const openForMsOfMost = 3_600;
const serialCalls = 30;
const serialEveryMs = 120;
/** Longer than the lease of a serialized lane and whatever a fault takes. */
const serialWaitSeconds = 180;
/** A call that the ceiling has no room for is refused, unless a row says otherwise. */
const openWaitSeconds = 45;
/** The load runs so long before the fault, milliseconds. */
const strikeAfterMs = 1_500;
/** So long, and so many times, what is left behind may take to go. Milliseconds, and calls of each lane in between. */
const cleanForMs = 15_000;
const cleanRounds = 8;

export async function run(row: Row): Promise<Judged> {
  const upstream = await startUpstream();
  const store = await row.store();
  const credential = (await row.credential?.(upstream)) ?? fixed;
  const { key, hash } = createKey();
  const yaml = (): string => configuration({ store, upstream, credential, hash });
  const fleet = await startFleet(replicas, { keys: { acme: key }, yaml });
  try {
    return await judged(row, { upstream, store, credential, fleet, key });
  } finally {
    await fleet.stop();
    await store.stop();
    await credential.stop();
    upstream.stop();
  }
}

const fixed: Credential = {
  yaml: '"Bearer of-the-gate"',
  problems: () => [],
  stop: () => Promise.resolve(),
};

function configuration(parts: {
  readonly store: Store;
  readonly upstream: GateUpstream;
  readonly credential: Credential;
  readonly hash: string;
}): string {
  const { store, upstream, credential, hash } = parts;
  const { open, serial } = upstream.origins;
  return [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, drainSeconds: 5, drainDelaySeconds: 0 }',
    `redis: { ${store.yaml} }`,
    'privacy: { labelKey: "a label key of the gate, for one run" }',
    'log: { level: info, sampleSuccesses: 0 }',
    'upstreams:',
    `  open: { origins: ["${open}"], allowPrivateAddresses: true, credential: ${credential.yaml} }`,
    `  serial: { origins: ["${serial}"], allowPrivateAddresses: true, credential: "Bearer of-the-gate", limits: { maxInFlight: 1 } }`,
    'workspaces:',
    `  acme: { keys: ["${hash}"], requestsPerMinute: { open: ${ceiling} } }`,
  ].join('\n');
}

interface Parts {
  readonly upstream: GateUpstream;
  readonly store: Store;
  readonly credential: Credential;
  readonly fleet: Fleet;
  readonly key: string;
}

async function judged(row: Row, { upstream, store, credential, fleet, key }: Parts): Promise<Judged> {
  const lagMs = async (but?: Gateway): Promise<number> => {
    const gateways = fleet.gateways.filter((gateway) => gateway !== but);
    return 1_000 * Math.max(0, ...(await readMetrics(gateways, 'nodejs_eventloop_lag_max_seconds')));
  };
  const since = stalls.mark();
  await lagMs();
  const sent = new Map<string, number>();
  const load = startLoad(row, { gateways: fleet.gateways, key, sent });
  const holder = async (): Promise<Gateway> => {
    for (;;) {
      const [nonce] = upstream.serialInFlight;
      const gateway = nonce === undefined ? undefined : fleet.gateways[sent.get(nonce) ?? -1];
      if (gateway !== undefined) return gateway;
      await pause(5);
    }
  };
  await pause(strikeAfterMs);
  const struckAt = systemClock.monotonic();
  const struck = await row.strike({ fleet, upstream, holder }, store);
  const calls = await load;
  const stalledMs = Math.max(stalls.longestSince(since), await lagMs(struck.stopped));
  const standstillMs = struck.stopped === undefined ? stalledMs : Math.max(stalledMs, await lagMs());
  const indexOf = (gateway: Gateway | undefined): number | null =>
    gateway === undefined ? null : fleet.gateways.indexOf(gateway);
  const [killed, stopped] = [indexOf(struck.killed), indexOf(struck.stopped)];
  // A replica that goes on without Redis adds its share to what others, with Redis, may still send.
  const alone = fleet.gateways.filter(({ lines }) =>
    lines.some((line) => line.includes('Redis is away')),
  ).length;
  const expected: Expected = {
    ceiling: row.order === 'each replica' ? ceiling + (alone * ceiling) / replicas : ceiling,
    killed,
    stopped,
    orderOf: (queued) => ordered(queued, row.order ?? 'all', { struckAt, stopped }),
  };
  const { executed } = upstream;
  const [overlapsCounted, madeAgainCounted, forNobody] = await Promise.all(
    [
      'sluice_leases_lost_total',
      'sluice_repeats_made_again_total',
      'sluice_dispatched_after_client_gone_total',
    ].map((name) => fleet.metric(name)),
  );
  const broken = violations(
    {
      calls,
      executed,
      stalledMs,
      standstillMs,
      overlapsCounted: overlapsCounted ?? 0,
      madeAgainCounted: madeAgainCounted ?? 0,
    },
    expected,
  );
  const behind = await leftBehind({ fleet, store, key });
  const violated = [
    ...broken,
    ...(forNobody === 0 ? [] : [`${forNobody} calls were sent for clients that had left`]),
    ...credential.problems(),
    ...behind.problems,
  ];
  return {
    name: row.name,
    violations: violated,
    words: `${tally(calls.map(({ fate }) => (fate.kind === 'answered' ? 'answered' : inWords(fate))))}; requests upstream ${executed.length}; overlaps counted ${overlapsCounted}; longest stall ${stalledMs.toFixed(0)} ms; ${behind.words}`,
  };
}

/** Calls in groups within which an order is promised. Who was sent to a replica that stood still is in none. */
function ordered(
  calls: readonly Ended[],
  promise: NonNullable<Row['order']>,
  { struckAt, stopped }: { readonly struckAt: number; readonly stopped: number | null },
): readonly (readonly Ended[])[] {
  const judgedCalls = calls.filter(({ replica }) => replica !== stopped);
  switch (promise) {
    case 'all':
      return [judgedCalls];
    case 'before':
      return [judgedCalls.filter(({ sentAt }) => sentAt < struckAt)];
    case 'each replica':
      return [...Map.groupBy(judgedCalls, ({ replica }) => replica).values()];
  }
}

/** Starts all calls at their times, round robin over the replicas; resolves when each has ended. */
async function startLoad(
  {
    pairs,
    leaving,
    openCalls = openCallsOfMost,
    openForMs = openForMsOfMost,
    openWaitSeconds: openWait = openWaitSeconds,
  }: Row,
  target: { readonly gateways: readonly Gateway[]; readonly key: string; readonly sent: Map<string, number> },
): Promise<readonly Ended[]> {
  const { gateways, key, sent } = target;
  const work: Promise<Ended>[] = [];
  const openEveryMs = openForMs / openCalls;
  const make = (call: Call, afterMs: number, replica: number): void => {
    sent.set(call.nonce, replica);
    const waitSeconds = call.lane === 'serial' ? serialWaitSeconds : openWait;
    work.push(pause(afterMs).then(() => makeCall(call, { gateways, replica, key, waitSeconds })));
  };
  // Two of three hang up within two seconds: while they wait, in flight, and some after their response.
  const leavesAfterMs = (n: number): number | null =>
    leaving === true && n % 3 !== 0 ? 10 + ((n * 613) % 2_000) : null;
  for (let n = 0; n < openCalls; n += 1) {
    const isKeyed = n % 3 === 1;
    const call: Call = {
      nonce: `o-${n}`,
      lane: 'open',
      isStream: n % 3 === 2,
      idempotencyKey: isKeyed ? `k-${n}` : null,
      leavesAfterMs: leavesAfterMs(n),
    };
    make(call, n * openEveryMs, n % replicas);
    if (pairs !== true || !isKeyed) continue;
    // Some firsts hang up; the twin comes before, amid and after the response to the first.
    const twin = { ...call, nonce: `${call.nonce}-twin`, leavesAfterMs: null };
    make(twin, n * openEveryMs + ((n * 37) % 400), (n + 1) % replicas);
  }
  for (let n = 0; n < serialCalls; n += 1) {
    const call: Call = {
      nonce: `s-${n}`,
      lane: 'serial',
      isStream: false,
      idempotencyKey: null,
      leavesAfterMs: leavesAfterMs(n),
    };
    make(call, n * serialEveryMs, n % replicas);
  }
  return Promise.all(work);
}

/**
 * Polls until nothing of a call is left in Redis and in the replicas. What a killed replica left in a bucket is swept with the next
 * call in it after its lease has ended, so one call of each lane is made from time to time, as live traffic would.
 */
async function leftBehind({ fleet, store, key }: Pick<Parts, 'fleet' | 'store' | 'key'>): Promise<{
  readonly problems: readonly string[];
  readonly words: string;
}> {
  const inRedis = async (): Promise<readonly Remains[]> =>
    Promise.all((await store.ports()).map((port) => left(port, store.access)));
  const gauges = ['sluice_queue_depth', 'sluice_in_flight', 'sluice_queue_bytes'];
  const inReplicas = async (): Promise<readonly number[]> =>
    Promise.all(gauges.map((name) => fleet.metric(name)));
  const isClean = async (): Promise<boolean> =>
    (await inRedis()).every(nothingLeft) && (await inReplicas()).every((value) => value === 0);
  let found = await until(isClean, cleanForMs);
  for (let round = 0; !found && round < cleanRounds; round += 1) {
    const call = { isStream: false, idempotencyKey: null, leavesAfterMs: null };
    const target = { gateways: fleet.gateways, replica: round, key, waitSeconds: 1 };
    await makeCall({ ...call, nonce: `later-o-${round}`, lane: 'open' }, target);
    await makeCall({ ...call, nonce: `later-s-${round}`, lane: 'serial' }, target);
    found = await until(isClean, cleanForMs);
  }
  const words = [
    ...(await inRedis()).map(remainsInWords),
    `in replicas: ${(await inReplicas()).map((value, index) => `${gauges[index] ?? ''} ${value}`).join(', ')}`,
  ].join('; ');
  return { problems: found ? [] : [words], words };
}
