/**
 * One history: real admission, limiter and ceilings on virtual time against a simulated upstream, and everything that is
 * wrong with it. Equal seeds give equal histories.
 */
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Clock } from '../../src/clock.ts';
import type { CeilingKey } from '../../src/ids.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { Grant, LimiterListener } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { balance } from './balance.ts';
import { Ledger, must } from './ledger.ts';
import { Chance } from './chance.ts';
import { againOf, firstOf, maxCourseMs, patient, returning, withoutTrouble } from './counterfactual.ts';
import { drive } from './driver.ts';
import type { BucketPlan, CallPlan, Plan } from './plan.ts';
import { Progress } from './progress.ts';
import type { Followed, Lives } from './oracle.ts';
import { describedOf, entrySettingsOf, isTakingOver, knownAt, keyed, regimeAt } from './rules.ts';
import type { RefusedCall } from './refused-call.ts';
import { Upstream } from './upstream.ts';
import { Vacancy } from './vacancy.ts';
import { ratesOf, Wire, wiredCeilings, wiredLimiter } from './wire.ts';

/** A history that is not over by then hangs. Virtual milliseconds; longer than every wait and every closed bucket. */
const maxHistoryMs = 3_600_000;
const recheckMs = 5_000;
/** How long a stall shows in how long calls seem to take. Milliseconds. */
const afterStallMs = 1_000;

export interface History {
  readonly violations: readonly string[];
  readonly reached: ReadonlyMap<string, number>;
  readonly log: readonly string[];
  /** The clock by which it took place, in words. */
  readonly origin: string;
  readonly refused: readonly RefusedCall[];
}

/** @param keepsLog also tell the story (`log`); without it a history takes less time. */
export const run = (plan: Plan, keepsLog = false): Promise<History> => new Run(plan, keepsLog).toEnd();

/** Other courses of a history. */
export const livesOf = (plan: Plan): Lives => ({
  worldAt: (at) => ({
    ...knownAt(plan, at),
    wayMs: plan.wireMs,
    // A tick makes up for a wake-up that was lost.
    slackMs: plan.lostWakes > 0 ? 1_010 : 0,
    isDisturbed:
      plan.stalls.some((stall) => stall.at <= at && at <= stall.at + stall.ms + afterStallMs) ||
      plan.reloads.some((reload) => isTakingOver(reload, plan.wireMs, at)),
  }),
  stay: (refused, until) =>
    new Run(patient(withoutTrouble(plan, refused), refused), false).follow(refused.id, {
      after: refused.at,
      until,
    }),
  returnLater: (refused, maxWaitMs) =>
    new Run(returning(withoutTrouble(plan, refused), refused, maxWaitMs), false).follow(againOf(refused.id), {
      after: refused.at,
      until: Infinity,
    }),
});

/** The log of the course in which the refused call waits on, a moment beyond its refusal. */
export async function courseOf(plan: Plan, refused: RefusedCall): Promise<readonly string[]> {
  const course = new Run(patient(withoutTrouble(plan, refused), refused), true);
  await course.follow(refused.id, { after: refused.at, until: refused.at + 1 });
  return course.log;
}

class Run {
  readonly #plan: Plan;
  readonly #chance: Chance;
  readonly #clock: FakeClock;
  readonly #ledger: Ledger;
  readonly #upstreams: ReadonlyMap<string, Upstream>;
  readonly #lastArrival = new Map<string, number>();
  readonly #home = new Map<string, number>();
  readonly #wires: readonly Wire[];
  readonly #store: Limiter;
  readonly #ceilings: Ceilings;
  readonly #queues: readonly AdmissionQueue[];
  readonly #onSlotBack: ((ceiling: CeilingKey) => void)[] = [];

