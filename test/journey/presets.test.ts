/** Every preset against a simulator that enforces it: a burst, a closing, a refusal for good. Nothing is judged by time. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { parse } from 'yaml';
import { presetNames, presetPath } from '../../src/config/speaks.ts';
import type { SpeaksInput } from '../../src/config/speaks.ts';
import type { SpokenCondition } from '../../simulators/dialect/parts.ts';
import { spokenFleet, type SpokenFleet, type SpokenUpstream } from '../support/spoken.ts';

// Small windows and penalties in place of the preset's: what is tried is its words, not its patience.
const windows = [{ requests: 5, seconds: 1 }];
const burstCalls = 7;
/** Where a preset has no refusal for good, an operator describes one beside it. */
const planEnded: SpokenCondition = { status: 403, body: 'your plan has ended' };

/** As it is written. */
const partsOf = (preset: string): SpeaksInput =>
  (parse(readFileSync(presetPath(preset), 'utf8')) as { readonly speaks: SpeaksInput }).speaks;

const permanentOf = (preset: string): readonly SpokenCondition[] =>
  partsOf(preset).permanentBy ?? [planEnded];

function upstreamOf(preset: string): SpokenUpstream {
  const parts = partsOf(preset);
  const changes = {
    windows,
    permanentBy: permanentOf(preset),
    ...(parts.penaltySeconds === undefined ? {} : { penaltySeconds: 1 }),
  };
  return {
    speaks: { ...parts, ...changes },
    described: { preset, ...changes },
    ...(parts.throttledBy === undefined ? {} : { refusesBy: 0 }),
    retryAfter: true,
  };
}

/** What a preset shows. */
interface PresetSeen {
  /** Statuses of calls of which at least one met the closed upstream. */
  readonly burst: readonly number[];
  /** Of the first call that is refused for good: its status, the advice to the client, and how often it was sent. */
  readonly refused: readonly [status: number, shouldRetry: string | null, sent: number];
  /** Buckets that the refusal has closed. */
  readonly closed: number;
  /** How the next call is refused, and how often it was sent. */
  readonly next: readonly [error: string | null, sent: number];
}

async function tried(fleet: SpokenFleet, preset: string): Promise<PresetSeen> {
  const { services } = fleet;
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
  const closed = services.flatMap(({ gateway }) =>
    gateway.parts.pressure
      .buckets()
      .filter(({ upstream, snapshot }) => upstream === preset && snapshot.closedMs > 0),
  );
  const next = await call('/v1/things', { 'x-sim': 'permanent' });
  return {
    burst: statuses,
    refused: [first.status, first.headers.get('x-should-retry'), afterFirst - before],
    closed: closed.length,
    next: [next.headers.get('sluice-error'), simulator.log.length - afterFirst],
  };
}

test('calls pass a burst and a closing in every preset, and a refusal for good is asked once', async () => {
  const fleet = await spokenFleet(
    Object.fromEntries(presetNames.map((name) => [name, upstreamOf(name)])),
    {},
  );
  try {
    const seen = await Promise.all(
      presetNames.map(async (name) => [name, await tried(fleet, name)] as const),
    );
    const expected = presetNames.map((name) => {
      const status = permanentOf(name).flatMap((condition) => [condition.status].flat())[0] ?? 0;
      const burst = Array.from({ length: burstCalls }, () => 200);
      return [name, { burst, refused: [status, 'false', 1], closed: 0, next: ['upstream_refused', 0] }];
    });
    expect(seen).toEqual(expected);
  } finally {
    await fleet.close();
  }
});
