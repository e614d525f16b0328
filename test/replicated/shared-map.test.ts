/** What every shared map keeps to, in memory and on a real Redis; and what Redis gets to see. */
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { RedisMap } from '../../src/replicated/redis-map.ts';
import { anybody, change, MemoryMap, type Entry, type SharedMap } from '../../src/replicated/shared-map.ts';
import { onRedis } from '../support/shared-redis.ts';
import { until } from '../support/until.ts';

const server = onRedis();
const codec = {
  write: (value: string) => Buffer.from(value),
  read: (bytes: Buffer) => bytes.toString(),
};
type OnChange = (name: string, entry: Entry<string>) => void;
interface Options {
  readonly redis?: ReturnType<typeof server.connect>;
  readonly labelKey?: string;
  readonly onChange?: OnChange;
}
function redisMap({
  redis = server.connect(),
  labelKey = 'a label key',
  ...more
}: Options = {}): RedisMap<string> {
  return new RedisMap({ redis, name: 'test.1', labelKey, codec, ...more });
}
/** Resolves when somebody listens to what is written to the map of this database. */
const heardOn = (database: number): Promise<void> =>
  until(async () => (await server.probe.pubsub('NUMSUB', `sluice:shared:test.1:${database}:`))[1] === 1);

const key = { name: 'name', secret: 'canary-secret' };
const mine = { owner: 'a.1', ttlMs: 60_000, over: null };
const theirs = { ...mine, owner: 'b.1' };

describe.each<[string, () => SharedMap<string>]>([
  ['in memory', () => new MemoryMap(systemClock)],
  ['in Redis', () => redisMap()],
])('a shared map %s', (_where, create) => {
  test('has what was put, with its owner and the rest of its life, until it is deleted by its owner', async () => {
    const map = create();
    expect(await map.read(key)).toEqual({ kind: 'none' });
    expect(await map.put(key, 'one', mine)).toEqual({ kind: 'put' });
    const found = await map.read(key);
    expect(found).toMatchObject({ kind: 'entry', value: 'one', owner: 'a.1' });
    const leftMs = found.kind === 'entry' ? found.leftMs : 0;
    expect(leftMs > 0 && leftMs <= 60_000).toBe(true);
    await map.delete(key, 'b.1');
    expect(await map.read(key)).toMatchObject({ value: 'one' });
    await map.delete(key, 'a.1');
    expect(await map.read(key)).toEqual({ kind: 'none' });
  });

  test('lets an owner write again, and others only over an owner that they have seen', async () => {
    const map = create();
    await map.put(key, 'one', mine);
    expect(await map.put(key, 'two', mine)).toEqual({ kind: 'put' });
    const lost = { kind: 'lost', to: { kind: 'entry', value: 'two', owner: 'a.1' } };
    expect(await map.put(key, 'three', theirs)).toMatchObject(lost);
    expect(await map.put(key, 'three', { ...theirs, over: 'c.1' })).toMatchObject(lost);
    expect(await map.put(key, 'three', { ...theirs, over: 'a.1' })).toEqual({ kind: 'put' });
    expect(await map.put(key, 'four', mine)).toMatchObject({ kind: 'lost', to: { value: 'three' } });
    expect(await map.put(key, 'four', { ...mine, over: anybody })).toEqual({ kind: 'put' });
    expect(await map.read(key)).toMatchObject({ value: 'four', owner: 'a.1' });
  });

  test('gives an entry to one of many that find none', async () => {
    const map = create();
    const owners = Array.from({ length: 20 }, (_, n) => `a.${n}`);
    const replies = await Promise.all(owners.map((owner) => map.put(key, owner, { ...mine, owner })));
    expect(replies.filter(({ kind }) => kind === 'put')).toHaveLength(1);
  });

  test('loses no change of many that change an entry at once', async () => {
    const map = create();
    let owners = 0;
    const life = { ttlMs: 60_000, newOwner: () => `a.${(owners += 1)}` };
    const words = Array.from({ length: 10 }, (_, n) => String(n));
    const add = (word: string) => change(map, key, life, (found) => `${found?.value ?? ''}${word}`);
    const replies = await Promise.all(words.map(add));
    expect(new Set(replies)).toEqual(new Set(['changed']));
    const found = await map.read(key);
    expect(found.kind === 'entry' ? found.value.split('').toSorted() : []).toEqual(words);
    expect(await change(map, key, life, () => null)).toBe('kept');
  });

  test('forgets an entry whose life is over', async () => {
    const map = create();
    await map.put(key, 'one', { ...mine, ttlMs: 20 });
    await until(async () => (await map.read(key)).kind === 'none');
    expect(await map.put(key, 'two', theirs)).toEqual({ kind: 'put' });
  });
});

