/**
 * What Sluice costs per call, next to the same libraries used plainly. Three processes: an upstream that answers 1 KB of
 * JSON, the proxy under test, this load generator (64 connections, closed loop). Prints CPU of the proxy per call and
 * calls per second. Rounds are short and interleaved (A B, B A, …), because the machine is seldom quiet: the ratio is the
 * median of the rounds' own ratios. CPU is what the scheduler gave to all threads of the proxy, collectors included.
 * Absolute figures belong to the machine, the ratio is what carries over.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { cpuMs, nodeFlags, writeConfig } from './gateway.ts';

const rounds = Number(process.env['ROUNDS'] ?? 11);
const callsPerRun = Number(process.env['CALLS'] ?? 4_000);
const warmUpCalls = 10_000;
const connections = Number(process.env['CONNECTIONS'] ?? 64);
const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'));

const upstreamSource = `
import http from 'node:http';
const body = JSON.stringify({ data: 'x'.repeat(1000) });
const server = http.createServer((request, response) => {
  request.resume();
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': body.length });
  response.end(body);
});
server.keepAliveTimeout = 60000;
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

const plainSource = `
import express from 'express';
import http from 'node:http';
import { createProxyMiddleware } from 'http-proxy-middleware';
const app = express();
const agent = new http.Agent({ keepAlive: true, maxSockets: 512 });
app.use('/proxy', createProxyMiddleware({
  target: 'http://127.0.0.1:1', agent, changeOrigin: true,
  router: (request) => new URL(request.query.target).origin,
  pathRewrite: (_path, request) => { const url = new URL(request.query.target); return url.pathname + url.search; },
}));
const server = app.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

interface Started {
  readonly child: ChildProcess;
  readonly port: number;
}

async function start(args: readonly string[]): Promise<Started> {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], cwd: process.cwd() });
  for await (const line of createInterface({ input: child.stdout })) {
    const reported = JSON.parse(line) as { port?: number };
    if (typeof reported.port === 'number') {
      child.stdout.resume();
      return { child, port: reported.port };
    }
  }
  throw new Error(`${args.join(' ')} ended before it listened`);
}

async function load(
  port: number,
  path: string,
  headers: Record<string, string>,
  calls: number,
): Promise<number> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  let left = calls;
  let failed = 0;
  const one = (): Promise<void> =>
    new Promise((resolve) => {
      http
        .get({ host: '127.0.0.1', port, path, headers, agent }, (response) => {
          if (response.statusCode !== 200) failed += 1;
          response.resume().once('end', resolve);
        })
        .once('error', () => {
          failed += 1;
          resolve();
        });
    });
  const startedAt = performance.now();
  const worker = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await one();
    }
  };
  await Promise.all(Array.from({ length: connections }, worker));
  agent.destroy();
  if (failed > 0) throw new Error(`${failed} of ${calls} calls failed`);
  return performance.now() - startedAt;
}

writeFileSync(join(folder, 'upstream.mjs'), upstreamSource);
// Inside the project, so that it finds the libraries.
const plainFile = 'bench/.plain.tmp.mjs';
writeFileSync(plainFile, plainSource);
const upstream = await start([join(folder, 'upstream.mjs')]);
const { config, key } = writeConfig(folder, `http://127.0.0.1:${upstream.port}`, [
  `kind: ${process.env['KIND'] ?? 'generic'}`,
  'limits: { requestsPerMinute: 100000000, requestsPerDay: none }',
]);
const sluice = await start([...nodeFlags, 'src/main.ts', 'serve', '--config', config]);
const plain = await start([plainFile]);
rmSync(plainFile);
const path = `/proxy?target=${encodeURIComponent(`http://127.0.0.1:${upstream.port}/v1/things?a=b`)}`;
const proxies = [
  { name: 'express + http-proxy-middleware, plain', ...plain },
  { name: 'sluice (auth, ceiling, bucket, metrics)', ...sluice },
];
const headers = { authorization: `Bearer ${key}` };
const seen = proxies.map(() => ({ cpu: [] as number[], rate: [] as number[] }));
try {
  for (const { port } of proxies) await load(port, path, headers, warmUpCalls);
  for (let round = 0; round < rounds; round += 1) {
    const order = proxies.map((_, at) => at);
    for (const at of round % 2 === 0 ? order : order.reverse()) {
      const { port, child } = proxies[at] ?? plain;
      const before = cpuMs(child.pid ?? 0);
      const ms = await load(port, path, headers, callsPerRun);
      seen[at]?.cpu.push(((cpuMs(child.pid ?? 0) - before) * 1000) / callsPerRun);
      seen[at]?.rate.push((callsPerRun * 1000) / ms);
    }
  }
} finally {
  for (const { child } of [upstream, sluice, plain]) child.kill('SIGKILL');
}
function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return ((sorted[(sorted.length - 1) >> 1] ?? NaN) + (sorted[sorted.length >> 1] ?? NaN)) / 2;
}
console.log(
  `${rounds} interleaved rounds of ${callsPerRun} calls, ${connections} connections, medians, Node ${process.versions.node}`,
);
proxies.forEach(({ name }, at) => {
  const { cpu, rate } = seen[at] ?? { cpu: [], rate: [] };
  console.log(
    `  ${name.padEnd(44)} ${median(cpu).toFixed(0).padStart(5)} µs CPU per call  ${median(rate).toFixed(0).padStart(6)} calls/s`,
  );
});
const [before, after] = seen;
const ratios = (after?.cpu ?? []).map((cpu, round) => cpu / (before?.cpu[round] ?? NaN));
console.log(`  ratio ${median(ratios).toFixed(2)}`);
