/**
 * Clients that retry at once, at three times the ceiling of their workspace for three minutes: nobody else waits longer,
 * the upstream's quota does not see them, and a minute after they have calmed down they are served as usual.
 */
import { systemClock } from '../../src/clock.ts';
import {
  busiestWindow,
  chatBody,
  chatPath,
  clientAgent,
  count,
  pause,
  send,
  type CallResponse,
} from '../../test/support/redis-fleet.ts';
import type { Gateway } from './fleet.ts';
import { drive, twice } from './load.ts';
import { startSimulator } from './processes.ts';
import { allSucceeded, noneLost, succeeded, summary, type Row, type Scenario } from './row.ts';
import { common, run, setups, type Setup } from './setups.ts';
import { wait } from './worlds.ts';

const perMinute = 120;
/** Requests per minute that the upstream takes: enough for both workspaces, not for what the crowd repeats. */
const quota = 240;
const respondsInMs = 400;
/** The crowd's calls per minute, and what it falls to afterwards. */
const crowded = { calls: 3 * perMinute, minutes: 3 };
const calm = { calls: perMinute / 2, minutes: 1.5 };
/** How often a client of the crowd asks again, and how soon after a refusal. */
const retries = 5;
const againMs = 100;
const others = { perMinute: 60, aloneMs: 60_000 };
/** How much longer the other workspace may wait beside the crowd. */
const atMost = 1.1;
/** Usual service is not slower than this, milliseconds. */
const usualMs = respondsInMs + 600;

type Crowd = Pick<typeof crowded, 'calls' | 'minutes'>;

/** The responses to one client: refusals, and the last one. */
interface Outcome {
  readonly startedAt: number;
  readonly refusals: number;
  readonly last: CallResponse;
}

async function impatient(gateways: readonly Gateway[], key: string, nonce: string): Promise<Outcome> {
  const agent = clientAgent();
  const startedAt = systemClock.monotonic();
  for (let refusals = 0; ; refusals += 1) {
    const url = gateways[Math.floor(Math.random() * gateways.length)]?.url ?? '';
    const last = await send({ url, path: chatPath, key, nonce, agent, body: chatBody, headers: wait(10) });
    if (last.status !== 429 || refusals === retries) {
      agent.destroy();
      return { startedAt, refusals, last };
    }
    await pause(againMs);
  }
}

async function crowd(
  gateways: readonly Gateway[],
  key: string,
  { calls, minutes }: Crowd,
): Promise<readonly Outcome[]> {
  const clients: Promise<Outcome>[] = [];
  const beganAt = systemClock.monotonic();
  for (let n = 0; n < calls * minutes; n += 1) {
    await pause(beganAt + (n * 60_000) / calls - systemClock.monotonic());
    clients.push(impatient(gateways, key, `crowd-${calls}-${n}`));
  }
  return Promise.all(clients);
}

function percentile95(responses: readonly CallResponse[]): number {
  const sorted = responses.map(({ tookMs }) => tookMs).sort((a, b) => a - b);
  return sorted[Math.ceil(sorted.length * 0.95) - 1] ?? 0;
}

const crowdOver = (setup: Setup): Scenario => ({
  name: `clients that retry at once, three times their ceiling for three minutes, ${setup}`,
  async run(): Promise<Row> {
    const simulator = await startSimulator('language-model', {
      models: { 'gpt-4o': { rpm: quota, tpm: 100_000_000 } },
      latency: { baseMs: respondsInMs, perTokenMs: 0, jitter: 0 },
    });
    const { fleet, end } = await run(
      setup,
      common({
        modelUrl: simulator.url,
        modelLimits: `requestsPerMinute: ${perMinute}, tokensPerMinute: 100000000`,
        workspaces: ['crowd', 'other'],
      }),
    );
    const steady = (name: string, forMs: number): Promise<readonly CallResponse[]> =>
      drive({
        to: fleet.gateways,
        calls: (forMs / 60_000) * others.perMinute,
        everyMs: 60_000 / others.perMinute,
        path: chatPath,
        key: fleet.keys['other'] ?? '',
        name,
        body: chatBody,
      });
    const key = fleet.keys['crowd'] ?? '';
    const alone = await steady('alone', others.aloneMs);
    const [beside, many] = await Promise.all([
      steady('beside', crowded.minutes * 60_000),
      crowd(fleet.gateways, key, crowded),
    ]);
    const fellAt = systemClock.monotonic();
    const few = await crowd(fleet.gateways, key, calm);
    const entries = await simulator.log();
    await end(simulator);
    const recovered = few.filter(({ startedAt }) => startedAt >= fellAt + 60_000).map(({ last }) => last);
    const isUsual = allSucceeded(recovered) && recovered.every(({ tookMs }) => tookMs <= usualMs);
    const slower = percentile95(beside) / percentile95(alone);
    const ofCrowd = entries.filter(({ nonce }) => nonce?.startsWith('crowd') === true);
    const busiest = busiestWindow(ofCrowd, 60_000);
    const throttled = count(entries, 'throttled');
    const served = many.map(({ last }) => last);
    const refusals = many.reduce((sum, { refusals: times }) => sum + times, 0);
    return {
      holds: noneLost([...alone, ...beside]) && busiest <= perMinute && twice(entries) === 0,
      holdsWhenQuiet: allSucceeded([...alone, ...beside]) && slower <= atMost && isUsual && throttled <= 1,
      figures: [
        `95 % of the other workspace's calls took ${percentile95(alone).toFixed(0)} ms alone and ${percentile95(beside).toFixed(0)} ms beside (${slower.toFixed(3)} ×)`,
        `the crowd: ${summary(served)} after ${refusals} refusals, ${succeeded(served)} served, ${busiest} in the busiest 60 s`,
        `from a minute after it: ${summary(recovered)}, slowest ${Math.max(...recovered.map(({ tookMs }) => tookMs)).toFixed(0)} ms`,
        `upstream 429s ${throttled}`,
      ].join('; '),
      measured: [{ name: 'p95 of the other workspace beside the crowd', value: slower, unit: '× alone' }],
    };
  },
});

export const crowds = { embedded: crowdOver(setups.embedded), replicas: crowdOver(setups.replicas) };
