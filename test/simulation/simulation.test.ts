/**
 * Seeded histories of the real admission code against a simulated upstream, with reloads: of one process alone and of replicas that share
 * a Redis (`replicas/simulate.ts` says what is real). Of the calm twin of each two refusals that stated a time are followed up (`oracle.ts`).
 * `run.ts` runs one again and prints it; `SEEDS=20000` runs more than these.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { env } from 'node:process';
import { afterAll, beforeAll, describe, expect, test } from '@jest/globals';
import { describedFrom, levelsFrom, replicatedFrom, reservingFrom } from './chance.ts';
import type { Followed, Told } from './live.ts';
import type { Form } from './plan.ts';

const seeds = env['SEEDS'] === undefined ? null : Number(env['SEEDS']);

/** Histories are lived in plain Node, very many in two processes: Jest takes a third more time. */
const processes: { readonly child: ChildProcess; readonly ended: Promise<unknown> }[] = [];
beforeAll(() => {
  for (let n = 0; n < ((seeds ?? 0) > 200 ? 2 : 1); n += 1) {
    // Refusals are errors, whose stacks take a tenth of the time.
    const execArgv = ['--max-semi-space-size=16', '--stack-trace-limit=0'];
    const child = fork(join(import.meta.dirname, 'run.ts'), ['jobs'], { execArgv });
    processes.push({ child, ended: once(child, 'exit') });
  }
});
afterAll(async () => {
  for (const { child } of processes) child.kill();
  await Promise.all(processes.map(({ ended }) => ended));
});

async function lived(form: Form, first: number, count: number, followed: Followed = 'some') {
  const share = Math.ceil(count / processes.length);
  const told = processes.map(async ({ child, ended }, at) => {
    const from = at * share;
    child.send([form, first + from, Math.min(share, count - from), followed]);
    const [all] = await Promise.race([once(child, 'message'), ended.then(() => [])]);
    return all as readonly Told[];
  });
  return (await Promise.all(told)).flat();
}

const statesIn = (text: string): readonly string[] => text.split(/,\s+/);

/** Situations that the histories must have been in, or the checks above them mean nothing. */
const faults = statesIn(
  'fault cut, fault down, fault failover, fault flush, fault hang, fault kill, fault pause, fault step, reconfigured while calls wait',
);
const levels = statesIn(
  'a background call is due, a background call waits while another goes, callers take turns',
);
const returns = statesIn(
  'came back, position kept, went for its reservation before callers and background calls',
);
const replication = statesIn('fault cut, fault promote, fault replicate, fault start');
/** Only many histories reach all of these. */
const many = 1_000;
const ofManyUpstreams =
  statesIn(`a pilot before a crowd, absorbed, bucket closed, ceiling refused, ceiling used up,
  client left while waiting, client left with a grant under way, daily ceiling refused, day_quota_exhausted, fault pause,
  grant before its caller waited, last place under the ceiling taken, lease expired, left the edge of the ceiling, place given back,
  probes doubled, queue_full, reconfigured while calls wait, sent again after a failure, unauthenticated, wait_expired, wait_too_long,
  wake-up lost`);
const ofManyFaults =
  statesIn(`bucket closed, ceiling used up, entered again, lease lost before sending, limiter_unavailable, mode deny,
  mode local, overlap, place given back, place taken again, sent again after a failure, sent without Redis, stopped before a write,
  suspicion expired, suspicion stalled, suspicion unavailable, unauthenticated, wait_expired, wait_too_long`);

type Kind = readonly [
  what: string,
  form: Form,
  from: number,
  count: number,
  /** So many refusals per history must have been judged by the actual wait; most of these histories have reloads. 0: none need be. */
  judged: number,
  reached: readonly string[],
  reachedByMany: readonly string[],
];

