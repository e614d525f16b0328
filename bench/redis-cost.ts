/**
 * Redis commands per call, as the replicas count them (`sluice_redis_command_seconds_count`): `node bench/redis-cost.ts`.
 *
 * - uncontended: one call after the other over three replicas, with a ceiling per minute and per day. At most 3.
 * - queued: a burst that waits for its bucket. At most 4, beside the ticks of a second.
 *
 * Beats, ticks by the second and activity go on whether calls come or not: an idle stretch measures them, and their
 * share is taken out and printed apart.
 */
import { startFleet, type Fleet } from '../scripts/fleet/gateways.ts';
import { drive } from '../scripts/fleet/load.ts';
import { endAll } from '../scripts/fleet/processes.ts';
import { startServer } from '../scripts/fleet/redis.ts';
import { startSimulator } from '../scripts/fleet/simulators.ts';
import { chatBody, chatPath, fleetConfig, pause, send } from '../test/support/redis-fleet.ts';

const commands = ['append', 'consume', 'reward', 'other', 'publish'];
type Counts = Map<string, number>;

async function counts(of: Fleet): Promise<Counts> {
  const found: Counts = new Map();
  for (const command of commands) {
    found.set(command, await of.metric(`sluice_redis_command_seconds_count{command="${command}"}`));
  }
  return found;
}

const redis = await startServer();
const model = await startSimulator('language-model', {
  models: { 'gpt-4o': { rpm: 1_200, tpm: 100_000_000 } },
  latency: { baseMs: 10, perTokenMs: 0, jitter: 0 },
});
const { keys, yaml } = fleetConfig({
  redis: `url: "${redis.url}"`,
  modelUrl: model.url,
  modelLimits: 'requestsPerMinute: 100000, requestsPerDay: 1000000, tokensPerMinute: 100000000',
});
const fleet = await startFleet(3, yaml());
const key = keys['acme'] ?? '';
const background = ['append', 'other', 'publish'];

async function measure(name: string, calls: number, run: () => Promise<number>): Promise<number> {
  const before = await counts(fleet);
  const startedAt = performance.now();
  const done = await run();
  await pause(200);
  const seconds = (performance.now() - startedAt) / 1000;
  const after = await counts(fleet);
  const row: Record<string, string> = { calls: `${done}/${calls}`, seconds: seconds.toFixed(1) };
  let perCall = 0;
  for (const command of commands) {
    const more = (after.get(command) ?? 0) - (before.get(command) ?? 0);
    const idle = background.includes(command) ? (idlePerSecond.get(command) ?? 0) * seconds : 0;
    const share = Math.max(0, more - idle) / calls;
    perCall += share;
    if (more > 0) row[command] = share.toFixed(2);
  }
  rows[name] = { ...row, 'per call': perCall.toFixed(2) };
  return perCall;
}

const rows: Record<string, Record<string, string>> = {};
const idlePerSecond: Counts = new Map();
const one = (n: number) =>
  send({ url: fleet.gateways[n % 3]?.url ?? '', path: chatPath, key, nonce: `c-${n}`, body: chatBody });
for (let n = 0; n < 9; n += 1) await one(n);

await pause(1_500);
const from = await counts(fleet);
await pause(5_000);
const to = await counts(fleet);
for (const command of background) {
  idlePerSecond.set(command, ((to.get(command) ?? 0) - (from.get(command) ?? 0)) / 5);
}

const alone = await measure('uncontended, one after the other', 200, async () => {
  let done = 0;
  for (let n = 0; n < 200; n += 1) if ((await one(n)).status === 200) done += 1;
  return done;
});
const load = { to: fleet.gateways, path: chatPath, key, body: () => chatBody, waitSeconds: 60 };
await drive({ ...load, calls: 1_000, everyMs: 1 });
const queued = await measure('queued, 300 calls at 20/s', 300, async () => {
  const responses = await drive({ ...load, calls: 300, everyMs: 5 });
  return responses.filter(({ status }) => status === 200).length;
});

console.table(rows);
console.log(
  `idle, three replicas, per second: ${[...idlePerSecond].map(([name, per]) => `${name} ${per.toFixed(1)}`).join(', ')}`,
);
await fleet.stop();
model.stop();
await endAll();
console.log(
  `uncontended ${alone.toFixed(2)} (at most 3), queued ${queued.toFixed(2)} (at most 4 and the ticks)`,
);
process.exit(alone <= 3.05 ? 0 : 1);
