/**
 * Real processes for the proxy and image checks, all on the loopback address: Redis, an upstream that answers after a
 * stated time, and gateways from the sources. `stop()` leaves nothing running.
 */
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey } from '../../src/cli/keys.ts';
import { freePort } from '../../test/support/free-port.ts';
import { startGateway } from '../fleet/gateways.ts';
import { serve } from '../fleet/http.ts';
import { answers, endAll, newFolder, until } from '../fleet/processes.ts';
import { startServer } from '../fleet/redis.ts';

const { key, hash } = createKey();

/** Resolves when the gateway with this admin port is ready. `said`: what it printed. */
export const untilReady = (adminPort, said) =>
  until('the gateway is ready', 60_000, () => answers(`http://127.0.0.1:${adminPort}/readyz`), said);

/**
 * @param {object} limits of the upstream `api`
 * @returns Redis, upstream, and a way to start gateways that share them
 */
export async function startFleet(limits = {}) {
  const folder = await newFolder();
  const redis = await startServer();
  /** How often each id arrived at `/after/<ms>/<id>`, which is answered after that time. */
  const seen = new Map();
  const upstream = await serve((request, response) => {
    const [, , wait, id] = request.url.split('/');
    seen.set(id, (seen.get(id) ?? 0) + 1);
    setTimeout(() => response.end(JSON.stringify({ id })), Number(wait));
  });

  /** The settings of a gateway on free ports, as a file (JSON is YAML). */
  async function settings(name) {
    const [port, adminPort] = [await freePort(), await freePort()];
    const server = { host: '127.0.0.1', adminHost: '127.0.0.1', port, adminPort, keepAliveSeconds: 75 };
    const api = { kind: 'generic', origins: [upstream.origin], allowPrivateAddresses: true, limits };
    const all = {
      server: { ...server, drainSeconds: 20, drainDelaySeconds: 1 },
      redis: { url: redis.url },
      privacy: { labelKey: 'a label key of the packaging checks' },
      upstreams: { api },
      workspaces: { check: { keys: [hash], upstreams: ['api'] } },
    };
    const path = join(folder, name);
    writeFileSync(path, JSON.stringify(all));
    chmodSync(folder, 0o755);
    return { path, port, adminPort };
  }

  /** Starts a gateway with these settings and waits until it is ready. */
  async function gateway(from) {
    const started = await startGateway(from.path);
    await untilReady(from.adminPort, started.said);
    return { ...started, ...from };
  }

  async function stop() {
    upstream.stop();
    await endAll();
  }
  return { folder, seen, settings, gateway, stop };
}

/** One call through Sluice. @returns {Promise<{status: number, ms: number, code: string | null}>} status 0 = no response */
export async function call(base, { id, upstreamMs }) {
  const started = Date.now();
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  try {
    const url = `${base}/via/api/after/${upstreamMs}/${id}`;
    const response = await fetch(url, { method: 'POST', headers, body: '{}' });
    await response.arrayBuffer();
    return { status: response.status, ms: Date.now() - started, code: response.headers.get('sluice-error') };
  } catch (error) {
    return { status: 0, ms: Date.now() - started, code: String(error.cause?.code ?? error.message) };
  }
}
