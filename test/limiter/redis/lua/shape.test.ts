/**
 * What can be seen of the scripts without a server: they take their arguments in one place, write only keys that get an expiry, and
 * know the policy's constants.
 */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { bucketKey, laneKey, leaseToken, replicaId, ticketId } from '../../../../src/ids.ts';
import {
  luaSource,
  withConstants,
  withIncludes,
  withPositions,
} from '../../../../src/limiter/redis/protocol/lua-source.ts';
import { bucketMemoryMs } from '../../../../src/limiter/policy/retention.policy.ts';
import { applyCall, leasesPerTick, maxLeaseMs } from '../../../../src/limiter/redis/protocol/event-codec.ts';
import { buildScripts, scriptConstants } from '../../../../src/limiter/redis/protocol/scripts.ts';
import { admission } from '../../../support/admission.ts';

const folder = new URL('../../../../src/limiter/redis/lua/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(`${name}.lua`, folder), 'utf8');
const includesOf = (name: string): string[] =>
  [...read(name).matchAll(/^-- @include (\S+)$/gm)].flatMap(([, of = '']) => [of, ...includesOf(of)]);
/** `apply` and all it is made of; the ceiling's scripts beside it have their own test. */
const files = ['library', ...new Set(includesOf('library'))];

const asking = { bucket: bucketKey('b'), replica: replicaId('r') };
const asked = admission('t', { maxInFlight: 1, perMinute: 1, document: 'd' });
const lane = { lane: laneKey('l'), weight: 1, maxInFlight: 1, perMinute: 1, ceilingTag: 'none.none' };
const admit = [
  { kind: 'admit', admission: asked },
  { kind: 'admit', admission: { ...asked, position: { kind: 'kept', order: 1 } } },
] as const;
const reconfigure = { kind: 'reconfigure', setting: asked.setting, lanes: [lane] } as const;

test('apply.lua checks a batch before it begins, saves once, and replies after that', () => {
  const source = read('apply');
  const steps = ['readBatch(args[1])', 'begin(keys, batch)', 'openBucket()', 'save(now)', 'reportGrants()'];
  const at = steps.map((call) => source.lastIndexOf(call));
  expect(at).not.toContain(-1);
  expect(at).toEqual(at.toSorted((a, b) => a - b));
  expect(source).toMatch(/^KEYS {2}1 state {2}2 records {2}3 order {2}4 replicas$/m);
});

test('only apply.lua and run.lua read keys and arguments', () => {
  for (const name of files.filter((file) => !['run', 'apply'].includes(file))) {
    expect(`${name}: ${read(name).replace(/^ *--.*$/gm, '')}`).not.toMatch(/KEYS|ARGV|\bkeys\b|\bargs\b/);
  }
});

test('the scripts use known commands only, and give every written key an expiry', () => {
  const reads = [
    'TIME',
    'GET',
    'HGET',
    'HMGET',
    'HEXISTS',
    'ZSCORE',
    'ZRANGE',
    'ZRANGEBYLEX',
    'ZREVRANGEBYSCORE',
    'ZLEXCOUNT',
  ];
  const others = ['PUBLISH', 'PEXPIRE', 'DEL', 'HDEL', 'ZREM'];
  const written = new Set<string>();
  for (const name of files) {
    for (const [, command = '', key = ''] of read(name).matchAll(/redis\.call\('(\w+)'(?:, (\w+))?/g)) {
      if (['SET', 'HSET', 'HINCRBY', 'ZADD'].includes(command)) written.add(key);
      else expect([...reads, ...others]).toContain(command);
    }
    expect(`${name}: ${read(name)}`).not.toMatch(/redis\.call\([^']/);
  }
  const save = read('save');
  expect([...written].toSorted()).toEqual(['orderKey', 'recordsKey', 'replicasKey', 'stateKey']);
  expect(save).toMatch(/redis\.call\('SET', stateKey, .*, 'PX', lifeMs\)/);
  for (const key of ['recordsKey', 'orderKey', 'replicasKey']) {
    expect(save).toContain(`redis.call('PEXPIRE', ${key}, lifeMs)`);
  }
});

test('the scripts are the same text for every call and evaluate no text from outside', () => {
  expect(buildScripts()).toEqual(buildScripts());
  expect(files.map(read).join('\n')).not.toMatch(/\b(loadstring|load|dofile|setfenv)\s*\(/);
});

test('the scripts have the constants of the policy', () => {
  const { library } = buildScripts();
  for (const [name, value] of Object.entries(scriptConstants)) {
    if (typeof value === 'object') continue;
    const written = typeof value === 'string' ? `'${value}'` : String(value);
    expect(library).toMatch(new RegExp(`^ *local ${name} = ${written}$`, 'm'));
  }
  expect(bucketMemoryMs).toBeGreaterThanOrEqual(maxLeaseMs);
  expect(leasesPerTick).toBe(scriptConstants['leasesPerTick']);
});

describe('an include directive', () => {
  const from = (sources: Record<string, string>) => (name: string) => sources[name] ?? null;

  test('is replaced once, where its file is first named', () => {
    const sources = { a: '-- @include b\n-- @include c\nend', b: '-- @include c\nB', c: 'C' };
    expect(withIncludes('a', from(sources)).split(/\n+/)).toEqual(['C', 'B', 'end']);
  });

  test('for a missing file is an error', () => {
    expect(() => withIncludes('a', from({ a: '-- @include b' }))).toThrow('no file b.lua (a)');
    expect(() => buildScripts(() => null)).toThrow('no file library.lua');
  });

  test('for a file that includes itself is an error', () => {
    const sources = { a: '-- @include b', b: '-- @include a' };
    expect(() => withIncludes('a', from(sources))).toThrow('a includes b includes a');
  });
});

describe('a constant directive', () => {
  test('is replaced by the same double or text', () => {
    expect(withConstants('do\n  -- @constant a b\nend', { a: 0.1, b: 'text' })).toBe(
      "do\n  local a = 0.1\n  local b = 'text'\nend",
    );
    expect(withConstants('-- @constant a', { a: 2 ** 48 })).toBe('local a = 281474976710656');
  });

  test('for a constant that the policy does not have is an error', () => {
    expect(() => luaSource('a', () => '-- @constant b', {})).toThrow('no constant b');
  });
});

describe('a field of a record', () => {
  const declared = '-- @record lane: key weight\n--   until\n-- @record lease: token lane\n';
  const body = (code: string): string => withPositions(`${declared}${code}`).slice(declared.length);

  test('becomes its position in code, and not in comments', () => {
    expect(body('lane.weight = lease.lane + lane.until -- lane.weight')).toBe(
      'lane[2] = lease[2] + lane[3] -- lane.weight',
    );
  });

  test('stays a name in other tables', () => {
    expect(body("setting.weight = asked.lane, planes.key, 'lane.key'")).toBe(
      "setting.weight = asked.lane, planes.key, 'lane.key'",
    );
  });

  test('that its record does not have is an error', () => {
    expect(() => body('lane.wieght = 1')).toThrow('a lane has no field wieght');
    expect(() => body('lane.key.weight = 1')).toThrow('a field of what has no name');
    expect(() => body('laneOf(key).weight = 1')).toThrow('a field of what has no name');
  });
});

test('names that are not opaque words, and values that are no numbers, never reach Redis', () => {
  for (const name of ['', 'a:b', 'a b', 'a}b', 'a\n', 'ä']) {
    expect(() =>
      applyCall({ bucket: bucketKey(name), replica: replicaId('r') }, [
        { kind: 'cancel', ticket: ticketId('t') },
      ]),
    ).toThrow(RangeError);
    expect(() => applyCall(asking, [{ kind: 'cancel', ticket: ticketId(name) }])).toThrow(RangeError);
  }
  expect(() =>
    applyCall(asking, [{ kind: 'charge', lease: leaseToken('t.1'), edge: { slots: NaN, nextSlotMs: 0 } }]),
  ).toThrow(RangeError);
  const leases = Array.from({ length: leasesPerTick + 1 }, (_, n) => leaseToken(`t.${n}`));
  expect(() => applyCall(asking, [{ kind: 'tick', leases }])).toThrow(RangeError);
});

test('a setting that several events of a batch share is written once', () => {
  const { argv } = applyCall(asking, [...admit, reconfigure]);
  expect(argv[0].match(/"setting"/g)).toHaveLength(1);
  const other = { kind: 'reconfigure', setting: { ...asked.setting }, lanes: [] } as const;
  const text = applyCall(asking, [...admit, other, ...admit]).argv[0];
  expect(text.match(/"setting"/g)).toHaveLength(3);
});
