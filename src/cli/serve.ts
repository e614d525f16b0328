/**
 * `sluice serve`: runs the gateway until a signal ends it. Owns signals and reloads.
 * SIGHUP reloads, SIGTERM and SIGINT drain, a second one of them ends at once.
 */
import { systemClock, systemRandom } from '../clock.ts';
import { uncallable } from '../config/cautions.ts';
import { ConfigError, readSettings } from '../config/load.ts';
import { watchSettings } from '../config/reload.ts';
import type { Settings } from '../config/settings.ts';
import { startService, type Service } from '../service.ts';
import type { Log } from '../telemetry/events.ts';
import { endSignals } from './end-signal.ts';
import type { CliIo } from './io.ts';
import { logRefusedReload } from './refused-reload.ts';

/** Resolves with the exit code when the process may end. */
export async function runServe({ config }: { readonly config: string }, io: CliIo): Promise<number> {
  let first: { settings: Settings; digest: string };
  try {
    first = readSettings({ path: config, env: io.env });
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    io.err(error.message);
    return 1;
  }
  let service: Service;
  try {
    service = await startService({
      settings: first.settings,
      clock: systemClock,
      random: systemRandom,
      destination: process.stdout,
      env: io.env,
    });
  } catch (error) {
    io.err(`Sluice could not start: ${error instanceof Error ? error.message : String(error)}`);
    return 1;
  }
  const { log } = service.telemetry;
  const watch = watchSettings({
    path: config,
    env: io.env,
    clock: systemClock,
    loadedDigest: first.digest,
    onSettings: (settings) => {
      service.reconfigure(settings);
      log.info('configuration reloaded');
      warnOfUncallable(settings, io, log);
    },
    onError: (error) => {
      io.err(`The configuration in use stays: ${error.message}`);
      logRefusedReload(error, log);
    },
  });
  process.on('SIGHUP', () => watch.reloadNow());
  const wish = endSignals();
  log.info('serving', { port: service.dataAddress.port, adminPort: service.adminAddress.port });
  warnOfUncallable(first.settings, io, log);
  await wish.first;
  log.info('draining');
  const atOnce = new AbortController();
  void wish.again.then(() => atOnce.abort());
  watch.close();
  const cut = await service.drain(atOnce.signal);
  if (cut > 0) log.warn('connections were cut at the end of the drain', { cut });
  process.exit(0);
}

/** A workspace without a valid key is allowed (its last key was revoked), but may be an accident. Ids are not for logs. */
function warnOfUncallable(settings: Settings, io: CliIo, log: Log): void {
  const without = uncallable(settings, io.clock.now());
  const of = settings.workspaces.size;
  if (of === 0) {
    log.warn('nobody can call: the configuration has no workspaces');
  } else if (without > 0) {
    log.warn('nobody can call with workspaces that have no valid key; `sluice check` names them', {
      without,
      of,
    });
  }
}
