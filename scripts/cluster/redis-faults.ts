/** Redis loses its data, restarts, is away, hangs; clients leave: under load, with one server. */
import type { LogEntry } from '../../simulators/log.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { drive } from './load.ts';
import { cli, startServer, stopServer } from './processes.ts';
import { leftAtLast, nothingLeft, remainsInWords } from './remains.ts';
import { allSucceeded, noneLost, seconds, summary, type Row, type Scenario } from './row.ts';
import {
  aftermath,
  backOnRedis,
  chat,
  chatWorld,
  fill,
  see,
  replicasWithoutRedis,
  took,
  type Seen,
} from './worlds.ts';

/** With `deny` an arriving call is refused within this time. Milliseconds. */
const denialMs = 1_000;
const unavailableMs = 20_000;

interface Fault {
  readonly name: string;
  readonly whenDown?: 'local' | 'deny';
  /** One every `everyMs`, into a full bucket of 600/min; the fault comes after `strikeAfterMs`. */
  readonly calls: number;
  readonly strike: (port: number) => Promise<void>;
  readonly judge: (seen: Seen, isAnyWithoutRedis: boolean) => Pick<Row, 'holds' | 'holdsWhenQuiet'>;
}

const everyMs = 25;
const strikeAfterMs = 3_000;
/**
 * Those that were sent before the fault. While one replica is back on Redis and another is not yet, the calls that arrive at the
 * second one come to Redis up to half a second later: no order of theirs is promised.
 */
const ofBefore = (entries: readonly LogEntry[]): readonly LogEntry[] =>
  entries.filter(({ nonce }) => Number(nonce.slice(2)) < strikeAfterMs / everyMs);
/** Arrivals further apart than this are not of one release. Milliseconds. */
const releaseGapMs = 50;
/**
 * How long it took the replicas to send what an absence had kept: Redis grants all of it at once to three processes that share
 * the processors, and what one of them sends last may come so much after what another one sends first. Milliseconds.
 */
function releaseMs(entries: readonly LogEntry[]): number {
  const times = ofBefore(entries).map(({ arrivedT }) => arrivedT);
  const gaps = times.map((at, index) => at - (times[index - 1] ?? at));
  const first = gaps.indexOf(Math.max(...gaps));
  const after = gaps.findIndex((gap, index) => index > first && gap > releaseGapMs);
  return (times[(after < 0 ? times.length : after) - 1] ?? 0) - (times[first] ?? 0);
}

const fault = ({ name, whenDown = 'local', calls, strike, judge }: Fault): Scenario => ({
  name,
  async run(): Promise<Row> {
    const { port, url } = await startServer();
    const world = await chatWorld(`url: "${url}", whenDown: ${whenDown}`, 600);
    await fill(world);
    const load = {
      ...chat(world, 90),
      calls,
      everyMs,
      meanwhile: async () => {
        await pause(strikeAfterMs);
        await strike(port);
      },
    };
    const seen = await see(world, load, whenDown === 'deny' ? { ordered: ofBefore, releaseMs } : {});
    const back = await backOnRedis(world);
    const words = await aftermath(world);
    const isAnyWithoutRedis = replicasWithoutRedis(world) > 0;
    const remains = await leftAtLast(port);
    await world.end();
    const slowest = slowestDenial(seen);
    const judged = judge(seen, isAnyWithoutRedis);
    return {
      holds: judged.holds && seen.twice === 0 && back === 3 && nothingLeft(remains),
      holdsWhenQuiet: judged.holdsWhenQuiet !== false && seen.throttled === 0,
      figures: `${took(seen)}; ${seen.words}; ${words}; on Redis again ${back}${slowest > 0 ? `; slowest denial ${seconds(slowest)}` : ''}; ${remainsInWords(remains)}`,
    };
  },
});

const denials = (seen: Seen) => seen.responses.filter(({ code }) => code === 'limiter_unavailable');
const slowestDenial = (seen: Seen): number => Math.max(0, ...denials(seen).map(({ tookMs }) => tookMs));

