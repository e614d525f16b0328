/**
 * What a call costs, in one interleaved run: `npm run bench:cost` (ROUNDS=7, CALLS=3000).
 *
 * - gateway: CPU of the gateway's process per call over 64 connections, embedded and with Redis, against plain express and
 *   http-proxy-middleware with a keep-alive agent of 256 sockets. The ratio is the median of the rounds' own ratios.
 * - Redis: CPU of the server per call, by the server's own count (`INFO cpu`), all commands of a call; what it uses while
 *   nobody calls is taken out. One bucket at 1 and 64 connections, and 1,000 workspaces over 100 buckets at 64.
 * - latency: what the gateway itself adds to 99 of 100 calls, by its own histogram, embedded and with Redis; beside it what as many
 *   round trips to the same Redis as a call takes need by themselves.
 *
 * Redis, upstream, proxies and this client share the machine. Absolute figures belong to it; ratios carry over.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { createKey } from '../src/cli/keys.ts';
import { startRedis } from '../test/support/redis.ts';
import { cpuMs } from './gateway.ts';
import { endProxies, load, startGateway, startPlain, startUpstream } from './proxies.ts';

const rounds = Number(process.env['ROUNDS'] ?? 7);
const calls = Number(process.env['CALLS'] ?? 3_000);
/** Each proxy's code is compiled by then, in the yardstick's process as in the gateways'. */
const warmUpCalls = Number(process.env['WARMUP'] ?? 10_000);
const folder = mkdtempSync(join(tmpdir(), 'sluice-cost-'));
const server = await startRedis();
const redis = new Redis(server.port, '127.0.0.1');

/** `µs` of CPU that the server has used since its start. */
async function redisCpuUs(): Promise<number> {
  const info = await redis.info('cpu');
  const of = (name: string): number => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)?.[1] ?? NaN);
  return 1e6 * (of('used_cpu_user') + of('used_cpu_sys'));
}

