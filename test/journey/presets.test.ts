/** Every preset against a simulator that enforces it, and windows of single operations. */
import { readFileSync } from 'node:fs';
import { afterEach, expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { presetNames, presetPath, type SpeaksInput } from '../../src/config/speaks.ts';
import type { SpokenCondition } from '../../simulators/dialect/parts.ts';
import { stoppedClock } from '../support/skipping-clock.ts';
import { spokenFleet, type SpokenFleet, type SpokenUpstream } from '../support/spoken.ts';
import { scripted } from './scripted.ts';
import { bucketsOf, closeAll, many, opened } from './world.ts';

afterEach(closeAll);

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

test('in every preset calls pass a burst and a closing, and a refusal for good is asked once', async () => {
  const fleet = await spokenFleet(Object.fromEntries(presetNames.map((name) => [name, upstreamOf(name)])));
  opened.push(() => fleet.close());
  const seen = await Promise.all(presetNames.map(async (name) => [name, await tried(fleet, name)] as const));
  const expected = presetNames.map((name) => {
    const status = permanentOf(name).flatMap((condition) => [condition.status].flat())[0] ?? 0;
    const burst = many(burstCalls, () => 200);
    return [name, { burst, refused: [status, 'false', 1], closed: 0, next: ['upstream_refused', 0] }];
  });
  expect(seen).toEqual(expected);
});

test('calls that wait for the window of their operation go on under the one that a reload gives it', async () => {
  const searches = "{ requests: 2, seconds: 600, calls: 'GET /search/{}' }";
  const speaks = `{ windows: [{ requests: 9, seconds: 600 }, ${searches}] }`;
  const { ask, reload, waiting } = await scripted(undefined, {
    clock: stoppedClock(),
    upstreams: { api: `credential: "Bearer one", speaks: ${speaks}` },
  });
  const get = async (path: string): Promise<string> => {
    const { status, error } = await ask(`/via/api${path}`, { headers: { prefer: 'wait=70' } });
    return `${status} ${error ?? 'upstream'}`;
  };
  for (const path of ['/search/a', '/search/b', '/other']) expect(await get(path)).toBe('200 upstream');
  expect([await get('/search/c'), await get('/other')]).toEqual(['429 wait_too_long', '200 upstream']);
  await reload(searches, searches.replace('600', '30'));
  const held = get('/search/c');
  await waiting(1);
  await reload('requests: 2, seconds: 30', 'requests: 3, seconds: 30');
  expect(await held).toBe('200 upstream');
});