const waiting = 'reconfigured while calls wait';
const small = seeds ?? 40;
const withLevels = [...levels, waiting, 'fault pause'];
const kinds: readonly Kind[] = [
  ['all kinds of upstreams', 'upstreams', 1, seeds ?? 50, 1 / 3, [], ofManyUpstreams],
  ['callers and background', 'upstreams', levelsFrom, seeds ?? 25, 1 / 4, withLevels, []],
  ['windows that reloads change', 'upstreams', describedFrom, seeds ?? 10, 0, [waiting], []],
  ['faults of replicas and Redis', 'faults', 1, small, 1 / 8, [], [...faults, ...ofManyFaults]],
  ['faults, callers and background', 'faults', levelsFrom, small / 2, 0, [...faults, ...levels], []],
  ['faults and clients that return', 'faults', reservingFrom, small / 2, 0, [...faults, ...returns], []],
  ['faults and described windows', 'faults', describedFrom, small / 4, 0, [], []],
  ['backups and promotions of Redis', 'faults', replicatedFrom, small / 4, 0, replication, []],
];

/**
 * Histories that once went wrong, or were taken for wrong, found among tens of thousands. What was wrong in them is a row of a table of
 * mutations where one line keeps it.
 */
const wrongOnce: Readonly<Record<Form, readonly number[]>> = {
  upstreams: [
    8_809, 9_587, 24_708, 27_627, 30_791, 31_964, 50_778, 30_001_445, 30_001_458, 30_010_723, 10_000_133,
    10_000_226, 10_000_582, 10_000_663, 10_000_710, 10_000_793, 10_000_843, 10_001_131, 10_001_167,
    10_001_386, 10_001_673, 10_001_859, 10_001_969, 10_005_045, 10_005_973, 10_010_210, 10_010_220,
    10_011_456, 10_011_596,
  ],
  faults: [
    90, 400, 433, 450, 627, 1_148, 1_250, 1_287, 1_305, 1_335, 1_522, 1_566, 2_314, 2_458, 2_716, 2_881,
    4_024, 5_056, 5_262, 5_483, 9_119, 10_594, 11_554, 13_025, 13_391, 14_430, 14_432, 15_885, 19_588,
    10_000_043, 10_000_342, 10_001_526, 10_001_944, 10_001_981, 10_003_534, 20_000_024, 20_000_026,
    20_000_036, 20_000_065, 20_000_071, 20_000_076, 20_000_094, 20_000_200, 20_000_267, 30_000_773,
    30_000_889, 60_000_416, 60_000_708,
  ],
  steady: [
    8_282, 14_860, 16_053, 16_832, 16_838, 18_791, 20_491, 24_291, 26_958, 30_383, 30_415, 36_073, 47_776,
    50_733, 56_974, 63_147, 82_229, 97_465,
  ],
};
/** The same in one of their refusals. */
const onceInFull = [10_001_562, 30_010_257, 41_000_081];

test.each(kinds)(
  'with %s every invariant is kept, waits are true, and what the histories are for happens',
  async (_what, form, first, count, judged, reached, reachedByMany) => {
    const all = await lived(form, first, count);
    expect(all.flatMap(({ wrong }) => wrong)).toEqual([]);
    expect(all).toHaveLength(count);
    const happened = new Set(all.flatMap((one) => one.reached));
    const states = count < many ? reached : [...reached, ...reachedByMany];
    expect(states.filter((state) => !happened.has(state))).toEqual([]);
    if (judged === 0) return;
    expect(all.filter((one) => one.reached.includes('reconfigured')).length).toBeGreaterThan(count / 2);
    // Most refusals are judged by the actual wait, not excused.
    const verdicts = all.flatMap((one) => one.verdicts).filter((verdict) => verdict !== 'false');
    const taken = verdicts.filter((verdict) => verdict === 'taken meanwhile').length;
    expect(verdicts.length).toBeGreaterThan(count * judged);
    if (form === 'upstreams') expect(taken).toBeLessThan(verdicts.length / 10);
  },
  Math.max(400_000, (seeds ?? 0) * 1_000),
);

describe.each(['upstreams', 'faults', 'steady'] as const)('of %s', (form) => {
  test.each(wrongOnce[form])('the history that once went wrong: %d', async (seed) =>
    expect(await lived(form, seed, 1)).toMatchObject([{ wrong: [] }]),
  );
});

test.each(onceInFull)('history of which a refusal was wrong: %d', async (seed) =>
  expect(await lived('upstreams', seed, 1, 'all')).toMatchObject([{ wrong: [] }]),
);
