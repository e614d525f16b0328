/**
 * What can be seen of the scripts without a server: each opens with its contract, takes its arguments in one place as
 * the contract says, writes only keys that get an expiry, and knows the policy's constants.
 */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { orderUnit, sequencePerMs } from '../../src/limiter/bucket-state.policy.ts';
import { replicaChannel } from '../../src/limiter/keys.ts';
import {
  calmLatenessMs,
  leastJitterMs,
  mostJitterMs,
  mostLatenessMs,
  quietGapMs,
} from '../../src/limiter/meter.policy.ts';
import { blankMemoryMs, bucketMemoryMs, unansweredMemoryMs } from '../../src/limiter/memory.policy.ts';
import { maxCorrected, maxDocuments, maxProbeMs } from '../../src/limiter/documents.policy.ts';
import { mostPerPump, probeDoublingMs, replicaLifeMs } from '../../src/limiter/pump.policy.ts';
import { maxArrivalAgoMs, maxArrivalAheadMs, maxOtherLimitsMs } from '../../src/limiter/scheduler.policy.ts';
import {
  admitCall,
  cancelCall,
  chargedCall,
  commandName,
  forecastCall,
  learnCall,
  leasesPerTick,
  loadScripts,
  longestLeaseMs,
  reconfigureCall,
  resolveIncludes,
  scriptNames,
  settleCall,
  tickCall,
  type ScriptCall,
  type ScriptName,
} from '../../src/limiter/scripts.ts';
import { admission } from '../support/admission.ts';

