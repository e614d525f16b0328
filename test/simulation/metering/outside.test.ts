/**
 * Another client uses the quota: how many calls the upstream refuses because of it, and how much longer all of them take than
 * the quota that is left allows. Virtual time, clocks that begin anywhere.
 */
import { describe, expect, test } from '@jest/globals';
import { origins } from '../../support/origins.ts';
import { Leaky } from './counters.ts';
import { commerce, model, silent, type Dialect } from './dialects.ts';
import { inBursts, inLargeBursts, irregular, steady, type Outsider } from './outsiders.ts';
import { run } from './paced-run.ts';
import type { Fleet, Range, Scene } from './scene.ts';

interface Row {
  readonly limit: number;
  readonly windowMs: number;
  readonly dialect: Dialect;
  readonly calls: number;
  readonly comes: Outsider | null;
  readonly serviceMs?: Range;
  readonly fleet?: Fleet;
}

const minuteMs = 60_000;
const threeReplicas: Fleet = {
  replicas: 3,
  wayMs: [0.5, 3],
  stallsAfterMs: [50, 1_000],
  stallMs: [50, 200],
  jobMs: [0, 0.5],
};
/** The share that the outsider takes of what the upstream serves. */
const share = 0.3;
/** Seeds that follow each other have other origins of the clock. */
const seedsOf = ({ limit }: Row): readonly number[] => (limit > 600 ? [1, 2] : [1, 2, 3]);

/** The calls that a full bucket takes at once, and those left to Sluice in so many seconds at the rate of the upstream. */
const callsFor = (limit: number, windowMs: number, seconds: number): number =>
  Math.round(limit + (1 - share) * ((seconds * 1000 * limit) / windowMs));

function sceneOf({ limit, windowMs, dialect, calls, comes, serviceMs, fleet }: Row): Scene {
  const isSerial = dialect === commerce;
  return {
    counter: () => new Leaky(limit, windowMs),
    dialect,
    windowMs,
    stated: [{ meter: 'requests', limit, windowMs }],
    probe: 0,
    calls: Array.from({ length: calls }, (_, at) => (at * 2_000) / calls),
    maxWaitMs: Infinity,
    maxInFlight: isSerial ? 1 : null,
    wayMs: [0, 2],
    ...(fleet === undefined ? {} : { fleet }),
    serviceMs: serviceMs ?? (isSerial ? [50, 150] : [15, 25]),
    outsider: comes === null ? null : { comes, share },
  };
}

/** Calls refused by the upstream, and the time from the first arrival to the last by what the drained quota allows at least. */
function measure(row: Row, seed: number): { readonly refused: number; readonly ratio: number } {
  const { arrivals, outside } = run(sceneOf(row), seed, origins[seed % origins.length]?.ms ?? 0);
  const served = arrivals.filter(({ admitted }) => admitted);
  expect(served).toHaveLength(row.calls);
  const tookMs = (served.at(-1)?.at ?? 0) - (arrivals[0]?.at ?? 0);
  const minMs = ((row.calls + outside - row.limit) * row.windowMs) / row.limit;
  return { refused: arrivals.length - served.length, ratio: tookMs / minMs };
}

/** Limits of a row. `seldom`: so many of the runs may have one refusal more. */
interface AtMost {
  readonly refused: number;
  readonly ratio: number;
  readonly seldom?: number;
}

function expectAtMost(row: Row, { refused, ratio, seldom = 0 }: AtMost): void {
  const measured = seedsOf(row).map((seed) => ({ seed, ...measure(row, seed) }));
  expect(measured.filter((one) => one.refused > refused + 1 || one.ratio > ratio)).toEqual([]);
  const more = measured.filter((one) => one.refused > refused);
  expect(more.length > seldom ? more : []).toEqual([]);
}

const outsiders: readonly (readonly [string, Outsider])[] = [
  ['steadily', steady],
  ['at any time', irregular],
  ['in bursts', inBursts],
  ['in large bursts', inLargeBursts],
];

const quotas: readonly (readonly [string, Omit<Row, 'comes'>])[] = [
  ['60 a minute', { limit: 60, windowMs: minuteMs, dialect: model, calls: callsFor(60, minuteMs, 600) }],
  ['600 a minute', { limit: 600, windowMs: minuteMs, dialect: model, calls: callsFor(600, minuteMs, 240) }],
  [
    '6,000 a minute',
    { limit: 6_000, windowMs: minuteMs, dialect: model, calls: callsFor(6_000, minuteMs, 120) },
  ],
  ['40 and 2 a second', { limit: 40, windowMs: 20_000, dialect: commerce, calls: callsFor(40, 20_000, 600) }],
];
const rows = quotas.flatMap(([name, row]) =>
  outsiders.map(([how, comes]): [string, string, Row] => [name, how, { ...row, comes }]),
);

describe('another client that takes 30 % of the quota', () => {
  test.each(rows)('of %s %s costs at most one refusal and 1.5 %% of the time', (_limit, _how, row) => {
    // An irregular client may come six times in a second, however seldom, so that no reserve is always enough.
    expectAtMost(row, { refused: 1, ratio: 1.015, seldom: row.comes === irregular ? 1 : 0 });
  });

  test('costs no more than that in 800 calls on 600 a minute', () => {
    const row = { limit: 600, windowMs: minuteMs, dialect: model, calls: 800, comes: steady };
    expectAtMost(row, { refused: 1, ratio: 1.015 });
  });

  test.each<[string, Fleet]>([
    ['share a store', { ...threeReplicas, stallMs: [0, 0] }],
    ['stall for a moment now and then', threeReplicas],
    ['take milliseconds for each step', { ...threeReplicas, jobMs: [0, 3] }],
  ])('costs no more than that in 800 calls over three replicas that %s', (_what, fleet) => {
    const row = { limit: 600, windowMs: minuteMs, dialect: model, calls: 800, comes: steady, fleet };
    expectAtMost(row, { refused: 1, ratio: 1.015 });
  });

  test.each(outsiders.slice(0, 3))(
    '%s costs no more than that when responses take seconds',
    (_how, comes) => {
      const row = { limit: 600, windowMs: minuteMs, dialect: model, calls: 2_280, comes };
      expectAtMost({ ...row, serviceMs: [300, 2_500] }, { refused: 1, ratio: 1.02 });
    },
  );

  /** Without a level only refusals show what others take, so that it takes several of them to learn it. */
  test.each(outsiders)('%s costs few refusals when no response states the quota', (_how, comes) => {
    const row = {
      limit: 600,
      windowMs: minuteMs,
      dialect: silent,
      calls: callsFor(600, minuteMs, 240),
      comes,
    };
    expectAtMost(row, { refused: 10, ratio: 1.03 });
  });
});

describe('a quota without other clients', () => {
  test.each(quotas)('of %s costs no refusal and no time', (_limit, row) => {
    expectAtMost({ ...row, comes: null }, { refused: 0, ratio: 1.002 });
  });
});
