/**
 * Real processes for the proxy and image checks, all on the loopback address: Redis, an upstream that answers after a
 * stated time, and gateways from the sources. Owns their ports and their end; `stop()` leaves nothing running.
 */
import { spawn, spawnSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { root } from './generated.mjs';

export const has = (program) => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Asks until it answers 200. @throws after the limit, with what the process said */
export async function until(url, said = () => '', limitMs = 20_000) {
  const end = Date.now() + limitMs;
  while (Date.now() < end) {
    const response = await fetch(url).catch(() => null);
    await response?.arrayBuffer();
    if (response?.ok) return;
    await sleep(50);
  }
  throw new Error(`${url} did not answer 200 within ${limitMs / 1000} s\n${said()}`);
}

/** Answers `/after/<ms>/<id>` after that time and counts how often each id arrived. */
async function startUpstream() {
  const seen = new Map();
  const server = http.createServer((request, response) => {
    const [, , wait, id] = request.url.split('/');
    seen.set(id, (seen.get(id) ?? 0) + 1);
    request.resume();
    setTimeout(
      () => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ id })),
      Number(wait),
    );
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const stop = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { port: server.address().port, seen, stop };
}

/** Starts a program; `stop` ends it by SIGTERM and, after a limit, by SIGKILL. */
export function start(program, args, options = {}) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk) => (text = (text + chunk).slice(-4000)));
  const ended = new Promise((resolve) => {
    child.on('exit', (code, signal) => resolve({ code, signal }));
    child.on('error', (error) => resolve({ code: -1, signal: String(error) }));
  });
  const stop = async (limitMs = 5000) => {
    child.kill('SIGTERM');
    const late = sleep(limitMs, null, { ref: false });
    if ((await Promise.race([ended, late])) === null) child.kill('SIGKILL');
    return ended;
  };
  return { child, ended, stop, said: () => text };
}

const key = `slc_packaging_${randomBytes(32).toString('base64url')}`;
const labelKey = randomBytes(24).toString('hex');

/**
 * @param {{limits?: object}} options limits of the upstream `api`
 * @returns Redis, upstream, and a way to start gateways that share them
 */
export async function startFleet({ limits = {} } = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-fleet-'));
  const redisPort = await freePort();
  const redis = start('redis-server', [
    '--port',
    String(redisPort),
    '--bind',
    '127.0.0.1',
    '--save',
    '',
    '--appendonly',
    'no',
    '--dir',
    folder,
  ]);
  const upstream = await startUpstream();
  const processes = [];
  const upstreams = {
    api: {
      kind: 'generic',
      origins: [`http://127.0.0.1:${upstream.port}`],
      allowPrivateAddresses: true,
      limits,
    },
  };
  const hash = `sha256:${createHash('sha256').update(key).digest('hex')}`;

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
    redis: { url: `redis://127.0.0.1:${redisPort}` },
    privacy: { labelKey },
    upstreams,
    workspaces: { check: { keys: [hash], upstreams: ['api'] } },
  });

  /** Starts a gateway on given or free ports and waits until it is ready. */
  async function gateway(ports) {
    const port = ports?.port ?? (await freePort());
    const adminPort = ports?.adminPort ?? (await freePort());
    const file = join(folder, `${port}.yaml`);
    writeFileSync(file, JSON.stringify(settings(port, adminPort)));
    const process_ = start(process.execPath, ['src/main.ts', 'serve', '--config', file], { cwd: root });
    processes.push(process_);
    await until(`http://127.0.0.1:${adminPort}/readyz`, process_.said);
    return { ...process_, port, adminPort };
  }

  async function stop() {
    await Promise.all(processes.map((item) => item.stop(1000)));
    await redis.stop();
    await upstream.stop();
    rmSync(folder, { recursive: true, force: true });
  }
  return { folder, redisPort, upstream, key, settings, upstreams, hash, labelKey, gateway, stop };
}

/** One call through Sluice. @returns {Promise<{status: number, ms: number, code: string | null}>} status 0 = no response */
export async function call(base, { id, upstreamMs, method = 'POST' }) {
  const started = Date.now();
  try {
    const response = await fetch(`${base}/via/api/after/${upstreamMs}/${id}`, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(method === 'POST' ? { body: '{}' } : {}),
    });
    await response.arrayBuffer();
    return { status: response.status, ms: Date.now() - started, code: response.headers.get('sluice-error') };
  } catch (error) {
    return { status: 0, ms: Date.now() - started, code: String(error.cause?.code ?? error.message) };
  }
}
