/**
 * The two ways of running that must give the same results: one process with the embedded limiter, and three replicas over
 * a Redis of their own. Owns: starting and ending what a scenario needs for one of them.
 */
import { fleetConfig, type FleetConfig, type FleetOptions } from '../../test/support/redis-fleet.ts';
import { startFleet, type Fleet } from './fleet.ts';
import { startServer, stopServer, type Simulator } from './processes.ts';

export const setups = { embedded: 'embedded', replicas: 'three replicas' } as const;
export type Setup = (typeof setups)[keyof typeof setups];

/** A configuration over the Redis at this address, or with the embedded limiter (`null`). */
export type Configure = (redisUrl: string | null) => FleetConfig;

export interface Running {
  readonly fleet: Fleet;
  /** Of the replicas' Redis; `null` = embedded. */
  readonly redisUrl: string | null;
  /** Changes the file of the replicas, as `Fleet.reload` does. */
  reload(configure: Configure): Promise<number>;
  /** Ends every replica and starts as many with this configuration over the same Redis. */
  restart(configure: Configure): Promise<Fleet>;
  /** Ends the replicas, their Redis and these simulators. */
  end(...simulators: readonly Simulator[]): Promise<void>;
}

/** The options that both setups share. */
export const common =
  (options: Omit<FleetOptions, 'redis'>): Configure =>
  (redisUrl) =>
    fleetConfig(redisUrl === null ? options : { ...options, redis: `url: "${redisUrl}"` });

export async function run(setup: Setup, configure: Configure): Promise<Running> {
  const server = setup === setups.embedded ? null : await startServer();
  const redisUrl = server === null ? null : server.url;
  const replicas = setup === setups.embedded ? 1 : 3;
  let fleet = await startFleet(replicas, configure(redisUrl));
  return {
    get fleet() {
      return fleet;
    },
    redisUrl,
    reload: (changed) => fleet.reload(changed(redisUrl)),
    async restart(changed) {
      await fleet.stop();
      fleet = await startFleet(replicas, changed(redisUrl));
      return fleet;
    },
    async end(...simulators) {
      await fleet.stop();
      if (server !== null) await stopServer(server);
      for (const simulator of simulators) simulator.stop();
    },
  };
}
