/**
 * The two bursts of the main job in real time, with three processes: simulator, gateway, client.
 *
 *   node bench/burst.ts [chat] [commerce]
 *
 * - chat: 800 chats in 2 s with the OpenAI SDK on 600 requests/min, bucket full at the start. The bucket holds 600 and
 *   drains 10 a second, so the 800th cannot be admitted before 20.0 s after the first: that is the optimum.
 * - commerce: 60 REST calls at once from one workspace on 40 + 2/s: the 60th not before 10.0 s.
 *
 * Every figure but "client" and "out of order" comes from the simulator's log. Out of order: calls that the gateway sent
 * behind one that had arrived later. At the upstream there are as many connections as calls in flight, and it reads
 * them as it likes: that order is shown too, but nobody can promise it. Exit code 1 when a promise is broken.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { createAdminRestApiClient } from '@shopify/admin-api-client';
import OpenAI from 'openai';
import type { LogEntry } from '../simulators/log.ts';
import { writeConfig } from './gateway.ts';
import type { Orders } from './order-probe.ts';

interface Burst {
  readonly name: string;
  readonly simulator: 'language-model' | 'commerce';
  readonly simulatorConfig: object;
  /** Lines of YAML of the upstream. */
  readonly upstream: readonly string[];
  readonly calls: number;
  /** All calls are started within this time, evenly. Milliseconds. */
  readonly overMs: number;
  readonly optimumMs: number;
  readonly maxInFlight: number;
  send(gateway: string, key: string): (at: number) => Promise<unknown>;
}

const root = new URL('..', import.meta.url).pathname;

const chat: Burst = {
  name: 'chat',
  simulator: 'language-model',
  simulatorConfig: { models: { 'gpt-4o': { rpm: 600, tpm: 10_000_000 } } },
  upstream: ['kind: language-model', 'credential: { header: authorization, value: "Bearer sk-sim" }'],
  calls: 800,
  overMs: 2_000,
  optimumMs: 20_000,
  maxInFlight: Infinity,
  send(gateway, apiKey) {
    const client = new OpenAI({ apiKey, baseURL: `${gateway}/via/api/v1` });
    return (at) =>
      client.chat.completions.create(
        { model: 'gpt-4o', messages: [{ role: 'user', content: `Summarise order ${at} in one line.` }] },
        { headers: { 'x-nonce': String(at) } },
      );
  },
};

const commerce: Burst = {
  name: 'commerce',
  simulator: 'commerce',
  simulatorConfig: {},
  upstream: ['kind: commerce', 'credential: { header: x-shopify-access-token, value: shpat_sim }'],
  calls: 60,
  overMs: 0,
  optimumMs: 10_000,
  maxInFlight: 1,
  send(gateway, accessToken) {
    const client = createAdminRestApiClient({
      storeDomain: 'acme.myshopify.com',
      apiVersion: '2026-10',
      accessToken,
      customFetchApi: (url, init) => {
        const { pathname, search } = new URL(String(url));
        return fetch(`${gateway}/via/api${pathname}${search}`, init);
      },
    });
    return async (at) => {
      const response = await client.get('orders', { searchParams: { limit: 5 }, headers: { 'X-Nonce': at } });
      await response.text();
      if (!response.ok) throw new Error(`status ${response.status}`);
    };
  },
};

/** Starts a process of this project and gives what its first fitting line of output says. */
function started(
  args: readonly string[],
  found: (line: Record<string, string | number>) => string | number | undefined,
): Promise<[ChildProcess, string]> {
  const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'inherit', 'ipc'] });
  if (child.stdout === null) throw new Error('no output to read');
  const lines = createInterface({ input: child.stdout });
  return new Promise((resolve, reject) => {
    lines.on('line', (line) => {
      const value = found(JSON.parse(line));
      if (value !== undefined) resolve([child, String(value)]);
    });
    child.once('exit', (code) => reject(new Error(`${args.join(' ')} ended with ${code}`)));
  });
}

interface Figures {
  readonly calls: number;
  readonly failed: number;
  readonly upstreamCalls: number;
  readonly upstream429s: number;
  readonly makespanMs: number;
  readonly optimumMs: number;
  readonly ratio: number;
  readonly inversions: number;
  readonly upstreamInversions: number;
  readonly inFlight: number;
  readonly clientMs: number;
}

