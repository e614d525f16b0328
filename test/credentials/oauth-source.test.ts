import { describe, expect, test } from '@jest/globals';
import { OAuthSource, type Fetched } from '../../src/credentials/oauth-source.ts';
import { manualClock } from '../support/manual-clock.ts';

/** A source whose fetches the test answers, in the middle of every range of chance. */
function driven() {
  const clock = manualClock();
  const open: { respond: (fetched: Fetched) => void; unwanted: string | null }[] = [];
  const outcomes: string[] = [];
  const elsewhere: Fetched[] = [];
  let issuedAt = 0;
  const source = new OAuthSource({
    clock,
    random: { next: () => 0.5, hex: () => '' },
    prefix: 'Bearer ',
    fetch: (unwanted) => {
      issuedAt = clock.monotonic();
      return new Promise((respond) => open.push({ respond, unwanted }));
    },
    readShared: () => Promise.resolve(elsewhere.shift() ?? null),
    onRenewal: (outcome) => void outcomes.push(outcome),
    onBug: (bug) => {
      throw bug;
    },
  });
  const settle = async (fetched: Fetched): Promise<void> => {
    open.shift()?.respond(fetched);
    await Promise.resolve();
    await Promise.resolve();
  };
  return {
    clock,
    source,
    open,
    outcomes,
    elsewhere,
    issue: (token: string, lifeMs: number | null = 60_000) =>
      settle({ kind: 'token', token, lifeMs, issuedAt, isShared: false }),
    fail: (fault: 'timeout' | 'refused' | 'throttled', statedMs: number | null = null) =>
      settle({ kind: 'failed', fault, statedMs }),
  };
}
const usable = (token: string, version: number) => ({ kind: 'usable', value: `Bearer ${token}`, version });

describe('an OAuth token', () => {
  test('is fetched once for all calls that need it', async () => {
    const { source, open, issue } = driven();
    for (let n = 0; n < 5; n += 1)
      expect(source.now()).toEqual({ kind: 'unavailable', fault: null, retryInMs: 0 });
    expect(open).toHaveLength(1);
    await issue('one');
    expect(source.now()).toEqual(usable('one', 1));
  });

  test('is renewed in the last quarter of its life, while it is still sent', async () => {
    const { clock, source, open, issue } = driven();
    source.now();
    await issue('one');
    source.now();
    clock.advance(44_999);
    expect(open).toHaveLength(0);
    clock.advance(1);
    expect(open.map(({ unwanted }) => unwanted)).toEqual(['one']);
    expect(source.now()).toEqual(usable('one', 1));
    await issue('two');
    expect(source.now()).toEqual(usable('two', 2));
  });

  test('of a day is renewed about five minutes before its end', async () => {
    const { clock, source, open, issue } = driven();
    source.now();
    await issue('one', 86_400_000);
    source.now();
    clock.advance(86_400_000 - 300_001);
    expect(open).toHaveLength(0);
    clock.advance(1);
    expect(open).toHaveLength(1);
  });

  test('is not renewed while no call uses it, and the next call fetches one', async () => {
    const { clock, source, open, issue } = driven();
    source.now();
    await issue('one');
    clock.advance(3_600_000);
    expect(open).toHaveLength(0);
    expect(source.expiresInMs()).toBeNull();
    expect(source.now().kind).toBe('unavailable');
    expect(open).toHaveLength(1);
  });

  test('is not used in the last part of its life, nor after it', async () => {
    const { clock, source, issue } = driven();
    source.now();
    await issue('one', 5_000);
    clock.advance(4_749);
    expect(source.now().kind).toBe('usable');
    clock.advance(1);
    expect(source.now().kind).toBe('unavailable');
  });

  test('that has expired on arrival is not used, and is not fetched without pause', async () => {
    const { clock, source, open, outcomes, issue } = driven();
    source.now();
    clock.advance(1_000);
    await issue('late', 1_000);
    expect(source.now()).toEqual({ kind: 'unavailable', fault: 'invalid', retryInMs: 250 });
    expect(open).toHaveLength(0);
    expect(outcomes).toEqual(['invalid']);
  });

  test('of unstated life is sent until it is refused', async () => {
    const { clock, source, issue } = driven();
    source.now();
    await issue('one', null);
    clock.advance(30 * 86_400_000);
    expect(source.now()).toEqual(usable('one', 1));
    expect(await source.refused(1)).toBe(true);
    expect(source.now().kind).toBe('unavailable');
  });
});

