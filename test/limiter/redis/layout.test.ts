/**
 * What two versions of the service that run side by side on one Redis would read of each other. During an update old
 * and new replicas use the same server: a record that changes its fields under the same key is misread by the other.
 */
import { expect, test } from '@jest/globals';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { bucketKey, leaseToken, replicaId, type LeaseToken } from '../../../src/ids.ts';
import {
  bucketKeys,
  layoutVersion,
  livingChannel,
  replicaChannel,
} from '../../../src/limiter/redis/protocol/keys.ts';
import type { TimedLesson } from '../../../src/limiter/policy/lessons.policy.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import { recordsIn } from '../../../src/limiter/redis/protocol/lua-source.ts';
import { presenceKeys } from '../../../src/limiter/redis/presence.ts';
import { dayKey, sendsKey } from '../../../src/limiter/redis/sliding-log.ts';
import { applied } from '../../support/bucket-store.ts';
import { loadInto } from '../../support/loaded-scripts.ts';
import { startRedis } from '../../support/redis.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { readPacked } from '../parity-messagepack.ts';

/** Digests of the layouts, by the version that names them. A released version's digest never changes again. */
const pinned: Readonly<Record<number, string>> = {
  1: '72fc62945e00740d',
  2: '719070bc40d4a285',
  3: '655b8ff5265d1587',
  4: '7bef6e30e64155a5',
  5: 'b2c5218ddb40a1f3',
  6: 'fb352f86dd6ba756',
  7: '1aa37da58bae2774',
};
/**
 * Fields that have another name in the sources since their layout was pinned, with the name of then. Records are stored by position,
 * so a new name changes nothing that Redis holds; a field that moves or means something else is no renamed field.
 */
const pinnedNames: Readonly<Record<string, string>> = { ceilingTag: 'ceiling' };
/** The digest of keys that carry no version. */
const pinnedUnversioned = '56a66d6c69fcef00';

const read = (name: string): string =>
  readFileSync(new URL(`../../../src/limiter/redis/lua/${name}.lua`, import.meta.url), 'utf8');
const digest = (text: string): string => createHash('sha256').update(text).digest('hex').slice(0, 16);

/** Types and lengths instead of values; words of sorted members by their kind. */
function shapeOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shapeOf);
  if (typeof value !== 'object' || value === null) return value === null ? 'nothing' : typeof value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, shapeOf(inner)]));
}

const memberShape = (member: string): string =>
  member
    .split(':')
    .map((part, at) => (at === 0 ? part : /^[\da-f]{16}$/.test(part) ? '#' : 'name'))
    .join(':');

const sorted = (values: Iterable<string>): string[] => [...new Set(values)].toSorted();

/** A bucket with everything in it: waiting, in flight, asleep, of unknown fate, learned, closed, documents. */
async function fullBucket(redis: Redis): Promise<string> {
  let now = 1_000_000;
  const by = (replica: string) => ({ bucket: bucketKey('b'), replica: replicaId(replica), now: (now += 50) });
  const scripts = await loadInto(redis, 'library');
  const settle = (replica: string, lease: LeaseToken, settlement: Settlement, learned: TimedLesson | null) =>
    applied<'settle'>(scripts, by(replica), { kind: 'settle', lease, settlement, lesson: learned });
  const setting = {
    meters: [{ meter: 'requests' as const, limit: 40, windowMs: 20_000 }],
    learn: true,
    probe: 0,
  };
  const lesson: TimedLesson = {
    feedback: {
      meters: [{ meter: 'requests', limit: 50, windowMs: 20_000, level: { lowest: 9, highest: 9 } }],
      throttle: null,
    },
    sentAt: now - 5,
    headAt: now - 1,
  };
  const statesCost: TimedLesson = { ...lesson, feedback: { ...lesson.feedback, requestedCost: 7 } };
  const enter = async (replica: string, ticket: string, lane: string, more: AdmissionOptions = {}) => {
    const asked = admission(ticket, { bucket: 'b', setting, lane, ...more });
    const reply = await applied<'admit'>(scripts, by(replica), { kind: 'admit', admission: asked });
    return reply.kind === 'granted' ? reply.lease : leaseToken('none');
  };
  const capped = await enter('r1', 't1', 'capped', { maxInFlight: 1 });
  await enter('r2', 't2', 'capped', { maxInFlight: 1 });
  await settle('r1', capped, { kind: 'unknown' }, null);
  const asleep = await enter('r1', 't3', 'asleep');
  await applied<'charge'>(scripts, by('r1'), {
    kind: 'charge',
    lease: asleep,
    edge: { slots: 0, nextSlotMs: 5_000 },
  });
  await enter('r1', 't4', 'asleep');
  const idle = await enter('r1', 't5', 'idle');
  await settle('r1', idle, { kind: 'succeeded', spent: null }, lesson);
  const open = await enter('r1', 't6', 'open');
  await applied<'learn'>(scripts, by('r1'), { kind: 'learn', lease: open, lesson });
  await enter('r2', 't7', 'open');
  await enter('r2', 't8', 'other');
  const stated = await enter('r1', 'ta', 'open', { document: 'reported' });
  await settle('r1', stated, { kind: 'succeeded', spent: null }, statesCost);
  const unreported = await enter('r1', 'tb', 'open', { document: 'unreported' });
  await settle('r1', unreported, { kind: 'succeeded', spent: null }, lesson);
  await enter('r1', 'tc', 'open', { document: 'probing' });
  await enter('r1', 'td', 'waits', { document: 'probing' });
  const throttled = await enter('r1', 't9', 'open');
  const closes = { kind: 'throttled', closeMs: 9_000, requeue: true, sleepMs: 0 } as const;
  await settle('r1', throttled, closes, lesson);
  const [state, records, order, replicas] = bucketKeys(bucketKey('b'));
  const members = await redis.zrange(order, 0, '-1');
  // The tick removes idle lanes.
  await applied<'tick'>(scripts, by('r2'), { kind: 'tick', leases: [] });
  members.push(...(await redis.zrange(order, 0, '-1')));
  const fields = Object.entries(await redis.hgetallBuffer(records)).map(
    ([field, packed]) =>
      `${field.slice(0, 2)} ${JSON.stringify(field.startsWith('w:') ? 'count' : shapeOf(readPacked(packed)))}`,
  );
  return [
    JSON.stringify(shapeOf(readPacked((await redis.getBuffer(state)) ?? Buffer.alloc(0)))),
    ...sorted(fields),
    ...sorted(members.map(memberShape)),
    `${(await redis.zrange(replicas, 0, '-1')).join(' ')}: last heard of`,
  ].join('\n');
}

