/**
 * What the bucket scheduler costs Redis: time per script with few and with many waiting tickets and active buckets,
 * and memory per waiting call and per idle workspace. `node bench/limiter-scripts.ts [calls] [library | script]` (2,000 per
 * figure; functions of a library, or EVALSHA as on servers before Redis 7).
 *
 * Measured on the server: Redis' own latency histogram of `FCALL` or `EVALSHA` (`INFO latencystats`), reset before each row, so
 * the network and this process are not in it. A private redis-server on this machine, one call at a time.
 */
import { createHash } from 'node:crypto';
import { Redis } from 'ioredis';
import {
  bucketKey,
  leaseToken,
  replicaId,
  ticketId,
  type BucketKey,
  type LeaseToken,
  type ReplicaId,
} from '../src/ids.ts';
import type { BucketEvent } from '../src/limiter/policy/bucket-events.ts';
import { timed } from '../src/limiter/policy/lessons.policy.ts';
import { applyCall, type Asking } from '../src/limiter/redis/protocol/event-codec.ts';
import { readBatch, type BatchReply } from '../src/limiter/redis/protocol/reply-codec.ts';
import { admission } from '../test/support/admission.ts';
import { loadInto } from '../test/support/loaded-scripts.ts';
import { startRedis } from '../test/support/redis.ts';

const calls = Number(process.argv[2] ?? 2_000);
const server = await startRedis({ args: ['--latency-tracking-info-percentiles', '50', '99', '100'] });
const redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
const form = process.argv[3] === 'script' ? 'script' : 'library';
const scripts = await loadInto(redis, form);
const rows: Record<string, Record<string, string | number>> = {};
let tickets = 0;
const shared = bucketKey('shared');
const door = bucketKey('door');
const lesson = {
  feedback: {
    meters: [{ meter: 'requests', limit: 1e9, windowMs: 60_000, level: { lowest: 1, highest: 1 } }],
    throttle: null,
  },
  sentAgoMs: 20,
  headAgoMs: 1,
} as const;

interface Held {
  readonly bucket: BucketKey;
  readonly lease: LeaseToken;
}

try {
  const version = /redis_version:(\S+)/.exec(await redis.info('server'))?.[1];
  console.log(`redis ${version}, ${calls} calls per row, microseconds inside the server\n`);
  await waitingTickets(100);
  await waitingTickets(10_000);
  await crowdAtTheDoor(10_000);
  await activeBuckets(10);
  await activeBuckets(10_000);
  console.table(rows);
} finally {
  redis.disconnect();
  await server.stop();
}

/** One bucket in which `count` tickets of 100 serialized lanes wait; each settlement grants the next of its lane. */
async function waitingTickets(count: number): Promise<void> {
  await redis.flushall();
  const title = `${count.toLocaleString('en')} waiting`;
  const empty = await memory();
  const held: Held[] = [];
  for (let n = 0; n < count + 100; n += 1) held.push(...(await enter(shared, n % 100)));
  const perTicket = ((await memory()) - empty) / count;
  rows[`memory per waiting call, ${title}`] = { bytes: Math.round(perTicket) };
  const asking = { bucket: shared, replica: replica(0) };
  const leased = (n: number): LeaseToken => held[n % held.length]?.lease ?? leaseToken('none');
  await measure(`admit, queued: ${title}`, async (n) => held.push(...(await enter(shared, n % 100))));
  await measure(`forecast: ${title}`, (n) =>
    run(asking, { kind: 'forecast', ticket: ticketId(ticketName(tickets - 1 - n)) }),
  );
  await measure(`cancel: ${title}`, (n) =>
    run(asking, { kind: 'cancel', ticket: ticketId(ticketName(tickets - 1 - n)) }),
  );
  await measure(`learn: ${title}`, (n) =>
    run(asking, { kind: 'learn', lease: leased(n), lesson: timed(lesson, Date.now()) }),
  );
  await measure(`charged: ${title}`, (n) =>
    run(asking, { kind: 'charge', lease: leased(n), edge: { slots: 5, nextSlotMs: 1_000 } }),
  );
  await measure(`tick, 1 lease: ${title}`, (n) => run(asking, { kind: 'tick', leases: [leased(n)] }));
  await measure(
    `tick, 64 leases: ${title}`,
    () => run(asking, { kind: 'tick', leases: held.slice(0, 64).map(({ lease }) => lease) }),
    Math.min(calls, 300),
  );
  for (let n = 0; n < calls; n += 1) held.push(...(await enter(shared, n % 100)));
  await measure(`settle, grants the next: ${title}`, async () => {
    const ended = held.shift();
    if (ended === undefined) throw new Error('nothing is in flight');
    const { grants } = (await run(asking, settled(ended.lease))).bucket;
    held.push(...grants.map(({ lease }) => ({ bucket: shared, lease })));
  });
}

