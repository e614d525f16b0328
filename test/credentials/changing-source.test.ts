import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from '@jest/globals';
import { systemRandom } from '../../src/clock.ts';
import { ChangingSource } from '../../src/credentials/changing-source.ts';
import { Credentials } from '../../src/credentials/credentials.ts';
import type { Fetched } from '../../src/credentials/token-endpoint.ts';
import { manualClock } from '../support/manual-clock.ts';
import { upstreamSettings } from '../support/upstream-settings.ts';

/** A source whose fetches the test answers, in the middle of every range of chance. The first one is under way. */
function driven() {
  const clock = manualClock();
  const open: { respond: (fetched: Fetched) => void; unwanted: string | null }[] = [];
  const outcomes: string[] = [];
  let issuedAt = 0;
  const source = new ChangingSource({
    clock,
    random: { next: () => 0.5, hex: () => '' },
    prefix: 'Bearer ',
    fetch: (unwanted) => {
      issuedAt = clock.monotonic();
      return new Promise((respond) => open.push({ respond, unwanted }));
    },
    onRenewal: (outcome) => void outcomes.push(outcome),
    onBug: (bug) => {
      throw bug;
    },
  });
  const settle = async (fetched: Fetched): Promise<void> => {
    open.shift()?.respond(fetched);
    await new Promise(setImmediate);
  };
  source.now();
  return {
    clock,
    source,
    open,
    outcomes,
    issue: (token: string, lifeMs: number | null = 60_000) =>
      settle({ kind: 'token', token, lifeMs, issuedAt, isShared: false }),
    fail: (fault: 'timeout' | 'refused' | 'throttled', statedMs: number | null = null) =>
      settle({ kind: 'failed', fault, statedMs }),
  };
}
/** One that has the token `one`, which a call has used. */
async function withToken(lifeMs: number | null = 60_000) {
  const made = driven();
  await made.issue('one', lifeMs);
  made.source.now();
  return made;
}
const usable = (token: string, version: number) => ({ kind: 'usable', value: `Bearer ${token}`, version });
const unavailable = (fault: string | null, retryInMs: number) => ({ kind: 'unavailable', fault, retryInMs });
const dayMs = 86_400_000;

describe('an OAuth token', () => {
  test('is fetched once for all calls that need it', async () => {
    const { source, open, issue } = driven();
    for (let n = 0; n < 5; n += 1) expect(source.now()).toEqual(unavailable(null, 0));
    expect(open).toHaveLength(1);
    await issue('one');
    expect(source.now()).toEqual(usable('one', 1));
  });

  test.each([
    ['in the last quarter of its life', 60_000, 45_000],
    ['of a day, about five minutes before its end', dayMs, dayMs - 300_000],
  ])('is renewed %s, while it is still sent', async (_, lifeMs, renewedAt) => {
    const { clock, source, open, issue } = await withToken(lifeMs);
    clock.advance(renewedAt - 1);
    expect(open).toHaveLength(0);
    clock.advance(1);
    expect(open.map(({ unwanted }) => unwanted)).toEqual(['one']);
    expect(source.now()).toEqual(usable('one', 1));
    await issue('two');
    expect(source.now()).toEqual(usable('two', 2));
  });

  test('is not renewed while no call uses it, and the next call fetches one', async () => {
    const { clock, source, open, issue } = driven();
    await issue('one');
    clock.advance(3_600_000);
    expect([open.length, source.expiresInMs()]).toEqual([0, null]);
    expect(source.now().kind).toBe('unavailable');
    expect(open).toHaveLength(1);
  });

  test('that has expired on arrival is not used, and is not fetched without pause', async () => {
    const { clock, source, open, outcomes, issue } = driven();
    clock.advance(1_000);
    await issue('late', 1_000);
    expect(source.now()).toEqual(unavailable('invalid', 250));
    expect([open.length, outcomes]).toEqual([0, ['invalid']]);
  });

  test('of unstated life is sent until it is refused', async () => {
    const { clock, source } = await withToken(null);
    clock.advance(30 * dayMs);
    expect(source.now()).toEqual(usable('one', 1));
    expect(source.refused(1)).toBe(true);
    expect(source.now().kind).toBe('unavailable');
  });
});