/** The order of the fields in records, and the words of messages, as the sources state them. */
function stated(): string {
  const lists = [...recordsIn(read('bucket-state'))];
  const names = lists.map(([name]) => name).join(' ');
  expect(names).toBe('lane ticket known lease meter contest peak unreported bucket');
  const marks = read('meter').match(/^-- The mark is .*$/m)?.[0] ?? '';
  const messages = read('reply').match(/^-- Message to a replica:[^]*?(?=^local)/m)?.[0] ?? '';
  expect([marks, messages]).not.toContain('');
  const records = lists.map(([name, fields]) =>
    [name, ...fields.map((field) => pinnedNames[field] ?? field)].join(' '),
  );
  return [...records, marks, messages].join('\n');
}

test('the stored layout of a bucket does not change without a new layout version', async () => {
  const server = await startRedis();
  const redis = new Redis(server.port, '127.0.0.1', { replyMapping: 'legacy' });
  const layout = `${stated()}\n${await fullBucket(redis)}`;
  redis.disconnect();
  await server.stop();
  expect(bucketKeys(bucketKey('b')).every((key) => key.startsWith(`sluice:{b}:${layoutVersion}:`))).toBe(
    true,
  );
  const known = pinned[layoutVersion];
  if (known === digest(layout)) return;
  throw new Error(
    `The records or messages of a bucket are not those that layout ${layoutVersion} is pinned to (${digest(layout)} ` +
      `instead of ${known ?? 'nothing'}). Raise layoutVersion in src/limiter/redis/protocol/keys.ts and add the new digest to the ` +
      `table of this test, so that replicas of the version before do not read what they do not understand. Only a ` +
      `layout that no release ever had may have its digest replaced.\n\n${layout}`,
  );
});

test('keys that carry no version keep their meaning', () => {
  const headers = ['consume', 'giveback', 'slots', 'restore', 'presence'].map(
    (name) => `${name} ${/^KEYS.*$/m.exec(read(name))?.[0] ?? ''}`,
  );
  const formats = [
    ...headers,
    ...[...read('presence').matchAll(/'HMGET', KEYS\[1\], (.*)\)$/gm)].map(([, fields]) => fields),
    sendsKey('c'),
    dayKey('c'),
    ...presenceKeys,
    replicaChannel(replicaId('r')),
    livingChannel({ database: 0, keyPrefix: 'p:' }),
  ].join('\n');
  if (digest(formats) === pinnedUnversioned) return;
  throw new Error(
    `Keys that old and new replicas share have changed (${digest(formats)} instead of ${pinnedUnversioned}). Give what ` +
      `has another meaning another key (a number in its name), and pin the new digest here.\n\n${formats}`,
  );
});
