/**
 * What a call without a key pays for repeats being recognised: `npm run bench:repeats` (ROUNDS=41, CALLS=1000, REDIS=1).
 *
 * Three gateways over one upstream: the product, the product again, and a copy whose source does without (`withoutRepeats`). In
 * each round all three get the same calls over 64 connections one after the other, in an order that turns round, and the
 * ratios of the round's CPU times per call are taken. Printed is the median of the rounds' ratios with its interval of 95 % (sign
 * test). The product against itself says what the machine does to such a ratio: a difference inside that interval is none.
 *
 * Where that interval is wider than the difference looked for, the last line decides: what a call without a key runs through of repeats,
 * timed by itself, a million times, as a share of the CPU of a whole call of the same run.
 */
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { systemClock, systemRandom } from '../src/clock.ts';
import { repeatKeyOf, type RepeatInput } from '../src/journey/repeat-key.ts';
import type { MakeCall } from '../src/repeats/repeats.ts';
import { Repeats } from '../src/repeats/repeats.ts';
import { startRedis } from '../test/support/redis.ts';
import { cpuMs, writeConfig } from './gateway.ts';
import { median, medianInterval } from './paired.ts';
import { endProxies, load, startGateway, startUpstream } from './proxies.ts';

const rounds = Number(process.env['ROUNDS'] ?? 41);
const calls = Number(process.env['CALLS'] ?? 1_000);
const warmUpCalls = Number(process.env['WARMUP'] ?? 10_000);
const withRedis = process.env['REDIS'] === '1';
const root = resolve(import.meta.dirname, '..');

/** Each text of a source, and what stands there without repeats. A text that is no longer found ends the measurement. */
const withoutRepeats: readonly (readonly [file: string, text: RegExp, instead: string])[] = [
  ['src/journey/prepare.ts', /repeatKeyOf\(\{.*?\}\)/s, 'null'],
];

/** A copy of the product in `folder` that recognises no repeats. */
function copyWithout(folder: string): string {
  mkdirSync(folder);
  for (const name of ['src', 'package.json'])
    cpSync(join(root, name), join(folder, name), { recursive: true });
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  for (const [file, text, instead] of withoutRepeats) {
    const path = join(folder, file);
    const source = readFileSync(path, 'utf8');
    if (!text.test(source))
      throw new Error(`${file} does not have ${String(text)} any more: change bench/repeats.ts`);
    writeFileSync(path, source.replace(text, instead));
  }
  return folder;
}

const folder = mkdtempSync(join(tmpdir(), 'sluice-repeats-'));
const redis = withRedis ? await startRedis() : null;
try {
  const upstream = await startUpstream();
  const origin = `http://127.0.0.1:${upstream.port}`;
  const limits = ['kind: generic', 'limits: { requestsPerMinute: 100000000, requestsPerDay: none }'];
  const { config, key } = writeConfig(folder, origin, limits, [], redis?.url ?? null);
  const gateways = [
    await startGateway(config),
    await startGateway(config),
    await startGateway(config, { cwd: copyWithout(join(folder, 'without')) }),
  ];
  const path = `/proxy?target=${encodeURIComponent(`${origin}/v1/things?a=b`)}`;
  const headers = () => ({ authorization: `Bearer ${key}` });
  const measure = async (at: number, count: number): Promise<number> => {
    const { port, pid } = gateways[at] ?? upstream;
    const before = cpuMs(pid);
    await load({ ports: [port], path, headers, calls: count, pace: { connections: 64 } });
    return ((cpuMs(pid) - before) * 1_000) / count;
  };
  for (const at of gateways.keys()) await measure(at, warmUpCalls);
  const cpuUs: number[][] = gateways.map(() => []);
  for (let round = 0; round < rounds; round += 1) {
    for (const n of gateways.keys()) {
      // Each goes first, second and third as often as the others.
      const at = (n + round) % gateways.length;
      cpuUs[at]?.push(await measure(at, calls));
    }
  }
  print(cpuUs, await ownUs());
} finally {
  endProxies();
  await redis?.stop();
  rmSync(folder, { recursive: true });
}

/** What a call without a key runs through of repeats, microseconds: the search for its key, and the way past those that are held. */
async function ownUs(): Promise<number> {
  const idempotency = { keepSeconds: 60, maxBytes: 1, maxWorkspaceBytes: 1, maxTotalBytes: 1 };
  const repeats = new Repeats({
    clock: systemClock,
    random: systemRandom,
    telemetry: { replayed() {}, joined() {}, madeAgain() {} } as never,
    settings: () => idempotency,
    createMap: null,
  });
  const rawFields = ['User-Agent', 'a client/1.0', 'Accept', '*/*'];
  const fields = new Map([
    ['user-agent', 'a client/1.0'],
    ['accept', '*/*'],
  ]);
  const route = { origin: 'https://a', pathAndQuery: '/', upstream: { name: 'api', idempotencyFields: [] } };
  const caller = { keyFields: [], workspace: { id: 'w' } };
  const plain = {
    call: { method: 'GET', rawFields },
    caller,
    route,
    body: { bytes: Buffer.alloc(0) },
    fields,
  };
  const input = { ...plain, labelKey: 'of a benchmark', account: 'a' };
  const clientGone = new AbortController().signal;
  const response = Promise.resolve({ kind: 'answered' });
  const make = (() => response) as unknown as MakeCall;
  const times = 1_000_000;
  const timed = async (one: () => Promise<unknown>): Promise<number> => {
    const from = performance.now();
    for (let n = 0; n < times; n += 1) await one();
    return ((performance.now() - from) * 1_000) / times;
  };
  const incoming = {
    clientGone,
    arrivedAt: 0,
    stillValid: () => true,
    fieldsFor: () => [],
    retain: () => () => {},
  };
  const past = (): Promise<unknown> => make({ signal: clientGone }, 0);
  const through = (): Promise<unknown> => {
    const key = repeatKeyOf(input as unknown as RepeatInput);
    return key === null ? make({ signal: clientGone }, 0) : repeats.run({ ...incoming, key }, make);
  };
  const us: number[] = [];
  for (let round = 0; round < 5; round += 1) us.push((await timed(through)) - (await timed(past)));
  repeats.close();
  return median(us);
}

function print([product = [], again = [], without = []]: readonly (readonly number[])[], own: number): void {
  const store = withRedis ? 'with Redis' : 'embedded';
  console.log(`${rounds} rounds of ${calls} calls without a key, ${store}, Node ${process.versions.node}`);
  const line = (name: string, a: readonly number[], b: readonly number[]): void => {
    const { median: ratio, between } = medianInterval(a.map((us, n) => us / (b[n] ?? NaN)));
    const range =
      between === null ? 'too few rounds' : `${between[0].toFixed(4)} to ${between[1].toFixed(4)}`;
    console.log(`  ${name.padEnd(42)} ${ratio.toFixed(4)} (95 %: ${range})`);
  };
  console.log(
    `  CPU per call: with ${median(product).toFixed(0)} µs, without ${median(without).toFixed(0)} µs`,
  );
  line('with repeats against without', product, without);
  line('the same again, against without', again, without);
  line('with repeats against itself', product, again);
  const share = ((own / median(product)) * 100).toFixed(2);
  console.log(`  the code of repeats alone: ${own.toFixed(2)} µs, ${share} % of such a call`);
}
