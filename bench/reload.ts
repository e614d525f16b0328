/**
 * How long a reload of many workspaces keeps calls waiting: a gateway process serves a steady stream of calls while its
 * configuration changes. `node bench/reload.ts [workspaces …]`, 10,000 and 20,000 without arguments.
 *
 * The block is looked at from inside the process: a timer of 1 ms notes how long it was not called, and how much of that
 * the main thread computed, by the scheduler's own count. On a busy machine the second is the figure to compare, because
 * the first contains the time in which the process was not given a core.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { writeConfig } from './gateway.ts';

const sizes = process.argv.length > 2 ? process.argv.slice(2).map(Number) : [10_000, 20_000];
const rounds = 7;
/** Calls on their way at a time. */
const connections = 4;

/** Runs in the gateway's process: tells the longest block since it was asked last. */
const probe = `
import { readFileSync } from 'node:fs';
const cpuMs = () => Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1e6;
let last = performance.now(), lastCpu = cpuMs(), longest = 0, maxCpu = 0;
setInterval(() => {
  const now = performance.now(), cpu = cpuMs();
  longest = Math.max(longest, now - last);
  maxCpu = Math.max(maxCpu, cpu - lastCpu);
  [last, lastCpu] = [now, cpu];
}, 1).unref();
process.on('SIGUSR2', () => {
  console.log(JSON.stringify({ maxBlockMs: longest, maxCpuMs: maxCpu, rss: process.memoryUsage().rss }));
  longest = maxCpu = 0;
});`;

interface Sample {
  readonly maxBlockMs: number;
  readonly maxCpuMs: number;
  readonly rss: number;
}

interface Round extends Sample {
  /** From the signal to the line of the log. */
  readonly tookMs: number;
  readonly calls: number;
  readonly slowestCallMs: number;
}

const upstream = http.createServer((request, response) => {
  request.resume();
  response.end('{}');
});
await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
const address = upstream.address();
if (address === null || typeof address === 'string') throw new Error('no port');
const origin = `http://127.0.0.1:${address.port}`;

const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

/** Workspaces as they are in practice: two keys while one is rotated, an own ceiling, the upstream named. */
function workspaces(count: number): string {
  const hashOf = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;
  return Array.from({ length: count }, (_, n) =>
    [
      `  workspace-${n}:`,
      `    keys: [{ hash: "${hashOf(`a${n}`)}" }, { hash: "${hashOf(`b${n}`)}", expires: 2099-01-01T00:00:00Z }]`,
      '    upstreams: [api]',
      `    requestsPerMinute: { api: ${100 + (n % 400)} }`,
      `    weight: ${1 + (n % 3)}`,
      '',
    ].join('\n'),
  ).join('');
}

async function measure(count: number): Promise<readonly Round[]> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-reload-'));
  const limits = ['kind: generic', 'limits: { requestsPerMinute: 1000000, requestsPerDay: none }'];
  const { config, key } = writeConfig(folder, origin, limits);
  appendFileSync(config, workspaces(count));
  const text = readFileSync(config, 'utf8');
  writeFileSync(join(folder, 'probe.mjs'), probe);
  const gateway = spawn(
    process.execPath,
    ['--import', join(folder, 'probe.mjs'), 'src/main.ts', 'serve', '--config', config],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const listeners = new Set<(line: string) => void>();
  createInterface({ input: gateway.stdout }).on('line', (line) => {
    for (const listener of listeners) listener(line);
  });
  const reported = (words: string): Promise<string> =>
    new Promise((resolve) => {
      const listener = (line: string): void => {
        if (!line.includes(words)) return;
        listeners.delete(listener);
        resolve(line);
      };
      listeners.add(listener);
    });
  const sample = async (): Promise<Sample> => {
    const line = reported('maxBlockMs');
    gateway.kill('SIGUSR2');
    return JSON.parse(await line) as Sample;
  };
  const { port } = JSON.parse(await reported('"serving"')) as { port: number };

  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  const durations: number[] = [];
  let ended = false;
  const call = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const from = performance.now();
      const headers = { authorization: `Bearer ${key}` };
      http
        .get({ host: '127.0.0.1', port, path: '/via/api/x', agent, headers }, (response) => {
          if (response.statusCode !== 200)
            reject(new Error(`a call was answered with ${response.statusCode}`));
          response.resume().once('end', () => {
            durations.push(performance.now() - from);
            resolve();
          });
        })
        .once('error', reject);
    });
  // A pause between calls: the question is how long one is kept, not how many fit.
  const caller = async (): Promise<void> => {
    while (!ended) {
      await call();
      await pause(2);
    }
  };
  const callers = Array.from({ length: connections }, caller);
  const found: Round[] = [];
  try {
    await pause(2_000);
    for (let round = 0; round < rounds; round += 1) {
      writeFileSync(config, text.replaceAll('api: 100', `api: ${90 - round}`));
      await sample();
      durations.length = 0;
      const reloaded = reported('configuration reloaded');
      const from = performance.now();
      gateway.kill('SIGHUP');
      await reloaded;
      const tookMs = performance.now() - from;
      // What follows a reload (old settings are collected) counts as well.
      await pause(500);
      const sampled = await sample();
      found.push({ ...sampled, tookMs, calls: durations.length, slowestCallMs: Math.max(...durations) });
      // The change of the file is noticed too, and read once more.
      await pause(4_000);
    }
  } finally {
    ended = true;
    await Promise.allSettled(callers);
    agent.destroy();
    gateway.kill('SIGKILL');
    rmSync(folder, { recursive: true });
  }
  return found;
}

try {
  for (const count of sizes) {
    const found = await measure(count);
    const line = (name: string, read: (round: Round) => number, digits = 1): string =>
      `${name} ${median(found.map(read)).toFixed(digits)} (max ${Math.max(...found.map(read)).toFixed(digits)})`;
    console.log(`${count} workspaces, ${rounds} reloads, Node ${process.versions.node}`);
    console.log(
      `  ${[
        line('longest block, computed, ms:', ({ maxCpuMs }) => maxCpuMs),
        line('by the clock:', ({ maxBlockMs }) => maxBlockMs),
        line('slowest call, ms:', ({ slowestCallMs }) => slowestCallMs),
        line('reload took, ms:', ({ tookMs }) => tookMs, 0),
        line('calls meanwhile:', ({ calls }) => calls, 0),
        line('RSS after, MiB:', ({ rss }) => rss / 1_048_576, 0),
      ].join('; ')}`,
    );
  }
} finally {
  upstream.closeAllConnections();
  upstream.close();
}
