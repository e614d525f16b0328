/**
 * Work conservation, watched from outside: whenever the bucket is open and has room, and a call waits whose lane may
 * go, somebody is granted within milliseconds (within a tick when a wake-up was lost, within the time of a pilot where a
 * crowd waits after a silence). And whatever the meters
 * believe: a bucket that might go stands still at most as long as it takes to drain.
 */
import type { Costs, MeterName } from '../../../src/call.ts';
import { maxJitterMs, maxLatenessMs } from '../../../src/limiter/policy/meter.policy.ts';
import type { BucketSnapshot, MeterSnapshot } from '../../../src/limiter/limiter.ts';
import type { Limiter } from '../../../src/limiter/over-log/limiter.ts';
import type { BucketPlan } from '../plan.ts';
import { isStatedAlone, isStatedLess, keyed } from '../rules.ts';
import type { Upstream } from '../upstream.ts';
import { known, type BucketRecord, type Exact } from './exact.ts';
import { headsOf, type Head } from './heads.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** Share of a limit that may be kept free for others or for jitter. */
const keptFree = 0.22;
/** Lateness and jitter that a meter may hold, and the way of a call. Milliseconds. */
const slackMs = (windowMs: number): number => Math.min(maxLatenessMs, windowMs / 60) + 2 * maxJitterMs + 50;

/** A reload takes effect within this time. Milliseconds. */
const effectMs = 1_000;

/** What does not change in a history. */
interface Watched {
  readonly bucket: BucketRecord;
  readonly plan: BucketPlan;
  readonly upstream: Upstream;
  /** The level of its requests is held against the truth: no response corrects it, and it drains as the truth does. */
  readonly isHeldToTruth: boolean;
}

export class Progress {
  readonly #ledger: ReplicaLedger;
  readonly #exact: Exact;
  readonly #limiter: Limiter;
  readonly #watched: readonly Watched[];
  /** Since when the bucket could have granted. */
  readonly #roomSince = new Map<string, number>();
  readonly #mightSince = new Map<string, number>();
  /** Since when what the operator states would have let a call go. */
  readonly #statedSince = new Map<string, number>();
  /** Time the fullest meter needed to drain when the bucket last moved. */
  readonly #drainMs = new Map<string, number>();

  constructor(
    ledger: ReplicaLedger,
    exact: Exact,
    limiter: Limiter,
    upstreams: ReadonlyMap<string, Upstream>,
  ) {
    this.#ledger = ledger;
    this.#exact = exact;
    this.#limiter = limiter;
    const { buckets, reloads } = ledger.plan;
    this.#watched = buckets.map((plan) => ({
      bucket: exact.bucket(plan.key),
      plan,
      upstream: known(upstreams.get(plan.key), plan.key),
      // What is stated to be less drains more slowly than the truth.
      isHeldToTruth:
        plan.windows === undefined &&
        plan.calm &&
        plan.reports === 'nothing' &&
        !reloads.some((reload) => isStatedLess(keyed(reload.buckets, plan.key))),
    }));
  }

  /**
   * Reads of the upstreams what `check` reads, and judges nothing. To read is to drain a meter in two steps instead of one, so
   * that another course is the same history only if it reads as often.
   */
  read(now: number): void {
    if (!this.#watched.some(({ isHeldToTruth }) => isHeldToTruth)) return;
    const snapshots = this.#limiter.snapshot();
    for (const { bucket, upstream, isHeldToTruth } of this.#watched) {
      if (isHeldToTruth && requestsOf(snapshots, bucket.key) !== undefined) upstream.usedRequests(now);
    }
  }

  /** Called when an instant is over. `stalledUntil`: the process could not have acted before. */
  check(now: number, stalledUntil: number): void {
    this.#ledger.checkStated(now);
    const snapshots = this.#limiter.snapshot();
    for (const watched of this.#watched) {
      const { bucket, plan: bucketPlan } = watched;
      const snapshot = snapshots.find((each) => each.bucket === bucket.key);
      if (watched.isHeldToTruth) this.#nothingKept(watched, requestsOf(snapshots, bucket.key), now);
      // What a document costs is found out, and lanes wait for that.
      if (bucketPlan.documents.length > 0) continue;
      const ready = headsOf(this.#ledger, this.#exact, bucket, now);
      const room = someClassHasRoom(snapshot, ready);
      // Where others drink, the wake-up is set by a guess of how much; the tick makes up for a guess that was too high.
      const tickMs = bucketPlan.calm && (this.#ledger.plan.lostWakes ?? 0) === 0 ? 0 : 1_010;
      const seen = (): string => describe(snapshot, ready);
      this.#judge(this.#roomSince, bucket, room, now, 5 + tickMs, stalledUntil, () => `has room (${seen()})`);
      const isStated = this.#hasStatedRoom(watched, ready, now);
      this.#judge(
        this.#statedSince,
        bucket,
        isStated,
        now,
        (bucketPlan.windows === undefined ? 5 : effectMs) + tickMs,
        stalledUntil,
        () => `is stated to have room (${seen()}; ${watched.upstream.describe(now)})`,
      );
      const might = ready.some(({ mayGo }) => mayGo);
      if (
        !might ||
        this.#ledger.regimes(now).length > 1 ||
        !this.#mightSince.has(bucket.key) ||
        Math.max(bucket.lastLessonAt, bucket.lastIssueAt) >= now
      ) {
        const isCounted = bucketPlan.windows !== undefined;
        const drainsMs = (snapshot?.meters ?? []).map(isCounted ? emptiesMs : drainMs);
        this.#drainMs.set(bucket.key, Math.max(0, ...drainsMs));
      }
      const standstillMs = (this.#drainMs.get(bucket.key) ?? 0) * 1.01 + maxLatenessMs + 300 + tickMs;
      this.#judge(
        this.#mightSince,
        bucket,
        might,
        now,
        standstillMs,
        stalledUntil,
        () => `stands still (${seen()})`,
      );
    }
  }

  /**
   * The operator states that there is room, and nobody knows more: whoever waits goes, also when it was stated only now
   * (14).
   */
  #hasStatedRoom({ bucket, plan, upstream }: Watched, heads: readonly Head[], now: number): boolean {
    const onlyRequests = plan.tokens === null && plan.cost === null && plan.perDay === null;
    if (!plan.calm || this.#ledger.isBlurred(bucket.key) || !onlyRequests || !isStatedAlone(plan))
      return false;
    if (heads.length === 0 || !heads.every(({ mayGo }) => mayGo)) return false;
    if (plan.windows !== undefined) return upstream.hasDescribedRoom(1 + this.#underWay(bucket), now);
    return this.#ledger.stated.get(plan.key)?.hasRoom(1, this.#ledger.statedOf(plan.key, now), now) === true;
  }

  /** Granted calls that the upstream has not counted, and may count yet. */
  #underWay({ lanes }: BucketRecord): number {
    const leases = lanes.flatMap((lane) => [...lane.leases]);
    return leases.filter(({ counted, settlements }) => !counted && settlements === 0).length;
  }

  /**
   * What a call reserved and did not use has come back: a calm meter that no response corrects holds no more than the
   * truth, what is on its way, and what went out and perhaps was counted.
   */
  #nothingKept({ bucket, upstream }: Watched, meter: MeterSnapshot | undefined, now: number): void {
    if (meter === undefined) return;
    const rate = meter.limit / meter.windowMs;
    let most = upstream.usedRequests(now) + rate * slackMs(meter.windowMs);
    for (const { leases } of bucket.lanes) {
      for (const lease of leases) {
        const { requests = 0 } = lease.call.plan.costs;
        if (lease.counted) continue;
        const heldMs = lease.settledAt - lease.issuedAt;
        most += lease.returned ? Math.min(requests, rate * heldMs) : requests;
      }
    }
    if (meter.level > most + 1e-6) {
      this.#ledger.broken(
        now,
        '9',
        `${bucket.key} keeps ${meter.level.toFixed(2)}, at most ${most.toFixed(2)} are used`,
      );
    }
  }

  #judge(
    since: Map<string, number>,
    bucket: BucketRecord,
    could: boolean,
    now: number,
    withinMs: number,
    stalledUntil: number,
    what: () => string,
  ): void {
    if (!could) {
      since.delete(bucket.key);
      return;
    }
    const from = Math.max(
      since.get(bucket.key) ?? now,
      bucket.lastIssueAt,
      bucket.lastLessonAt,
      bucket.pilotUntil,
      stalledUntil,
    );
    since.set(bucket.key, from);
    if (now - from <= withinMs) return;
    this.#ledger.broken(now, '6', `${bucket.key} ${what()} since ${from.toFixed(2)}, nobody was granted`);
    since.set(bucket.key, now);
  }
}

