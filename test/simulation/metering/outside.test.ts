/** Another client uses the quota: how many calls are refused because of it, and how much longer all take than what is left allows. Virtual time. */
import { describe, expect, test } from '@jest/globals';
import { origins } from '../../support/origins.ts';
import { run, type Fleet, type Range } from './paced-run.ts';
import {
  commerce,
  inBursts,
  inLargeBursts,
  irregular,
  leaky,
  model,
  silent,
  steady,
  type Dialect,
  type Outsider,
} from './upstreams.ts';

/** The share that the outsider takes of what the upstream serves. */
const share = 0.3;

interface Row {
  readonly limit: number;
  readonly windowMs: number;
  readonly dialect: Dialect;
  readonly calls: number;
  readonly comes?: Outsider;
  readonly serviceMs?: Range;
  readonly fleet?: Fleet;
}

/** As many calls as a full bucket takes at once, and as are left to Sluice in so many seconds at the rate of the upstream. */
const quota = (limit: number, windowMs: number, dialect: Dialect, seconds: number): Row => ({
  limit,
  windowMs,
  dialect,
  calls: Math.round(limit + (1 - share) * ((seconds * 1000 * limit) / windowMs)),
});
const sixHundred = quota(600, 60_000, model, 240);
const quotas: readonly (readonly [string, Row])[] = [
  ['60 a minute', quota(60, 60_000, model, 600)],
  ['600 a minute', sixHundred],
  ['6,000 a minute', quota(6_000, 60_000, model, 120)],
  ['40 and 2 a second', quota(40, 20_000, commerce, 600)],
];

/** Calls refused by the upstream, and the time from the first arrival to the last by what the drained quota allows at least. */
function measure(row: Row, seed: number): { readonly refused: number; readonly ratio: number } {
  const { limit, windowMs, dialect, calls, comes, fleet } = row;
  const isSerial = dialect === commerce;
  const scene = {
    counter: () => leaky(limit, windowMs),
    dialect,
    stated: [{ meter: 'requests', limit, windowMs }] as const,
    calls: Array.from({ length: calls }, (_, at) => (at * 2_000) / calls),
    maxInFlight: isSerial ? 1 : null,
    wayMs: [0, 2] as const,
    serviceMs: row.serviceMs ?? (isSerial ? ([50, 150] as const) : ([15, 25] as const)),
    ...(fleet === undefined ? {} : { fleet }),
    ...(comes === undefined ? {} : { outsider: { comes, share, windowMs } }),
  };
  const { arrivals, outside } = run(scene, seed, origins[seed % origins.length]?.ms ?? 0);
  const served = arrivals.filter(({ admitted }) => admitted);
  expect(served).toHaveLength(calls);
  const tookMs = (served.at(-1)?.at ?? 0) - (arrivals[0]?.at ?? 0);
  const minMs = ((calls + outside - limit) * windowMs) / limit;
  return { refused: arrivals.length - served.length, ratio: tookMs / minMs };
}

/** `seldom`: so many of the runs may have one refusal more. */
function expectAtMost(row: Row, max: { readonly refused: number; readonly ratio: number }, seldom = 0): void {
  // Seeds that follow each other have other origins of the clock.
  const seeds = row.limit > 600 ? [1, 2] : [1, 2, 3];
  const measured = seeds.map((seed) => ({ seed, ...measure(row, seed) }));
  expect(measured.filter((one) => one.refused > max.refused + 1 || one.ratio > max.ratio)).toEqual([]);
  const more = measured.filter((one) => one.refused > max.refused);
  expect(more.length > seldom ? more : []).toEqual([]);
}

const outsiders: readonly (readonly [string, Outsider])[] = [
  ['steadily', steady],
  ['at any time', irregular],
  ['in bursts', inBursts],
  ['in large bursts', inLargeBursts],
];
const everywhere = quotas.flatMap(([name, row]) =>
  outsiders.map(([how, comes]) => [name, how, row, comes] as const),
);

describe('another client that takes 30 % of the quota', () => {
  test.each(everywhere)(
    'of %s %s costs at most one refusal and 1.5 %% of the time',
    (_name, _how, row, comes) => {
      // An irregular client may come six times in a second, however seldom, so that no reserve is always enough.
      expectAtMost({ ...row, comes }, { refused: 1, ratio: 1.015 }, comes === irregular ? 1 : 0);
    },
  );

  const stalling: Fleet = {
    replicas: 3,
    wayMs: [0.5, 3],
    stallsAfterMs: [50, 1_000],
    stallMs: [50, 200],
    jobMs: [0, 0.5],
  };
  test.each<[string, Fleet | undefined]>([
    ['in one process', undefined],
    ['over three replicas that share a store', { ...stalling, stallMs: [0, 0] }],
    ['over three replicas that stall for a moment now and then', stalling],
    ['over three replicas that take milliseconds for each step', { ...stalling, jobMs: [0, 3] }],
  ])('costs no more than that in 800 calls %s', (_what, fleet) => {
    const row = { ...sixHundred, calls: 800, comes: steady, ...(fleet === undefined ? {} : { fleet }) };
    expectAtMost(row, { refused: 1, ratio: 1.015 });
  });

  test.each(outsiders.slice(0, 3))(
    '%s costs no more than that when responses take seconds',
    (_how, comes) => {
      const row: Row = { ...sixHundred, comes, serviceMs: [300, 2_500] };
      expectAtMost(row, { refused: 1, ratio: 1.02 });
    },
  );

  /** Without a level only refusals show what others take, so that it takes several of them to learn it. */
  test.each(outsiders)('%s costs few refusals when no response states the quota', (_how, comes) => {
    expectAtMost({ ...sixHundred, dialect: silent, comes }, { refused: 10, ratio: 1.03 });
  });
});

test.each(quotas)('a quota of %s without other clients costs no refusal and no time', (_name, row) => {
  expectAtMost(row, { refused: 0, ratio: 1.002 });
});
