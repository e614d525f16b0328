/** A ceiling of 120 per minute under 358 calls, and an upstream that is closed just when the second minute begins. */
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';
import {
  busiestWindow,
  chatBody,
  chatPath,
  count,
  pause,
  type CallResponse,
} from '../../test/support/redis-fleet.ts';
import { drive } from './load.ts';
import { startSimulator } from './processes.ts';
import { allSucceeded, noneLost, seconds, summary, type Row, type Scenario } from './row.ts';
import { stalls } from './stalls.ts';
import { overRedis, replicaLags, wait } from './worlds.ts';

const calls = 358;
const perMinute = 120;
/** The upstream is closed from here to there, milliseconds after the first call; it counts 6,000 per minute. */
const closedFromMs = 58_000;
const closedUntilMs = 70_000;
/**
 * 120 calls leave at once, 120 after the closing, at the 100 per second of the upstream, 118 a minute later; what the
 * upstream refused counted under the ceiling and is sent again.
 */
const lastByMs = 132_000;
/** So much longer than a minute is the window that the limiter keeps (ADR 2). Milliseconds. */
const marginMs = 150;

interface Run {
  readonly responses: readonly CallResponse[];
  readonly entries: readonly LogEntry[];
  /** Longest time for which the machine or a replica was kept from running. Milliseconds. */
  readonly stalledMs: number;
}

/** All calls at once, and the closing when its time comes. */
async function load(): Promise<Run> {
  const simulator = await startSimulator('language-model', {
    models: { 'gpt-4o': { rpm: 6_000, tpm: 100_000_000 } },
    latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
  });
  const limits = `requestsPerMinute: ${perMinute}, requestsPerDay: 1000000, tokensPerMinute: 100000000`;
  const { fleet, end } = await overRedis({ modelUrl: simulator.url, modelLimits: limits });
  await replicaLags(fleet);
  const since = stalls.mark();
  const startedAt = systemClock.monotonic();
  const responses = await drive({
    to: fleet.gateways,
    calls,
    everyMs: 0,
    path: chatPath,
    key: fleet.keys['acme'] ?? '',
    body: chatBody,
    headers: wait(150),
    meanwhile: async () => {
      await pause(startedAt + closedFromMs - systemClock.monotonic());
      const closedAt = systemClock.monotonic() - startedAt;
      await simulator.configure({ close: { forMs: closedUntilMs - closedAt } });
    },
  });
  const stalledMs = Math.max(stalls.maxSince(since), ...(await replicaLags(fleet)));
  const entries = await simulator.log();
  await end(simulator);
  return { responses, entries, stalledMs };
}

export const closing: Scenario = {
  name: 'ceiling 120/min and an upstream closed from second 58 to 70',
  async run(): Promise<Row> {
    const { responses, entries, stalledMs } = await load();
    const { lastMs, reopenedMs } = readArrivals(entries);
    const windowMs = 60_000 - Math.max(0, stalledMs - marginMs);
    const judged = busiestArrivals(entries, windowMs);
    return {
      holds: noneLost(responses) && judged <= perMinute,
      holdsWhenQuiet: allSucceeded(responses) && lastMs <= lastByMs,
      figures: [
        `last call at ${seconds(lastMs)}`,
        `first after the closing at ${seconds(reopenedMs)}`,
        `arrivals in the busiest 60 s ${busiestArrivals(entries, 60_000)} (${judged} in ${seconds(windowMs)}, for what stalled)`,
        summary(responses),
        `upstream 429s ${count(entries, 'throttled')}`,
      ].join('; '),
      measured: [
        { name: 'last call', value: lastMs / 1_000, unit: 's' },
        { name: 'first call after the closing', value: reopenedMs / 1_000, unit: 's' },
      ],
    };
  },
};

/** What the upstream refused was sent, and counts. */
const busiestArrivals = (entries: readonly LogEntry[], windowMs: number): number =>
  busiestWindow(
    entries.map((entry) => ({ ...entry, decision: 'admitted' })),
    windowMs,
  );

/** Milliseconds after the first arrival upstream: of the last call, and of the first call after the closing began. */
function readArrivals(entries: readonly LogEntry[]): { lastMs: number; reopenedMs: number } {
  const admitted = entries.filter(({ decision }) => decision === 'admitted').map(({ arrivedT }) => arrivedT);
  const first = Math.min(...entries.map(({ arrivedT }) => arrivedT));
  const since = admitted.map((at) => at - first);
  return {
    lastMs: Math.max(...since),
    reopenedMs: Math.min(...since.filter((at) => at > closedFromMs + 1_000)),
  };
}
