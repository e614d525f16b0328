/** The faults of the soak, drawn from one seeded source: of Redis, the upstream, the replicas and the clients. */
import type { Random } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, hang, restartEmpty, standStill } from '../fleet/redis.ts';
import { troubles, type Upstream } from '../fleet/upstream.ts';
import type { Clients } from './clients.ts';
import type { Replicas } from './replicas.ts';

export interface FaultParts {
  readonly random: Random;
  readonly redisPort: number;
  readonly upstream: Upstream;
  readonly replicas: Replicas;
  readonly clients: Clients;
}

type Fault = (parts: FaultParts) => Promise<void>;

/** Between two of these, evenly. */
const between = ({ random }: FaultParts, fromMs: number, toMs: number): number =>
  fromMs + random.next() * (toMs - fromMs);

const ofRedis: Readonly<Record<string, Fault>> = {
  'Redis loses its data': async ({ redisPort }) => void (await cli(redisPort, 'flushall')),
  'Redis closes every connection': async ({ redisPort }) => {
    for (const type of ['normal', 'pubsub']) await cli(redisPort, 'client', 'kill', 'type', type);
  },
  'Redis is killed and starts empty': (parts) => restartEmpty(parts.redisPort, between(parts, 100, 4_000)),
  'Redis hangs': (parts) => hang(parts.redisPort, between(parts, 300, 4_000)),
};

const ofUpstream = troubles.map((trouble): [string, Fault] => [
  `the upstream is ${trouble}`,
  async (parts) => {
    parts.upstream.trouble = trouble;
    await pause(between(parts, 300, 2_500));
    parts.upstream.trouble = null;
  },
]);

const ofOthers: Readonly<Record<string, Fault>> = {
  ...Object.fromEntries(ofUpstream),
  'a replica hangs': (parts) => standStill(parts.replicas.pick().pid, between(parts, 200, 2_000)),
  'a replica is killed': ({ replicas }) => replicas.kill(),
  'rolling restart': ({ replicas }) => replicas.replaceAll(),
  'a crowd of clients comes': async ({ clients }) => {
    for (let n = 0; n < 100; n += 1) clients.send();
  },
};

/** One fault after the other, with a pause between them, until `isOver`; @returns their names. Each once before any comes again. */
async function oneByOne(
  faults: Readonly<Record<string, Fault>>,
  parts: FaultParts,
  isOver: () => boolean,
): Promise<readonly string[]> {
  const names: string[] = [];
  let left: (readonly [string, Fault])[] = [];
  for (;;) {
    await pause(between(parts, 1_000, 6_000));
    if (isOver()) return names;
    if (left.length === 0) left = Object.entries(faults).toSorted(() => parts.random.next() - 0.5);
    const [name, fault] = left.shift() ?? ['', () => Promise.resolve()];
    names.push(name);
    await fault(parts);
  }
}

/** Faults of Redis and of everything else, side by side. */
export const strike = async (parts: FaultParts, isOver: () => boolean): Promise<readonly string[]> =>
  (await Promise.all([ofRedis, ofOthers].map((faults) => oneByOne(faults, parts, isOver)))).flat();
