/** How a copy joins: a log that cannot be joined although Redis answers, and one that has another history than the copy. */
import { expect, test } from '@jest/globals';
import { systemClock, systemRandom } from '../../src/clock.ts';
import { replicaId } from '../../src/ids.ts';
import { RedisLog, type RedisLogParts } from '../../src/log/redis-log.ts';
import { noTelemetry } from '../support/no-telemetry.ts';
import { until } from '../support/until.ts';
import { append, begin, namesOf, snapshotKey, writeParts } from '../../src/log/redis-commands.ts';
import { agree, keys, testName } from './replicas.ts';
import { installation, operator, server } from './world.ts';

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

test('a copy that is replaced by that of another replica learns up to where the log has what it had, and takes its time', async () => {
  const redis = await server();
  const control = operator(redis);
  const names = namesOf(testName);
  const { add, replicas } = installation(redis);
  const a = await add();
  await until(() => a.isJoined);
  a.say('kept');
  await until(() => a.hasOwn);
  // The other copy ends here, and has seen an hour less.
  const [sequence, at] = [a.sequence, a.at - 3_600_000];
  const life = String(await control.hget(keys.head, 'life'));
  const end = { life, sequence, mark: a.place.split(' ')[1] ?? '', term: a.term, at };
  const parts = [JSON.stringify([a.digest, sequence, a.term, at, a.place]), JSON.stringify(a.said)];
  a.say('lost');
  await until(() => a.hasOwn);
  await control.flushall();
  await writeParts(control, snapshotKey(names, { life: 'other', sequence }), { from: 0, parts });
  const beginning = { over: '', life: 'other', end, parts: parts.length, isForced: false };
  expect(await begin(control, names, beginning)).toBe(true);
  for (const number of [1, 2]) {
    const batch = {
      replica: replicaId('r9'),
      number,
      events: '[""]',
      maxMs: 1,
      returns: false,
      maxBytes: 1e6,
      keptMs: null,
    };
    const last = String((await control.lindex(keys.log, -1)) ?? '').split(' ');
    const known = number === 1 ? end : { ...end, sequence: sequence + 1, mark: last[1] ?? '' };
    await append(control, names, { end: { ...known, life: 'other' }, batch });
  }
  a.say('after');
  await agree(replicas);
  expect(a.joins.at(-1)).toEqual({ term: 2, termBegan: sequence });
  expect(a.log.now()).toBeLessThan(at + 3_000_000);
});
