/**
 * Pairs of equal calls that arrive at different replicas within two seconds, with clients that hang up, a Redis that loses
 * its data, and a replica that is killed: one upstream call for each pair, but for those whose holder was killed, which are counted, and
 * those that Redis forgot between the two.
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from 'ioredis';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, startServer, stopServer } from './processes.ts';
import { startFleet, type Gateway } from './fleet.ts';
import type { Row, Scenario } from './row.ts';
import { stalls } from './stalls.ts';
import { replicaLags } from './worlds.ts';

const pairs = 500;
const overMs = 12_000;
const flushAtMs = 4_000;
const killAtMs = 8_000;
/**
 * Replicas that are kept from running for longer do not renew their claims in time, and nothing is promised of their calls.
 * Milliseconds.
 */
const starvedMs = 1_000;
const canary = 'canary-of-the-repeats';

/** Refusals that ask for a repeat: with a key it is safe. */
const repeatable = new Set(['idempotency_conflict', 'overloaded', 'limiter_unavailable']);

/** The same numbers in every run. */
const draw = (pair: number, salt: number): number => ((pair * 2_654_435_761 + salt * 40_503) % 1_009) / 1_009;

/** One call that reached the upstream, and the replica whose credential it came with. */
interface Made {
  readonly by: number;
  readonly at: number;
}

