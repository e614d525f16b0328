/** The faults of the soak, drawn from one seeded source: of Redis, the upstream, the replicas and the clients. */
import type { Random } from '../../src/clock.ts';
import { pause } from '../../test/support/redis-fleet.ts';
import { cli, startServer } from '../cluster/processes.ts';
import type { Clients } from './clients.ts';
import type { Replicas } from './replicas.ts';
import { troubles, type Upstream } from './upstream.ts';

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

/** Kept from running for a while. */
async function stopped(pid: number, forMs: number): Promise<void> {
  process.kill(pid, 'SIGSTOP');
  await pause(forMs);
  process.kill(pid, 'SIGCONT');
}

const ofRedis: Readonly<Record<string, Fault>> = {
  'Redis loses its data': async ({ redisPort }) => void (await cli(redisPort, 'flushall')),
  'Redis closes every connection': async ({ redisPort }) => {
    for (const type of ['normal', 'pubsub']) await cli(redisPort, 'client', 'kill', 'type', type);
  },
  'Redis is killed and starts empty': async (parts) => {
    await cli(parts.redisPort, 'shutdown', 'nosave').catch(() => '');
    await pause(between(parts, 100, 4_000));
    await startServer({ port: parts.redisPort });
  },
  'Redis hangs': async (parts) => {
    const pid = Number(/process_id:(\d+)/.exec(await cli(parts.redisPort, 'info', 'server'))?.[1]);
    await stopped(pid, between(parts, 300, 4_000));
  },
};

const ofOthers: Readonly<Record<string, Fault>> = {
  ...Object.fromEntries(
    troubles.map((trouble): [string, Fault] => [
      `the upstream is ${trouble}`,
      async (parts) => {
        parts.upstream.trouble = trouble;
        await pause(between(parts, 300, 2_500));
        parts.upstream.trouble = null;
      },
    ]),
  ),
  'a replica hangs': async (parts) => {
    const { pid } = parts.replicas.pick(parts.random).gateway;
    await stopped(pid, between(parts, 200, 2_000));
  },
  'a replica is killed': async ({ replicas, random }) => {
    const victim = replicas.pickReplaceable(random);
    if (victim !== null) await replicas.kill(victim);
  },
  'rolling restart': async ({ replicas }) => {
    for (const old of replicas.taking.slice(1)) await replicas.replace(old);
  },
  'a crowd of clients comes': async ({ clients }) => {
    for (let n = 0; n < 100; n += 1) clients.send();
  },
};

interface Run {
  readonly isOver: () => boolean;
  readonly onFault: (name: string) => void;
}

/** One fault after the other, with a pause between them, until `isOver`; each is counted under its name. */
async function oneByOne(faults: Readonly<Record<string, Fault>>, parts: FaultParts, run: Run): Promise<void> {
  const all = Object.entries(faults);
  let left: (readonly [string, Fault])[] = [];
  while (!run.isOver()) {
    await pause(between(parts, 1_000, 6_000));
    // Each once before any comes again.
    if (left.length === 0) left = all.toSorted(() => parts.random.next() - 0.5);
    const [name, fault] = left.shift() ?? ['', () => Promise.resolve()];
    run.onFault(name);
    await fault(parts);
  }
}

/** Faults of Redis and of everything else, side by side. */
export async function strike(parts: FaultParts, run: Run): Promise<void> {
  await Promise.all([oneByOne(ofRedis, parts, run), oneByOne(ofOthers, parts, run)]);
}
