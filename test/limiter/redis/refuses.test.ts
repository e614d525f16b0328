/** Error replies that no command of Sluice expects: calls go on as without Redis, and none ends in an internal error. */
import { expect, test } from '@jest/globals';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { onRedis } from '../../support/shared-redis.ts';
import { startHealth } from '../../support/redis-health.ts';
import { admission } from '../../support/admission.ts';
import { startReplica } from '../../support/redis-replica.ts';

const server = onRedis();

test.each(['local', 'deny'])(
  'with whenDown: %s, a call goes on over Redis when the keys of its log have the wrong type: the log begins again',
  async (whenDown) => {
    const bucket = `spoilt-${whenDown}`;
    const replica = await startReplica(`url: "${server.url}", whenDown: ${whenDown}`);
    /** Resolves when the call may go: at once, or on a slow machine with a later message. */
    const enter = async (ticket: string): Promise<void> => {
      const { kind } = await replica.limiter.admit(
        admission(ticket, { bucket, limit: 1_000, windowMs: 60_000 }),
      );
      if (kind === 'queued') await replica.granted(ticket);
      else expect(kind).toBe('granted');
    };
    await enter('before');
    const keys = await server.probe.keys(`*${bucket}*`);
    expect(keys.length).toBeGreaterThan(0);
    for (const key of keys) await server.probe.set(key, 'not ours');
    await enter('after');
    expect(replica.noted).toEqual(['mode redis']);
    await replica.close();
  },
);

test('a command with an unexpected error reply is sent once, makes Redis unavailable at once and is logged as a bug', async () => {
  const bugs: string[] = [];
  const log = { ...noTelemetry.log, bug: (_text: string, cause: unknown) => void bugs.push(String(cause)) };
  const telemetry = { ...noTelemetry, log };
  const { health, close } = await startHealth(server, { telemetry, tripsOnPermanentError: true });
  await server.probe.set('text', 'not a list');
  let sent = 0;
  const refused = health.run('other', (client) => {
    sent += 1;
    return client.lpush('text', 'more');
  });
  expect(await refused).toBeNull();
  expect([sent, health.isUp]).toEqual([1, false]);
  expect(bugs).toEqual([expect.stringMatching(/^ReplyError: WRONGTYPE/)]);
  // Redis is there and is tried again: one wrong key does not make it unavailable for good.
  await new Promise<void>((resolve) => {
    health.watch({ onUnavailable: () => {}, onAvailable: resolve });
  });
  const read = await health.run('other', (client) => client.get('text'));
  expect(read).toBe('not a list');
  close();
});
