/**
 * What being observed costs: CPU per call of a gateway with metrics and 1 % of traces against one that reports to nobody,
 * in alternating rounds on the same machine, so that what else runs there hits both. The promise is at most 8 %. The
 * figure is printed, not judged: a shared machine decides too much of it.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { Agent, createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createKey } from '../../src/cli/keys.ts';
import type { Report } from './report.ts';

const promised = 0.08;
const rounds = 12;
const callsPerRound = 1_500;
const atOnce = 32;

export async function verifyCost(report: Report): Promise<void> {
  const upstream = createServer((incoming, answer) => {
    incoming.resume();
    answer.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}');
  });
  await new Promise<void>((done) => upstream.listen(0, '127.0.0.1', done));
  const origin = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const { key, hash } = createKey();
  const yaml = configuration(origin, hash);
  const env = {
    ...process.env,
    OTEL_EXPORTER_OTLP_ENDPOINT: origin,
    OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.01',
  };
  const child = (how: string): ChildProcess =>
    fork(new URL('cost-child.ts', import.meta.url), [how, yaml], {
      env,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
  const sides = [child('off'), child('on')];
  const agent = new Agent({ keepAlive: true, maxSockets: atOnce });
  try {
    const ports = await Promise.all(sides.map(async (side) => Number((await once(side, 'message'))[0])));
    const spent: number[][] = [[], []];
    // The first rounds warm the compiler up, every call traced: a process that runs for hours has compiled that path too.
    for (let round = -3; round < rounds; round++) {
      for (const side of round % 2 === 0 ? [0, 1] : [1, 0]) {
        const us = await roundOf(sides[side], ports[side] ?? 0, headersOf(key, round < -1), agent);
        if (round >= 0) spent[side]?.push(us);
      }
    }
    const [off, on] = spent.map(median) as [number, number];
    const pairs = (spent[1] ?? []).map((us, i) => us / (spent[0]?.[i] ?? us) - 1);
    const added = median(pairs);
    const detail = `${off.toFixed(0)} µs without, ${on.toFixed(0)} µs with, median of pairs ${(added * 100).toFixed(1)} %`;
    report.figure(`CPU per call: ${detail} (promised: at most ${promised * 100} %)`);
    report.check('the cost of observing could be measured', Number.isFinite(added) && off > 0);
  } finally {
    agent.destroy();
    for (const side of sides) side.disconnect();
    upstream.closeAllConnections();
    await new Promise<void>((done) => upstream.close(() => done()));
  }
}

type Headers = Readonly<Record<string, string>>;

const headersOf = (key: string, traced: boolean): Headers => ({
  authorization: `Bearer ${key}`,
  ...(traced ? { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' } : {}),
});

/** CPU microseconds per call of one round. */
async function roundOf(
  side: ChildProcess | undefined,
  port: number,
  headers: Headers,
  agent: Agent,
): Promise<number> {
  if (side === undefined) return Number.NaN;
  const before = await usage(side);
  let left = callsPerRound;
  const worker = async (): Promise<void> => {
    while (left-- > 0) await call(port, headers, agent);
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  return ((await usage(side)) - before) / callsPerRound;
}

async function usage(side: ChildProcess): Promise<number> {
  const answer = once(side, 'message');
  side.send('cpu');
  return Number((await answer)[0]);
}

function call(port: number, headers: Headers, agent: Agent): Promise<void> {
  return new Promise((done, broken) => {
    request({ port, host: '127.0.0.1', path: '/via/api/thing', headers: { ...headers }, agent }, (answer) => {
      if (answer.statusCode !== 200) broken(new Error(`status ${answer.statusCode}`));
      answer.resume().on('end', () => done());
    })
      .on('error', broken)
      .end();
  });
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

const configuration = (origin: string, hash: string): string => `
log: { sampleSuccesses: 0 }
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
upstreams:
  api: { kind: generic, origins: ["${origin}"], allowPrivateAddresses: true, credential: { header: authorization, value: "Bearer up" } }
workspaces:
  bench: { keys: [{ hash: "${hash}" }], upstreams: [api] }
`;