describe('what Redis holds of a shared map', () => {
  test('shows nothing of values and secrets, and expires', async () => {
    await redisMap().put(key, 'canary-value', mine);
    const [name = '', ...others] = await server.probe.keys('*');
    expect(others).toEqual([]);
    expect(await server.probe.pttl(name)).toBeGreaterThan(0);
    expect(`${name} ${String(await server.probe.getBuffer(name))}`).not.toContain('canary');
  });

  test('is unreadable under another label key, secret, name or owner, and wherever a byte of it is changed', async () => {
    await redisMap().put(key, 'value', mine);
    const [name = ''] = await server.probe.keys('*');
    const bytes = (await server.probe.getBuffer(name)) ?? Buffer.alloc(0);
    expect(await redisMap({ labelKey: 'another label key' }).read(key)).toEqual({ kind: 'unreadable' });
    const map = redisMap();
    expect(await map.read({ ...key, secret: 'another' })).toEqual({ kind: 'unreadable' });
    await server.probe.set(name.replace(':name', ':other'), bytes, 'PX', 60_000);
    expect(await map.read({ ...key, name: 'other' })).toEqual({ kind: 'unreadable' });
    const changed = Array.from(bytes.keys(), (at) => {
      const copy = Buffer.from(bytes);
      copy.writeUInt8(copy.readUInt8(at) ^ 1, at);
      return copy;
    });
    const cut = Array.from(bytes.keys(), (end) => bytes.subarray(0, end));
    for (const each of [...changed, ...cut, Buffer.alloc(99)]) {
      await server.probe.set(name, each, 'PX', 60_000);
      expect(await map.read(key)).toEqual({ kind: 'unreadable' });
    }
    await server.probe.set(name, bytes, 'PX', 60_000);
    expect(await map.read(key)).toMatchObject({ value: 'value' });
    // Who wants the entry and cannot read it does not get it either.
    await server.probe.set(name, Buffer.from('of somebody else'), 'PX', 60_000);
    expect(await map.put(key, 'value', mine)).toEqual({ kind: 'lost', to: { kind: 'unreadable' } });
  });
});

test('every replica hears of what another one writes, and of nothing that somebody else publishes', async () => {
  const heard: [string, Entry<string>][] = [];
  redisMap({ onChange: (name, entry) => void heard.push([name, entry]) });
  await heardOn(0);
  await server.probe.publish('sluice:shared:test.1:0:', 'forged b2Y= 1000');
  await redisMap({ onChange: () => {} }).put({ name: 'name' }, 'value', mine);
  await until(() => heard.length > 0);
  expect(heard).toEqual([['name', { kind: 'entry', value: 'value', owner: 'a.1', leftMs: 60_000 }]]);
});

test('a replica of another database or key prefix does not hear of it', async () => {
  const heard: string[] = [];
  const onChange = (name: string): void => void heard.push(name);
  const theirMap = redisMap({ redis: server.connect({ database: 1 }), onChange });
  await heardOn(1);
  await redisMap({ onChange: () => {} }).put({ name: 'here' }, 'value', mine);
  await theirMap.put({ name: 'there' }, 'value', mine);
  await until(() => heard.length > 0);
  expect(heard).toEqual(['there']);
});

test('a map whose Redis does not answer says so', async () => {
  const map = redisMap({ redis: server.connect({ port: 1 }) });
  expect(await map.read(key)).toEqual({ kind: 'unavailable' });
  expect(await map.put(key, 'value', mine)).toEqual({ kind: 'unavailable' });
});
