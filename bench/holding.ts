/**
 * Processes that hold requests, and the memory they take: a gateway whose bucket its upstream has closed, and a plain
 * Express application that never answers. Each request is a POST of 1 KB on a connection of its own.
 *
 * Owns: starting and ending them, holding requests, reading their memory. RSS is what the system gives, before a collection
 * and after one; heap and buffers are what is reachable, after one.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as pause } from 'node:timers/promises';
import { writeConfig } from './gateway.ts';

const bodyBytes = 1_024;
/** The bucket stays closed for longer than any measurement, seconds. */
const closedSeconds = 300;

/** Bytes. */
export interface Memory {
  readonly rss: number;
  readonly rssAfter: number;
  readonly heapUsed: number;
  readonly external: number;
}

export interface Holder {
  readonly pid: number;
  /** How many requests are held. */
  readonly held: () => number;
  /** Holds requests until there are `count`; resolves when the process holds them all. */
  readonly holdUntil: (count: number) => Promise<void>;
  readonly memory: () => Promise<Memory>;
  /** Ends the process and every request. */
  readonly end: () => Promise<void>;
}

/** Runs in the measured process: tells its memory whenever it is asked to. */
const probe = `
process.on('SIGUSR2', () => {
  const { rss } = process.memoryUsage();
  globalThis.gc();
  setTimeout(() => {
    globalThis.gc();
    const { rss: rssAfter, heapUsed, external } = process.memoryUsage();
    console.log(JSON.stringify({ rss, rssAfter, heapUsed, external }));
  }, 200);
});
`;

const plain = `
import express from 'express';
const app = express();
const held = [];
app.get('/held', (request, response) => response.send(String(held.length)));
app.use((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk)).on('end', () => held.push(chunks));
});
const server = app.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));
`;

interface Launch {
  readonly args: readonly string[];
  readonly fields: http.OutgoingHttpHeaders;
  /** Where the process tells how many requests it holds. */
  readonly waiting: (ports: PortNumbers) => Promise<number>;
  readonly onEnd: () => void;
}

interface PortNumbers {
  readonly port: number;
  readonly adminPort: number;
}

/** A gateway that holds every call but the first. `flags` are Node's. */
export async function startGatewayHolder(flags: readonly string[]): Promise<Holder> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-held-'));
  // Answers the first call, and tells everybody else to come again much later.
  let asked = 0;
  const upstream = http.createServer((request, response) => {
    asked += 1;
    request.resume();
    // Connections that end later would count as memory that held calls give back.
    response.setHeader('connection', 'close');
    if (asked > 1) response.writeHead(429, { 'retry-after': String(closedSeconds) });
    response.end();
  });
  await once(upstream.listen(0, '127.0.0.1'), 'listening');
  const { port: upstreamPort } = upstream.address() as AddressInfo;
  const { config, key } = writeConfig(folder, `http://127.0.0.1:${upstreamPort}`, [
    'kind: generic',
    'limits: { requestsPerMinute: 1000000, requestsPerDay: none, maxQueued: 100000 }',
  ]);
  writeFileSync(join(folder, 'probe.mjs'), probe);
  return launch({
    args: [...flags, '--import', join(folder, 'probe.mjs'), 'src/main.ts', 'serve', '--config', config],
    fields: { authorization: `Bearer ${key}`, prefer: 'wait=600' },
    waiting: async ({ adminPort }) => {
      const metrics = await (await fetch(`http://127.0.0.1:${adminPort}/metrics`)).text();
      return Number(/^sluice_queue_depth\{[^}]*\} (\d+)$/m.exec(metrics)?.[1] ?? 0);
    },
    onEnd: () => {
      upstream.close();
      upstream.closeAllConnections();
      rmSync(folder, { recursive: true });
    },
  });
}

/** The yardstick: Express, the request and its body, and nothing else. */
export const startPlainHolder = (flags: readonly string[]): Promise<Holder> =>
  launch({
    args: [...flags, '--input-type=module', '--eval', probe + plain],
    fields: { authorization: `Bearer slc_${'x'.repeat(54)}`, prefer: 'wait=600' },
    waiting: async ({ port }) => Number(await (await fetch(`http://127.0.0.1:${port}/held`)).text()),
    onEnd: () => {},
  });

async function launch({ args, fields, waiting, onEnd }: Launch): Promise<Holder> {
  const child = spawn(process.execPath, ['--expose-gc', ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  /** The next line of the output that has this member. */
  const reported = async <T>(member: keyof T & string): Promise<T> => {
    for (;;) {
      const { value, done } = await lines.next();
      if (done === true) throw new Error('the measured process ended');
      if (value.startsWith('{') && value.includes(`"${member}":`)) return JSON.parse(value) as T;
    }
  };
  const ports = await reported<PortNumbers>('port');
  const open: http.ClientRequest[] = [];
  const answered: string[] = [];
  const body = Buffer.alloc(bodyBytes, 'x');
  const headers = { ...fields, 'content-length': body.length };
  const call = (): http.ClientRequest => {
    const { port } = ports;
    const path = '/via/api/v1/things';
    const request = http.request({ host: '127.0.0.1', port, method: 'POST', path, headers, agent: false });
    return request
      .on('error', () => {})
      .on('response', (response) => {
        answered.push(`${response.statusCode} ${String(response.headers['retry-after'])}`);
        response.resume();
      });
  };
  return {
    pid: child.pid ?? 0,
    held: () => open.length,
    async holdUntil(count) {
      // The first one may be answered; a few hundred connect at a time.
      while (open.length < count) {
        for (let n = 0; n < 200 && open.length < count; n += 1) {
          const request = call();
          request.end(body);
          open.push(request);
        }
        while ((await waiting(ports)) < open.length - 1) {
          if (answered.length > 1)
            throw new Error(`requests that should be held were answered: ${answered.slice(0, 5).join(', ')}`);
          await pause(10);
        }
      }
    },
    memory: () => {
      child.kill('SIGUSR2');
      return reported<Memory>('rssAfter');
    },
    end: async () => {
      for (const request of open) request.destroy();
      child.stdout.destroy();
      const gone = once(child, 'exit');
      child.kill('SIGKILL');
      await gone;
      onEnd();
    },
  };
}
