/** Subscriptions: those that fail while their connection lives, and how fast messages are read. */
import type { Socket } from 'node:net';
import { expect, test } from '@jest/globals';
import { manualClock } from '../support/manual-clock.ts';
import { operator, ownRedis, wireTo } from '../support/own-redis.ts';
import { until } from '../support/until.ts';
import { connected } from './connected.ts';

test('a subscription that is not confirmed is made again until it is', async () => {
  const redis = await ownRedis();
  let subscriptions = 0;
  const silent = new WeakSet<Socket>();
  // The first two are silent, and everything else works.
  const wire = await wireTo(redis, {
    toRedis(bytes, client) {
      if (!bytes.toString().toLowerCase().includes('\r\nsubscribe\r\n')) return true;
      subscriptions += 1;
      if (subscriptions <= 2) silent.add(client);
      return !silent.has(client);
    },
  });
  const heard: string[] = [];
  let [failures, readyAt] = [0, 0];
  const fail = (): void => void (failures += 1);
  const connection = await connected({ port: wire.port, keyPrefix: 'prefixed:' }, fail, true);
  connection.subscribe('grants', {
    onMessage: (text) => void heard.push(text),
    onReady: () => void (readyAt ||= subscriptions),
  });
  await until(() => readyAt > 0);
  expect(readyAt).toBeGreaterThanOrEqual(3);
  expect(failures).toBeGreaterThanOrEqual(2);
  const straight = operator(redis);
  // A process that was kept from running for two seconds makes its subscription anew: until then nobody hears.
  await until(async () => (await straight.publish('grants', 'hello')) > 0);
  await until(() => heard.length > 0);
  expect(heard).toEqual(['hello']);
});

test('a connection all of whose channels are refused is closed once, and reports the failure once', async () => {
  const redis = await ownRedis();
  const admin = operator(redis);
  await admin.call('ACL', 'SETUSER', 'default', 'resetchannels');
  const failures = new Set<unknown>();
  const connection = await connected(redis, (failure) => void failures.add(failure), true);
  let isReady = 0;
  // More than Node lets listen to the end of one socket without a warning.
  for (let n = 0; n < 20; n += 1)
    connection.subscribe(`channel-${n}`, {
      onMessage: () => {},
      onReady: () => void (isReady += 1),
    });
  await until(() => failures.size >= 2);
  const opened = (await connection.info()).match(/total_connections_received:(\d+)/);
  expect(failures.size).toBeLessThanOrEqual(Number(opened?.[1]));
  await admin.call('ACL', 'SETUSER', 'default', 'allchannels');
  await until(() => isReady === 20);
});

test('messages that may wait are read a little later, together and in order; those of who does not wait are read at once', async () => {
  const redis = await ownRedis();
  const [clock, control] = [manualClock(), operator(redis)];
  const heard: string[] = [];
  let isWaiting = true;
  const connection = await connected({ port: redis.port, clock });
  const onMessage = (text: string): void => void heard.push(text);
  const mayWait = (): boolean => isWaiting;
  await new Promise<void>((onReady) => connection.subscribe('log', { onMessage, onReady, mayWait }));
  // A message may have been heard, and the ones behind it left unread, before this test listens.
  await until(async () => {
    if (heard.includes('first')) return true;
    clock.advance(20);
    await control.publish('log', 'first');
    return false;
  });
  heard.length = 0;
  for (const text of ['a', 'b', 'c']) await control.publish('log', text);
  for (let n = 0; n < 20; n += 1) await control.ping();
  expect(heard).toEqual([]);
  isWaiting = false;
  // On a busy machine more of them may have begun to wait since.
  await until(() => {
    clock.advance(20);
    return heard.includes('c');
  });
  expect(heard.filter((text) => text !== 'first')).toEqual(['a', 'b', 'c']);
  await control.publish('log', 'd');
  await until(() => heard.includes('d'));
});
