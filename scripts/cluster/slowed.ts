/** The burst over three replicas of which one is stopped for 80 ms, twice a second, from before the burst until its end. */
import { createInterface } from 'node:readline';
import { pause } from '../../test/support/redis-fleet.ts';
import type { Gateway } from './fleet.ts';
import { beyond, orderInWords, orderOf } from './order.ts';
import { child, startServer, stopServer } from './processes.ts';
import { allSucceeded, inOrder, inTime, isSaturated, type Row, type Scenario } from './row.ts';
import { aftermath, chat, chatWorld, see } from './worlds.ts';

const stopMs = 80;
const everyMs = 500;
/**
 * A queued call may arrive behind calls that were sent up to so much later, milliseconds; this share of them may behind others
 * for each stop that falls into the time in which calls queue: what came during a stop is taken for its middle.
 */
const apartMs = 50;
const sharePerStop = 0.01;
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

interface Burst {
  /** The processors had no time left while calls were sent. */
  readonly isSaturated: boolean;
  /** Nobody lost, nobody refused upstream, in time, in order. */
  readonly holds: boolean;
  readonly figures: string;
}

/** One burst within `seconds`, with its own Redis, replicas and upstream, whose bucket is full of room. */
async function burst(seconds: number, isSlowed: boolean): Promise<Burst> {
  const redis = await startServer();
  const world = await chatWorld(`url: "${redis.url}"`, 600);
  const [gateway] = world.fleet.gateways;
  const slowing = isSlowed && gateway !== undefined ? slow(gateway) : null;
  await pause(3 * everyMs);
  const seen = await see(world, {
    ...chat(world, 60),
    calls: 800,
    everyMs: (1_000 * seconds) / 800,
    meanwhile: () => Promise.resolve(slowing?.align()),
  });
  slowing?.end();
  const later = await aftermath(world);
  await world.end();
  await stopServer(redis);
  // The first calls to arrive upstream find room: the bucket's 600 and what it gains while calls are sent.
  const order = orderOf(seen.responses, seen.entries, 600 + 10 * seconds);
  const share = sharePerStop * stopsWhileQueued(seconds);
  const isKept = beyond(order.behindMs, apartMs).count <= share * order.behindMs.length;
  const time = inTime(seen, 20_000, atBest);
  const stops = slowing?.stops ?? [];
  const stopped = `stopped ${stops.length} times, ${stopMs} to ${Math.max(0, ...stops).toFixed(0)} ms; `;
  return {
    isSaturated: isSaturated(seen),
    holds: allSucceeded(seen.responses) && seen.throttled + seen.twice === 0 && time.ok && isKept,
    figures: `${time.words}; ${orderInWords(order, apartMs)}; ${inOrder(seen, isKept).words}; ${isSlowed ? stopped : ''}${seen.words}; ${later}`,
  };
}

const maxTries = 3;
/** So often a slowed burst has to break what a burst without slowing keeps right after it. */
const proofs = 2;

/**
 * A machine whose processors have no time left slows replicas as well: a burst that does not hold is followed by one without
 * slowing. Where that does not hold either and the processors were saturated, nothing is judged, and the burst is tried
 * again. A machine that has time left has no excuse.
 */
const slowedBurst = (seconds: number): Scenario => ({
  name: `chat burst of ${seconds} s with one of three replicas slowed`,
  async run(): Promise<Row> {
    const tries: string[] = [];
    let broken = 0;
    while (tries.length < maxTries && broken < proofs) {
      const slowed = await burst(seconds, true);
      if (slowed.holds) return { passed: true, figures: [slowed.figures, ...tries].join('; earlier, ') };
      const control = await burst(seconds, false);
      if (control.holds || !control.isSaturated) broken += 1;
      tries.unshift(`${slowed.figures}; without slowing: ${control.figures}`);
    }
    return { passed: broken === proofs ? false : null, figures: tries.join('; earlier, ') };
  },
});

export const slowedBursts: readonly Scenario[] = [slowedBurst(2), slowedBurst(5)];
