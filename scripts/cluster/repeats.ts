/**
 * Pairs of equal calls that arrive at different replicas within two seconds, with clients that hang up, a Redis that loses
 * its data, and a replica that is killed: one upstream call for each pair, but for those whose holder was killed, which are counted.
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, startServer, stopServer } from './processes.ts';
import { startFleet, type Fleet } from './fleet.ts';
import type { Row, Scenario } from './row.ts';

const pairs = 500;
const overMs = 12_000;
const flushAtMs = 4_000;
const killAtMs = 8_000;
const canary = 'canary-of-the-repeats';

/** The same numbers in every run. */
const draw = (pair: number, salt: number): number => ((pair * 2_654_435_761 + salt * 40_503) % 1_009) / 1_009;

/** Answers with how often the call was made: after 50 to 1,500 ms, every tenth with 1 MB, every third as a stream. */
async function startUpstream() {
  const made = new Map<number, number>();
  const server = createServer((request, response) => {
    const pair = Number(request.headers['x-pair']);
    made.set(pair, (made.get(pair) ?? 0) + 1);
    const text = `${pair}#${made.get(pair) ?? 0}`;
    request.resume().on('end', () => {
      setTimeout(() => answer(response, pair, text), 50 + draw(pair, 1) * 1_450);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, made, stop: () => server.close().closeAllConnections() };
}

function answer(response: ServerResponse, pair: number, text: string): void {
  if (pair % 3 !== 0) {
    response.end(text.padEnd(pair % 10 === 0 ? 1_000_000 : 100, ' '));
    return;
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(`data: ${text}\n\n`);
  setTimeout(() => response.end('data: [DONE]\n\n'), 200);
}

interface Got {
  readonly pair: number;
  /** Which call of the upstream answered it; `null` = none. */
  readonly made: string | null;
  readonly words: string;
}

interface Client {
  readonly fleet: Fleet;
  readonly pair: number;
  readonly at: number;
  readonly leavesAfterMs: number | null;
}

/** One client. It repeats what is a conflict, and what its replica could not answer any more at the next replica. */
async function client({ fleet, pair, at, leavesAfterMs }: Client): Promise<Got> {
  let replica = at;
  for (let attempt = 0; attempt < 40; attempt += 1) {
    const { url, isAlive } = fleet.gateways[replica % fleet.gateways.length] ?? {
      url: '',
      isAlive: () => false,
    };
    try {
      const response = await fetch(`${url}/via/api/orders`, {
        method: 'POST',
        body: `${canary} ${pair}`,
        headers: {
          authorization: `Bearer ${fleet.keys['acme'] ?? ''}`,
          'idempotency-key': `${canary}-${pair}`,
          'x-pair': String(pair),
        },
        ...(leavesAfterMs === null ? {} : { signal: AbortSignal.timeout(leavesAfterMs) }),
      });
      const text = await response.text();
      if (response.status === 200)
        return { pair, made: /\d+#\d+/.exec(text)?.[0] ?? null, words: 'answered' };
      const code = response.headers.get('sluice-error') ?? '';
      if (code !== 'idempotency_conflict') return { pair, made: null, words: `${response.status} ${code}` };
    } catch (failure) {
      if (leavesAfterMs !== null) return { pair, made: null, words: 'left' };
      if (isAlive() && attempt > 20) return { pair, made: null, words: String(failure) };
      replica += 1;
    }
    await pause(300);
  }
  return { pair, made: null, words: 'no answer after 40 attempts' };
}

async function load(replicas: number): Promise<Row> {
  const redis = await startServer();
  const upstream = await startUpstream();
  const { key, hash } = createKey();
  const yaml = [
    'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
    `redis: { url: "${redis.url}" }`,
    'privacy: { labelKey: "a label key of the verification" }',
    'log: { level: info, sampleSuccesses: 0 }',
    `upstreams:\n  api:\n    origins: ["${upstream.url}"]\n    allowPrivateAddresses: true\n    credential: Bearer x`,
    `workspaces:\n  acme:\n    keys: ["${hash}"]`,
  ].join('\n');
  const fleet = await startFleet(replicas, { keys: { acme: key }, yaml: () => yaml });
  const victim = replicas - 1;
  const work: Promise<Got>[] = [];
  const later = (ms: number, run: () => Promise<unknown>): Promise<unknown> => pause(ms).then(run);
  const faults = [
    later(flushAtMs, () => cli(redis.port, 'flushall')),
    later(killAtMs, async () => fleet.gateways[victim]?.signal('SIGKILL')),
  ];
  for (let pair = 0; pair < pairs; pair += 1) {
    const startMs = (pair * overMs) / pairs;
    const leavesAfterMs = draw(pair, 2) < 0.2 ? 30 + draw(pair, 3) * 600 : null;
    const first = { fleet, pair, at: pair % replicas, leavesAfterMs };
    const second = { fleet, pair, at: (pair + 1) % replicas, leavesAfterMs: null };
    work.push(
      pause(startMs).then(() => client(first)),
      pause(startMs + draw(pair, 4) * 2_000).then(() => client(second)),
    );
  }
  const got = await Promise.all(work);
  await Promise.all(faults);
  const readable = await wordsIn(redis.port);
  const again = await fleet.metric('sluice_repeats_made_again_total');
  const replays = await fleet.metric('sluice_idempotent_replays_total');
  await fleet.stop();
  upstream.stop();
  await stopServer(redis);
  return judge(got, { made: upstream.made, again, replays, readable, killMs: killAtMs, victim, replicas });
}

/** How many keys or values in Redis show a part of a call. */
async function wordsIn(port: number): Promise<number> {
  const client = new Redis(port);
  let count = 0;
  for (const key of await client.keys('*')) {
    // It may have ended since its name was read.
    const dump = (await client.dumpBuffer(key)) as Buffer | null;
    if (`${key} ${dump?.toString('latin1') ?? ''}`.includes(canary)) count += 1;
  }
  client.disconnect();
  return count;
}

interface Seen {
  readonly made: ReadonlyMap<number, number>;
  readonly again: number;
  readonly replays: number;
  readonly readable: number;
  readonly killMs: number;
  readonly victim: number;
  readonly replicas: number;
}

function judge(got: readonly Got[], seen: Seen): Row {
  const twice = [...seen.made].filter(([, times]) => times > 1).map(([pair]) => pair);
  // Only a call that the killed replica held when it was killed may have been made again.
  const excused = twice.filter((pair) => {
    const startMs = (pair * overMs) / pairs;
    return startMs <= seen.killMs && startMs > seen.killMs - 6_000;
  });
  const failed = got.filter(({ made, words }) => made === null && words !== 'left');
  const left = got.filter(({ words }) => words === 'left').length;
  const isCounted = twice.length <= seen.again;
  const passed = failed.length === 0 && excused.length === twice.length && isCounted && seen.readable === 0;
  return {
    passed,
    figures: [
      `${pairs} pairs, ${[...seen.made.values()].reduce((sum, times) => sum + times, 0)} upstream calls for ${seen.made.size} distinct`,
      `made again ${seen.again} (counted), ${twice.length} twice`,
      `${seen.replays} replays, ${left} clients left`,
      `${failed.length} without an answer${failed.length === 0 ? '' : ` (${[...new Set(failed.map(({ words }) => words))].join(', ')})`}`,
      `${seen.readable} readable in Redis`,
    ].join('; '),
  };
}

export const repeats: Scenario = {
  name: `${pairs} pairs of equal calls 0 to 2 s apart at three replicas, clients hang up, FLUSHALL, one replica killed`,
  run: () => load(3),
};