/** Where a replica went on alone for a moment, order is promised to the calls that were sent before the fault. */
const inOrder: Fault['judge'] = (seen, isAnyWithoutRedis) => ({
  holds: noneLost(seen.responses),
  holdsWhenQuiet:
    allSucceeded(seen.responses) && (isAnyWithoutRedis ? seen.crossedAmong(ofBefore) : seen.crossed) === 0,
});
/** Each replica goes on alone: nothing is lost, the share holds; an order over replicas is not promised. */
const alone: Fault['judge'] = (seen) => ({
  holds: noneLost(seen.responses),
  holdsWhenQuiet: allSucceeded(seen.responses),
});
const denied: Fault['judge'] = (seen) => ({
  holds: denials(seen).length > 0 && noneLost(seen.responses),
  holdsWhenQuiet:
    seen.responses.every(({ status, code }) => status === 200 || code === 'limiter_unavailable') &&
    slowestDenial(seen) <= denialMs &&
    seen.crossed === 0,
});

/** Redis on the same port again, as empty as after a crash without persistence. */
async function restart(port: number, afterMs: number): Promise<void> {
  await cli(port, 'shutdown', 'nosave').catch(() => '');
  await pause(afterMs);
  await startServer({ port });
}

async function hang(port: number, forMs: number): Promise<void> {
  const pid = Number(/process_id:(\d+)/.exec(await cli(port, 'info', 'server'))?.[1]);
  process.kill(pid, 'SIGSTOP');
  await pause(forMs);
  process.kill(pid, 'SIGCONT');
}

const flushed = fault({
  name: 'FLUSHALL under load',
  calls: 300,
  strike: async (port) => void (await cli(port, 'flushall')),
  judge: inOrder,
});
const restarted = fault({
  name: 'Redis restarted empty under load',
  calls: 300,
  strike: (port) => restart(port, 100),
  judge: inOrder,
});
const unavailableLocal = fault({
  name: 'Redis stopped for 20 s, local',
  calls: 800,
  strike: (port) => restart(port, unavailableMs),
  judge: alone,
});
const unavailableDeny = fault({
  name: 'Redis stopped for 20 s, deny',
  whenDown: 'deny',
  calls: 1_000,
  strike: (port) => restart(port, unavailableMs),
  judge: denied,
});
const hungLocal = fault({
  name: 'Redis hung for 20 s, local',
  calls: 800,
  strike: (port) => hang(port, unavailableMs),
  judge: alone,
});
const hungDeny = fault({
  name: 'Redis hung for 20 s, deny',
  whenDown: 'deny',
  calls: 1_000,
  strike: (port) => hang(port, unavailableMs),
  judge: denied,
});

const leaving: Scenario = {
  name: 'clients leave in the middle of everything',
  async run(): Promise<Row> {
    const redis = await startServer();
    const world = await chatWorld(`url: "${redis.url}"`, 600);
    const responses = await drive({
      ...chat(world, 60),
      calls: 900,
      everyMs: 4,
      leaveAfterMs: (n) => (n % 3 === 0 ? null : (n * 37) % 2_500),
    });
    const remains = await leftAtLast(redis.port);
    const late = await world.fleet.metric('sluice_dispatched_after_client_gone_total');
    const stayed = responses.filter((_, n) => n % 3 === 0);
    await world.end();
    await stopServer(redis);
    return {
      holds: nothingLeft(remains) && late === 0 && noneLost(stayed),
      holdsWhenQuiet: allSucceeded(stayed),
      figures: `who stayed: ${summary(stayed)}; sent for clients that had left ${late}; ${remainsInWords(remains)}`,
    };
  },
};

export const redisFaults = {
  flushed,
  restarted,
  unavailableLocal,
  unavailableDeny,
  hungLocal,
  hungDeny,
  leaving,
};
