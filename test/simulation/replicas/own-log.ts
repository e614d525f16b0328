/** Logs of a simulated replica: the product's, over its connection. */
import type { LogKey, ReplicaId } from '../../../src/ids.ts';
import type { Log } from '../../../src/log/log.ts';
import { RedisLog } from '../../../src/log/redis-log.ts';
import type { RedisConnection } from '../../../src/redis/connection.ts';
import { RedisHealth } from '../../../src/redis/health.ts';
import { RedisTroubles } from '../../../src/redis/troubles.ts';
import type { Telemetry } from '../../../src/telemetry/telemetry.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import type { Chance } from '../chance.ts';
import type { Process } from './process.ts';

export interface LogParts {
  readonly process: Process;
  readonly connection: RedisConnection;
  readonly chance: Chance;
  readonly replica: ReplicaId;
  readonly redis: RedisHealth;
  readonly telemetry: Telemetry;
}

export function healthOf(
  connection: RedisConnection,
  process: Process,
  commandTimeoutMs: number,
): RedisHealth {
  const health = new RedisHealth({
    connection,
    clock: process,
    telemetry: noTelemetry,
    troubles: new RedisTroubles(noTelemetry.log, { tls: false }),
    commandTimeoutMs,
    tripsOnPermanentError: false,
    check: async () => void (await connection.info()),
  });
  health.start(true);
  return health;
}

export const openLog = <Event>(name: LogKey, parts: LogParts): Log<Event> =>
  new RedisLog<Event>({
    name: { digest: name, version: '1', database: 0, keyPrefix: '' },
    replica: parts.replica,
    actsAlone: true,
    redis: parts.redis,
    connection: parts.connection,
    clock: parts.process,
    random: { next: () => parts.chance.next(), hex: () => `${parts.replica}.${parts.process.monotonic()}` },
    log: parts.telemetry.log,
    readEvent: (value) => value as Event,
  });