const requestsOf = (snapshots: readonly BucketSnapshot[], key: string): MeterSnapshot | undefined =>
  snapshots.find(({ bucket }) => bucket === key)?.meters.find(({ meter }) => meter === 'requests');

/**
 * Within a class the head that is first in fair order holds the others back, so that a large call is not starved by
 * small ones (also one whose ceiling is full, until the ceiling has refused it): only where every head of a class has room must
 * one of them go.
 */
function someClassHasRoom(snapshot: BucketSnapshot | undefined, heads: readonly Head[]): boolean {
  if (snapshot === undefined) return false;
  const ofAll = heads.flatMap(({ calls }) => calls);
  return heads.some(({ calls, mayGo }) => {
    const [callClass, ...others] = new Set(calls.map(({ plan }) => plan.callClass));
    if (!mayGo || others.length > 0) return false;
    return ofAll.every((call) => call.plan.callClass !== callClass || hasRoom(snapshot, wantedBy(call)));
  });
}

/** A call that came back waits for as many tokens as its refusal said that it asks for, where it reserved fewer. */
function wantedBy({ plan: { costs, chargedShare }, sends }: Call): Costs {
  if (sends === 0 || costs.tokens === undefined) return costs;
  return { ...costs, tokens: costs.tokens * Math.max(1, chargedShare) };
}

function hasRoom(snapshot: BucketSnapshot, costs: Costs): boolean {
  return snapshot.meters.every(({ meter, limit, level }) => {
    const units = costOf(costs, meter);
    if (units === 0) return true;
    return level < 1e-9 || level + units <= limit * (1 - keptFree);
  });
}

/** Further windows of requests take what requests take. */
const costOf = (costs: Costs, name: MeterName): number =>
  costs[name] ?? (name === 'requests_burst' || name === 'requests_hour' ? (costs.requests ?? 0) : 0);

function drainMs({ limit, level, windowMs }: BucketSnapshot['meters'][number]): number {
  return (level / limit) * windowMs;
}

/** Of a window that is counted: what left near its end counts for the next one, too. */
const emptiesMs = ({ windowMs }: MeterSnapshot): number => 2 * windowMs;

function describe(snapshot: BucketSnapshot | undefined, heads: readonly Head[]): string {
  const meters =
    snapshot?.meters.map(({ meter, level, limit }) => `${meter} ${level.toFixed(2)}/${limit}`) ?? [];
  const calls = heads.flatMap((head) => head.calls);
  return [...meters, ...calls.map(({ plan }) => `${plan.id} ${JSON.stringify(plan.costs)}`)].join(', ');
}
