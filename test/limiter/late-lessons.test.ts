/**
 * What an answer taught, told late: behind a batch that is under way, or over a slow way. On the store's clock it is as old as
 * it was. Otherwise an answer to a call that was sent earlier would pass for one of a call that was sent later, and the
 * level of a bucket be forgotten that only earlier calls have shown.
 */
import { describe, expect, test } from '@jest/globals';
import type { Grant } from '../../src/limiter/limiter.ts';
import type { RedisClient, RedisConnection } from '../../src/limiter/redis-connection.ts';
import { createRedisLimiter } from '../../src/limiter/redis-limiter.ts';
import type { RedisLink } from '../../src/limiter/redis-link.ts';
import { createReplica } from '../../src/limiter/replica.ts';
import { noTelemetry } from '../../src/telemetry/noop.ts';
import { Server } from '../simulation/replicas/server.ts';
import { admission } from '../support/admission.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { origins } from '../support/origins.ts';

const key = 'b';
const limit = 600;
const answered = (used: number) => ({
  meters: [{ meter: 'requests' as const, limit, windowMs: 60_000, level: { lowest: used, highest: used } }],
  throttle: null,
});

/** One replica whose commands take so long to reach the store. */
function replicaOn(clock: FakeClock, server: Server, wayMs: () => number) {
  const command =
    (name: string) =>
    async (...words: string[]) =>
      server.execute(name, words);
  // The product uses a handful of commands of a client with hundreds.
  const client = {
    on() {},
    sluiceApplyV1: command('sluiceApplyV1'),
    sluicePresenceV1: command('sluicePresenceV1'),
  } as unknown as RedisClient;
  const link: RedisLink = {
    isUp: true,
    async run<T>(_command: string, send: (client: RedisClient) => Promise<T>) {
      await new Promise<void>((resolve) => clock.outside(clock.monotonic() + wayMs(), resolve));
      return send(client);
    },
    watch: () => {},
    start: () => {},
    close: () => {},
  };
  const connection = {
    client,
    subscribe() {},
    isReady: () => true,
    info: async () => server.info(),
    primaries: () => '',
  } as unknown as RedisConnection;
  const parts = { clock, telemetry: noTelemetry };
  const replica = createReplica({ ...parts, connection, random: { next: () => 0.5, hex: () => 'ab' } });
  const listener = { onGrant() {}, onClosed() {} };
  return createRedisLimiter({ ...parts, link, replica, listener, onStranded: () => false });
}

describe.each(origins)('a store with $name', ({ ms }) => {
  test('is told when a call was sent, however late it is told', async () => {
    const clock = new FakeClock();
    const watch = { applied() {}, placeTaken() {}, placeReturned() {}, lost() {}, reach() {} };
    const server = new Server(watch, () => {}, { monotonic: () => clock.monotonic(), originMs: ms });
    let wayMs = 1;
    const limiter = replicaOn(clock, server, () => wayMs);
    const grants: Grant[] = [];
    for (const ticket of ['t1', 't2', 't3']) {
      void limiter.admit(admission(ticket, { bucket: key, limit, windowMs: 60_000 })).then((reply) => {
        if (reply.kind === 'granted') grants.push(reply.grant);
      });
    }
    clock.outside(500, () => {});
    await clock.run(1_000);
    expect(grants).toHaveLength(3);

    wayMs = 80;
    const settledAt = clock.monotonic();
    const [first, second, third] = grants as [Grant, Grant, Grant];
    const done = { kind: 'succeeded', spent: null } as const;
    const heardAt = (): number | null | undefined =>
      server.model(key).bucket?.meters.get('requests')?.heardAt;
    void limiter.settle(first, done, { feedback: answered(10), sentAgoMs: 40, headAgoMs: 2 });
    // These two go with the next batch.
    void limiter.settle(second, done, { feedback: answered(20), sentAgoMs: 30, headAgoMs: 2 });
    void limiter.learn(third, { feedback: answered(30), sentAgoMs: 20, headAgoMs: 2 });
    await clock.run(settledAt + 100);
    expect(heardAt()).toBeCloseTo(ms + settledAt - 40, 1);
    await clock.run(settledAt + 200);
    expect(heardAt()).toBeCloseTo(ms + settledAt - 20, 1);
  });
});
