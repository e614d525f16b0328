/**
 * slowhttptest with slow heads, bodies and reads, each with 1,500 connections (reads: as many as the system has memory for) to one gateway, while a second gateway beside it is left
 * alone: what others wait for is compared between the two at the same moments, so that a busy machine slows both. Every slow
 * connection is closed by one of the gateway's limits, and memory grows hardly more than that of a bare
 * server of Node under the same connections.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { stripVTControlCharacters } from 'node:util';
import { createKey } from '../../src/cli/keys.ts';
import { startFleet, type Gateway } from '../cluster/fleet.ts';
import type { Report } from '../observability/report.ts';
import {
  responseBytes,
  attack,
  attacks,
  growthOf,
  minOpen,
  onBareServer,
  socketsOf,
  type Attack,
  type Growth,
  type Sample,
} from './slow-attack.ts';
import { fromDebian } from './tools.ts';

const maxGrowthMs = 50;
/**
 * On a machine that lets a gateway run, the one that nobody attacks answers within this time. Elsewhere who has more work waits longer for a
 * processor, and the two are compared by their ratio: whoever waited for slow connections would wait for seconds.
 */
const quietMs = 25;
const maxRatio = 5;
/** What slow connections may cost, as a multiple of what they cost a bare server of Node in the same run. */
const maxBareRatio = 1.5;
/** What a gateway's memory grows and shrinks by under the calls of others alone: V8's two halves for young objects. Bytes. */
const ownGrowthBytes = 32 * 1_048_576;
/** For slow reads, of which a bare server has nothing to hold: at most this while they are held, and this in all. Bytes. */
const ofReads = { held: 32 * 1_048_576, base: 96 * 1_048_576, each: 256 * 1_024 };
/** The limits that end them: 20 s for a head, 1 KiB a second for a request, and `timeouts.totalSeconds` for a response. */
const responseSeconds = 20;

interface Pair {
  readonly attacked: Gateway;
  readonly control: Gateway;
  readonly key: string;
  /** Requests for a large response that have come to the upstream. */
  largeAsked(): number;
  stop(): Promise<void>;
}

async function startPair(): Promise<Pair> {
  const large = Buffer.alloc(responseBytes);
  let largeAsked = 0;
  const server = createServer(
    (request, response) => void request.resume().on('end', () => response.end('ok')),
  );
  const largeServer = createServer((request, response) => {
    largeAsked += 1;
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
    `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: true, maxSockets: 2000, timeouts: { totalSeconds: ${responseSeconds} } }`;
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
    largeAsked: () => largeAsked,
    async stop() {
      await fleet.stop();
      for (const one of [server, largeServer]) one.close().closeAllConnections();
    },
  };
}

/** How long one call of another client takes, milliseconds; `null`: it was not answered. */
async function callOf({ url }: Gateway, key: string): Promise<number | null> {
  const at = performance.now();
  const response = await fetch(`${url}/via/small/x`, { headers: { 'sluice-key': key } }).catch(() => null);
  await response?.arrayBuffer();
  return response?.status === 200 ? performance.now() - at : null;
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
  /** Connections that the system still had when it was last looked while the attack went on. */
  readonly left: number;
}

/** Calls of others, by turns through both gateways, and what the attacked one says of itself, until `over`. */
async function meanwhile({ attacked, control, key }: Pair, over: Promise<unknown>): Promise<Seen> {
  let isOver = false;
  void over.then(() => (isOver = true));
  const [attackedMs, controlMs, samples]: [(number | null)[], (number | null)[], Sample[]] = [[], [], []];
  const port = Number(new URL(attacked.url).port);
  let left = 0;
  for (let n = 0; !isOver; n += 1) {
    const first = n % 2 === 0;
    if (first) attackedMs.push(await callOf(attacked, key));
    controlMs.push(await callOf(control, key));
    if (!first) attackedMs.push(await callOf(attacked, key));
    if (n % 20 === 0) {
      samples.push(await sampleOf(attacked));
      const open = await socketsOf(port);
      // Behind its end its own connections are gone, whoever closed them.
      if (!isOver) left = open;
    }
    await new Promise((resolve) => setTimeout(resolve, 40));
  }
  samples.push(await sampleOf(attacked));
  return { attackedMs, controlMs, samples, left };
}

function p99(times: readonly (number | null)[]): number {
  const sorted = times.filter((time) => time !== null).toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length * 0.99)] ?? Infinity;
}

