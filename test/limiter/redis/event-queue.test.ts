/** Who learns of a reply to a batch of events, and in which order. */
import { expect, test } from '@jest/globals';
import { bucketKey, laneKey, leaseToken, replicaId, ticketId } from '../../../src/ids.ts';
import type { EventReply } from '../../../src/limiter/policy/bucket-events.ts';
import { EventQueue, type EventOptions } from '../../../src/limiter/redis/event-queue.ts';
import type { BucketReply } from '../../../src/limiter/redis/protocol/reply-codec.ts';
import { StoreClock } from '../../../src/limiter/redis/store-clock.ts';
import type { RedisHealth } from '../../../src/redis/health.ts';
import { manualClock } from '../../support/manual-clock.ts';

const bucket: BucketReply = {
  now: 5_000,
  nextInMs: null,
  closedMs: 0,
  createdAt: 1_000,
  isPumpLeader: false,
  grants: [],
  unnamed: 0,
};

/** Redis answers each batch when the test says so. */
function queueOf(read: () => void) {
  const clock = manualClock();
  const log: string[] = [];
  const batches: ((replies: readonly EventReply[]) => void)[] = [];
  const lanes: (string | null)[] = [];
  const redis = {
    run: (_command: string, _send: unknown, { lane = null }: { readonly lane?: string | null }) =>
      new Promise((resolve) => {
        lanes.push(lane);
        batches.push((replies) =>
          resolve({ kind: 'reply', value: { bucket, replies }, sentAt: 1, attempts: 1 }),
        );
      }),
  } as unknown as RedisHealth;
  const queue = new EventQueue({
    bucket: bucketKey('b'),
    redis,
    clock,
    replica: { id: replicaId('r'), storeClock: new StoreClock() },
    reader: {
      prepare: async (_bucket, _sentAt, kinds) => void log.push(`prepared for ${[...kinds].join(', ')}`),
      read: () => {
        log.push('read');
        read();
      },
    },
  });
  const cancel = async (name: string, options?: EventOptions): Promise<void> => {
    const asked = await queue.apply<'cancel'>({ kind: 'cancel', ticket: ticketId(name) }, options);
    log.push(`${name} noted`);
    if (asked.kind === 'applied') await asked.whenRead;
    log.push(`${name} goes on`);
  };
  const learned = async (name: string): Promise<void> => {
    await queue.send<'charge'>({ kind: 'charge', lease: leaseToken(name), edge: null });
    log.push(`${name} goes on`);
  };
  return { log, batches, lanes, cancel, learned };
}

const cancelled: EventReply = { kind: 'cancel' };
const settle = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

test('every event of a batch is noted before the bucket is read, and nobody goes on before that', async () => {
  const { log, batches, cancel, learned } = queueOf(() => {});
  const alone = cancel('alone');
  const together = [cancel('one'), learned('two'), cancel('three')];
  expect(batches).toHaveLength(1);
  batches[0]?.([cancelled]);
  await alone;
  expect(log.splice(0)).toEqual(['prepared for cancel', 'alone noted', 'read', 'alone goes on']);
  await settle();
  expect(batches).toHaveLength(2);
  batches[1]?.([cancelled, { kind: 'lease', known: true }, cancelled]);
  await Promise.all(together);
  expect(log.slice(0, 4)).toEqual(['prepared for cancel, charge', 'one noted', 'three noted', 'read']);
  expect(log.slice(4).toSorted()).toEqual(['one goes on', 'three goes on', 'two goes on']);
});

test('what an incomplete reply leaves out goes with the next batch, before what has come since', async () => {
  const { log, batches, cancel } = queueOf(() => {});
  const all = [cancel('one'), cancel('two'), cancel('three')];
  batches[0]?.([cancelled]);
  await settle();
  all.push(cancel('four'));
  batches[1]?.([cancelled]);
  await settle();
  batches[2]?.([cancelled, cancelled]);
  await Promise.all(all);
  expect(log.filter((entry) => entry.endsWith('noted'))).toEqual([
    'one noted',
    'two noted',
    'three noted',
    'four noted',
  ]);
});

test('only a batch of arriving calls waits as one: what was put back, and what it goes with, do not', async () => {
  const { batches, lanes, cancel } = queueOf(() => {});
  const arriving = (lane: string) => cancel(lane, { arrivingLane: laneKey(lane) });
  const all = [arriving('a'), arriving('b'), arriving('c')];
  batches[0]?.([cancelled]);
  await settle();
  all.push(cancel('d'));
  batches[1]?.([cancelled]);
  await settle();
  batches[2]?.([cancelled, cancelled]);
  await Promise.all(all);
  expect(lanes).toEqual(['a', 'b', null]);
});

test('a reply that cannot be read is reported to each of its senders', async () => {
  const { batches, cancel, learned } = queueOf(() => {
    throw new Error('a bug');
  });
  const first = cancel('one');
  batches[0]?.([cancelled]);
  await expect(first).rejects.toThrow('a bug');
  await settle();
  const second = learned('two');
  batches[1]?.([{ kind: 'lease', known: true }]);
  await expect(second).rejects.toThrow('a bug');
});