  constructor(plan: Plan, keepsLog: boolean) {
    this.#plan = plan;
    const chance = new Chance(plan.seed ^ 0x51ce);
    const clock = new FakeClock(() => (chance.happens(0.3) ? chance.between(0, 1.5) : 0));
    this.#chance = chance;
    this.#clock = clock;
    this.#ledger = new Ledger(plan, keepsLog);
    this.#upstreams = new Map(
      plan.buckets.map((bucket) => {
        const stalledMs = plan.stalls.reduce((sum, { ms }) => sum + ms, 0);
        const turnedAt = this.#ledger.lastRunAt;
        const world = { wayMs: plan.wireMs, wallMs: clock.now(), stalledMs, turnedAt };
        return [bucket.key, new Upstream(bucket, describedOf(plan, bucket, world))];
      }),
    );
    this.#ledger.onAdmission = (bucket, now) => this.#upstreams.get(bucket)?.hears(now);
    this.#wires = Array.from({ length: plan.queues }, () => new Wire(clock, chance, plan.wireMs));
    const listener: LimiterListener = {
      onGrant: (grant) => this.#granted(grant),
      onClosed: (bucket, closedMs) => {
        this.#ledger.reach('bucket closed');
        this.#queues.forEach((queue, at) =>
          this.#wires[at]?.report(() => queue.listener.onClosed(bucket, closedMs)),
        );
      },
    };
    this.#store = createEmbeddedLimiter(storeClock(clock, this.#ledger, chance), listener, {
      leaseMs: plan.leaseMs,
    });
    this.#ceilings = new CeilingStore(shiftedClock(clock, plan.origin.ms));
    this.#ceilings.listen((key) => this.#onSlotBack.forEach((hear) => hear(key)));
    this.#queues = this.#wires.map((wire, queue) => this.#queueOf(wire, processOf(queue)));
  }

  async toEnd(): Promise<History> {
    const { violations, reached, log, refusedCalls: refused } = this.#ledger;
    this.#begin();
    const progress = new Progress(this.#ledger, () => this.#store, this.#upstreams);
    const over = await this.#clock.run(maxHistoryMs, (now) => {
      progress.check(now, this.#clock.stalledUntil);
      // What may still be set then: the tick, and one wake-up for each bucket.
      if (this.#ledger.isOver && this.#clock.timers > 1 + this.#plan.buckets.length)
        this.#ledger.broken(now, '10', `${this.#clock.timers} timers are left`);
    });
    // A quota of a day may close a bucket for longer than anybody waits: then only the tick is left.
    const closed = this.#store.snapshot().some(({ closedMs }) => closedMs > 0);
    if (!over && !closed) this.#ledger.broken(this.#clock.monotonic(), '10', 'the history does not end');
    await balance({
      closed,
      ledger: this.#ledger,
      clock: this.#clock,
      store: this.#store,
      ceilings: this.#ceilings,
      queues: this.#queues,
      upstreams: [...this.#upstreams.values()],
    });
    await this.#close();
    return { violations, reached, log, refused, origin: this.#plan.origin.name };
  }

  /** What becomes of one call after a time. Nothing else of the history is judged. */
  async follow(
    id: string,
    { after, until }: { readonly after: number; readonly until: number },
  ): Promise<Followed> {
    this.#begin();
    const call = this.#ledger.call(id);
    const bucket = this.#bucketOf(call.plan);
    const upstream = must(this.#upstreams.get(bucket.key), bucket.key);
    const vacancy = new Vacancy(
      this.#ledger,
      upstream,
      keyed(regimeAt(this.#plan, after).buckets, bucket.key),
    );
    const progress = new Progress(this.#ledger, () => this.#store, this.#upstreams);
    const sent = (): number | null => call.sentAt.find((at) => at >= after) ?? null;
    let vacantAt: number | null = null;
    await this.#clock.run(Math.min(until, maxCourseMs), (now) => {
      if (sent() !== null || call.state === 'ended') return this.#clock.halt();
      // To look is to drain a meter in two steps instead of one: whoever looks elsewhere gets another history.
      if (now <= after) progress.read(now);
      vacancy.check(call, now);
      vacantAt = vacancy.since;
    });
    await this.#close();
    const refused = this.#ledger.refusedCalls.find((each) => each.id === id) ?? null;
    return { sentAt: sent(), vacantAt, refused };
  }

  get log(): readonly string[] {
    return this.#ledger.log;
  }

  async #close(): Promise<void> {
    await this.#store.close();
  }

  #queueOf(wire: Wire, process: string): AdmissionQueue {
    const [ledger, clock] = [this.#ledger, this.#clock];
    const limiter = wiredLimiter(wire, () => this.#store, { ledger, clock, process });
    return new AdmissionQueue({
      clock: shiftedClock(clock, this.#plan.origin.ms),
      limiter,
      ceilings: {
        ...wiredCeilings(wire, this.#ceilings, ledger, clock),
        listen: (onSlotBack) => this.#onSlotBack.push((key) => wire.report(() => onSlotBack(key))),
      },
      leaseMs: this.#plan.leaseMs,
      onFailure: (failure) => ledger.broken(clock.monotonic(), '10', `background: ${String(failure)}`),
    });
  }

  #granted(grant: Grant): void {
    this.#ledger.issued(
      grant.ticket,
      grant.lease,
      ratesOf(this.#store, grant.bucket),
      this.#clock.monotonic(),
    );
    const at = this.#home.get(grant.ticket) ?? 0;
    this.#wires[at]?.report(() => this.#queues[at]?.listener.onGrant(grant));
  }

  /** Everything that is planned is put on the clock. */
  #begin(): void {
    const { calls, stalls, workspaces, queues, seed, reloads } = this.#plan;
    const homes = new Chance(seed ^ 0x40e5);
    for (const call of calls) {
      const drawn = homes.whole(0, queues - 1);
      this.#home.set(call.id, this.#home.get(firstOf(call.id)) ?? drawn);
      if (call.at < Infinity) this.#clock.arrives(call.at, () => this.#arrive(call));
    }
    for (const { at, ms } of stalls) {
      this.#clock.arrives(at, () => {
        this.#ledger.reach('stalled');
        this.#clock.stall(ms);
      });
    }
    for (let queue = 0; queue < queues; queue += 1) this.#ledger.rules.takesOver(processOf(queue), 0, 0);
    for (const [index, { at, latesMs }] of reloads.entries()) {
      for (const [queue, lateMs] of latesMs.entries()) {
        this.#clock.arrives(at + lateMs, () => this.#reload(queue, index + 1));
      }
    }
    for (const [bucket, upstream] of this.#upstreams) {
      for (const at of upstream.changesAt)
        this.#clock.outside(at, () => this.#ledger.isInUse(bucket) && upstream.hears(at));
    }
    const recheck = (): void => this.#queues.forEach((queue) => queue.recheckKeys());
    for (const { revokedAt } of workspaces) {
      if (revokedAt < Infinity) this.#clock.arrives(revokedAt, recheck);
    }
    const lastAt = Math.max(0, ...calls.map(({ at }) => at).filter((at) => at < Infinity));
    for (let at = recheckMs; at < lastAt; at += recheckMs) this.#clock.arrives(at, recheck);
  }

  #reload(queue: number, reloads: number): void {
    const { rules } = this.#ledger;
    rules.takesOver(processOf(queue), reloads, this.#clock.monotonic());
    this.#ledger.reconfigured(this.#clock.monotonic());
    const regime = rules.of(processOf(queue));
    this.#queues[queue]?.reload(({ admission }) => entrySettingsOf(regime, admission.lane));
  }

  #bucketOf({ lane: { bucket } }: CallPlan): BucketPlan {
    return must(
      this.#plan.buckets.find(({ key }) => key === bucket),
      bucket,
    );
  }

  #arrive(call: CallPlan): void {
    const bucket = this.#bucketOf(call);
    const home = this.#home.get(call.id) ?? 0;
    const scene = {
      clock: this.#clock,
      chance: this.#chance,
      ledger: this.#ledger,
      queue: must(this.#queues[home], 'queue'),
      settings: () => entrySettingsOf(this.#ledger.rules.of(processOf(home)), call.lane.key),
      ownTime: () => this.#clock.monotonic() + this.#plan.origin.ms,
      upstream: must(this.#upstreams.get(bucket.key), bucket.key),
      bucket,
      lastArrival: this.#lastArrival,
    };
    this.#ledger.arrived(call.id, home);
    void drive(scene, this.#ledger.call(call.id));
  }
}

const processOf = (queue: number): string => `p${queue}`;

/** The store's own timers: outside the process when there is a wire; some wake-ups are lost, ticks never. */
function storeClock(clock: FakeClock, ledger: Ledger, chance: Chance): Clock {
  const { plan } = ledger;
  return {
    ...shiftedClock(clock, plan.origin.ms),
    after(delayMs, ring) {
      if (delayMs !== 1_000 && plan.lostWakes > 0 && chance.happens(plan.lostWakes)) {
        ledger.reach('wake-up lost');
        return () => {};
      }
      if (plan.wireMs === 0) return clock.after(delayMs, ring);
      return clock.outside(clock.monotonic() + Math.max(1, Math.ceil(delayMs)), ring);
    },
  };
}
