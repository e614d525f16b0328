/**
 * What a call costs, in one interleaved run: `npm run bench:cost` (ROUNDS=7, CALLS=3000). With `BEFORE=<folder>`, another copy
 * of the product is measured in the same rounds, with a Redis of its own.
 *
 * - gateway: CPU of the gateway's process per call over 64 connections, embedded and with Redis, against plain express and
 *   http-proxy-middleware with a keep-alive agent of 256 sockets. The ratio is the median of the rounds' own ratios.
 * - Redis: CPU of the server per call, by the server's own count (`INFO cpu`), all commands of a call; what it uses while
 *   nobody calls is taken out. One bucket at 1 and 64 connections, and 1,000 workspaces over 100 buckets at 64.
 * - latency: what the gateway itself adds to 99 of 100 calls, by its own histogram, embedded and with Redis; beside it what as many
 *   round trips to the same Redis as a call takes need by themselves.
 *
 * With `--replicas=<numbers, by comma>` it measures replicas that share one upstream instead (`cost-replicas.ts`).
 *
 * Redis, upstream, proxies and this client share the machine. Absolute figures belong to it; ratios carry over.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createKey } from '../src/cli/keys.ts';
import { record } from '../scripts/nightly/figures.ts';
import { measureReplicas, type Copy } from './cost-replicas.ts';
import { cpuMs } from './gateway.ts';
import { startMeasured, type MeasuredRedis } from './measured-redis.ts';
import { median, pairedRatio } from './paired.ts';
import { endProxies, load, startGateway, startPlain, startUpstream } from './proxies.ts';

const rounds = Number(process.env['ROUNDS'] ?? 7);
const calls = Number(process.env['CALLS'] ?? 3_000);
/** Each proxy's code is compiled by then, in the yardstick's process as in the gateways': a process settles after tens of thousands of calls. */
const warmUpCalls = Number(process.env['WARMUP'] ?? 40_000);
const folder = mkdtempSync(join(tmpdir(), 'sluice-cost-'));