describe('a failed renewal of a token', () => {
  test('is tried again at growing intervals, while the token in use is sent', async () => {
    const { clock, source, open, fail } = await withToken(3_600_000);
    clock.advance(3_300_000);
    const waits: number[] = [];
    for (let n = 0; n < 12; n += 1) {
      const failedAt = clock.monotonic();
      await fail('timeout');
      expect(source.now().kind).toBe(clock.monotonic() < 3_595_000 ? 'usable' : 'unavailable');
      while (open.length === 0) clock.advance(50);
      waits.push((clock.monotonic() - failedAt) / 1_000);
    }
    expect(waits).toEqual([0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    expect(source.expiresInMs()).toBeLessThan(300_000);
  });

  test.each([
    ['as long as the endpoint states', 'throttled', 7_000, 7_000],
    ['for a minute when the endpoint does not accept the client', 'refused', null, 60_000],
  ] as const)('waits %s', async (_, fault, statedMs, waitMs) => {
    const { clock, source, open, fail } = driven();
    await fail(fault, statedMs);
    expect(source.now()).toEqual(unavailable(fault, waitMs));
    expect(source.expiresInMs()).toBe(0);
    clock.advance(waitMs - 1);
    source.now();
    expect(open).toHaveLength(0);
    clock.advance(1);
    expect(open).toHaveLength(1);
  });
});

describe('a refusal of a token by the upstream', () => {
  test('renews once for all calls that had the token', async () => {
    const { source, open, issue } = await withToken();
    expect([1, 1, 1].map((version) => source.refused(version))).toEqual([true, true, true]);
    expect(open).toHaveLength(1);
    await issue('two');
    expect(source.refused(1)).toBe(true);
    expect(open).toHaveLength(0);
    expect(source.now()).toEqual(usable('two', 2));
  });

  test('renews at growing intervals when a renewal did not help', async () => {
    const { clock, source, open, issue } = await withToken(null);
    const renewedAt: number[] = [];
    for (let version = 1; clock.monotonic() < 700_000; clock.advance(500)) {
      if (!source.refused(version)) continue;
      renewedAt.push(clock.monotonic() / 1_000);
      expect(open).toHaveLength(1);
      version += 1;
      await issue(`token-${version}`, null);
    }
    const gaps = renewedAt.slice(1).map((at, n) => at - (renewedAt[n] ?? 0));
    expect(gaps).toEqual([1, 2, 4, 8, 16, 32, 64, 128, 256]);
  });

  test('may renew again soon when none was asked for in a while', async () => {
    const { clock, source, issue } = await withToken();
    source.refused(1);
    await issue('two');
    clock.advance(5_000);
    expect(source.refused(2)).toBe(true);
    await issue('three');
    clock.advance(1_000);
    expect(source.refused(3)).toBe(true);
  });
});

test('a credential that is asked for after the end of the gateway leaves no timer', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-closed-'));
  const path = join(folder, 'token');
  writeFileSync(path, 'secret\n');
  const clock = manualClock();
  const never = (): never => {
    throw new Error('not a token of an endpoint');
  };
  const credentials = new Credentials({
    clock,
    random: systemRandom,
    telemetry: { count: () => {}, log: { bug: never, info: () => {}, warn: () => {} } as never },
    settings: { privacy: { labelKey: 'k' }, upstreams: new Map() } as never,
    send: never,
    createMap: null,
  });
  const source = { kind: 'file', path, prefix: '' } as const;
  const credential = { field: 'authorization', source, quota: path };
  const use = { credential, upstream: upstreamSettings('shop', ['https://shop.example']) };
  credentials.now(use);
  expect(clock.waiting).toBeGreaterThan(0);
  await credentials.close();
  credentials.now(use);
  expect(clock.waiting).toBe(0);
  rmSync(folder, { recursive: true });
});
