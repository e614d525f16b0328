/**
 * The processes of a cost measurement, each a child of this one: an upstream that answers 1 KB of JSON, the plain
 * yardstick, gateways; and a closed-loop client. Owns starting and ending them by their ids.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import http from 'node:http';
import { createInterface } from 'node:readline';
import { nodeFlags } from './gateway.ts';

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

/** As a user writes it who reads the first page of the documentation, with an agent that keeps connections. */
const plainSource = (upstreamPort: number): string => `
import express from 'express';
import http from 'node:http';
import { createProxyMiddleware } from 'http-proxy-middleware';
const app = express();
const agent = new http.Agent({ keepAlive: true, maxSockets: 256 });
app.use(createProxyMiddleware({ target: 'http://127.0.0.1:${upstreamPort}', changeOrigin: true, agent }));
const server = app.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`;

export interface Started {
  readonly pid: number;
  readonly port: number;
  /** Of a gateway; 0 for other processes. */
  readonly adminPort: number;
}

const children: ChildProcess[] = [];

export const startUpstream = (): Promise<Started> => start(['--input-type=module', '-e', upstreamSource]);
export const startPlain = (upstreamPort: number): Promise<Started> =>
  start(['--input-type=module', '-e', plainSource(upstreamPort)]);
/** `cwd`: folder of the product or of a copy. */
export const startGateway = (config: string, cwd = process.cwd()): Promise<Started> =>
  start([...nodeFlags, 'src/main.ts', 'serve', '--config', config], cwd);

/** Ends what was started here, by process id. */
export function endProxies(): void {
  for (const child of children) child.kill('SIGKILL');
}

/** Resolves with the first port that the process tells in a line of JSON. */
async function start(args: readonly string[], cwd = process.cwd()): Promise<Started> {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], cwd });
  children.push(child);
  for await (const line of createInterface({ input: child.stdout })) {
    const reported = JSON.parse(line) as { port?: number; adminPort?: number };
    if (typeof reported.port !== 'number' || child.pid === undefined) continue;
    child.stdout.resume();
    return { pid: child.pid, port: reported.port, adminPort: reported.adminPort ?? 0 };
  }
  throw new Error(`${args.join(' ').slice(0, 80)} ended before it listened`);
}

export interface Load {
  readonly port: number;
  readonly path: string;
  /** Of call `n`. */
  readonly headers: (n: number) => Readonly<Record<string, string>>;
  readonly calls: number;
  readonly connections: number;
  /** Calls per second; absent = as fast as they are answered. */
  readonly pace?: number;
}

/** Resolves with the milliseconds it took; rejects when a call does not succeed. */
export async function load({ port, path, headers, calls, connections, pace }: Load): Promise<number> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: connections });
  let sent = 0;
  let failed = 0;
  const one = (n: number): Promise<void> =>
    new Promise((resolve) => {
      http
        .get({ host: '127.0.0.1', port, path, headers: headers(n), agent }, (response) => {
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
    while (sent < calls) {
      const n = sent++;
      // By the clock, not after the one before: a call that is late delays no other.
      const waitMs = pace === undefined ? 0 : startedAt + (n * 1000) / pace - performance.now();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      await one(n);
    }
  };
  await Promise.all(Array.from({ length: connections }, worker));
  agent.destroy();
  if (failed > 0) throw new Error(`${failed} of ${calls} calls failed`);
  return performance.now() - startedAt;
}