describe('a failed renewal of a token', () => {
  test('is tried again at growing intervals, while the token in use is sent', async () => {
    const { clock, source, open, issue, fail } = driven();
    source.now();
    await issue('one', 3_600_000);
    source.now();
    clock.advance(3_300_000);
    const waits: number[] = [];
    for (let n = 0; n < 12; n += 1) {
      const failedAt = clock.monotonic();
      await fail('timeout');
      expect(source.now().kind).toBe(clock.monotonic() < 3_595_000 ? 'usable' : 'unavailable');
      while (open.length === 0) clock.advance(50);
      waits.push(clock.monotonic() - failedAt);
    }
    expect(waits).toEqual([
      250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000,
    ]);
    expect(source.expiresInMs()).toBeLessThan(300_000);
  });

  test('waits as long as the endpoint states', async () => {
    const { clock, source, open, fail } = driven();
    source.now();
    await fail('throttled', 7_000);
    expect(source.now()).toEqual({ kind: 'unavailable', fault: 'throttled', retryInMs: 7_000 });
    clock.advance(6_999);
    source.now();
    expect(open).toHaveLength(0);
    clock.advance(1);
    expect(open).toHaveLength(1);
  });

  test('is tried again after a minute when the endpoint does not accept the client', async () => {
    const { source, fail } = driven();
    source.now();
    await fail('refused');
    expect(source.now()).toEqual({ kind: 'unavailable', fault: 'refused', retryInMs: 60_000 });
    expect(source.expiresInMs()).toBe(0);
  });
});

describe('a refusal of a token by the upstream', () => {
  test('renews once for all calls that had the token', async () => {
    const { source, open, issue } = driven();
    source.now();
    await issue('one');
    expect(await Promise.all([source.refused(1), source.refused(1), source.refused(1)])).toEqual([
      true,
      true,
      true,
    ]);
    expect(open).toHaveLength(1);
    await issue('two');
    expect(await source.refused(1)).toBe(true);
    expect(open).toHaveLength(0);
    expect(source.now()).toEqual(usable('two', 2));
  });

  test('renews at growing intervals when a renewal did not help', async () => {
    const { clock, source, open, issue } = driven();
    source.now();
    await issue('token-1', null);
    const renewedAt: number[] = [];
    for (let version = 1; clock.monotonic() < 700_000; clock.advance(500)) {
      if (!(await source.refused(version))) continue;
      renewedAt.push(clock.monotonic());
      expect(open).toHaveLength(1);
      version += 1;
      await issue(`token-${version}`, null);
    }
    const gaps = renewedAt.slice(1).map((at, n) => at - (renewedAt[n] ?? 0));
    expect(gaps).toEqual([1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000]);
  });

  test('may renew again at once when a renewal helped', async () => {
    const { source, issue } = driven();
    source.now();
    await issue('one');
    await source.refused(1);
    await issue('two');
    source.accepted(2);
    expect(await source.refused(2)).toBe(true);
  });
});

describe('a token fetched by another replica', () => {
  test('is used when that replica reports it', async () => {
    const { source, outcomes, elsewhere, issue } = driven();
    source.now();
    await issue('one');
    elsewhere.push({ kind: 'token', token: 'two', lifeMs: 60_000, issuedAt: 0, isShared: true });
    source.storedElsewhere();
    await new Promise(setImmediate);
    expect(source.now()).toEqual(usable('two', 2));
    expect(outcomes).toEqual(['renewed', 'shared']);
  });

  test('changes nothing when it is gone again', async () => {
    const { source, open, issue } = driven();
    source.now();
    await issue('one');
    source.storedElsewhere();
    await new Promise(setImmediate);
    expect(source.now()).toEqual(usable('one', 1));
    expect(open).toHaveLength(0);
  });
});

test('a closed token source leaves no timer behind', async () => {
  const { clock, source, issue } = driven();
  source.now();
  await issue('one');
  source.close();
  expect(clock.waiting).toBe(0);
});