/** Configuration of `workspaces` workspaces, every tenth with a credential of its own (and so a bucket). */
function configOf(name: string, origin: string, workspaces: number, withRedis: boolean) {
  const keys = Array.from({ length: workspaces }, () => createKey());
  const path = join(folder, `${name}.yaml`);
  const lines = keys.map(
    ({ hash }, n) => `  w${n}: { keys: ["${hash}"], credentials: { api: "Bearer c${Math.floor(n / 10)}" } }`,
  );
  writeFileSync(
    path,
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
log: { level: info, sampleSuccesses: 0 }
${withRedis ? `redis: { url: "${server.url}" }\nprivacy: { labelKey: "${randomBytes(32).toString('base64')}" }\n` : ''}upstreams:
  api:
    origins: ["${origin}"]
    allowPrivateAddresses: true
    kind: generic
    limits: { requestsPerMinute: 100000000, requestsPerDay: none }
workspaces:
${lines.join('\n')}
`,
  );
  return { path, keys: keys.map(({ key }) => key) };
}

interface Row {
  readonly name: string;
  readonly port: number;
  readonly adminPort: number;
  readonly pid: number;
  readonly path: string;
  readonly keys: readonly string[];
  readonly connections: number;
  readonly usesRedis: boolean;
  readonly calls: number;
  readonly cpuUs: number[];
  readonly redisUs: number[];
  readonly rate: number[];
}

/** Calls per second while latency is measured: far below what one core can take, so that nothing queues for it. */
const pace = 300;

/** Bounds of the gateway's overhead histogram, seconds, and how many calls it counted up to each, for the upstream `api`. */
async function overheads(adminPort: number): Promise<Map<string, number>> {
  const page = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text();
  const lines = page.matchAll(/^sluice_overhead_seconds_bucket\{([^}]*)\} (\d+)/gm);
  const counts = new Map<string, number>();
  for (const [, labels = '', count] of lines) {
    const bound = /le="([^"]+)"/.exec(labels)?.[1];
    if (bound !== undefined && labels.includes('upstream="api"')) counts.set(bound, Number(count));
  }
  return counts;
}

/**
 * Time that the gateway itself adds to 99 of 100 calls, admission with its round trips included: the lowest bound of its
 * histogram that holds so many. 64 connections, {@link pace} calls a second.
 */
async function latency({ adminPort, port, path, keys }: Row): Promise<string> {
  const count = 2_000;
  const headers = () => ({ authorization: `Bearer ${keys[0] ?? ''}` });
  const before = await overheads(adminPort);
  await load({ port, path, headers, calls: count, connections: 64, pace });
  for (const [bound, total] of await overheads(adminPort))
    if (total - (before.get(bound) ?? 0) >= count * 0.99) return `${Number(bound) * 1000} ms`;
  return 'more than the largest bound';
}

/** Round trips of a call before it is sent and after its answer. */
const roundTrips = 3;

/** 99 of 100 times {@link roundTrips} PINGs one after the other, at {@link pace}, took at most so long, from this process alone. Milliseconds. */
async function pingsMs(): Promise<number> {
  const took: number[] = [];
  const startedAt = performance.now();
  for (let n = 0; n < 2_000; n += 1) {
    const waitMs = startedAt + (n * 1_000) / pace - performance.now();
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
    const from = performance.now();
    for (let trip = 0; trip < roundTrips; trip += 1) await redis.ping();
    took.push(performance.now() - from);
  }
  return took.toSorted((a, b) => a - b)[Math.floor(took.length * 0.99)] ?? NaN;
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return ((sorted[(sorted.length - 1) >> 1] ?? NaN) + (sorted[sorted.length >> 1] ?? NaN)) / 2;
}

async function round(row: Row, count: number, idleUsPerMs: number): Promise<void> {
  const { port, path, keys, connections } = row;
  const headers = (n: number) => ({ authorization: `Bearer ${keys[n % keys.length] ?? ''}` });
  const cpuBefore = cpuMs(row.pid);
  const redisBefore = await redisCpuUs();
  const ms = await load({ port, path, headers, calls: count, connections });
  const redisUs = (await redisCpuUs()) - redisBefore - idleUsPerMs * ms;
  row.cpuUs.push(((cpuMs(row.pid) - cpuBefore) * 1000) / count);
  row.redisUs.push(redisUs / count);
  row.rate.push((count * 1000) / ms);
}

try {
  const upstream = await startUpstream();
  const origin = `http://127.0.0.1:${upstream.port}`;
  const through = `/proxy?target=${encodeURIComponent(`${origin}/v1/things?a=b`)}`;
  const gateway = async (name: string, workspaces: number, withRedis: boolean) => {
    const { path, keys } = configOf(name, origin, workspaces, withRedis);
    return { ...(await startGateway(path)), path: through, keys, usesRedis: withRedis };
  };
  const plain = {
    ...(await startPlain(upstream.port)),
    path: '/v1/things?a=b',
    keys: [''],
    usesRedis: false,
  };
  const embedded = await gateway('embedded', 1, false);
  const shared = await gateway('shared', 1, true);
  const many = await gateway('many', 1_000, true);
  const rowOf = (name: string, of: typeof shared, connections: number): Row => ({
    name,
    ...of,
    connections,
    calls: connections === 1 ? Math.ceil(calls / 4) : calls,
    cpuUs: [],
    redisUs: [],
    rate: [],
  });
  const rows = [
    rowOf('plain express + http-proxy-middleware, 64 connections', plain, 64),
    rowOf('embedded, 64 connections', embedded, 64),
    rowOf('Redis, one bucket, 64 connections', shared, 64),
    rowOf('Redis, one bucket, 1 connection', shared, 1),
    rowOf('Redis, 1,000 workspaces over 100 buckets, 64 connections', many, 64),
  ];
  for (const row of rows) await round({ ...row, cpuUs: [], redisUs: [], rate: [] }, warmUpCalls, 0);
  const idleFrom = await redisCpuUs();
  await new Promise((resolve) => setTimeout(resolve, 3_000));
  const idleUsPerMs = ((await redisCpuUs()) - idleFrom) / 3_000;
  for (let n = 0; n < rounds; n += 1) {
    for (const row of n % 2 === 0 ? rows : rows.toReversed()) await round(row, row.calls, idleUsPerMs);
  }
  print(rows, idleUsPerMs);
  for (const row of rows.slice(1, 3))
    console.log(`  ${row.name} at ${pace} calls/s: p99 of the time added at most ${await latency(row)}`);
  console.log(
    `  ${roundTrips} PINGs of that Redis in turn, nothing else: p99 ${(await pingsMs()).toFixed(1)} ms`,
  );
} finally {
  endProxies();
  redis.disconnect();
  await server.stop();
  rmSync(folder, { recursive: true });
}

function print(rows: readonly Row[], idleUsPerMs: number): void {
  const plain = rows[0]?.cpuUs ?? [];
  console.log(`${rounds} interleaved rounds of ${calls} calls, medians, Node ${process.versions.node}`);
  for (const row of rows) {
    const ratio = median(row.cpuUs.map((cpu, n) => cpu / (plain[n] ?? NaN)));
    const us = (values: readonly number[]): string => `${median(values).toFixed(0).padStart(5)} µs`;
    const gateway = `${us(row.cpuUs)} CPU${row.connections === 64 ? ` (${ratio.toFixed(2)} x plain)` : ''.padEnd(15)}`;
    const inRedis = row.usesRedis ? `  ${us(row.redisUs)} in Redis` : '';
    console.log(
      `  ${row.name.padEnd(58)} ${gateway}  ${median(row.rate).toFixed(0).padStart(5)} calls/s${inRedis}`,
    );
  }
  console.log(
    `  Redis while nobody calls: ${(idleUsPerMs * 1000).toFixed(0)} µs of CPU a second, taken out above`,
  );
}
