/**
 * slowhttptest with slow heads, bodies and reads, each with 1,500 connections to one gateway, while a second gateway beside it is left
 * alone: what others wait for is compared between the two at the same moments, so that a busy machine slows both. Every slow
 * connection is closed by one of the gateway's limits, and memory does not grow while they are held.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { stripVTControlCharacters } from 'node:util';
import { createKey } from '../../src/cli/keys.ts';
import { startFleet, type Gateway } from '../cluster/fleet.ts';
import type { Report } from '../observability/report.ts';
import { fromDebian, ran } from './tools.ts';

const connections = 1_500;
/** An attack of fewer would show nothing. */
const minOpen = 0.9 * connections;
const maxGrowthMs = 50;
/** A gateway that nobody attacks answers within this time on a machine that lets it run; elsewhere times are not judged. */
const quietMs = 25;
/** Of resident memory, from when all are open until the first ones are closed. */
const maxHeldGrowthBytes = 32 * 1_048_576;
/** What slow connections may cost in all, a little over 64 KiB each. */
const maxPeakBytes = connections * 70_000;
/** The limits that end them: 20 s for a head, 60 s for a request, and `timeouts.totalSeconds` for an answer. */
const answerSeconds = 20;

interface Attack {
  readonly what: string;
  readonly how: readonly string[];
  readonly path: string;
  /** It ends by itself when its last connection was closed. */
  readonly maxSeconds: number;
}

const attacks: readonly Attack[] = [
  { what: 'heads', how: ['-H'], path: '/via/small/x', maxSeconds: 60 },
  { what: 'bodies', how: ['-B', '-s', '9000'], path: '/via/small/x', maxSeconds: 100 },
  {
    what: 'reads',
    how: ['-X', '-w', '10', '-y', '20', '-n', '5', '-z', '32'],
    path: '/via/large/x',
    maxSeconds: 60,
  },
];

interface Pair {
  readonly attacked: Gateway;
  readonly control: Gateway;
  readonly key: string;
  stop(): Promise<void>;
}

async function startPair(): Promise<Pair> {
  const large = Buffer.alloc(4 * 1_048_576);
  const server = createServer(
    (request, response) => void request.resume().on('end', () => response.end('ok')),
  );
  const largeServer = createServer((request, response) => {
    request.resume().on('end', () => response.on('error', () => {}).end(large));
  });
  const origins = await Promise.all(
    [server, largeServer].map(async (one) => {
      await new Promise<void>((resolve) => one.listen(0, '127.0.0.1', resolve));
      return `http://127.0.0.1:${(one.address() as AddressInfo).port}`;
    }),
  );
  const { key, hash } = createKey();
  const upstream = (name: string, origin = ''): string =>
    `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: true, maxSockets: 2000, timeouts: { totalSeconds: ${answerSeconds} } }`;
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    'privacy: { labelKey: "a label key of the judges" }',
    'log: { level: info, sampleSuccesses: 0 }',
    `upstreams:\n${upstream('small', origins[0])}\n${upstream('large', origins[1])}`,
    `workspaces:\n  acme:\n    keys: ["${hash}"]`,
  ].join('\n');
  const fleet = await startFleet(2, { keys: {}, yaml: () => yaml });
  const [attacked, control] = fleet.gateways;
  if (attacked === undefined || control === undefined) throw new Error('no gateway');
  return {
    attacked,
    control,
    key,
    async stop() {
      await fleet.stop();
      for (const one of [server, largeServer]) one.close().closeAllConnections();
    },
  };
}

/** How long one call of another client takes, milliseconds; `null`: it was not answered. */
async function callOf({ url }: Gateway, key: string): Promise<number | null> {
  const at = performance.now();
  const answer = await fetch(`${url}/via/small/x`, { headers: { 'sluice-key': key } }).catch(() => null);
  await answer?.arrayBuffer();
  return answer?.status === 200 ? performance.now() - at : null;
}

interface Sample {
  readonly open: number;
  readonly bytes: number;
}

async function sampleOf({ adminUrl }: Gateway): Promise<Sample> {
  const text = await (await fetch(`${adminUrl}/metrics`)).text();
  const value = (name: string): number => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);
  return { open: value('sluice_connections'), bytes: value('process_resident_memory_bytes') };
}

interface Seen {
  readonly attackedMs: readonly (number | null)[];
  readonly controlMs: readonly (number | null)[];
  readonly samples: readonly Sample[];
}

