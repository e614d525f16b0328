/**
 * What being observed costs: CPU per call with metrics and 1 % of traces against the same calls reported to nobody.
 *
 * One process serves both and learns before each round which it is: two processes differ by more than what is measured
 * here, for their whole lives. It counts its own CPU, user and system, so that what else the machine runs is not counted.
 * Rounds alternate as off, on, on, off (then on, off, off, on): whatever drifts (caches, frequency, heap) hits both sides
 * alike. A round is a few tenths of a second: a process is observed for all its life, and in shorter rounds a good part of
 * what is measured is the change from one side to the other. A group of four rounds gives one ratio; the result is the median
 * of all, with the 95 % interval of that median.
 *
 * A hundredth of traces is too rare for a round. So no call is traced while metrics are measured (each is asked whether it
 * is), and what a trace costs is measured by tracing every call of other rounds, which end when their spans are exported.
 *
 * The promise is at most a fifth. An observed call pays prom-client for three histograms, the OpenTelemetry API for a span that
 * is not recorded, and the activity for two facts: 14 µs where the call itself costs 100. A run fails when the lower end of the
 * interval is above the promise: a busy machine hardly fails it, a real regression does.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { median, medianInterval } from '../../bench/paired.ts';
import { createKey } from '../../src/cli/keys.ts';
import { serve } from '../cluster/upstream.ts';
import { record } from '../nightly/figures.ts';
import type { Report } from '../report.ts';

const promised = 0.2;
const tracedShare = 0.01;
/** Processes, one after the other: none is the lucky one. */
const processes = 3;
/** Groups of four rounds, per process. */
const groups = 12;
const callsPerRound = 2_000;
const tracedGroups = 3;
/** No more than its spans have room for until they are exported. */
const callsPerTracedRound = 100;
const warmingCalls = 4_000;
/** The standard's 5 s would make traced rounds long. Milliseconds. */
const exportEveryMs = 300;
const concurrency = 32;

type Side = 'off' | 'on' | 'traced';

export async function verifyCost(report: Report): Promise<void> {
  const { origin, stop } = await serve((_request, response) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}'),
  );
  try {
    const metrics: Group[] = [];
    const traces: Group[] = [];
    for (let n = 0; n < processes; n++) {
      const found = await measure(origin);
      metrics.push(...found.metrics);
      traces.push(...found.traces);
    }
    // A trace per call, as a share of a call that is not observed: a hundredth of it is what the share of traces adds.
    const trace = median(traces.map(({ without, added }) => added / without));
    const ratios = metrics.map(({ without, added }) => added / without + tracedShare * trace);
    const { median: more, between } = medianInterval(ratios);
    const [low, high] = between ?? [more, more];
    const off = median(metrics.map(({ without }) => without));
    const percent = (ratio: number): string => `${(ratio * 100).toFixed(1)} %`;
    report.figure(
      `CPU per call: ${off.toFixed(0)} µs unobserved; metrics and 1 % of traces add ${percent(more)} ` +
        `(median of ${metrics.length} groups, 95 % between ${percent(low)} and ${percent(high)}; ` +
        `of it traces ${percent(tracedShare * trace)}; promised: at most ${percent(promised)})`,
    );
    record({ name: 'CPU with metrics and 1 % of traces', value: 1 + more, unit: '× unobserved' });
    report.check('observing costs what was promised', low <= promised, `at least ${percent(low)}`);
  } finally {
    stop();
  }
}

/** Microseconds per call of the lesser side, and what the other one adds. */
interface Group {
  readonly without: number;
  readonly added: number;
}

/** One process, from its start to its end. */
async function measure(origin: string): Promise<{ metrics: Group[]; traces: Group[] }> {
  const { key, hash } = createKey();
  const env = {
    ...process.env,
    OTEL_EXPORTER_OTLP_ENDPOINT: origin,
    // Asked of every call, granted to those whose caller decided so.
    OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
    OTEL_TRACES_SAMPLER_ARG: '0.0000001',
    OTEL_BSP_SCHEDULE_DELAY: String(exportEveryMs),
  };
  const child = fork(new URL('cost-child.ts', import.meta.url), [configuration(origin, hash)], {
    env,
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const agent = new Agent({ keepAlive: true, maxSockets: concurrency });
  try {
    const port = Number((await once(child, 'message'))[0]);
    const spend = (side: Side, calls: number, pauseMs = 0): Promise<number> =>
      roundOf(child, { side, calls, pauseMs }, () => call(port, headersOf(key, side === 'traced'), agent));
    const groupOf = async (n: number, without: Side, side: Side): Promise<Group> => {
      // Until spans are exported, three batches at most; the other side is as idle for as long.
      const pauseMs = side === 'traced' ? exportEveryMs * 4 : 0;
      const calls = side === 'traced' ? callsPerTracedRound : callsPerRound;
      const spent = { without: 0, added: 0 };
      const order = n % 2 === 0 ? [false, true, true, false] : [true, false, false, true];
      for (const more of order) {
        const us = (await spend(more ? side : without, calls, pauseMs)) / 2;
        if (more) spent.added += us;
        else spent.without += us;
      }
      return { without: spent.without, added: spent.added - spent.without };
    };
    // A process that runs for hours has compiled everything, the path of a traced call too.
    await spend('traced', callsPerTracedRound);
    for (const side of ['on', 'off'] as const) await spend(side, warmingCalls);
    const [metrics, traces]: [Group[], Group[]] = [[], []];
    for (let n = 0; n < groups; n++) metrics.push(await groupOf(n, 'off', 'on'));
    for (let n = 0; n < tracedGroups; n++) traces.push(await groupOf(n, 'on', 'traced'));
    return { metrics, traces };
  } finally {
    agent.destroy();
    child.disconnect();
  }
}

interface Round {
  readonly side: Side;
  readonly calls: number;
  /** Idle time at its end that counts too. */
  readonly pauseMs: number;
}

/** CPU microseconds per call of one round. */
async function roundOf(
  child: ChildProcess,
  { side, calls, pauseMs }: Round,
  one: () => Promise<void>,
): Promise<number> {
  const before = await cpuOf(child, side);
  let left = calls;
  const worker = async (): Promise<void> => {
    while (left-- > 0) await one();
  };
  await Promise.all(Array.from({ length: concurrency }, worker));
  if (pauseMs > 0) await pause(pauseMs);
  return ((await cpuOf(child, side)) - before) / calls;
}

/** Says how calls are followed from now on; the response is the CPU used so far. */
async function cpuOf(child: ChildProcess, side: Side): Promise<number> {
  const response = once(child, 'message');
  child.send(side);
  return Number((await response)[0]);
}

type Headers = Readonly<Record<string, string>>;

const headersOf = (key: string, traced: boolean): Headers => ({
  authorization: `Bearer ${key}`,
  ...(traced ? { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' } : {}),
});

function call(port: number, headers: Headers, agent: Agent): Promise<void> {
  return new Promise((done, broken) => {
    request(
      { port, host: '127.0.0.1', path: '/via/api/thing', headers: { ...headers }, agent },
      (response) => {
        if (response.statusCode !== 200) broken(new Error(`status ${response.statusCode}`));
        response.resume().on('end', () => done());
      },
    )
      .on('error', broken)
      .end();
  });
}

const configuration = (origin: string, hash: string): string => `
log: { sampleSuccesses: 0 }
server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }
upstreams:
  api: { kind: generic, origins: ["${origin}"], allowPrivateAddresses: true, credential: { header: authorization, value: "Bearer up" } }
workspaces:
  bench: { keys: [{ hash: "${hash}" }], upstreams: [api] }
`;
