/**
 * The chat burst over three replicas whose Redis is 80 ms away: a relay in a process of its own holds every byte back for
 * 40 ms in each direction.
 */
import { child, firstLine, parsed, startServer, stopServer } from './processes.ts';
import { beyond, orderInWords, orderOf } from './order.ts';
import { allSucceeded, makespanOf, noneLost, ratio, seconds, type Row, type Scenario } from './row.ts';
import { aftermath, chat, chatWorld, see } from './worlds.ts';

/** Milliseconds in each direction. */
const delayMs = 40;
/** Makespan with nobody in the way, milliseconds; a longer one than so many times that is too long. */
const bestMs = 20_000;
const atBest = 1.02;
/** A call that finds room asks the bucket and the ceiling, one after the other, and the last ones meet full batches. */
const directLimitMs = 1_000;
/** A queued call may arrive behind calls that were sent up to so much later, milliseconds; this share of them behind others. */
const apartMs = 50;
const share = 0.01;

/** Relays TCP to a port of this machine, every chunk `delayMs` late, and prints its own port. */
const source = `
  const net = require('node:net');
  const [port, delayMs] = process.argv.slice(1).map(Number);
  const late = (from, to) => {
    from.on('data', (chunk) => setTimeout(() => to.writable && to.write(chunk), delayMs));
    from.on('close', () => setTimeout(() => to.destroy(), delayMs));
    from.on('error', () => {});
  };
  const server = net.createServer({ noDelay: true }, (near) => {
    const far = net.connect({ port, host: '127.0.0.1', noDelay: true });
    late(near, far);
    late(far, near);
  });
  server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

async function startRelay(to: number): Promise<{ readonly port: number; stop(): void }> {
  const relay = child(process.execPath, ['-e', source, String(to), String(delayMs)]);
  const port = await firstLine(relay, [], (line) => {
    const { port: own } = parsed(line);
    return typeof own === 'number' ? own : null;
  });
  return { port, stop: () => void relay.kill('SIGKILL') };
}

/** How long the calls that found room took, from their client to their response: all but the slowest hundredth. Milliseconds. */
function directMs(responses: readonly { readonly tookMs: number }[], direct: number): number {
  const times = responses.map(({ tookMs }) => tookMs).sort((a, b) => a - b);
  return times[Math.floor(direct * 0.99)] ?? 0;
}

/** @param duration seconds in which 800 calls are sent: in two, three replicas and their surroundings saturate small machines. */
const farRedis = (duration: number): Scenario => ({
  name: `chat burst of ${duration} s with a Redis 80 ms away`,
  async run(): Promise<Row> {
    const redis = await startServer();
    const relay = await startRelay(redis.port);
    const world = await chatWorld(`url: "redis://127.0.0.1:${relay.port}"`, 600);
    // The bucket's 600 and what drains while calls are sent find room at once.
    const direct = 600 + 10 * duration;
    const seen = await see(
      world,
      { ...chat(world, 60), calls: 800, everyMs: (1_000 * duration) / 800 },
      { ordered: (all) => all.slice(direct + 20) },
    );
    const order = orderOf(seen.responses, seen.entries, direct);
    const isInOrder = beyond(order.behindMs, apartMs).count <= share * order.behindMs.length;
    const after = await aftermath(world);
    await world.end();
    relay.stop();
    await stopServer(redis);
    const atOnceMs = directMs(seen.responses, direct);
    const isInTime = seen.tookMs <= bestMs * atBest && atOnceMs <= directLimitMs;
    return {
      holds: noneLost(seen.responses) && seen.twice === 0,
      holdsWhenQuiet:
        allSucceeded(seen.responses) && isInTime && isInOrder && seen.throttled + seen.crossed === 0,
      figures: `makespan ${ratio(seen.tookMs, bestMs)}; free quota used within ${seconds(atOnceMs)}; ${orderInWords(order, apartMs)}; ${seen.words}; ${after}`,
      measured: [
        makespanOf(seen.tookMs, bestMs),
        { name: 'free quota used within', value: atOnceMs / 1_000, unit: 's' },
      ],
    };
  },
});

export const farRedisBursts: readonly Scenario[] = [farRedis(2), farRedis(5)];