async function run(burst: Burst): Promise<Figures> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-burst-'));
  const children: ChildProcess[] = [];
  try {
    const [simulator, upstream] = await started(
      ['simulators/main.ts', burst.simulator, '--config', JSON.stringify(burst.simulatorConfig)],
      ({ url }) => url,
    );
    children.push(simulator);
    const { config, key } = writeConfig(folder, upstream, burst.upstream, [
      'requestsPerMinute: { api: 6000 }',
    ]);
    const [gateway, port] = await started(
      ['--import', './bench/order-probe.ts', 'src/main.ts', 'serve', '--config', config],
      ({ message, port: listening }) => (message === 'serving' ? listening : undefined),
    );
    children.push(gateway);
    const send = burst.send(`http://127.0.0.1:${port}`, key);
    const startedAt = performance.now();
    const failures: unknown[] = [];
    const sent = Array.from({ length: burst.calls }, async (_, at) => {
      await new Promise((resolve) => setTimeout(resolve, (at * burst.overMs) / burst.calls));
      await send(at).catch((failure: unknown) => failures.push(failure));
    });
    await Promise.all(sent);
    const clientMs = performance.now() - startedAt;
    const response = await fetch(`${upstream}/__sim/log`);
    // Our own simulator wrote it.
    const log = (await response.json()) as readonly LogEntry[];
    for (const failure of failures.slice(0, 3)) console.error(String(failure));
    for (const { t, nonce, waitMs, usedBefore } of log.filter(({ status }) => status === 429)) {
      const at = (t - (log[0]?.t ?? 0)).toFixed(1);
      console.error(
        `refused at ${at} ms: call ${nonce}, ${waitMs} ms too early, ${JSON.stringify(usedBefore)}`,
      );
    }
    gateway.send('orders');
    const [orders] = (await once(gateway, 'message')) as [Orders];
    const position = new Map(orders.arrived.map((nonce, at) => [nonce, at]));
    const inversions = (nonces: readonly number[]): number =>
      behindLater(nonces.map((nonce) => position.get(nonce) ?? -1));
    const makespanMs = Math.max(...log.map(({ t }) => t)) - Math.min(...log.map(({ arrivedT }) => arrivedT));
    return {
      calls: burst.calls,
      failed: failures.length,
      upstreamCalls: log.length,
      upstream429s: log.filter(({ status }) => status === 429).length,
      makespanMs,
      optimumMs: burst.optimumMs,
      ratio: makespanMs / burst.optimumMs,
      inversions: inversions(orders.sent),
      upstreamInversions: inversions(log.map(({ nonce }) => Number(nonce))),
      inFlight: Math.max(...log.map(({ inFlight }) => inFlight.scope)),
      clientMs,
    };
  } finally {
    for (const child of children) child.kill('SIGKILL');
    rmSync(folder, { recursive: true });
  }
}

/** Calls that came behind a later one. */
function behindLater(positions: readonly number[]): number {
  let latest = -1;
  let count = 0;
  for (const position of positions) {
    if (position < latest) count += 1;
    else latest = position;
  }
  return count;
}

const bursts = [chat, commerce];
const asked = process.argv.slice(2);
const chosen = asked.length === 0 ? bursts : bursts.filter(({ name }) => asked.includes(name));
const table: Record<string, object> = {};
for (const burst of chosen) {
  const figures = await run(burst);
  table[burst.name] = {
    calls: figures.calls,
    failed: figures.failed,
    'at upstream': figures.upstreamCalls,
    'upstream 429': figures.upstream429s,
    'makespan s': (figures.makespanMs / 1000).toFixed(3),
    'optimum s': (figures.optimumMs / 1000).toFixed(3),
    ratio: figures.ratio.toFixed(4),
    'out of order': figures.inversions,
    'as read upstream': figures.upstreamInversions,
    'in flight': figures.inFlight,
    'client s': (figures.clientMs / 1000).toFixed(3),
  };
  const kept =
    figures.failed === 0 &&
    figures.upstream429s === 0 &&
    figures.ratio <= 1.02 &&
    figures.inversions === 0 &&
    figures.inFlight <= burst.maxInFlight;
  if (!kept) process.exitCode = 1;
}
console.log(
  `Node ${process.version}, ${new Date().toISOString().slice(0, 10)}, one machine, three processes`,
);
console.table(table);