/** Calls of others, by turns through both gateways, and what the attacked one says of itself, until `over`. */
async function meanwhile({ attacked, control, key }: Pair, over: Promise<unknown>): Promise<Seen> {
  let isOver = false;
  void over.then(() => (isOver = true));
  const [attackedMs, controlMs, samples]: [(number | null)[], (number | null)[], Sample[]] = [[], [], []];
  for (let n = 0; !isOver; n += 1) {
    const first = n % 2 === 0;
    if (first) attackedMs.push(await callOf(attacked, key));
    controlMs.push(await callOf(control, key));
    if (!first) attackedMs.push(await callOf(attacked, key));
    if (n % 20 === 0) samples.push(await sampleOf(attacked));
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  samples.push(await sampleOf(attacked));
  return { attackedMs, controlMs, samples };
}

function p99(times: readonly (number | null)[]): number {
  const sorted = times.filter((time) => time !== null).toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length * 0.99)] ?? Infinity;
}

const megabytes = (bytes: number): string => `${(bytes / 1_048_576).toFixed(1)} MB`;
const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

/** Growth of memory between the first and the last third of the time in which the connections were held, bytes. */
function heldGrowth(samples: readonly Sample[]): number {
  const held = samples.filter(({ open }) => open >= minOpen).map(({ bytes }) => bytes);
  const third = Math.max(1, Math.floor(held.length / 3));
  return mean(held.slice(-third)) - mean(held.slice(0, third));
}

function judge(report: Report, what: string, { attackedMs, controlMs, samples }: Seen): void {
  const name = (words: string): string => `slowhttptest: ${words} ${connections} slow ${what}`;
  const open = Math.max(...samples.map((sample) => sample.open));
  const left = samples.at(-1)?.open ?? Infinity;
  const lost = [...attackedMs, ...controlMs].filter((time) => time === null).length;
  const growthMs = p99(attackedMs) - p99(controlMs);
  const held = heldGrowth(samples);
  const peak = Math.max(...samples.map(({ bytes }) => bytes)) - (samples[0]?.bytes ?? 0);
  report.check(name('open at once were'), open >= minOpen, `at most ${open} were open`);
  report.check(name('others are answered during'), lost === 0, `${lost} were not answered`);
  const growth = name(`others' p99 grows by less than ${maxGrowthMs} ms during`);
  if (growthMs >= maxGrowthMs && p99(controlMs) > quietMs)
    report.skipped(growth, `the machine is too busy, it grew by ${growthMs.toFixed(1)} ms`);
  else report.check(growth, growthMs < maxGrowthMs, `it grew by ${growthMs.toFixed(1)} ms`);
  report.check(
    name('memory is flat under'),
    held < maxHeldGrowthBytes && peak < maxPeakBytes,
    `${megabytes(held)} more while they were held, ${megabytes(peak)} at most`,
  );
  report.check(name('a limit closes all of'), left <= 20, `${left} were open at the end`);
  report.figure(
    `slow ${what}: at most ${open} open; others' p99 ${p99(attackedMs).toFixed(1)} ms, ${p99(controlMs).toFixed(1)} ms through a gateway beside it, ` +
      `${attackedMs.length} calls each; memory ${megabytes(held)} more while they were held, ${megabytes(peak)} at most`,
  );
}

export async function judgeBySlowhttptest(report: Report): Promise<void> {
  const tool = await fromDebian('slowhttptest');
  if ('why' in tool) return report.skipped('slowhttptest', tool.why);
  const pair = await startPair();
  try {
    await meanwhile(pair, new Promise((resolve) => setTimeout(resolve, 5_000)));
    for (const { what, how, path, maxSeconds } of attacks) {
      const size = ['-c', String(connections), '-r', '500', '-l', String(maxSeconds), '-i', '5', '-p', '10'];
      // It has no option for a key: one more field is written behind the one of its own whose value it takes.
      const key = ['-m', `*/*\r\nSluice-Key: ${pair.key}`];
      const attack = ran(
        tool.path,
        [...how, ...size, ...key, '-u', `${pair.attacked.url}${path}`],
        2_000 * maxSeconds,
      );
      judge(report, what, await meanwhile(pair, attack));
      const { output } = await attack;
      const ended = /Exit status: +(.*)/.exec(stripVTControlCharacters(output))?.[1] ?? output.slice(-200);
      report.figure(`slow ${what}: slowhttptest says: ${ended}`);
    }
  } finally {
    await pair.stop();
  }
}
