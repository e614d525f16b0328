/** A log that cannot be joined although Redis answers: its follower does without it, and joins when it can. */
import { expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { replicaId } from '../../src/ids.ts';
import { RedisLog, type RedisLogParts } from '../../src/log/redis-log.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { until } from '../support/until.ts';
import { testName } from './replicas.ts';
import { installation, server } from './world.ts';

test('a log that is not joined for long is away, once, until it is joined: in a new term, since its replica may have acted alone', async () => {
  const redis = await server();
  const other = await installation(redis).add();
  await until(() => other.isJoined);
  const { health, connection, joins } = other;
  let answer = (): void => {};
  const isSlow = new Promise<void>((resolve) => (answer = resolve));
  const slow: RedisLogParts<string>['redis'] = {
    isUp: true,
    watch: (watcher) => health.watch(watcher),
    async run(...command) {
      await isSlow;
      return health.run(...command);
    },
  };
  const events: string[] = [];
  let term = 0;
  const log = new RedisLog<string>({
    name: testName,
    replica: replicaId('late'),
    actsAlone: true,
    redis: slow,
    connection,
    clock: systemClock,
    random: systemRandom,
    log: noTelemetry.log,
    readEvent: String,
  });
  log.follow({
    onEntry() {},
    onRestore() {},
    onJoined(joined) {
      events.push('joined');
      ({ term } = joined);
    },
    onAway: () => void events.push('away'),
    awaitsOthers: () => false,
    snapshot: () => [],
  });
  await until(() => events.length > 0);
  expect(events).toEqual(['away']);
  answer();
  await until(() => log.staleMs() < Infinity);
  expect(events).toEqual(['away', 'joined']);
  expect(term).toBe((joins[0]?.term ?? 0) + 1);
  await log.close();
});
