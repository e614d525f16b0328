/** What is said of calls that limits do not hold, against what becomes of them when limits hold them: calm histories, lived twice. `SEEDS=500` runs more than 30. */
import { env } from 'node:process';
import { expect, test } from '@jest/globals';
import type { Reckoned } from '../../src/call.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { calmOf } from './counterfactual.ts';
import { planOf } from './plan.ts';
import type { Call } from './replicas/ledger.ts';
import { run } from './replicas/simulate.ts';
import { found } from './rules.ts';

const count = Number(env['SEEDS'] ?? 30);

const waitOf = ({ sentAt, enteredAt }: Call): number => (sentAt[0] ?? Infinity) - enteredAt;

/** What was said of a call is what became of it: within a tenth, or 150 ms. */
function isTrue(said: Reckoned | null, became: Call): boolean {
  if (said === null || (said.kind === 'refuse') !== (became.sends === 0)) return false;
  return became.sends === 0 || Math.abs(said.waitMs - waitOf(became)) <= Math.max(150, waitOf(became) / 10);
}

test(
  'what is reckoned of a call is what becomes of it under limits, also where later calls go before it',
  async () => {
    let [lived, calls, said, reckoned, refused] = [0, 0, 0, 0, 0];
    for (let seed = 1; lived < count; seed += 1) {
      const plan = calmOf(planOf('upstreams', seed));
      if (plan.isAlone !== true) continue;
      lived += 1;
      const held = await run(plan);
      const observed = await run({ ...plan, mode: 'observe' });
      expect(held.violations).toEqual([]);
      expect(observed.refused).toEqual([]);
      for (const [index, became] of held.calls.entries()) {
        const call = found(observed.calls[index], became.plan.id);
        // No limit delays a call that it does not hold.
        expect(waitOf(call)).toBe(0);
        if (waitOf(became) === 0) continue;
        calls += 1;
        if (isTrue(call.would, became)) said += 1;
        if (isTrue(call.reckoned, became)) reckoned += 1;
        if (call.ends[0] === 'failed') refused += 1;
      }
    }
    expect(reckoned / calls).toBeGreaterThan(0.97);
    // A response does not know yet which calls will come and go first.
    expect(said / calls).toBeGreaterThan(0.9);
    // The upstream refused what nobody held.
    expect(refused / calls).toBeGreaterThan(0.25);
  },
  Math.max(400_000, count * 500),
);

test('of serialized calls that are sent at once each is reckoned to wait for all before it', async () => {
  const clock = new FakeClock();
  const waits: number[] = [];
  const { queue, limiter } = embeddedQueue({ clock, onReckoned: (_, { waitMs }) => void waits.push(waitMs) });
  for (const id of ['a', 'b', 'c']) {
    const serial = { mode: 'observe', maxInFlight: 1, maxWaitMs: 60_000 } as const;
    const ticket = await queue.enter(...callOf(clock, id, serial));
    const lease = await ticket.whenGranted();
    clock.arrives(700, () => {
      lease.settle({ kind: 'succeeded', spent: null }, null);
      ticket.leave();
    });
  }
  await clock.run(10_000);
  await limiter.close();
  expect(waits).toEqual([0, 700, 1_400]);
});