/** The longest script there is: a closed bucket opens for `count` tickets, of which each pump grants 64. */
async function crowdAtTheDoor(count: number): Promise<void> {
  await redis.flushall();
  const asking = { bucket: door, replica: replica(0) };
  const [first] = await enter(door, 0);
  const closing = { kind: 'throttled', closeMs: 60_000, requeue: false, sleepMs: 0 } as const;
  const closes = {
    kind: 'settle',
    lease: first?.lease ?? leaseToken('none'),
    settlement: closing,
    lesson: null,
  } as const;
  const { now } = (await run(asking, closes)).bucket;
  for (let n = 0; n < count; n += 1) await enter(door, n % 100);
  const later = { ...asking, now: now + 60_001 };
  const title = `tick, grants 64: ${count.toLocaleString('en')} waiting`;
  await measure(title, () => run(later, { kind: 'tick', leases: [] }), Math.floor(count / 64));
}

/** `count` buckets, each used before; calls go to one after the other and find nobody waiting. */
async function activeBuckets(count: number): Promise<void> {
  await redis.flushall();
  const title = `${count.toLocaleString('en')} buckets`;
  const empty = await memory();
  const settle = ({ bucket, lease }: Held): Promise<unknown> =>
    run({ bucket, replica: replica(0) }, settled(lease));
  for (let n = 0; n < count; n += 1) for (const held of await enter(bucketName(n), 0)) await settle(held);
  rows[`memory per idle workspace with its own bucket, ${title}`] = {
    bytes: Math.round(((await memory()) - empty) / count),
  };
  for (let n = 0; n < count; n += 1)
    await run({ bucket: bucketName(n), replica: replica(0) }, { kind: 'tick', leases: [] });
  const held: Held[] = [];
  await measure(`admit, granted: ${title}`, async (n) =>
    held.push(...(await enter(bucketName(n % count), n))),
  );
  await measure(`settle, nobody waits: ${title}`, async (n) => {
    const ended = held[n];
    if (ended !== undefined) await settle(ended);
  });
}

/** Enters a new ticket; its lease when it was granted at once. */
async function enter(bucket: BucketKey, lane: number): Promise<Held[]> {
  const asked = admission(ticketName(tickets++), {
    bucket,
    limit: 1e9,
    windowMs: 60_000,
    lane: digest(`lane ${lane}`),
    maxInFlight: bucket === shared ? 1 : null,
    maxQueued: 1e6,
    callClass: 'requests',
    maxWaitMs: 1e9,
    leaseMs: 600_000,
  });
  const [reply] = (await run({ bucket, replica: replica(0) }, { kind: 'admit', admission: asked })).replies;
  return reply?.kind === 'granted' ? [{ bucket, lease: reply.lease }] : [];
}

async function measure(title: string, one: (n: number) => Promise<unknown>, times = calls): Promise<void> {
  await redis.config('RESETSTAT');
  for (let n = 0; n < times; n += 1) await one(n);
  const found = /latency_percentiles_usec_(?:fcall|evalsha):p50=([\d.]+),p99=([\d.]+),p100=([\d.]+)/.exec(
    await redis.info('latencystats'),
  );
  if (found === null) throw new Error('this server tells no latency percentiles (Redis 7 does)');
  rows[title] = { p50: Number(found[1]), p99: Number(found[2]), max: Number(found[3]) };
}

/** One event alone, as a replica without other calls sends it. */
async function run(asking: Asking, event: BucketEvent): Promise<BatchReply> {
  return readBatch(await scripts.run(applyCall(asking, [event])), [event]);
}

function settled(lease: LeaseToken): BucketEvent {
  return {
    kind: 'settle',
    lease,
    settlement: { kind: 'succeeded', spent: null },
    lesson: timed(lesson, Date.now()),
  };
}

async function memory(): Promise<number> {
  return Number(/used_memory:(\d+)/.exec(await redis.info('memory'))?.[1]);
}

/** Names as long as the gateway's: 32 hex digits. */
function digest(text: string): string {
  return createHash('md5').update(text).digest('hex');
}
function ticketName(n: number): string {
  return digest(`ticket ${n}`);
}
function bucketName(n: number): BucketKey {
  return bucketKey(digest(`bucket ${n}`));
}
function replica(n: number): ReplicaId {
  return replicaId(digest(`replica ${n}`).slice(0, 16));
}
