/** What is said of calls that limits do not hold, against what becomes of them when limits hold them (`observed.ts`). `SEEDS=500` runs more histories than 15. */
import { env } from 'node:process';
import { expect, test } from '@jest/globals';
import { arrivalsOf, courseOf, isTrue, type Arrivals } from './observed.ts';

const count = Number(env['SEEDS'] ?? 15);

interface Shares {
  /** Of the calls that limits held or refused: what was said with their responses was true, and what was reckoned in the end. */
  readonly said: number;
  readonly reckoned: number;
  /** Of the calls of which the scheduler that held them expected, when the response came, what became of them: what was said was true. */
  readonly saidOfExpected: number;
  readonly throttled: number;
}

async function sharesOf(change: (arrivals: Arrivals) => Arrivals): Promise<Shares> {
  let [calls, said, reckoned, throttled, expected, saidOfExpected] = [0, 0, 0, 0, 0, 0];
  for (let seed = 1; seed <= count; seed += 1) {
    const arrivals = change(arrivalsOf(seed));
    const observed = await courseOf(arrivals, 'observe');
    const held = await courseOf(arrivals, 'enforce', observed.tookMs);
    expect(held.throttled).toBe(0);
    throttled += observed.throttled;
    // No limit delays a response: it comes when the upstream gives it.
    const slowest = Math.max(...arrivals.calls.map(({ serviceMs }) => serviceMs));
    expect(Math.max(...observed.tookMs.values())).toBeLessThanOrEqual(slowest + 2);
    for (const { id } of arrivals.calls) {
      const became = held.fates.get(id);
      if (became === undefined) throw new Error(`${id} of seed ${seed} has not ended`);
      if (became.kind === 'sent' && became.waitMs === 0) continue;
      calls += 1;
      const wasSaid = isTrue(observed.fates.get(id), became);
      if (wasSaid) said += 1;
      if (isTrue(held.expected.get(id) ?? became, became)) {
        expected += 1;
        if (wasSaid) saidOfExpected += 1;
      }
      if (isTrue(observed.reckoned.get(id), became)) reckoned += 1;
    }
  }
  return {
    said: said / calls,
    reckoned: reckoned / calls,
    saidOfExpected: saidOfExpected / expected,
    throttled: throttled / calls,
  };
}

/** One client with equal calls: what comes later changes no wait. */
const alike = (arrivals: Arrivals): Arrivals => {
  const [first] = arrivals.calls;
  if (first === undefined) return arrivals;
  const { lane, costs, callClass, serviceMs, bodyMs } = first;
  const same = { lane, costs, callClass, serviceMs, bodyMs, urgency: 3, maxWaitMs: 75_000 };
  return { ...arrivals, calls: arrivals.calls.map((call) => ({ ...call, ...same })) };
};

test(
  'what is reckoned of a call is what becomes of it under limits, also where later calls go before it',
  async () => {
    const { said, reckoned, saidOfExpected, throttled } = await sharesOf((arrivals) => arrivals);
    expect(reckoned).toBeGreaterThan(0.95);
    // A response does not know yet which calls will come and go first: nor does the scheduler that holds the call.
    expect(said).toBeGreaterThan(0.84);
    expect(saidOfExpected).toBeGreaterThan(0.98);
    // The upstream refused what nobody held.
    expect(throttled).toBeGreaterThan(0.2);
  },
  Math.max(400_000, count * 500),
);

test(
  'what the response says of a call is true where nothing that comes later goes before it',
  async () => {
    const { said, reckoned } = await sharesOf(alike);
    expect(said).toBeGreaterThan(0.95);
    expect(reckoned).toBeGreaterThan(0.98);
  },
  Math.max(400_000, count * 500),
);
