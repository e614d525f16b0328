/**
 * What a crowd and many buckets cost a replica that shares the limiter by a log: `node bench/crowd.ts` (WAITING=20000, BUCKETS=10000).
 *
 * - an entry, by the fold alone, with so many buckets in use: CPU of one call's admission and of its settlement.
 * - turns of the event loop while so many calls wait, enter, and are granted one after the other, over a real Redis: CPU that the main
 *   thread spends between two looks that are a millisecond apart or more. CPU and not time, because others use the machine as well.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { AdmissionQueue } from '../src/admission/admission.ts';
import { systemClock, systemRandom } from '../src/clock.ts';
import { bucketKey, leaseToken, replicaId } from '../src/ids.ts';
import { createState, fold, type LogEvent, restore, snapshot } from '../src/limiter/over-log/fold.ts';
import { createStores } from '../src/limiter/stores.ts';
import { admission } from '../test/support/admission.ts';
import { callOf } from '../test/support/admission-queue.ts';
import { noTelemetry } from '../test/support/no-telemetry.ts';
import { redisSettings } from '../test/support/redis-replica.ts';
import { startRedis } from '../test/support/redis.ts';

const waiting = Number(process.env['WAITING'] ?? 20_000);
const buckets = Number(process.env['BUCKETS'] ?? 10_000);

entries();
await turns();
process.exit();

function cpuUs(): number {
  const { user, system } = process.threadCpuUsage();
  return user + system;
}

function entries(): void {
  const state = createState(15_000);
  const self = replicaId('self');
  let sequence = 0;
  let at = 1_000_000;
  const tell = (events: readonly LogEvent[]) => {
    sequence += 1;
    at += 0.25;
    return fold(state, { sequence, term: 1, at, replica: self, batch: sequence, events });
  };
  const call = (n: number): void => {
    const { bucket, ...entering } = admission(`call-${sequence}`, {
      bucket: `bucket-${n % buckets}`,
      limit: 1e8,
      arrivedAt: at,
    });
    const { grants } = tell([{ kind: 'admit', bucket, admission: entering }]);
    const settlement = { kind: 'succeeded', spent: null } as const;
    const lease = leaseToken(grants[0]?.lease ?? '');
    tell([
      { kind: 'in', bucket: bucketKey(bucket), event: { kind: 'settle', lease, settlement, lesson: null } },
    ]);
  };
  for (let n = 0; n < 3 * buckets; n += 1) call(n);
  const calls = 20_000;
  const rounds = Array.from({ length: 5 }, () => {
    const from = cpuUs();
    for (let n = 0; n < calls; n += 1) call(n * 7_919);
    return (cpuUs() - from) / (2 * calls);
  });
  const us = rounds.toSorted((a, b) => a - b)[2] ?? NaN;
  console.log(`an entry with ${state.buckets.size} buckets: ${us.toFixed(1)} µs`);
  const text = snapshot(state);
  const from = cpuUs();
  restore(text);
  console.log(`restoring them: ${((cpuUs() - from) / 1_000).toFixed(1)} ms in one go`);
}

async function turns(): Promise<void> {
  const server = await startRedis();
  const stores = createStores({
    settings: redisSettings(`url: "${server.url}", commandTimeoutMs: 10000`),
    clock: systemClock,
    random: systemRandom,
    telemetry: noTelemetry,
    listener: {
      onGrant: (grant) => queue.listener.onGrant(grant),
      onClosed: (bucket, ms) => queue.listener.onClosed(bucket, ms),
    },
  });
  const queue: AdmissionQueue = new AdmissionQueue({
    clock: systemClock,
    limiter: stores.limiter,
    ceilings: stores.ceilings,
    onFailure: () => {},
  });
  await stores.ready();
  const looks: number[] = [];
  let isLooking = true;
  const look = (before: number): void => {
    looks.push(cpuUs() - before);
    if (isLooking) setTimeout(look, 1, cpuUs());
  };
  const told = (what: string): void => {
    const sorted = looks.splice(0).toSorted((a, b) => a - b);
    const ms = (part: number): string =>
      ((sorted[Math.floor((sorted.length - 1) * part)] ?? NaN) / 1_000).toFixed(1);
    console.log(`${what}: p99 ${ms(0.99)} ms, longest ${ms(1)} ms of ${sorted.length} turns`);
  };
  const options = {
    limit: 3_000,
    windowMs: 60_000,
    maxQueued: waiting,
    maxWaitMs: 3_600_000,
    maxWaitIfAskedMs: 3_600_000,
  };
  let left = waiting;
  const call = async (n: number): Promise<void> => {
    const lane = `lane-${n % 100}`;
    const ticket = await queue.enter(
      ...callOf(systemClock, `call-${n}`, { ...options, lane, workspace: lane }),
    );
    left -= 1;
    const lease = await ticket.whenGranted();
    lease.settle({ kind: 'succeeded', spent: null }, null);
    ticket.leave();
  };
  look(cpuUs());
  for (let n = 0; n < waiting; n += 1) {
    void call(n).catch(() => {});
    if (n % 20 === 0) await pause(1);
  }
  while (left > waiting / 100) await pause(100);
  told(`while ${waiting} calls enter`);
  await pause(20_000);
  told(`while they wait and 50 a second are granted`);
  isLooking = false;
  await server.stop();
}
