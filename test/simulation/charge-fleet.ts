/**
 * What paces the calls of a charge scenario: the embedded limiter of one process, or the stores of several replicas that share a
 * simulated Redis, each of which learns what its own calls are charged. All of that is the product's own.
 */
import type { Settings } from '../../src/config/settings.ts';
import { TokenEstimates } from '../../src/dispatch/token-estimates.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import type { Grant } from '../../src/limiter/limiter.ts';
import { createStores } from '../../src/limiter/stores.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import type { FakeClock } from '../support/fake-clock.ts';
import { plainRedis } from '../support/plain-redis.ts';
import { Chance } from './chance.ts';
import { Connection } from './replicas/connection.ts';
import { quiet } from './replicas/plan.ts';
import { Process } from './replicas/process.ts';
import { Server } from './replicas/server.ts';

export interface ChargeReplica {
  readonly limiter: Limiter;
  readonly estimates: TokenEstimates;
}

export interface Fleet {
  /** When its replicas are ready for calls, virtual milliseconds. */
  readonly startMs: number;
  /** Clients are spread over the replicas. */
  of(client: number): ChargeReplica;
  /** No call comes any more: replicas that would tick for ever stop. */
  isOver(): void;
  close(): Promise<void>;
}

/** Longer than any scene. */
const leaseMs = 1e9;

type OnGrant = (grant: Grant) => void;

export const fleetOf = (clock: FakeClock, replicas: number, onGrant: OnGrant): Fleet =>
  replicas === 1 ? embedded(clock, onGrant) : overRedis(clock, replicas, onGrant);

function embedded(clock: FakeClock, onGrant: OnGrant): Fleet {
  const limiter = createEmbeddedLimiter(clock, { onGrant, onClosed: () => {} }, { leaseMs });
  const replica = { limiter, estimates: new TokenEstimates() };
  return { startMs: 0, of: () => replica, isOver: () => {}, close: () => limiter.close() };
}

const startMs = 2_500;
const quietMs = 10_000;
const ignored = (): void => {};

function overRedis(clock: FakeClock, count: number, onGrant: OnGrant): Fleet {
  const chance = new Chance(count);
  const connections: Connection[] = [];
  const server = new Server(
    {
      applied: ignored,
      slotTaken: ignored,
      slotReturned: ignored,
      lost: ignored,
      reach: ignored,
    },
    {
      publish: (channel, text) => connections.forEach((connection) => connection.hear(channel, text)),
      subscribers: (channel) => connections.filter((connection) => connection.isOn(channel)).length,
    },
    { monotonic: () => clock.monotonic(), originMs: clock.now() },
  );
  const processes = Array.from(
    { length: count },
    (_, at) => new Process(`r${at}`, clock, { lateMs: () => chance.between(0, 1.5), uptimeMs: 0 }),
  );
  const replicas = processes.map((process): ChargeReplica => {
    const connection = new Connection({ process, clock, chance, network: quiet, quietFrom: null, server });
    connections.push(connection);
    const stores = createStores(
      {
        // Nothing else of the settings concerns the stores. No replica may pace on its own.
        settings: {
          redis: plainRedis({ whenDown: 'deny' }),
          privacy: { labelKey: '' },
        } as unknown as Settings,
        clock: process,
        random: { next: () => chance.next(), hex: () => process.name },
        telemetry: noTelemetry,
        leaseMs,
        listener: { onGrant, onClosed: ignored },
      },
      () => connection.asProduct(),
    );
    void stores.ready();
    return { limiter: stores.limiter, estimates: new TokenEstimates() };
  });
  return {
    startMs,
    of: (client) => {
      const replica = replicas[client % count];
      if (replica === undefined) throw new Error('a fleet without replicas');
      return replica;
    },
    isOver: () => void clock.outside(clock.monotonic() + quietMs, () => clock.halt()),
    close: async () => {
      for (const process of processes) process.kill();
      if (server.bucketCommands === 0) throw new Error('no call came to the shared bucket');
    },
  };
}
