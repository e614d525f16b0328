/**
 * Histories of upstreams that are described by their windows, which reloads change while calls wait, as they change how many calls
 * may be in flight (`plan-described.ts`): one process, and several replicas on one Redis. The upstream counts by what is described.
 * `SEED=10000123` runs one history again, follows up all its refusals and prints it; `SEEDS=2000` runs more than these.
 */
import { env, stdout } from 'node:process';
import { describe, expect, test } from '@jest/globals';
import { live, type Lived } from './live.ts';
import { describedFrom } from './plan-described.ts';
import { live as liveReplicas } from './replicas/live.ts';
import { inProcesses, tallyOf, type Judged, type Wrong } from './tally.ts';

const only = env['SEED'] === undefined ? null : Number(env['SEED']);
const factor = Number(env['SEEDS'] ?? 50) / 100;

interface Form {
  readonly name: 'one-process' | 'replicas';
  readonly count: number;
  readonly live: (
    seed: number,
    isWhole?: boolean,
  ) => Promise<Lived<Judged & { readonly log: readonly string[] }>>;
}

const forms: readonly Form[] = [
  { name: 'one-process', count: 100 * factor, live },
  { name: 'replicas', count: Math.ceil(20 * factor), live: liveReplicas },
];

/**
 * A level that drained counted for a whole window from when its window became one of the clock (10000582). Where kind and length
 * changed at once, calls that had left long ago counted as sent at the reload (10000793). One response that came late carried all
 * calls of a window of the clock into the next one (10000843, 10001859). Calls that waited when a window was added were not expected to
 * take from it (10001131). A level with a fraction seemed to need one window more than it does (10005973). Wrong was the judge in
 * 10011596: where wake-ups get lost, each round of a window may begin late; and in 10011456: how long a
 * call keeps its bucket busy is for the slowest of the windows to say. A level counted as it was when a call last came when its window
 * became rolling (10005045). An added window was judged as if nothing had been sent before (10010220). Calls that a
 * stalled process never sent kept their units (10010210). Calls behind a slot of unknown fate were forecast as if they left
 * meanwhile (10000663). A window that was lowered, and drained later, had more to drain than its limit (10001673). A slot was free in less
 * time than a clock tells apart, and its lane was granted endlessly meanwhile (10000710). Calls that left while no window was stated, and
 * were refused, took their units out of a log that began with no more than the new limit (10000133).
 */
const once = [
  10_000_133, 10_000_582, 10_000_663, 10_000_710, 10_000_793, 10_000_843, 10_001_131, 10_001_673, 10_001_859,
  10_005_045, 10_005_973, 10_010_210, 10_010_220, 10_011_456, 10_011_596,
];

/**
 * Followed up to their last refusal. A call that was refused for a full line and came again later than stated was judged by the room
 * that there had been at the stated time (10001562).
 */
const onceInFull = [10_001_562];

/**
 * A call was given back, and its window drained from the next reload on: it counted one call less than was sent (10001526). Grants
 * that were kept from their calls were handed over under a cap that a reload had lowered meanwhile (10001981). A replica whose last call
 * had brought the former limits had none in admission when it was reloaded, and did not report the new ones (10003534).
 */
const onceOverReplicas = [10_001_526, 10_001_981, 10_003_534];

describe.each(forms)('upstreams described by windows that reloads change: $name', ({ name, count, live }) => {
  test(
    'are sent no more than they count, nor less than they would take, and waits are true',
    async () => {
      const tally =
        only === null
          ? await inProcesses(name, { first: describedFrom, count })
          : await tallyOf(() => printed(live(only, true)), { first: only, count: 1 });
      expect(tally.wrong.map(inWords)).toEqual([]);
      if (only !== null) return;
      expect(tally.reloaded).toBeGreaterThan(count / 2);
      expect(tally.verdicts['true'] ?? 0).toBeGreaterThan(count / 4);
    },
    Math.max(400_000, count * 4_000),
  );
});

describe('upstreams described by windows that reloads change', () => {
  test.each(once)('are judged right in the history that once went wrong: %d', async (seed) => {
    const { history, followed } = await live(seed);
    expect([...history.violations, ...followed.wrong]).toEqual([]);
  });

  test.each(onceInFull)('are judged right in every refusal of the history: %d', async (seed) => {
    const { history, followed } = await live(seed, true);
    expect([...history.violations, ...followed.wrong]).toEqual([]);
  });
});

describe('upstreams described by windows that reloads change, over replicas', () => {
  test.each(onceOverReplicas)('are judged right in the history that once went wrong: %d', async (seed) => {
    const { history, followed } = await liveReplicas(seed);
    expect([...history.violations, ...followed.wrong]).toEqual([]);
  });
});

async function printed<H extends { readonly log: readonly string[] }>(
  lived: Promise<Lived<H>>,
): Promise<Lived<H>> {
  stdout.write(`${(await lived).history.log.join('\n')}\n`);
  return lived;
}

const inWords = ({ seed, origin, violations }: Wrong): string =>
  [`SEED=${seed} npm test test/simulation/described.test.ts, by ${origin}`, ...violations.slice(0, 5)].join(
    '\n',
  );