const megabytes = (bytes: number): string => `${(bytes / 1_048_576).toFixed(1)} MB`;
interface Judged {
  readonly one: Attack;
  /** What the same attack cost a bare server; `null`: it has nothing to compare with. */
  readonly bare: Growth | null;
  readonly seen: Seen;
  /** What slowhttptest said at its end. */
  readonly ended: string;
}

function judge(report: Report, { one, bare, seen, ended }: Judged): void {
  const { what, connections } = one;
  const { attackedMs, controlMs, samples } = seen;
  const name = (words: string): string => `slowhttptest: ${words} ${connections} slow ${what}`;
  const open = Math.max(...samples.map((sample) => sample.open));
  // Where it ended because nothing was open any more, the last look before that is too early.
  const left = /no open connections/i.test(ended) ? 0 : seen.left;
  const lost = [...attackedMs, ...controlMs].filter((time) => time === null).length;
  const [attacked, control] = [p99(attackedMs), p99(controlMs)];
  const times = `${attacked.toFixed(1)} ms, ${control.toFixed(1)} ms through a gateway beside it`;
  report.check(name('open at once were'), open >= minOpen(one), `at most ${open} were open`);
  report.check(name('others are answered during'), lost === 0, `${lost} were not answered`);
  report.check(
    control > quietMs
      ? name(
          `others' p99, on a busy machine, is at most ${maxRatio} times that of the gateway beside it during`,
        )
      : name(`others' p99 grows by less than ${maxGrowthMs} ms during`),
    control > quietMs ? attacked <= maxRatio * control : attacked - control < maxGrowthMs,
    times,
  );
  const growth = growthOf(samples, one);
  const bound =
    bare === null
      ? { held: ofReads.held, peak: ofReads.base + connections * ofReads.each }
      : {
          held: maxBareRatio * Math.max(0, bare.held) + ownGrowthBytes,
          peak: maxBareRatio * bare.peak + ownGrowthBytes,
        };
  const memory =
    `${megabytes(growth.held)} more while they were held, ${megabytes(growth.peak)} at most` +
    (bare === null ? '' : ` (bare Node: ${megabytes(bare.held)}, ${megabytes(bare.peak)})`);
  report.check(name('memory is flat under'), growth.held < bound.held && growth.peak < bound.peak, memory);
  report.check(name('a limit closes all of'), left <= 20, `${left} were open at the end`);
  report.figure(
    `slow ${what}: slowhttptest says: ${ended}; at most ${open} open; others' p99 ${times}, ${attackedMs.length} calls each; memory ${memory}`,
  );
}

export async function judgeBySlowhttptest(report: Report): Promise<void> {
  const tool = await fromDebian('slowhttptest');
  if ('why' in tool) return report.skipped('slowhttptest', tool.why);
  const pair = await startPair();
  try {
    await meanwhile(pair, new Promise((resolve) => setTimeout(resolve, 5_000)));
    for (const one of attacks) {
      const { what, path, connections } = one;
      const bare = what === 'reads' ? null : await onBareServer(tool.path, one);
      if (what !== 'reads' && bare === null) {
        report.check(
          `slowhttptest: ${connections} slow ${what} are open at a bare server`,
          false,
          'they were fewer',
        );
        continue;
      }
      const attacking = attack(tool.path, one, { url: `${pair.attacked.url}${path}`, key: pair.key });
      const seen = await meanwhile(pair, attacking);
      const { output } = await attacking;
      const ended = /Exit status: *(.*)/.exec(stripVTControlCharacters(output))?.[1] ?? output.slice(-200);
      judge(report, { one, bare, seen, ended });
      if (what === 'reads') {
        const asked = pair.largeAsked();
        report.check(
          `slowhttptest: ${connections} slow reads are of responses of the upstream`,
          asked >= minOpen(one),
          `${asked} were asked for`,
        );
      }
    }
  } finally {
    await pair.stop();
  }
}