/** Configuration of `workspaces` workspaces, every tenth with a credential of its own (and so a bucket). */
function configOf(name: string, origin: string, workspaces: number, redis: MeasuredRedis | null) {
  const keys = Array.from({ length: workspaces }, () => createKey());
  const path = join(mkdtempSync(join(folder, 'gateway-')), `${name}.yaml`);
  const lines = keys.map(
    ({ hash }, n) => `  w${n}: { keys: ["${hash}"], credentials: { api: "Bearer c${Math.floor(n / 10)}" } }`,
  );
  writeFileSync(
    path,
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, maxEventLoopDelayMs: 60000 }
log: { level: info, sampleSuccesses: 0 }
${redis === null ? '' : `redis: { url: "${redis.url}" }\nprivacy: { labelKey: "${randomBytes(32).toString('base64')}" }\n`}upstreams:
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

/** What the rounds of a row came to, per call. */
interface Figures {
  readonly calls: number;
  readonly cpuUs: number[];
  readonly redisUs: number[];
  readonly rate: number[];
}

interface Row extends Figures {
  readonly name: string;
  readonly port: number;
  readonly adminPort: number;
  readonly pid: number;
  readonly path: string;
  readonly keys: readonly string[];
  readonly connections: number;
  readonly redis: MeasuredRedis | null;
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
 * histogram that holds so many. {@link pace} calls a second.
 */
async function latency({ adminPort, port, path, keys }: Row): Promise<string> {
  const count = 2_000;
  const headers = () => ({ authorization: `Bearer ${keys[0] ?? ''}` });
  const before = await overheads(adminPort);
  await load({ ports: [port], path, headers, calls: count, pace: { perSecond: pace } });
  for (const [bound, total] of await overheads(adminPort))
    if (total - (before.get(bound) ?? 0) >= count * 0.99) return `${Number(bound) * 1000} ms`;
  return 'more than the largest bound';
}

/** Round trips of a call before it is sent and after its response. */
const roundTrips = 3;

/** 99 of 100 times {@link roundTrips} PINGs one after the other, at {@link pace}, took at most so long, from this process alone. Milliseconds. */
async function pingsMs({ client }: MeasuredRedis): Promise<number> {
  const took: number[] = [];
  const startedAt = performance.now();
  for (let n = 0; n < 2_000; n += 1) {
    const waitMs = startedAt + (n * 1_000) / pace - performance.now();
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
    const from = performance.now();
    for (let trip = 0; trip < roundTrips; trip += 1) await client.ping();
    took.push(performance.now() - from);
  }
  return took.toSorted((a, b) => a - b)[Math.floor(took.length * 0.99)] ?? NaN;
}

async function round(row: Row, count: number, idleUsPerMs: number): Promise<void> {
  const { port, path, keys, connections, redis } = row;
  const headers = (n: number) => ({ authorization: `Bearer ${keys[n % keys.length] ?? ''}` });
  const cpuBefore = cpuMs(row.pid);
  const redisBefore = (await redis?.cpuUs()) ?? 0;
  const ms = await load({ ports: [port], path, headers, calls: count, pace: { connections } });
  const redisAfter = (await redis?.cpuUs()) ?? 0;
  row.cpuUs.push(((cpuMs(row.pid) - cpuBefore) * 1000) / count);
  row.redisUs.push((redisAfter - redisBefore - idleUsPerMs * ms) / count);
  row.rate.push((count * 1000) / ms);
}

const rowOf = (
  name: string,
  of: Omit<Row, 'name' | 'connections' | keyof Figures>,
  connections: number,
): Row => ({
  name,
  ...of,
  connections,
  calls: connections === 1 ? Math.ceil(calls / 4) : calls,
  cpuUs: [],
  redisUs: [],
  rate: [],
});

/** What each copy is measured with. `cwd`: its folder. */
async function rowsOf(origin: string, redis: MeasuredRedis, copy: Copy): Promise<readonly Row[]> {
  const path = `/proxy?target=${encodeURIComponent(`${origin}/v1/things?a=b`)}`;
  const gateway = async (name: string, workspaces: number, its: MeasuredRedis | null) => {
    const config = configOf(name, origin, workspaces, its);
    return { ...(await startGateway(config.path, copy)), path, keys: config.keys, redis: its };
  };
  const shared = await gateway('shared', 1, redis);
  return [
    rowOf('embedded, 64 connections', await gateway('embedded', 1, null), 64),
    rowOf('Redis, one bucket, 64 connections', shared, 64),
    rowOf('Redis, one bucket, 1 connection', shared, 1),
    rowOf(
      'Redis, 1,000 workspaces over 100 buckets, 64 connections',
      await gateway('many', 1_000, redis),
      64,
    ),
  ];
}

const { values: flags } = parseArgs({
  options: { replicas: { type: 'string' } },
});
try {
  const copies = copiesToMeasure();
  if (flags.replicas === undefined) await measureOne(copies);
  else await measureReplicas(folder, flags.replicas.split(',').map(Number), copies);
} finally {
  rmSync(folder, { recursive: true });
}

/** The first is the one that is measured, a second one is what it is compared with. */
function copiesToMeasure(): [Copy, ...Copy[]] {
  const cwd = process.cwd();
  const before = process.env['BEFORE'];
  if (before === undefined) return [{ name: '', cwd, env: {} }];
  return [
    { name: 'now', cwd, env: {} },
    { name: 'before', cwd: before, env: {} },
  ];
}

/** One replica of each kind. */
async function measureOne([copy, other]: readonly [Copy, ...Copy[]]): Promise<void> {
  const servers: MeasuredRedis[] = [];
  try {
    const redis = await startMeasured();
    servers.push(redis);
    const upstream = await startUpstream();
    const origin = `http://127.0.0.1:${upstream.port}`;
    const yardstick = {
      ...(await startPlain(upstream.port)),
      path: '/v1/things?a=b',
      keys: [''],
      redis: null,
    };
    const plain = rowOf('plain express + http-proxy-middleware, 64 connections', yardstick, 64);
    const now = await rowsOf(origin, redis, copy);
    const before: Row[] = [];
    if (other !== undefined) {
      const its = await startMeasured();
      servers.push(its);
      before.push(...(await rowsOf(origin, its, other)));
    }
    const rows = [plain, ...now.flatMap((row, at) => [row, ...before.slice(at, at + 1)])];
    for (const row of rows) await round({ ...row, cpuUs: [], redisUs: [], rate: [] }, warmUpCalls, 0);
    const idle = await idleUse(servers);
    for (let n = 0; n < rounds; n += 1)
      for (const row of n % 2 === 0 ? rows : rows.toReversed())
        await round(row, row.calls, (row.redis && idle.get(row.redis)) ?? 0);
    console.log(`${rounds} interleaved rounds of ${calls} calls, medians, Node ${process.versions.node}`);
    print([plain, ...now], plain);
    for (const row of now) leave(row, plain);
    console.log(
      `  Redis while nobody calls: ${((idle.get(redis) ?? 0) * 1000).toFixed(0)} µs of CPU a second, taken out above`,
    );
    if (other !== undefined) {
      console.log(`\nthe copy to compare with: ${other.name}`);
      print(before, plain);
      console.log(`\n${copy.name}, as a part of that copy: medians of the ratios of the rounds`);
      for (const [at, row] of now.entries()) compare(row, before[at]);
      console.log();
    }
    for (const row of now.slice(0, 2))
      console.log(`  ${row.name} at ${pace} calls/s: p99 of the time added at most ${await latency(row)}`);
    console.log(
      `  ${roundTrips} PINGs of that Redis in turn, nothing else: p99 ${(await pingsMs(redis)).toFixed(1)} ms`,
    );
  } finally {
    endProxies();
    for (const server of servers) await server.stop();
  }
}

/** `µs` of CPU per millisecond that each server uses while nobody calls. */
async function idleUse(measured: readonly MeasuredRedis[]): Promise<ReadonlyMap<MeasuredRedis, number>> {
  const from = await Promise.all(measured.map((one) => one.cpuUs()));
  await new Promise((resolve) => setTimeout(resolve, 3_000));
  const to = await Promise.all(measured.map((one) => one.cpuUs()));
  return new Map(measured.map((one, at) => [one, ((to[at] ?? NaN) - (from[at] ?? NaN)) / 3_000]));
}

function print(rows: readonly Row[], plain: Row): void {
  for (const row of rows) {
    const ratio = pairedRatio(row.cpuUs, plain.cpuUs);
    const us = (values: readonly number[]): string => `${median(values).toFixed(0).padStart(5)} µs`;
    const gateway = `${us(row.cpuUs)} CPU${row.connections === 64 ? ` (${ratio.toFixed(2)} x plain)` : ''.padEnd(15)}`;
    const inRedis = row.redis === null ? '' : `  ${us(row.redisUs)} in Redis`;
    console.log(
      `  ${row.name.padEnd(58)} ${gateway}  ${median(row.rate).toFixed(0).padStart(5)} calls/s${inRedis}`,
    );
  }
}

/** For the nightly run: absolute times belong to the machine, ratios to the code. */
function leave({ name, connections, cpuUs, redisUs, redis }: Row, plain: Row): void {
  if (connections === plain.connections)
    record({ name: `CPU of the gateway: ${name}`, value: pairedRatio(cpuUs, plain.cpuUs), unit: '× plain' });
  record({ name: `CPU of the gateway a call: ${name}`, value: median(cpuUs), unit: 'µs' });
  if (redis !== null) record({ name: `CPU of Redis a call: ${name}`, value: median(redisUs), unit: 'µs' });
}

function compare(row: Row, before: Row | undefined): void {
  if (before === undefined) return;
  const inRedis =
    row.redis === null ? '' : `, CPU of Redis ${pairedRatio(row.redisUs, before.redisUs).toFixed(2)}`;
  console.log(
    `  ${row.name.padEnd(58)} CPU of the gateway ${pairedRatio(row.cpuUs, before.cpuUs).toFixed(2)}${inRedis}`,
  );
}
