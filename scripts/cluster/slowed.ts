/** The burst over three replicas of which one is stopped for 80 ms, twice a second, from before the burst until its end. */
import { createInterface } from 'node:readline';
import type { Gateway } from './fleet.ts';
import { beyond, orderInWords, orderOf } from './order.ts';
import { child, startServer, stopServer, until } from './processes.ts';
import { allSucceeded, makespanOf, noneLost, ratio, type Row, type Scenario } from './row.ts';
import { aftermath, chat, chatWorld, see } from './worlds.ts';

const stopMs = 80;
const everyMs = 500;
/**
 * A queued call may arrive behind calls that were sent up to so much later, milliseconds; this share of them may behind others
 * for each stop that falls into the time in which calls queue: what came during a stop is taken for its middle.
 */
const apartMs = 50;
const sharePerStop = 0.01;
/** Makespan with nobody in the way, milliseconds; a longer one than so many times that is too long. */
const bestMs = 20_000;
const atBest = 1.01;
/** The last stop while calls are sent falls into the time in which they already queue (of two seconds, from 1.55 s on). */
const firstStopMs = 200;

/**
 * Stops and continues a process by its id and prints how long each stop was: a timer of its own, beside a busy client.
 * At SIGUSR2 it counts anew: the next stop comes `firstMs` later.
 */
const source = `
  const [pid, stopMs, everyMs, firstMs] = process.argv.slice(1).map(Number);
  let dueAt = performance.now();
  const stop = () => {
    const from = performance.now();
    dueAt = Math.max(from, dueAt + everyMs);
    process.kill(pid, 'SIGSTOP');
    setTimeout(() => { process.kill(pid, 'SIGCONT'); console.log(performance.now() - from); }, stopMs);
    timer = setTimeout(stop, dueAt - from);
  };
  let timer = setTimeout(stop, 0);
  process.on('SIGUSR2', () => {
    clearTimeout(timer);
    dueAt = performance.now() + firstMs;
    timer = setTimeout(stop, firstMs);
  });`;

/** Stops while calls are sent that find no room any more: the bucket's 600 are gone, and what it gains goes as it comes. */
function stopsWhileQueued(seconds: number): number {
  const from = 600_000 / (800 / seconds - 10);
  let stops = 0;
  for (let at = firstStopMs; at < 1_000 * seconds; at += everyMs) if (at >= from) stops += 1;
  return stops;
}

interface Slowing {
  /** Lengths of the stops so far, milliseconds. */
  readonly stops: readonly number[];
  /** The stops go on {@link firstStopMs} from now. */
  align(): void;
  end(): void;
}

function slow(gateway: Gateway): Slowing {
  const args = ['-e', source, ...[gateway.pid, stopMs, everyMs, firstStopMs].map(String)];
  const process_ = child(process.execPath, args);
  if (process_.stdout === null) throw new Error('the slowing process has no output');
  const stops: number[] = [];
  createInterface({ input: process_.stdout }).on('line', (line) => stops.push(Number(line)));
  return {
    stops,
    align: () => void process_.kill('SIGUSR2'),
    end() {
      process_.kill('SIGKILL');
      gateway.signal('SIGCONT');
    },
  };
}

/** @param seconds in which 800 calls are sent */
const slowedBurst = (seconds: number): Scenario => ({
  name: `chat burst of ${seconds} s with one of three replicas slowed`,
  async run(): Promise<Row> {
    const redis = await startServer();
    const world = await chatWorld(`url: "${redis.url}"`, 600);
    const [gateway] = world.fleet.gateways;
    if (gateway === undefined) throw new Error('no gateway');
    const slowing = slow(gateway);
    await until(() => Promise.resolve(slowing.stops.length > 0), 10_000);
    const seen = await see(world, {
      ...chat(world, 60),
      calls: 800,
      everyMs: (1_000 * seconds) / 800,
      meanwhile: () => Promise.resolve(slowing.align()),
    });
    slowing.end();
    const later = await aftermath(world);
    await world.end();
    await stopServer(redis);
    // The first calls to arrive upstream find room: the bucket's 600 and what it gains while calls are sent.
    const order = orderOf(seen.responses, seen.entries, 600 + 10 * seconds);
    const share = sharePerStop * stopsWhileQueued(seconds);
    const behind = beyond(order.behindMs, apartMs).count;
    const stops = `stopped ${slowing.stops.length} times, ${stopMs} to ${Math.max(0, ...slowing.stops).toFixed(0)} ms`;
    return {
      holds: noneLost(seen.responses) && seen.twice === 0,
      holdsWhenQuiet:
        allSucceeded(seen.responses) &&
        seen.throttled === 0 &&
        seen.tookMs <= bestMs * atBest &&
        behind <= share * order.behindMs.length,
      figures: `makespan ${ratio(seen.tookMs, bestMs)}; ${orderInWords(order, apartMs)}; ${stops}; ${seen.words}; ${later}`,
      measured: [
        makespanOf(seen.tookMs, bestMs),
        { name: 'queued calls behind later ones', value: behind, unit: 'calls' },
      ],
    };
  },
});

export const slowedBursts: readonly Scenario[] = [slowedBurst(2), slowedBurst(5)];
