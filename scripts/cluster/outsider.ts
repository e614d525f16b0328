/** A burst while somebody else, whom no gateway sees, takes three tenths of the same quota. */
import { systemClock } from '../../src/clock.ts';
import type { LogEntry } from '../../simulators/log.ts';
import { chatBody, count, pause, send, type CallResponse } from '../../test/support/redis-fleet.ts';
import { startSimulator, type Simulator } from './processes.ts';
import { allSucceeded, makespanOf, noneLost, ratio, type Row, type Scenario } from './row.ts';
import { aftermath, chat, overRedis, see, warm, warming, wide } from './worlds.ts';

const perMinute = 600;
const outsidePerSecond = 3;
const calls = 800;
/**
 * What is over the bucket has to wait for the drain, of which the outsider has taken so many calls by our last one. Its pace alone says so only
 * to one call, and each call is a tenth of a second.
 */
const bestMs = (outside: number): number => ((calls + outside - perMinute) / (perMinute / 60)) * 1_000;
const atBest = 1.015;
const ourKey = 'sk-sim';
const outsideKey = 'sk-outside';

/** Sends at its own pace, straight to the upstream; what is refused is sent again at the stated time. */
function takeShare({ url }: Simulator): { end(): Promise<number> } {
  let isOver = false;
  const startedAt = systemClock.monotonic();
  const one = async (nonce: string): Promise<number> => {
    for (let tries = 0; ; tries += 1) {
      const response = await sendStraight(url, nonce);
      if (response.status !== 429 || isOver) return tries;
      await pause(response.retryAfterMs ?? 100);
    }
  };
  const work = (async () => {
    const sent: Promise<number>[] = [];
    for (let n = 0; !isOver; n += 1) {
      await pause(startedAt + (n * 1_000) / outsidePerSecond - systemClock.monotonic());
      sent.push(one(`outside-${n}`));
    }
    return (await Promise.all(sent)).reduce((sum, tries) => sum + tries, 0);
  })();
  return {
    end() {
      isOver = true;
      return work;
    },
  };
}

const sendStraight = (url: string, nonce: string): Promise<CallResponse> =>
  send({
    url,
    path: '/v1/chat/completions',
    key: '',
    nonce,
    body: chatBody,
    headers: { authorization: `Bearer ${outsideKey}` },
  });

const startUpstream = (): Promise<Simulator> =>
  startSimulator('language-model', {
    orgs: {
      'org-sim': { projects: { proj_ours: { keys: [ourKey] }, proj_outside: { keys: [outsideKey] } } },
    },
    models: {
      'gpt-4o': { rpm: perMinute, tpm: 100_000_000 },
      [warming]: { rpm: 100_000, tpm: 100_000_000 },
    },
    latency: { baseMs: 20, perTokenMs: 0, jitter: 0 },
  });

/** Calls of the outsider that the upstream served until our last one. */
function servedOutside(all: readonly LogEntry[], ours: readonly LogEntry[]): number {
  const lastT = Math.max(...ours.map(({ t }) => t));
  const outside = all.filter(({ key, t }) => key === outsideKey && t <= lastT);
  return count(outside, 'admitted');
}

export const outsider: Scenario = {
  name: 'chat burst while an outsider takes 30 % of the quota',
  async run(): Promise<Row> {
    const simulator = await startUpstream();
    const options = { modelUrl: simulator.url, modelLimits: wide, workspaces: ['acme', 'warm'] };
    const { fleet, end } = await overRedis(options);
    await warm(fleet);
    const share = takeShare(simulator);
    await pause(2_000);
    await simulator.forget();
    const world = { fleet, simulator };
    const seen = await see(
      world,
      { ...chat(world, 90), calls, everyMs: 2.5 },
      { by: ourKey, ordered: (all) => all.slice(640) },
    );
    const refusals = await share.end();
    const outside = servedOutside(await simulator.log(), seen.entries);
    const later = await aftermath(world);
    await end(simulator);
    const optimumMs = bestMs(outside);
    return {
      holds: noneLost(seen.responses) && seen.twice === 0,
      holdsWhenQuiet:
        allSucceeded(seen.responses) && seen.throttled <= 1 && seen.tookMs <= optimumMs * atBest,
      figures: `makespan ${ratio(seen.tookMs, optimumMs)}; the outsider was served ${outside} times meanwhile and refused ${refusals} times; ${seen.words}; ${later}`,
      measured: [
        makespanOf(seen.tookMs, optimumMs),
        { name: 'refusals by the upstream', value: seen.throttled, unit: 'calls' },
      ],
    };
  },
};
