/** Every preset against a simulator that enforces it, and what some are for against upstreams that behave as their providers document. */
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { presetNames, presetPath, type SpeaksInput } from '../../src/config/speaks.ts';
import type { SpokenCondition } from '../../simulators/dialect/parts.ts';
import { fastClock } from '../support/fast-clock.ts';
import { stoppedClock } from '../support/skipping-clock.ts';
import { spokenFleet, type SpokenFleet, type SpokenUpstream } from '../support/spoken.ts';
import { scripted, type Answer, type Arrival } from './scripted.ts';
import { bucketsOf, closeAll, many, opened, type Sending } from './world.ts';

afterEach(closeAll);

const ok = (count: number): string[] => many(count, () => '200 upstream');

describe('in every preset', () => {
  // Small windows and penalties in place of the preset's: what is tried is its words, not its patience.
  const windows = [{ requests: 5, seconds: 1 }];
  const burstCalls = 7;
  const partsOf = (preset: string): SpeaksInput =>
    (parse(readFileSync(presetPath(preset), 'utf8')) as { readonly speaks: SpeaksInput }).speaks;
  /** Where a preset has no refusal for good, an operator describes one beside it. */
  const permanentOf = (preset: string): readonly SpokenCondition[] =>
    partsOf(preset).permanentBy ?? [{ status: 403, body: 'your plan has ended' }];

  function upstreamOf(preset: string): SpokenUpstream {
    const parts = partsOf(preset);
    const penalty = parts.penaltySeconds === undefined ? {} : { penaltySeconds: 1 };
    const changes = { windows, permanentBy: permanentOf(preset), ...penalty };
    return {
      speaks: { ...parts, ...changes },
      described: { preset, ...changes },
      ...(parts.throttledBy === undefined ? {} : { refusesBy: 0 }),
      retryAfter: true,
    };
  }

  async function tried(fleet: SpokenFleet, preset: string) {
    const { simulator, call, burst, throttles } = fleet.upstream(preset);
    await call();
    let statuses: readonly number[] = [];
    // On a busy machine a closing may be over before a call arrives: then there is another one.
    for (let closedMs = 600; throttles() === 0; closedMs *= 2) {
      simulator.closeFor(closedMs);
      statuses = await burst(burstCalls);
    }
    const before = simulator.log.length;
    const first = await call('/v1/things', { 'x-sim': 'permanent' });
    const afterFirst = simulator.log.length;
    const buckets = bucketsOf(fleet, preset);
    const next = await call('/v1/things', { 'x-sim': 'permanent' });
    return {
      burst: statuses,
      refused: [first.status, first.headers.get('x-should-retry'), afterFirst - before],
      closed: buckets.filter(({ closedMs }) => closedMs > 0).length,
      next: [next.headers.get('sluice-error'), simulator.log.length - afterFirst],
    };
  }

  test('calls pass a burst and a closing, and a refusal for good is asked once', async () => {
    const fleet = await spokenFleet(Object.fromEntries(presetNames.map((name) => [name, upstreamOf(name)])));
    opened.push(() => fleet.close());
    const seen = await Promise.all(
      presetNames.map(async (name) => [name, await tried(fleet, name)] as const),
    );
    const expected = presetNames.map((name) => {
      const status = permanentOf(name).flatMap((condition) => [condition.status].flat())[0] ?? 0;
      const burst = many(burstCalls, () => 200);
      return [name, { burst, refused: [status, 'false', 1], closed: 0, next: ['upstream_refused', 0] }];
    });
    expect(seen).toEqual(expected);
  });
});

/** An upstream that answers like this behind a gateway that knows it by its preset. */
async function start(preset: string, answer: (arrival: Arrival) => Answer, clock = fastClock(20)) {
  const api = await scripted(answer, {
    clock,
    upstreams: { api: `credential: "Bearer one", speaks: ${preset}` },
  });
  const ask = async (path: string, { headers, ...sending }: Sending = {}): Promise<string> => {
    const { status, error } = await api.ask(`/via/api${path}`, {
      ...sending,
      headers: { prefer: 'wait=70', ...headers },
    });
    return `${status} ${error ?? 'upstream'}`;
  };
  const allOf = (paths: readonly string[], sending?: Sending) =>
    Promise.all(paths.map((path) => ask(path, sending)));
  return { ...api, ask, allOf };
}

test('calls that wait for the window of their operation go on under the one that a reload gives it', async () => {
  const searches = "{ requests: 2, seconds: 600, calls: 'GET /search/{}' }";
  const { ask, allOf, reload, waiting } = await start(
    `{ windows: [{ requests: 9, seconds: 600 }, ${searches}] }`,
    () => ({}),
    stoppedClock(),
  );
  expect(await allOf(['/search/a', '/search/b', '/other'])).toEqual(ok(3));
  expect([await ask('/search/c'), await ask('/other')]).toEqual(['429 wait_too_long', '200 upstream']);
  await reload(searches, searches.replace('600', '30'));
  const held = ask('/search/c');
  await waiting(1);
  await reload('requests: 2, seconds: 30', 'requests: 3, seconds: 30');
  expect(await held).toBe('200 upstream');
});

test('hubspot: searches beyond their own limit hold no other call', async () => {
  let isSpent = true;
  const secondly = { status: 429, body: { errorType: 'RATE_LIMIT', policyName: 'SECONDLY' } };
  const left = { headers: { 'x-hubspot-ratelimit-max': '100', 'x-hubspot-ratelimit-remaining': '90' } };
  const { ask, allOf, closed, arrivals } = await start('hubspot', ({ path }) =>
    path.endsWith('/search') && isSpent ? secondly : left,
  );
  const searches = allOf(['/crm/v3/objects/contacts/search', '/crm/v3/objects/deals/search'], { body: '{}' });
  await closed();
  expect(await ask('/crm/v3/objects/contacts/7')).toBe('200 upstream');
  isSpent = false;
  expect(await searches).toEqual(ok(2));
  const at = (status: number): number[] =>
    arrivals.filter((each) => each.status === status).map((each) => each.at);
  expect((at(200)[1] ?? NaN) - (at(429)[0] ?? NaN)).toBeGreaterThanOrEqual(1_000);
});

test('xero: the day of one organisation is not that of another', async () => {
  const day = { status: 429, headers: { 'x-rate-limit-problem': 'day', 'retry-after': '9000' } };
  const { ask } = await start('xero', ({ headers }) => (headers['xero-tenant-id'] === 'spent' ? day : {}));
  const of = (tenant: string) => ask('/api.xro/2.0/Invoices', { headers: { 'xero-tenant-id': tenant } });
  expect([await of('spent'), await of('spent')]).toEqual(['429 upstream', '429 upstream_refused']);
  expect(await of('one')).toBe('200 upstream');
});
