/**
 * A gateway whose CPU is measured by its parent. Each message says how the calls from now on are followed: `off` by
 * nobody, else by real telemetry (metrics, log lines of failures, traces of those whose caller wants one); it is answered
 * with the CPU used so far, microseconds. First it says its port.
 */
import '../../src/engine.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { createGateway } from '../../src/gateway.ts';
import { createDataServer } from '../../src/ingress/data-server.ts';
import { createObservation } from '../../src/observation/observation.ts';
import type { Telemetry } from '../../src/telemetry/events.ts';
import { noTelemetry, silentLog } from '../../src/telemetry/noop.ts';
import { startTracing } from '../../src/telemetry/traces.ts';

const [yaml = ''] = process.argv.slice(2);
const settings = parseSettings(yaml, { path: 'the benchmark', env: {} });
const [clock, random] = [systemClock, systemRandom];
const observation = createObservation(settings, {
  clock,
  random,
  tracing: await startTracing(process.env, 'cost', silentLog),
  destination: { write: () => {} },
  metrics: { processMetrics: true, exemplars: true },
});
let on = true;
const telemetry: Telemetry = {
  ...observation.telemetry,
  begin: (call) => (on ? observation.telemetry : noTelemetry).begin(call),
};
const gateway = createGateway({ settings, clock, random, telemetry });
const data = createDataServer({
  settings: settings.server,
  clock,
  random,
  handle: gateway.handle,
  activity: () => Promise.resolve({}),
  credentialFields: gateway.credentialFields,
  onBug: (bug) => console.error(bug),
});
const { port } = await data.listen();
process.on('message', (how) => {
  on = how !== 'off';
  const { user, system } = process.cpuUsage();
  process.send?.(user + system);
});
process.on('disconnect', () => process.exit(0));
process.send?.(port);
