/**
 * Real processes for the proxy and image checks, all on the loopback address: Redis, an upstream that answers after a
 * stated time, and gateways from the sources. `stop()` leaves nothing running.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import { startRedis } from '../../test/support/redis.ts';
import { freePort } from '../../test/support/free-port.ts';
import { serve } from '../cluster/upstream.ts';
import { answers, start, until } from '../processes.ts';
import { root } from './generated.mjs';

/** Answers `/after/<ms>/<id>` after that time and counts how often each id arrived. */
async function startUpstream() {
  const seen = new Map();
  const { origin, stop } = await serve((request, response) => {
    const [, , wait, id] = request.url.split('/');
    seen.set(id, (seen.get(id) ?? 0) + 1);
    setTimeout(() => response.end(JSON.stringify({ id })), Number(wait));
  });
  return { origin, seen, stop };
}

const { key, hash } = createKey();

/** Resolves when the gateway with this admin port is ready. `said`: what it printed. */
export const untilReady = (adminPort, said) =>
  until('the gateway is ready', 60_000, () => answers(`http://127.0.0.1:${adminPort}/readyz`), said);

/**
 * @param {{limits?: object}} options limits of the upstream `api`
 * @returns Redis, upstream, and a way to start gateways that share them
 */
export async function startFleet({ limits = {} } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-fleet-'));
  const redis = await startRedis();
  const upstream = await startUpstream();
  const processes = [];

  /** The settings of one gateway, as the YAML file wants them (JSON is YAML). */
  const settings = (port, adminPort) => ({
    server: {
      host: '127.0.0.1',
      adminHost: '127.0.0.1',
      port,
      adminPort,
      drainSeconds: 20,
      drainDelaySeconds: 1,
      keepAliveSeconds: 75,
    },
    redis: { url: redis.url },
    privacy: { labelKey: 'a label key of the packaging checks' },
    upstreams: { api: { kind: 'generic', origins: [upstream.origin], allowPrivateAddresses: true, limits } },
    workspaces: { check: { keys: [hash], upstreams: ['api'] } },
  });

  /** Starts a gateway on given or free ports and waits until it is ready. */
  async function gateway(ports) {
    const port = ports?.port ?? (await freePort());
    const adminPort = ports?.adminPort ?? (await freePort());
    const file = join(folder, `${port}.yaml`);
    writeFileSync(file, JSON.stringify(settings(port, adminPort)));
    const started = start(process.execPath, ['src/main.ts', 'serve', '--config', file], { cwd: root });
    processes.push(started);
    await untilReady(adminPort, started.said);
    return { ...started, port, adminPort };
  }

  async function stop() {
    await Promise.all(processes.map((one) => one.stop(1_000)));
    await redis.stop();
    upstream.stop();
    rmSync(folder, { recursive: true, force: true });
  }
  return { folder, upstream, settings, gateway, stop };
}

/** One call through Sluice. @returns {Promise<{status: number, ms: number, code: string | null}>} status 0 = no response */
export async function call(base, { id, upstreamMs }) {
  const started = Date.now();
  try {
    const response = await fetch(`${base}/via/api/after/${upstreamMs}/${id}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: '{}',
    });
    await response.arrayBuffer();
    return { status: response.status, ms: Date.now() - started, code: response.headers.get('sluice-error') };
  } catch (error) {
    return { status: 0, ms: Date.now() - started, code: String(error.cause?.code ?? error.message) };
  }
}
