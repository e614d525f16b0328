/**
 * The processes of a cost measurement, each a child of this one: an upstream that answers 1 KB of JSON, the plain
 * yardstick, gateways; and a client. Owns starting and ending them by their ids.
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
/** `cwd`: folder of the product or of a copy. `env`: what its environment has beside ours. */
export const startGateway = (
  config: string,
  { cwd, env }: { readonly cwd?: string; readonly env?: Readonly<Record<string, string>> } = {},
): Promise<Started> => start([...nodeFlags, 'src/main.ts', 'serve', '--config', config], cwd, env);

/** Ends what was started here, by process id. */
export function endProxies(): void {
  for (const child of children) child.kill('SIGKILL');
}

/** Resolves with the first port that the process tells in a line of JSON. */
async function start(args: readonly string[], cwd = process.cwd(), more = {}): Promise<Started> {
  const env = { ...process.env, ...more };
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], cwd, env });
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
  /** Where calls go, in turn. */
  readonly ports: readonly number[];
  readonly path: string;
  /** Of call `n`. */
  readonly headers: (n: number) => Readonly<Record<string, string>>;
  readonly calls: number;
  readonly pace: Pace;
}

export type Pace =
  /** As fast as they are answered over so many connections in all (closed loop). */
  | { readonly connections: number }
  /**
   * So many calls a second by the clock: a late response delays no other call (open loop), unless {@link maxUnanswered} are late.
   */
  | { readonly perSecond: number };

/** A machine that stands still for a moment leaves no crowd behind that would be queued, or refused. */
const maxUnanswered = 64;

/** Resolves with the milliseconds it took; rejects when a call does not succeed. */
export async function load({ ports, path, headers, calls, pace }: Load): Promise<number> {
  const agent = new http.Agent({ keepAlive: true });
  let sent = 0;
  const failures = new Map<string, number>();
  const fail = (how: string): void => void failures.set(how, (failures.get(how) ?? 0) + 1);
  const one = (n: number): Promise<void> =>
    new Promise((resolve) => {
      const port = ports[n % ports.length];
      http
        .get({ host: '127.0.0.1', port, path, headers: headers(n), agent }, (response) => {
          if (response.statusCode !== 200)
            fail(`${response.statusCode} ${String(response.headers['sluice-error'] ?? '')}`);
          // A response that breaks off has no end.
          response.resume().once('close', () => {
            if (!response.complete) fail('broken off');
            resolve();
          });
        })
        .once('error', (error) => {
          fail(error.message);
          resolve();
        });
    });
  const startedAt = performance.now();
  if ('connections' in pace) {
    const connection = async (): Promise<void> => {
      while (sent < calls) await one(sent++);
    };
    await Promise.all(Array.from({ length: pace.connections }, connection));
  } else {
    const unanswered = new Set<Promise<unknown>>();
    while (sent < calls) {
      const waitMs = startedAt + (sent * 1000) / pace.perSecond - performance.now();
      if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
      while (unanswered.size >= maxUnanswered) await Promise.race(unanswered);
      const call: Promise<unknown> = one(sent++).then(() => unanswered.delete(call));
      unanswered.add(call);
    }
    await Promise.all(unanswered);
  }
  agent.destroy();
  if (failures.size > 0) {
    const each = [...failures].map(([how, count]) => `${count} × ${how}`);
    throw new Error(`of ${calls} calls failed: ${each.join(', ')}`);
  }
  return performance.now() - startedAt;
}