const folder = new URL('../../src/limiter/lua/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(`${name}.lua`, folder), 'utf8');
const includesOf = (name: string): string[] =>
  [...read(name).matchAll(/^-- @include (\S+)$/gm)].flatMap(([, of = '']) => [of, ...includesOf(of)]);
/** The scripts of the bucket scheduler and all they are made of; the ceiling's scripts beside them have their own test. */
const files = [...new Set(scriptNames.flatMap((name) => [name, ...includesOf(name)]))];
const shared = files.filter((name) => !scriptNames.some((script) => script === name));

const asking = { bucket: 'b', replica: 'r' };
const lesson = { feedback: { meters: [], throttle: null }, sentAgoMs: 1, headAgoMs: 0 };
const setting = { meters: [], learn: true, probe: 0 };
const calls: Record<ScriptName, ScriptCall> = {
  admit: admitCall(asking, admission('t')),
  settle: settleCall(asking, 't.1', { kind: 'dropped' }, lesson),
  learn: learnCall(asking, 't.1', lesson),
  charged: chargedCall(asking, 't.1', { slots: 1, nextSlotMs: 0 }),
  reconfigure: reconfigureCall(asking, {
    setting,
    lanes: [],
  }),
  cancel: cancelCall(asking, 't'),
  tick: tickCall(asking, []),
  forecast: forecastCall(asking, 't'),
};

describe.each(scriptNames)('%s.lua', (name) => {
  const source = read(name);
  const header = /^--\[\[\n([\s\S]*?)\]\]\n/.exec(source)?.[1] ?? '';
  const body = source.slice(header.length);
  const declared = [
    ...(/^ARGV([\s\S]*?)^Reply/gm.exec(header)?.[1]?.matchAll(/(?:^|\s{2})(\d+) [a-z]/g) ?? []),
  ];

  test('opens with its contract', () => {
    expect(header).toMatch(/^[A-Z].*\S\n/);
    expect(header).toMatch(/^Guarantees: /m);
    expect(header).toMatch(/^KEYS {2}1 state {2}2 records {2}3 order {2}4 replicas$/m);
    expect(header).toMatch(/^Reply /m);
  });

  test('takes keys and arguments once, as declared, and names them', () => {
    expect([...body.matchAll(/KEYS\[(\d+)\]/g)].map(([, at]) => at)).toEqual(['1', '2', '3', '4']);
    const used = new Set([...body.matchAll(/ARGV\[(\d+)\]/g)].map(([, at]) => Number(at)));
    const places = declared.map(([, at]) => Number(at));
    expect(places).toEqual(places.map((_place, at) => at + 1));
    expect([...used].toSorted((a, b) => a - b)).toEqual(places);
    expect(calls[name].argv.length).toBe(places.length);
    expect(calls[name].keys.length).toBe(4);
    const taken = body.slice(0, body.indexOf('-- @include scheduler'));
    expect(body.slice(taken.length)).not.toMatch(/ARGV|KEYS/);
    expect(taken.replaceAll('-- @include arguments', '')).not.toMatch(/redis\.call/);
  });

  test('reads the time from its last argument', () => {
    expect(header).toMatch(new RegExp(`${declared.length} now \\('' = TIME\\)`));
    expect(body).toContain(`timeOf(ARGV[${declared.length}])`);
  });

  test('saves on every path that touched the bucket', () => {
    const [known = '', ...rest] = body.split(/^now = notBefore\(now\)$/m);
    expect(known).toMatch(/if not openBucket\(\) then (return replyUnknown|createBucket)/);
    expect(rest).toHaveLength(1);
    const saved = rest[0]?.indexOf('\nsave(now)\n') ?? -1;
    expect(saved).toBeGreaterThan(0);
    expect(rest[0]?.slice(0, saved)).not.toMatch(/^\s*return/m);
  });
});

test('shared files never name KEYS or ARGV', () => {
  for (const name of shared.filter((file) => file !== 'arguments')) {
    expect(`${name}: ${read(name).replace(/^--.*$/gm, '')}`).not.toMatch(/KEYS|ARGV/);
  }
});

test('every command is a known one, and every written key gets an expiry', () => {
  const reads = [
    'TIME',
    'GET',
    'HGET',
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

test('no name from outside becomes source: scripts are the same text for every call', () => {
  expect(loadScripts().map(({ lua }) => lua)).toEqual(loadScripts().map(({ lua }) => lua));
  expect(files.map(read).join('\n')).not.toMatch(/\b(loadstring|load|dofile|setfenv)\s*\(/);
});

test('the constants are those of the policy', () => {
  const all = files.map(read).join('\n');
  const constants = {
    leastJitterMs,
    mostJitterMs,
    mostLatenessMs,
    calmLatenessMs,
    quietGapMs,
    mostPerPump,
    probeDoublingMs,
    replicaLifeMs,
    orderUnit,
    bucketMemoryMs,
    blankMemoryMs,
    unansweredMemoryMs,
    maxArrivalAgoMs,
    maxArrivalAheadMs,
    maxOtherLimitsMs,
    maxProbeMs,
    maxDocuments,
    maxCorrected,
  };
  for (const [name, value] of Object.entries({ ...constants, sequencePerMs })) {
    expect(all).toMatch(new RegExp(`^ *local ${name} = ${value}$`, 'm'));
  }
  expect(all).toContain(`local replicaChannel = '${replicaChannel('')}'`);
  expect(all).toContain(`words(ARGV[3], 'leases', ${leasesPerTick})`);
  expect(all).toContain(`if leaseMs > ${longestLeaseMs} then`);
  expect(bucketMemoryMs).toBeGreaterThanOrEqual(longestLeaseMs);
});

describe('includes', () => {
  const from = (sources: Record<string, string>) => (name: string) => sources[name] ?? null;

  test('are put in place once, where they are first named', () => {
    const sources = { a: '-- @include b\n-- @include c\nend', b: '-- @include c\nB', c: 'C' };
    expect(resolveIncludes('a', from(sources)).split(/\n+/)).toEqual(['C', 'B', 'end']);
  });

  test('that are not there are errors', () => {
    expect(() => resolveIncludes('a', from({ a: '-- @include b' }))).toThrow('no file b.lua (a)');
    expect(() => loadScripts(() => null)).toThrow('no file admit.lua');
  });

  test('that include themselves are errors', () => {
    const sources = { a: '-- @include b', b: '-- @include a' };
    expect(() => resolveIncludes('a', from(sources))).toThrow('a includes b includes a');
  });
});

test('command names carry the version, so that old and new replicas run side by side', () => {
  expect(scriptNames.map(commandName)).toEqual([
    'sluiceAdmitV1',
    'sluiceSettleV1',
    'sluiceLearnV1',
    'sluiceChargedV1',
    'sluiceReconfigureV1',
    'sluiceCancelV1',
    'sluiceTickV1',
    'sluiceForecastV1',
  ]);
});

test('names that are not opaque words, and numbers that are none, never reach Redis', () => {
  for (const name of ['', 'a:b', 'a b', 'a}b', 'a\n', 'ä']) {
    expect(() => cancelCall({ bucket: name, replica: 'r' }, 't')).toThrow(RangeError);
    expect(() => cancelCall(asking, name)).toThrow(RangeError);
  }
  expect(() => chargedCall(asking, 't.1', { slots: NaN, nextSlotMs: 0 })).toThrow(RangeError);
  expect(() =>
    tickCall(
      asking,
      Array.from({ length: leasesPerTick + 1 }, (_, n) => `t.${n}`),
    ),
  ).toThrow(RangeError);
});
