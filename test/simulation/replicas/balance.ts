/**
 * The balance when everything is over: every call has ended once, nothing is held by anybody, what was reserved and
 * not used came back, every suspicion was counted, and no window of the upstream's log holds more than a ceiling.
 */
import { ceilingKey, replicaId } from '../../../src/ids.ts';
import { asleepUntil } from '../../../src/limiter/policy/lanes.policy.ts';
import { tick } from '../../limiter/policy/scheduling.ts';
import type { FakeClock } from '../../support/fake-clock.ts';
import { highest, perDayOf, perMinuteOf } from '../rules.ts';
import type { Arrival, Upstream } from '../upstream.ts';
import { settlingMs, type ReplicaLedger } from './ledger.ts';
import type { Replica } from './replica.ts';
import type { Server } from './server.ts';

interface Leftovers {
  readonly ledger: ReplicaLedger;
  readonly clock: FakeClock;
  readonly server: Server;
  readonly replicas: readonly Replica[];
  readonly upstreams: readonly Upstream[];
  readonly timers: number;
}

/** After this a replica is back on Redis: each attempt takes up to 0.4 s, and most fail where commands get lost. */
const backWithinMs = 2_000;
const lossyBackWithinMs = 6_000;
/** Timers of an idle replica: heartbeat, tick, the look at Redis each minute, also for logs that nobody uses, and a command under way, perhaps repeated. */
export const idleTimers = 6;

/** What left under the limits of before arrives within this time. Milliseconds. */
const wayMs = 50;

export function balance({ ledger, clock, server, replicas, upstreams, timers }: Leftovers): void {
  const now = clock.monotonic();
  const broken = (invariant: string, text: string): void => ledger.broken(invariant, text);
  const { lostRequests, lostReplies, late } = ledger.plan.network;
  const withinMs = lostRequests + lostReplies + late > 0 ? lossyBackWithinMs : backWithinMs;
  for (const { ends, plan } of ledger.calls.values())
    if (ends.length !== 1) broken('10', `${plan.id} ended ${ends.length} times`);
  for (const [token, { ends }] of ledger.isAlone ? ledger.leases : [])
    if (ends !== 1) broken('8', `lease ${token} was settled ${ends} times`);
  for (const replica of replicas.filter(({ process }) => process.alive)) {
    for (const bucket of replica.stores.limiter.snapshot()) {
      if (bucket.waiting > 0) broken('10', `${bucket.waiting} tickets stay in ${replica.name}`);
      if (bucket.inFlight > 0) broken('10', `${bucket.inFlight} leases stay in ${replica.name}`);
    }
    for (const { name } of ledger.plan.workspaces) {
      if (replica.queue.waitingUnder(ceilingKey(name)) !== 0)
        broken('10', `${replica.name} still counts calls of ${name}`);
    }
    if (replica.process.timers > timers) broken('10', `${replica.process.timers} timers in ${replica.name}`);
    if (!ledger.isAlone && replica.mode !== 'redis' && now - replica.modeSince > withinMs)
      broken('7', `${replica.name} stays in mode ${replica.mode}`);
  }
  for (const model of server.models) {
    if (model.bucket === null) continue;
    // Whoever comes a lease later sweeps what others left behind, as soon as the bucket is open and the lane awake.
    const asleep = [...model.bucket.lanes.values()].map((lane) => asleepUntil(lane) ?? 0);
    const awake = Math.max(model.seen, server.timeOf(model.key), model.bucket.closedUntil ?? 0, ...asleep);
    const then = awake + ledger.plan.leaseMs;
    for (let time = 0; time < 3; time += 1)
      tick(model.bucket, { replica: replicaId('next'), leases: [] }, then);
    const { tickets, leases, waiting } = model.bucket;
    if (tickets.size + leases.size + waiting > 0) {
      const left = [...tickets.keys(), ...leases.keys()].join(', ');
      broken('7', `Redis keeps ${left} in ${model.key}`);
    }
  }
  if (ledger.overlaps > ledger.suspicions.length)
    broken('3', `${ledger.overlaps} overlaps, ${ledger.suspicions.length} suspicions`);
  for (const { name } of ledger.plan.workspaces) {
    slots(ledger, name);
    windows(ledger, name, { replicas, upstreams });
    const perDay = highest([ledger.plan, ...ledger.plan.reloads], perDayOf(name));
    const arrived = arrivalsOf(name, upstreams).length;
    const isCounted = ledger.losses.length === 0 && ledger.plan.whenDown === 'deny';
    if (perDay !== null && arrived > perDay && isCounted)
      broken('1', `${name} sent ${arrived} on a day of ${perDay}`);
  }
}

