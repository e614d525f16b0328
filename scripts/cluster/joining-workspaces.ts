/** Workspaces that join a store whose bucket a busy workspace uses already: nobody is refused who can be served. */
import { ordersPath, pause, type CallResponse } from '../../test/support/redis-fleet.ts';
import { drive } from './load.ts';
import { startSimulator, until } from './processes.ts';
import { seconds, summary, type Row, type Scenario } from './row.ts';
import { common, run, setups, type Setup } from './setups.ts';
import { wait } from './worlds.ts';

const joining = ['M1', 'M2', 'M3', 'M4', 'M5'];
const callsEach = 5;
const capacity = 40;
const perSecond = 2;
const latencyMs = 20;
/** Calls of the joining workspaces wait for so long at most: the defect needs a process that has run for longer. */
const waitSeconds = 40;
const uptimeMs = 50_000;

/**
 * Calls of the joining workspaces that can be served within `waitMs`, when `spent` of the bucket were gone as they came: the busy
 * workspace and they take turns, so the k-th call of each has left after k rounds, one after the other in its workspace.
 */
function servable(spent: number, waitMs: number): number {
  let calls = 0;
  for (let k = 1; k <= callsEach; k += 1) {
    const units = spent + k * (joining.length + 1);
    const roomMs = (Math.max(0, units - capacity) / perSecond) * 1_000;
    if (roomMs + k * latencyMs <= waitMs) calls += joining.length;
  }
  return calls;
}

const joiningIn = (setup: Setup, prefer: Readonly<Record<string, string>>, waitMs: number): Scenario => ({
  name: `five workspaces come to a store with 200 calls waiting, ${setup}`,
  async run(): Promise<Row> {
    const simulator = await startSimulator('commerce', {
      latency: { minMs: latencyMs, maxMs: latencyMs },
      stores: { '127.0.0.1': { plan: 'standard', apps: { 'app-sim': ['shpat_sim'] } } },
    });
    const world = await run(
      setup,
      common({
        shopUrl: simulator.url,
        shopLimits: 'requestsPerMinute: 1000',
        workspaces: ['E', ...joining],
      }),
    );
    if (setup === setups.embedded) await pause(uptimeMs);
    const { gateways, keys } = world.fleet;
    const orders = { to: gateways, path: ordersPath, everyMs: 0 };
    const busy = drive({ ...orders, calls: 200, key: keys['E'] ?? '', name: 'E', headers: wait(600) });
    await pause(1_000);
    await until(async () => (await simulator.log()).length >= capacity - 2, 10_000);
    const spent = (await simulator.log()).length;
    const responses = await Promise.all(
      joining.map((name) =>
        drive({ ...orders, calls: callsEach, key: keys[name] ?? '', name, headers: prefer }),
      ),
    );
    await world.end(simulator);
    const [came, stayed] = [responses.flat(), await busy];
    const could = servable(spent, waitMs);
    const served = came.filter(({ status }) => status === 200);
    const refused = came.length - served.length;
    return {
      holds: !stayed.some(wasRefused),
      holdsWhenQuiet: refused <= came.length - could,
      figures: [
        `joining workspaces: ${summary(came)}, of which ${could} can be served within ${waitMs / 1_000} s (${spent} of ${capacity} calls were gone)`,
        `slowest ${seconds(Math.max(0, ...served.map(({ tookMs }) => tookMs)))}`,
        `refused of the busy workspace ${stayed.filter(wasRefused).length}`,
      ].join('; '),
    };
  },
});

const wasRefused = ({ status }: CallResponse): boolean => status === 429;

/** The default wait that `docs/reference/configuration.md` states, milliseconds. */
const defaultWaitMs = 75_000;

export const joiningWorkspaces = {
  embedded: joiningIn(setups.embedded, wait(waitSeconds), waitSeconds * 1_000),
  replicas: joiningIn(setups.replicas, {}, defaultWaitMs),
};
