/**
 * A gateway whose CPU is measured by its parent: `on` reports to real telemetry (metrics, log lines of failures, 1 % of
 * traces by environment), `off` to none. Says its port, then answers every message with the CPU it has used, microseconds.
 */
import { systemClock, systemRandom } from '../../src/clock.ts';
import { parseSettings } from '../../src/config/load.ts';
import { createGateway } from '../../src/gateway.ts';
import { createDataServer } from '../../src/ingress/data-server.ts';
import { createObservation } from '../../src/page/observation.ts';
import { noTelemetry, silentLog } from '../../src/telemetry/noop.ts';
import { startTracing } from '../../src/telemetry/traces.ts';

const [how = 'off', yaml = ''] = process.argv.slice(2);
const settings = parseSettings(yaml, { path: 'the benchmark', env: {} });
const [clock, random] = [systemClock, systemRandom];
const tracing = how === 'on' ? await startTracing(process.env, 'cost', silentLog) : null;
const observation =
  how === 'on'
    ? createObservation(settings, {
        clock,
        random,
        tracing,
        destination: { write: () => {} },
        metrics: { exemplars: true },
      })
    : null;
const gateway = createGateway({ settings, clock, random, telemetry: observation?.telemetry ?? noTelemetry });
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
process.on('message', () => {
  const { user, system } = process.cpuUsage();
  process.send?.(user + system);
});
process.on('disconnect', () => process.exit(0));
process.send?.(port);
