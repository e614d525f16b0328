/**
 * A random dialect is enforced, recorded, learned and then used: on virtual time the limiter paces a burst of twice the limit by
 * what was learned, in front of the upstream as it really counts.
 */
import { expect, test } from '@jest/globals';
import fc from 'fast-check';
import { parse, stringify } from 'yaml';
import { bucketSetting } from '../../src/admission/buckets.policy.ts';
import { parseSettings } from '../../src/config/load.ts';
import type { UpstreamSettings } from '../../src/config/settings.ts';
import { readHar } from '../../tools/learn/har.ts';
import { maxJitterMs } from '../../src/limiter/policy/meter.policy.ts';
import { proposalText, propose } from '../../tools/learn/propose.ts';
import type { SpokenParts } from '../../simulators/dialect.ts';
import type { SpokenWindow } from '../../simulators/dialect/parts.ts';
import { reportedFields } from '../../simulators/dialect/response-fields.ts';
import { randomFrom } from '../limiter/bucket-history.ts';
import { run, type Outcome } from '../simulation/metering/paced-run.ts';
import { counterOf, type Counter } from '../simulation/metering/upstreams.ts';
import { recordingOf } from './recorded.ts';

/** A meter that leaves empty rests once before it drains: so long at most for these calls on their way (docs/adr/0003). */
const restMs = maxJitterMs;
type Window = Required<SpokenWindow>;
const fields = {
  limit: 'x-acme-limit',
  remaining: 'x-acme-left',
  reset: { name: 'x-acme-reset', as: 'epoch-milliseconds' },
};
const usualSeconds = fc.constantFrom(1, 2, 5, 10, 30, 60, 300, 3_600);
const requests = fc.integer({ min: 2, max: 40 });
const dialects = fc.record({
  window: fc.oneof(
    // Few windows of the clock are recorded: an unusual length is known within a twentieth, and that is no phase.
    fc.record({ requests, seconds: usualSeconds, kind: fc.constant('fixed' as const) }),
    fc.record({
      requests,
      seconds: fc.oneof(usualSeconds, fc.integer({ min: 1, max: 900 })),
      kind: fc.constantFrom('rolling', 'leaky'),
    }),
  ),
  reports: fc.boolean(),
  seed: fc.integer({ min: 1, max: 1_000_000 }),
});

type Dialect = typeof dialects extends fc.Arbitrary<infer Drawn> ? Drawn : never;

const clockWindow = (requests: number, seconds: 1 | 300, seed: number): Dialect => ({
  window: { requests, seconds, kind: 'fixed' },
  reports: false,
  seed,
});

/** Recordings with so few windows of the clock that a rolling window of a little less explains them too. */
const likeRolling: [Dialect][] = [
  [clockWindow(34, 1, 13)],
  [clockWindow(37, 300, 14)],
  [clockWindow(35, 300, 13)],
];

/** Settings of an upstream whose `speaks` is what `sluice learn` prints for the recording. */
function learned(speaks: SpokenParts, seed: number): UpstreamSettings {
  const [proposal] = propose(readHar(recordingOf(speaks, randomFrom(seed))));
  if (proposal === undefined) throw new Error('nothing was learned');
  const upstream = { origins: ['https://api.acme.example'], ...(parse(proposalText(proposal)) as object) };
  const text = stringify({ upstreams: { acme: upstream }, workspaces: { team: { keys: [] } } });
  const settings = parseSettings(text, { path: 'learned.yaml', env: {} }).upstreams.get('acme');
  if (settings === undefined) throw new Error('no upstream');
  return settings;
}

/** A burst of twice the limit at the beginning of a window of the clock. */
function burst(window: Window, speaks: SpokenParts, seed: number): Outcome {
  const { requests, seconds } = window;
  const windowMs = seconds * 1000;
  const upstream = learned(speaks, seed);
  if (upstream.dialect === null) throw new Error('no dialect');
  const counter = counterOf(window.kind ?? 'rolling', requests, windowMs);
  const scene = {
    counter: () => counter,
    dialect: {
      kind: 'generic',
      fields: (_: Counter, waitMs: number, now: number) => {
        const state = {
          limit: requests,
          used: Math.ceil(counter.used(now)),
          seconds,
          resetMs: counter.resetMs(now),
        };
        const wait = waitMs > 0 ? { 'retry-after': String(Math.ceil(waitMs / 1000)) } : {};
        return Object.entries({ ...reportedFields(speaks, [state], now), ...wait });
      },
    },
    described: upstream.dialect,
    stated: bucketSetting(upstream).meters,
    calls: Array.from({ length: requests * 2 }, (_, at) => at * 0.2),
    wayMs: [1, 8],
    serviceMs: [2, 20],
  } as const;
  return run(scene, seed, windowMs * 5_000);
}

test('the limiter passes a burst of twice the limit by what was learned, without a refusal, in 1.05 of the least time', () => {
  fc.assert(
    fc.property(dialects, ({ window, reports, seed }) => {
      const speaks = { windows: [window], ...(reports ? { fields } : {}) };
      const { arrivals } = burst(window, speaks, seed);
      const [first] = arrivals;
      expect(arrivals.filter(({ admitted }) => !admitted)).toEqual([]);
      expect(arrivals).toHaveLength(window.requests * 2);
      const tookMs = (arrivals.at(-1)?.at ?? 0) - (first?.at ?? 0);
      expect(tookMs - (window.kind === 'leaky' ? restMs : 0)).toBeLessThanOrEqual(window.seconds * 1050);
    }),
    { numRuns: 8 + likeRolling.length, examples: likeRolling },
  );
});
