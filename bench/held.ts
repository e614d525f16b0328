/**
 * What a held call costs: memory and CPU of the gateway process while 2,000 and then 10,000 calls wait for a bucket that
 * their upstream has closed. Each call is a POST of 1 KB on a connection of its own. `node bench/held.ts`.
 *
 * RSS is what the system gives, before a collection and after one; heap and buffers are what is reachable, after one.
 * CPU comes from the scheduler's own count (`/proc/<pid>/task/<tid>/schedstat`), threads of the collector included.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { cpuMs, writeConfig } from './gateway.ts';

const steps = [2_000, 10_000];
const bodyBytes = 1_024;
/** The bucket stays closed for longer than the measurement, seconds. */
const closedSeconds = 300;
const idleMs = 10_000;

interface Memory {
  readonly rss: number;
  readonly rssAfter: number;
  readonly heapUsed: number;
  readonly external: number;
}

/** Runs in the gateway's process: tells its memory whenever it is asked to. */
const probe = `
process.on('SIGUSR2', () => {
  const { rss } = process.memoryUsage();
  globalThis.gc();
  setTimeout(() => {
    globalThis.gc();
    const { rss: rssAfter, heapUsed, external } = process.memoryUsage();
    console.log(JSON.stringify({ rss, rssAfter, heapUsed, external }));
  }, 200);
});`;

const folder = mkdtempSync(join(tmpdir(), 'sluice-held-'));

/** Answers the first call, and tells everybody else to come again much later. */
let asked = 0;
const upstream = http.createServer((request, response) => {
  asked += 1;
  request.resume();
  if (asked > 1) response.writeHead(429, { 'retry-after': String(closedSeconds) });
  response.end();
});
await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
const upstreamPort = portOf(upstream.address());

const { config, key } = writeConfig(folder, `http://127.0.0.1:${upstreamPort}`, [
  'kind: generic',
  'limits: { requestsPerMinute: 1000000, requestsPerDay: none, maxQueued: 100000 }',
]);
writeFileSync(join(folder, 'probe.mjs'), probe);
const gateway = spawn(
  process.execPath,
  ['--expose-gc', '--import', join(folder, 'probe.mjs'), 'src/main.ts', 'serve', '--config', config],
  { stdio: ['ignore', 'pipe', 'inherit'] },
);
const lines = createInterface({ input: gateway.stdout })[Symbol.asyncIterator]();

/** The next line of the gateway's output that has this member. */
async function told<T>(member: keyof T & string): Promise<T> {
  for (;;) {
    const { value, done } = await lines.next();
    if (done === true) throw new Error('the gateway ended');
    if (value.startsWith('{') && value.includes(`"${member}":`)) return JSON.parse(value) as T;
  }
}

function portOf(address: ReturnType<typeof upstream.address>): number {
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}

const pid = gateway.pid ?? 0;

async function memory(): Promise<Memory> {
  gateway.kill('SIGUSR2');
  return told<Memory>('rssAfter');
}

const { port, adminPort } = await told<{ port: number; adminPort: number }>('adminPort');
const body = Buffer.alloc(bodyBytes, 'x');
const held: http.ClientRequest[] = [];

function call(): http.ClientRequest {
  const headers = { authorization: `Bearer ${key}`, prefer: 'wait=600', 'content-length': body.length };
  const request = http.request({
    host: '127.0.0.1',
    port,
    method: 'POST',
    path: '/via/api/v1/things',
    headers,
    agent: false,
  });
  request.end(body);
  return request;
}

const answered = (request: http.ClientRequest): Promise<void> =>
  new Promise((resolve, reject) => {
    request.once('response', (response) => response.resume().once('end', resolve)).once('error', reject);
  });

async function waiting(): Promise<number> {
  const metrics = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text();
  return Number(/^sluice_queue_depth\{[^}]*\} (\d+)$/m.exec(metrics)?.[1] ?? 0);
}

/** Holds calls until `count` wait; a few hundred connect at a time. */
async function holdUntil(count: number): Promise<void> {
  while (held.length < count) {
    for (let n = 0; n < 200 && held.length < count; n += 1) {
      const request = call();
      request.on('error', () => {});
      request.on('response', ({ statusCode }) => {
        throw new Error(`a call that should wait was answered with ${statusCode}`);
      });
      held.push(request);
    }
    while ((await waiting()) < held.length) await pause(10);
  }
}

const kib = (bytes: number): string => (bytes / 1024).toFixed(1).padStart(6);

try {
  await answered(call());
  // Warm: code is compiled and pools are filled before the first look.
  await holdUntil(300);
  await pause(2_000);
  const none = await memory();
  const from = held.length;
  console.log(`Node ${process.versions.node}; with ${from} calls held: RSS ${kib(none.rssAfter)} KiB`);
  let cpuBefore = cpuMs(pid);
  let heldBefore = from;
  for (const step of steps) {
    await holdUntil(step);
    const acceptMs = cpuMs(pid) - cpuBefore;
    const idleFrom = cpuMs(pid);
    await pause(idleMs);
    const idlePercent = ((cpuMs(pid) - idleFrom) / idleMs) * 100;
    const now = await memory();
    const each = (read: (memory: Memory) => number): string =>
      kib((read(now) - read(none)) / (held.length - from));
    console.log(
      `${String(step).padStart(6)} held: per call RSS ${each(({ rss }) => rss)} KiB, ` +
        `${each(({ rssAfter }) => rssAfter)} after a collection, heap ${each(({ heapUsed }) => heapUsed)}, ` +
        `buffers ${each(({ external }) => external)}; ${((acceptMs * 1000) / (held.length - heldBefore)).toFixed(0)} µs ` +
        `CPU to take one in; ${idlePercent.toFixed(1)} % of a core while held`,
    );
    cpuBefore = cpuMs(pid);
    heldBefore = held.length;
  }
} finally {
  for (const request of held) request.destroy();
  gateway.kill('SIGKILL');
  upstream.close();
  upstream.closeAllConnections();
}
