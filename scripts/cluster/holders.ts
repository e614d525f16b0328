/** What happens to a commerce lane when the replica that holds its lease is killed or stopped. */
import { ordersPath, pause } from '../../test/support/redis-fleet.ts';
import type { Fleet } from './fleet.ts';
import { drive } from './load.ts';
import { startServer, stopServer, until } from './processes.ts';
import { left } from './remains.ts';
import { allSucceeded, noneLost, seconds, summary, type Row, type Scenario } from './row.ts';
import { shopWorld, wait } from './worlds.ts';

/** A lease, and what a replica needs to notice that it is over. Milliseconds. */
const leaseAndTickMs = 17_000;

interface Outcome {
  /** Longest time between two arrivals upstream. */
  readonly gapMs: number;
  /** Most calls in flight upstream. */
  readonly most: number;
  /** Leases the replicas counted as lost. */
  readonly lost: () => Promise<number>;
}

/** How long it may take until a replica that runs again has noticed what it has lost. Milliseconds. */
const noticedWithinMs = 10_000;

const holder = (
  name: string,
  strike: (fleet: Fleet) => Promise<void>,
  holds: (outcome: Outcome) => Promise<boolean>,
): Scenario => ({
  name,
  async run(): Promise<Row> {
    const redis = await startServer();
    const world = await shopWorld(`url: "${redis.url}"`, 1_500);
    const { gateways, keys } = world.fleet;
    const load = { path: ordersPath, key: keys['acme'] ?? '', headers: wait(60) };
    const first = drive({ ...load, to: gateways.slice(0, 1), calls: 1, everyMs: 0 });
    if (!(await until(async () => (await left(redis.port)).leases > 0, 3_000))) throw new Error('no lease');
    const struck = strike(world.fleet);
    const responses = await drive({ ...load, to: gateways.slice(1), calls: 6, everyMs: 50 });
    await struck;
    await first;
    const entries = await world.simulator.log();
    const times = entries.map(({ arrivedT }) => arrivedT).sort((a, b) => a - b);
    const gapMs = Math.max(...times.slice(1).map((at, index) => at - (times[index] ?? at)));
    const most = Math.max(...entries.map(({ inFlight }) => inFlight.scope));
    const lost = (): Promise<number> => world.fleet.metric('sluice_leases_lost_total');
    const isHeld = await holds({ gapMs, most, lost });
    const counted = await lost();
    await world.end();
    await stopServer(redis);
    return {
      holds: noneLost(responses) && isHeld,
      holdsWhenQuiet: allSucceeded(responses) && gapMs <= leaseAndTickMs,
      figures: `others: ${summary(responses)}; longest gap ${seconds(gapMs)}; in flight at most ${most}; leases counted as lost ${counted}`,
    };
  },
});

const killed = holder(
  'kill -9 of the replica that holds the lease',
  async ({ gateways }) => gateways[0]?.signal('SIGKILL'),
  async ({ most }) => most === 1,
);

const stopped = holder(
  'SIGSTOP for 20 s of the replica that holds the lease (15 s)',
  async ({ gateways }) => {
    gateways[0]?.signal('SIGSTOP');
    await pause(20_000);
    gateways[0]?.signal('SIGCONT');
  },
  ({ lost }) => until(async () => (await lost()) > 0, noticedWithinMs),
);

export const holders = { killed, stopped };
