/**
 * A gateway whose CPU is measured by its parent. Each message says how the calls from now on are followed: `off` by
 * nobody, else by real telemetry (metrics, log lines of failures, traces of those whose caller wants one); it is answered
 * with the CPU used so far, microseconds. First it says its port.
 */
import '../../src/engine.ts';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { Gateway } from '../../src/gateway.ts';
import { DataServer } from '../../src/ingress/data-server.ts';
import { Observation } from '../../src/observation/observation.ts';
import { startTracing } from '../../src/telemetry/traces.ts';
import { noTelemetry } from '../../test/support/no-telemetry.ts';

const [yaml = ''] = process.argv.slice(2);
const settings = parseSettings(yaml, { path: 'the benchmark', env: {} });
const [clock, random] = [systemClock, systemRandom];
const observation = new Observation(settings, {
  clock,
  random,
  tracing: await startTracing(process.env, 'cost'),
  destination: { write: () => {} },
  metrics: { processMetrics: true },
});
let on = true;
const { telemetry } = observation;
const begin = telemetry.begin.bind(telemetry);
telemetry.begin = (call) => (on ? begin(call) : noTelemetry.begin(call));
const gateway = new Gateway({ settings, clock, random, telemetry });
const data = new DataServer({
  settings: settings.server,
  clock,
  random,
  handle: (call) => gateway.handle(call),
  activity: () => Promise.resolve({}),
  credentialFields: () => gateway.credentialFields(),
  onRequestRefused: () => {},
  onOverload: () => {},
  onShedding: () => {},
  load: null,
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