/** Responses with how often the call was made: after 50 to 1,500 ms, every tenth with 1 MB, every third as a stream. */
async function startUpstream() {
  const made = new Map<number, Made[]>();
  const server = createServer((request, response) => {
    const pair = Number(request.headers['x-pair']);
    const by = Number(request.headers.authorization?.split(' ')[1]);
    const calls = [...(made.get(pair) ?? []), { by, at: systemClock.monotonic() }];
    made.set(pair, calls);
    const text = `${pair}#${calls.length}`;
    request.resume().on('end', () => {
      setTimeout(() => respond(response, pair, text), 50 + draw(pair, 1) * 1_450);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, made, stop: () => server.close().closeAllConnections() };
}

function respond(response: ServerResponse, pair: number, text: string): void {
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
  readonly gateways: readonly Gateway[];
  readonly key: string;
  readonly pair: number;
  readonly at: number;
  readonly leavesAfterMs: number | null;
}

/** One client. It repeats what is refused for now, and what its replica could not answer any more at the next replica. */
async function client({ gateways, key, pair, at, leavesAfterMs }: Client): Promise<Got> {
  let replica = at;
  for (let attempt = 0; attempt < 40; attempt += 1) {
    const { url, isAlive } = gateways[replica % gateways.length] ?? {
      url: '',
      isAlive: () => false,
    };
    try {
      const response = await fetch(`${url}/via/api/orders`, {
        method: 'POST',
        body: `${canary} ${pair}`,
        headers: {
          authorization: `Bearer ${key}`,
          'idempotency-key': `${canary}-${pair}`,
          'x-pair': String(pair),
        },
        ...(leavesAfterMs === null ? {} : { signal: AbortSignal.timeout(leavesAfterMs) }),
      });
      const text = await response.text();
      if (response.status === 200)
        return { pair, made: /\d+#\d+/.exec(text)?.[0] ?? null, words: 'answered' };
      const code = response.headers.get('sluice-error') ?? '';
      if (!repeatable.has(code)) return { pair, made: null, words: `${response.status} ${code}` };
    } catch (failure) {
      if (leavesAfterMs !== null) return { pair, made: null, words: 'left' };
      if (isAlive() && attempt > 20) return { pair, made: null, words: String(failure) };
      replica += 1;
    }
    await pause(300);
  }
  return { pair, made: null, words: 'no response after 40 attempts' };
}

async function load(replicas: number): Promise<Row> {
  const redis = await startServer();
  const upstream = await startUpstream();
  const { key, hash } = createKey();
  /** The account says that it is one quota and one identity; the credential says to the upstream which replica calls. */
  const yaml = (replica: number): string =>
    [
      'server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0 }',
      `redis: { url: "${redis.url}" }`,
      'privacy: { labelKey: "a label key of the verification" }',
      'log: { level: info, sampleSuccesses: 0 }',
      `upstreams:\n  api:\n    origins: ["${upstream.url}"]\n    allowPrivateAddresses: true`,
      `    credential: { header: authorization, value: "Bearer ${replica}" }\n    account: one`,
      `workspaces:\n  acme:\n    keys: ["${hash}"]`,
    ].join('\n');
  const fleets = await Promise.all(
    Array.from({ length: replicas }, (_, n) => startFleet(1, { keys: { acme: key }, yaml: () => yaml(n) })),
  );
  const gateways = fleets.flatMap((fleet) => fleet.gateways);
  const metric = async (name: string): Promise<number> =>
    (await Promise.all(fleets.map((fleet) => fleet.metric(name)))).reduce((sum, value) => sum + value, 0);
  const since = stalls.mark();
  const victim = replicas - 1;
  const work: Promise<Got>[] = [];
  const flushed = pause(flushAtMs).then(async () => {
    const from = systemClock.monotonic();
    await cli(redis.port, 'flushall');
    return { from, to: systemClock.monotonic() };
  });
  const killed = pause(killAtMs).then(() => {
    gateways[victim]?.signal('SIGKILL');
    return systemClock.monotonic();
  });
  for (let pair = 0; pair < pairs; pair += 1) {
    const startMs = (pair * overMs) / pairs;
    const leavesAfterMs = draw(pair, 2) < 0.2 ? 30 + draw(pair, 3) * 600 : null;
    const one = { gateways, key, pair };
    work.push(
      pause(startMs).then(() => client({ ...one, at: pair % replicas, leavesAfterMs })),
      pause(startMs + draw(pair, 4) * 2_000).then(() =>
        client({ ...one, at: (pair + 1) % replicas, leavesAfterMs: null }),
      ),
    );
  }
  const got = await Promise.all(work);
  const loss = await flushed;
  const killedAt = await killed;
  const readable = await wordsIn(redis.port);
  const again = await metric('sluice_repeats_made_again_total');
  const replays = await metric('sluice_idempotent_replays_total');
  const lagsMs = (await Promise.all(fleets.map(replicaLags))).flat();
  const stalledMs = Math.max(stalls.longestSince(since), ...lagsMs);
  for (const fleet of fleets) await fleet.stop();
  upstream.stop();
  await stopServer(redis);
  return judge(got, { made: upstream.made, again, replays, readable, loss, killedAt, victim, stalledMs });
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
  readonly made: ReadonlyMap<number, readonly Made[]>;
  readonly again: number;
  readonly replays: number;
  readonly readable: number;
  /** When Redis lost its data, monotonic milliseconds. */
  readonly loss: { readonly from: number; readonly to: number };
  readonly killedAt: number;
  readonly victim: number;
  readonly stalledMs: number;
}

function judge(got: readonly Got[], seen: Seen): Row {
  const { made, victim, killedAt, loss } = seen;
  const all = [...made.values()];
  const twice = all.filter(({ length }) => length > 1);
  // Only a call of the killed replica may have been made again, once, after its death.
  const isOfVictim = ([first, second, ...more]: readonly Made[]): boolean =>
    first?.by === victim && second !== undefined && second.at > killedAt && more.length === 0;
  // Or one that was made before Redis lost its data, and repeated elsewhere after that.
  const isForgotten = ([first, second, ...more]: readonly Made[]): boolean =>
    first !== undefined &&
    first.at < loss.to &&
    second !== undefined &&
    second.at > loss.from &&
    more.length === 0;
  const forgotten = twice.filter((calls) => isForgotten(calls));
  const others = twice.filter((calls) => !isOfVictim(calls) && !isForgotten(calls));
  const failed = got.filter(({ made: by, words }) => by === null && words !== 'left');
  const left = got.filter(({ words }) => words === 'left').length;
  const calls = all.reduce((sum, { length }) => sum + length, 0);
  const isCounted = calls - made.size - forgotten.length <= seen.again;
  const isKept = failed.length === 0 && others.length === 0 && isCounted && seen.readable === 0;
  const isStarved = seen.stalledMs > starvedMs;
  const words = [...new Set(failed.map((each) => each.words))].join(', ');
  return {
    holds: isKept || (isStarved && seen.readable === 0),
    holdsWhenQuiet: isKept,
    figures: [
      `${pairs} pairs, ${calls} upstream calls for ${made.size} distinct`,
      `${twice.length} twice, ${forgotten.length} of them forgotten by Redis, ${others.length} neither that nor the killed replica's, ${seen.again} counted`,
      `${seen.replays} replays, ${left} clients left`,
      `${failed.length} without a response${words === '' ? '' : ` (${words})`}`,
      `${seen.readable} readable in Redis`,
      `longest stall ${seen.stalledMs.toFixed(0)} ms`,
    ].join('; '),
  };
}

export const repeats: Scenario = {
  name: `${pairs} pairs of equal calls 0 to 2 s apart at three replicas, clients hang up, FLUSHALL, one replica killed`,
  run: () => load(3),
};
