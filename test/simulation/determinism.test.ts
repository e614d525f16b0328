/**
 * A seed is its history: the same alone, behind other histories of the process, and in a process that is stopped now and then
 * (`digests.ts`). Otherwise an objection of a long run cannot be repeated. The seeds are of all kinds: days that are used up
 * (1015, 1072), faults of Redis, described windows (from 10,000,000 on).
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { execPath } from 'node:process';
import { promisify } from 'node:util';
import { afterEach, describe, expect, jest, test } from '@jest/globals';
import { live, type Lived } from './live.ts';
import { live as liveReplicas } from './replicas/live.ts';

const run = promisify(execFile);

interface Form {
  readonly name: 'one-process' | 'replicas';
  readonly seeds: readonly number[];
  readonly live: (seed: number, isWhole: boolean) => Promise<Lived<object>>;
}

const forms: readonly Form[] = [
  { name: 'one-process', seeds: [1_015, 1_072, 17, 9_119, 10_000_001], live },
  { name: 'replicas', seeds: [17, 2_881, 10_000_002], live: liveReplicas },
];

async function digests(
  form: string,
  how: 'steady' | 'disturbed',
  seeds: readonly number[],
): Promise<readonly string[]> {
  const script = join(import.meta.dirname, 'digests.ts');
  const { stdout } = await run(execPath, [script, form, how, ...seeds.map(String)]);
  return stdout.trimEnd().split('\n').toSorted();
}

describe.each(forms)('a seed is its history: $name', ({ name, seeds, live: liveOne }) => {
  afterEach(() => {
    jest.restoreAllMocks();
  });

  test('behind others, in a process that is stopped now and then, and alone', async () => {
    const [inOrder, reversed, alone] = await Promise.all([
      digests(name, 'steady', seeds),
      digests(name, 'disturbed', seeds.toReversed()),
      digests(name, 'steady', seeds.slice(-1)),
    ]);
    expect(inOrder).toHaveLength(seeds.length);
    expect(reversed).toEqual(inOrder);
    expect(inOrder).toContain(alone[0]);
  }, 120_000);

  test('reads no time and draws no chance but its own', async () => {
    const readings = [
      jest.spyOn(Date, 'now'),
      jest.spyOn(performance, 'now'),
      jest.spyOn(Math, 'random'),
      jest.spyOn(globalThis, 'setTimeout'),
      jest.spyOn(globalThis, 'setInterval'),
    ];
    for (const seed of seeds) await liveOne(seed, true);
    expect(readings.map((reading) => reading.mock.calls.length)).toEqual([0, 0, 0, 0, 0]);
  }, 120_000);
});
