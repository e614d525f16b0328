/**
 * `sluice serve`: runs the gateway until a signal ends it. Owns signals and reloads.
 * SIGHUP reloads, SIGTERM and SIGINT drain (SIGINT without waiting for a load balancer), a second one of them ends at once.
 */
import type { AddressInfo } from 'node:net';
import { systemClock, systemRandom } from '../clock.ts';
import { configurationWarnings, hasNoValidKey, ofLabelKey } from '../config/warnings.ts';
import { ConfigError, readSettings } from '../config/load.ts';
import { watchSettings } from '../config/reload.ts';
import { restartKeys, type Settings } from '../config/settings.ts';
import { connectionsWithin, watchProcess } from '../ingress/overload.ts';
import { startService, type Service } from '../service.ts';
import type { Log } from '../telemetry/events.ts';
import { endSignals, outputTo, readOrSayWhy, type CliIo } from './io.ts';

/** Resolves with the exit code when the process may end. */
export async function runServe({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  const first = readOrSayWhy(() => readSettings({ path: config, env: io.env }), io);
  if (first === null) return 1;
  const { settings, digest } = first;
  const service = await startService({
    settings,
    clock: systemClock,
    random: systemRandom,
    load: watchProcess(systemClock),
    destination: outputTo(process.stdout, (why) =>
      io.err(errorLine(`The log cannot be written (${why}): its lines are lost until it can be`)),
    ),
    env: io.env,
  }).catch((error: unknown) => {
    io.err(`Sluice could not start: ${whyNotStarted(error)}`);
    return null;
  });
  if (service === null) return 1;
  const { telemetry } = service;
  const { log } = telemetry;
  const watch = watchSettings({
    path: config,
    env: io.env,
    clock: systemClock,
    loadedDigest: digest,
    onSettings(next) {
      service.reload(next);
      telemetry.configurationRead('in use');
      log.info('configuration reloaded');
      // So that the reload does not look complete. The keys are no names of anybody.
      const keys = restartKeys(settings, next).join(', ');
      if (keys !== '')
        log.warn('these keys were changed and take effect at the next start: restart Sluice', { keys });
      warnOfUncallable(next, io, log);
    },
    onError(error) {
      // Not in the log, because it may name workspaces: its keys are ids of them.
      io.err(errorLine(`The configuration in use stays: ${error.message}`));
      telemetry.configurationRead('refused');
      if (error instanceof ConfigError)
        log.error('configuration refused, the old one stays', { problems: error.problems.length });
      else log.bug('the configuration could not be watched or taken over, the old one stays', error);
    },
  });
  process.on('SIGHUP', () => void watch.reloadNow());
  const signals = endSignals();
  if (io.terminals.err) io.err(announcement(settings, service, io.clock.now()));
  log.info('serving', { port: service.dataAddress.port, adminPort: service.adminAddress.port });
  for (const warning of ofLabelKey(settings)) log.warn(warning);
  warnOfFewFiles(log);
  warnOfUncallable(settings, io, log);
  const signal = await signals.first;
  log.info('draining');
  const stopNow = new AbortController();
  void signals.second.then(() => stopNow.abort());
  const [cut] = await Promise.all([
    service.drain({ signal: stopNow.signal, isAlone: signal === 'SIGINT' }),
    watch.close(),
  ]);
  if (cut > 0) log.warn('connections were cut at the end of the drain', { cut });
  log.info('ended', { cut });
  process.exit(0);
}

/** A line beside the log, on standard error, in JSON as all lines of a serving process. */
const errorLine = (message: string): string =>
  JSON.stringify({ level: 'error', time: new Date(systemClock.now()).toISOString(), message });

/** What Node says of an address on which it cannot listen: `hostname` where it is a name that is not known. */
type Listened = Partial<Readonly<Record<'port' | 'address' | 'hostname', string | number>>>;

function whyNotStarted(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const { code, port, address, hostname } = error as NodeJS.ErrnoException & Listened;
  if (code === 'EADDRINUSE')
    return `port ${port} is in use. End what listens there, or give server.port and server.adminPort other numbers.`;
  if (code !== 'EADDRNOTAVAIL' && hostname === undefined) return error.message;
  return `${hostname ?? address} is no address of this machine. Give server.host and server.adminHost addresses without a port.`;
}

/** A replica that may have fewer connections of clients, for want of files, refuses some that it could have served. */
const plentyOfConnections = 2_000;

function warnOfFewFiles(log: Log): void {
  const connections = connectionsWithin(plentyOfConnections);
  if (connections < plentyOfConnections)
    log.warn('few files may be open: raise the limit (ulimit -n, LimitNOFILE) to 20000', { connections });
}

/** Warns of workspaces without a valid key: they are allowed (a last key was revoked), but may be an accident. No log may show their ids. */
function warnOfUncallable({ workspaces }: Settings, { clock }: CliIo, log: Log): void {
  const of = workspaces.size;
  const now = clock.now();
  const without = [...workspaces.values()].filter((workspace) => hasNoValidKey(workspace, now)).length;
  const words = 'nobody can call with workspaces that have no valid key; `sluice check` names them';
  if (of === 0) log.warn('nobody can call: the configuration has no workspaces');
  if (without > 0) log.warn(words, { without, of });
}

/**
 * Where to call, where to look, and what will surprise.
 * @param now wall clock, milliseconds
 */
export function announcement(
  settings: Settings,
  { dataAddress, adminAddress }: Pick<Service, 'dataAddress' | 'adminAddress'>,
  now: number,
): string {
  const { size } = settings.workspaces;
  const data = originOf(dataAddress);
  return [
    `calls:     ${[...settings.upstreams.keys()].map((name) => `${data}/via/${name}/…`).join(' ')}`,
    `           ${data}/proxy?target=…, for ${size === 1 ? '1 workspace' : `${size} workspaces`}`,
    `live page: ${originOf(adminAddress)}/`,
    ...configurationWarnings(settings, now).map((text) => `warning:   ${text}`),
  ].join('\n');
}

/** As a browser on this machine can open it. */
function originOf({ address, port }: AddressInfo): string {
  if (address === '0.0.0.0' || address === '::') return `http://localhost:${port}`;
  return `http://${address.includes(':') ? `[${address}]` : address}:${port}`;
}