/** What was taken and not used has been given back, wherever giving back was possible. */
function slots(ledger: ReplicaLedger, workspace: string): void {
  if (!ledger.isFaultless) return;
  // Nobody pays while there is no ceiling.
  const regimes = [ledger.plan, ...ledger.plan.reloads];
  if (!ledger.isAlone && highest(regimes, perMinuteOf(workspace)) === null) return;
  const leases = [...ledger.leases.values()].filter(({ call }) => call.workspace.name === workspace);
  const sends = leases.filter(({ sent, returned }) => sent && !returned).length;
  const taken = ledger.takes.get(workspace) ?? 0;
  if (taken !== sends) ledger.broken('9', `${workspace} paid ${taken} slots for ${sends} sends`);
}

const arrivalsOf = (workspace: string, upstreams: readonly Upstream[]) =>
  upstreams
    .flatMap(({ arrivals }) => arrivals)
    .filter(({ call }) => call.lane.workspace === workspace)
    .toSorted((a, b) => a.at - b.at);

/**
 * No 60 s of the upstream's log hold more calls of a workspace than its ceiling. Left out are sends that no store can
 * see in time: a process stopped between place and write, what a killed replica had sent before a loss of data, and what
 * a replica had sent that is away when the others go on after a loss: only it knows, and it tells when it is back.
 * What left while there was no ceiling counts for nothing that came later. In `local` each replica has its share at least, beside
 * what the others do with Redis; what left under an earlier, higher ceiling is beside it, too, because only Redis knows of that.
 */
function windows(
  ledger: ReplicaLedger,
  name: string,
  { replicas, upstreams }: Pick<Leftovers, 'replicas' | 'upstreams'>,
): void {
  const killedBefore = (id: string): boolean => {
    const { replica, ends } = ledger.call(id);
    return replica?.process.alive === false && ends.length > 0 && ledger.losses.length > 0;
  };
  const counted = arrivalsOf(name, upstreams).filter(({ call: { id }, at }) => {
    const { replica } = ledger.call(id);
    if (ledger.isAlone) return true;
    return !killedBefore(id) && !(replica !== null && replica.wasPaused && at - replica.resumedAt < 400);
  });
  const isUnreported = ({ call: { id }, at: sentAt }: Arrival, now: number): boolean =>
    ledger.losses.some((at) => {
      const { replica } = ledger.call(id);
      const goOnAt = at + settlingMs;
      if (replica === null || sentAt >= at || now < goOnAt) return false;
      const backAt = replica.backAfter(goOnAt);
      return backAt > goOnAt && now < backAt + settlingMs;
    });
  const without = ledger.reached.has('mode local');
  const limitAt = (at: number): number | null =>
    highest(ledger.rules.during(at - ledger.effectMs - wayMs, at), perMinuteOf(name));
  const maxAt = (perMinute: number): number =>
    perMinute + replicas.length * Math.max(1, Math.floor(perMinute / 2));
  const underCeiling = counted.flatMap((arrival) => {
    const perMinute = limitAt(arrival.at);
    return perMinute === null ? [] : [{ arrival, at: arrival.at, perMinute }];
  });
  underCeiling.forEach(({ at, perMinute }, index) => {
    if (index + 1 >= perMinute) ledger.reach('ceiling used up');
    const sent = underCeiling
      .slice(0, index + 1)
      .filter((one) => at - one.at < 60_000 && !isUnreported(one.arrival, at));
    const notMoreThan = (max: number, among: typeof sent): void => {
      const before = among.at(-1 - max)?.at;
      if (before === undefined) return;
      ledger.broken('1', `${name} sent ${max + 1} within ${(at - before).toFixed(1)} ms`);
    };
    if (!without) return notMoreThan(perMinute, sent);
    notMoreThan(maxAt(Math.max(...sent.map((one) => one.perMinute))), sent);
    notMoreThan(
      maxAt(perMinute),
      sent.filter((one) => one.perMinute <= perMinute),
    );
  });
}
