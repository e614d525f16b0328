/**
 * Calls paced by the scheduler's policy in front of an upstream that counts in its own way: virtual time, no promises,
 * one history per seed. The store's clock begins anywhere.
 */
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import type { Dialect as DescribedDialect } from '../../../src/config/settings.ts';
import { leaseToken, replicaId } from '../../../src/ids.ts';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { type BucketEvent, createBucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { type Effects, pump } from '../../../src/limiter/policy/pump.policy.ts';
import { apply } from '../../../src/limiter/policy/scheduler.policy.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { tick } from '../../limiter/policy/scheduling.ts';
import { admission } from '../../support/admission.ts';
import type { Counter, Dialect, Outsider } from './upstreams.ts';

export type Range = readonly [from: number, until: number];

/** Replicas that share a store. */
export interface Fleet {
  readonly replicas: number;
  /** To the store, and back. Milliseconds. */
  readonly wayMs: Range;
  /** From the end of one stall of a process to the next one, and how long it stands still. Milliseconds. */
  readonly stallsAfterMs: Range;
  readonly stallMs: Range;
  /** What a process does one after the other takes so long each. Milliseconds. */
  readonly jobMs: Range;
}

export interface Scene {
  readonly counter: () => Counter;
  readonly dialect: Dialect;
  /** How the configuration describes it (`speaks`); left out, it does not. */
  readonly described?: DescribedDialect;
  /** Limits that the configuration states. */
  readonly stated?: readonly MeterSetting[];
  readonly probe?: number;
  /** When calls come, milliseconds. */
  readonly calls: readonly number[];
  readonly maxInFlight?: number | null;
  /** From sending to arriving, from arriving to the response's head; a refusal is answered at once. Milliseconds. */
  readonly wayMs: Range;
  readonly serviceMs: Range;
  /** Times in which the upstream neither reads nor responds. */
  readonly stalls?: readonly Range[];
  /** This share of calls leaves that much later than it was granted. */
  readonly delayed?: { readonly share: number; readonly ms: Range };
  /** The store is shared by these; left out, it is in the process that sends. */
  readonly fleet?: Fleet;
  /** Another client, which takes this share of what the upstream serves. */
  readonly outsider?: { readonly comes: Outsider; readonly share: number; readonly windowMs: number };
}

export interface Outcome {
  /** Arrivals at the upstream, in order. */
  readonly arrivals: readonly { readonly at: number; readonly admitted: boolean }[];
  /** Units that other clients took until the last call was admitted. */
  readonly outside: number;
  /** Wait of the last call as it was forecast when it came, and what it was. Milliseconds. */
  readonly lastWait: { readonly forecastMs: number; readonly trueMs: number };
}

export const run = (scene: Scene, seed: number, origin: number): Outcome =>
  new Run(scene, seed, origin).outcome();

const hintlessMs = 500;

class Run {
  readonly #scene: Scene;
  readonly #origin: number;
  readonly #random;
  readonly #counter: Counter;
  readonly #bucket;
  readonly #links: readonly Link[];
  readonly #events: { readonly at: number; readonly run: () => void }[] = [];
  readonly #arrivals: { at: number; admitted: boolean }[] = [];
  readonly #last = { ticket: '', forecastMs: 0, trueMs: 0 };
  #outside = 0;
  /** Units that another client could not get yet. */
  #owed = 0;
  #outsideAtLast = 0;
  #now = 0;
  #wakeAt: number | null = null;
  #left: number;

  constructor(scene: Scene, seed: number, origin: number) {
    this.#scene = scene;
    this.#origin = origin;
    this.#random = new SeededRandom(seed);
    this.#bucket = createBucket(scene.probe ?? 0, origin);
    this.#counter = scene.counter();
    this.#left = scene.calls.length;
    this.#last.ticket = `t${scene.calls.length - 1}`;
    const { fleet, outsider } = scene;
    const time = {
      now: () => this.#now,
      at: (at: number, run_: () => void) => this.#at(at, run_),
      between: (range: Range) => this.#between(range),
    };
    this.#links =
      fleet === undefined
        ? [sameProcess]
        : Array.from({ length: fleet.replicas }, () => new StoreLink(fleet, time));
    scene.calls.forEach((at, n) => this.#at(at, () => this.#enter(`t${n}`, n % this.#links.length)));
    this.#links.forEach((_link, replica) => this.#at(0, () => this.#tick(replica)));
    if (outsider !== undefined) {
      const perMs = (outsider.share * this.#counter.limit) / outsider.windowMs;
      this.#takeForOthers(outsider.comes(perMs, outsider.windowMs, this.#random));
    }
  }

  outcome(): Outcome {
    for (let event = this.#events.pop(); event !== undefined && this.#left > 0;) {
      this.#now = event.at;
      event.run();
      event = this.#events.pop();
    }
    return { arrivals: this.#arrivals, outside: this.#outsideAtLast, lastWait: this.#last };
  }

  /** Events are kept from the last to the next, those of one time in the order of asking. */
  #at(at: number, run_: () => void): void {
    let low = 0;
    let high = this.#events.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#events[middle]?.at ?? 0) > at) low = middle + 1;
      else high = middle;
    }
    this.#events.splice(low, 0, { at, run: run_ });
  }

  #between([from, until]: Range): number {
    return from + this.#random.next() * (until - from);
  }

  get #storeTime(): number {
    return this.#origin + this.#now;
  }

  #linkOf(replica: number): Link {
    return this.#links[replica] ?? sameProcess;
  }

  /** The commands of a replica to the store. */
  #report(replica: number, event: () => void): void {
    const link = this.#linkOf(replica);
    link.here(0, () => link.report(event));
  }

  #enter(ticket: string, replica: number): void {
    const { stated = [], probe = 0, maxInFlight = null } = this.#scene;
    const setting = { meters: stated, learn: true, probe };
    const arrivedAt = this.#storeTime;
    const asked = { setting, maxInFlight, maxQueued: 100_000, maxWaitMs: Infinity, leaseMs: 1e9, arrivedAt };
    this.#report(replica, () => {
      const { reply, ...effects } = this.#apply(replica, {
        kind: 'admit',
        admission: admission(ticket, asked),
      });
      if (reply.kind === 'refused') throw new Error('a call that can wait was refused');
      if (reply.kind === 'queued' && ticket === this.#last.ticket) this.#last.forecastMs = reply.forecastMs;
      this.#carryOut(effects);
    });
  }

  #apply(replica: number, event: BucketEvent): ReturnType<typeof apply> {
    return apply(this.#bucket, { replica: replicaId(String(replica)), event }, this.#storeTime);
  }

  #carryOut({ grants, nextAt }: Effects): void {
    for (const { lease, replica, ticket } of grants) {
      if (ticket === this.#last.ticket) this.#last.trueMs = this.#now - (this.#scene.calls.at(-1) ?? 0);
      this.#linkOf(Number(replica)).hear(() => this.#leave(lease, Number(replica)));
    }
    if (nextAt === null) return;
    // As a timer of Node: whole milliseconds, at least one.
    const at = this.#now + Math.max(1, Math.ceil(nextAt - this.#storeTime));
    if (this.#wakeAt !== null && this.#wakeAt <= at && this.#wakeAt > this.#now) return;
    this.#wakeAt = at;
    this.#at(at, () => {
      if (this.#wakeAt === at) this.#wakeAt = null;
      this.#report(0, () => this.#carryOut(pump(this.#bucket, this.#storeTime)));
    });
  }

  #tick(replica: number): void {
    const heard = { replica: replicaId(String(replica)), leases: [] };
    this.#report(replica, () => this.#carryOut(tick(this.#bucket, heard, this.#storeTime)));
    this.#at(this.#now + 1_000, () => this.#tick(replica));
  }

  #leave(lease: string, replica: number): void {
    const { share, ms } = this.#scene.delayed ?? { share: 0, ms: [0, 0] };
    if (share > 0 && this.#random.next() < share)
      this.#at(this.#now + this.#between(ms), () => this.#send(lease, replica));
    else this.#send(lease, replica);
  }

  /** When the upstream goes on that would do something at this time. */
  #awake(at: number): number {
    return this.#scene.stalls?.find(([from, until]) => at >= from && at < until)?.[1] ?? at;
  }

  #send(lease: string, replica: number): void {
    const { wayMs, serviceMs, dialect } = this.#scene;
    const sentAt = this.#now;
    this.#at(this.#awake(sentAt + this.#between(wayMs)), () => {
      const now = this.#now;
      const waitMs = this.#counter.waitMs(now);
      this.#arrivals.push({ at: now, admitted: waitMs === 0 });
      if (waitMs === 0) {
        this.#counter.take(now);
        this.#outsideAtLast = this.#outside;
      }
      const fields = new Map(dialect.fields(this.#counter, waitMs, now));
      const answeredAt = this.#awake(now + (waitMs > 0 ? 1 : this.#between(serviceMs)));
      this.#at(answeredAt, () =>
        this.#linkOf(replica).here(0, () =>
          this.#answered({ lease, sentAt, replica, status: waitMs > 0 ? 429 : 200, fields }),
        ),
      );
    });
  }

  #answered(answer: {
    readonly lease: string;
    readonly sentAt: number;
    readonly replica: number;
    readonly status: number;
    readonly fields: ReadonlyMap<string, string>;
  }): void {
    const { status, fields, replica } = answer;
    const { dialect, described } = this.#scene;
    const body = status === 200 ? null : (dialect.refusal ?? null);
    const of = { callClass: 'rest', method: 'GET', path: '/', nowMs: this.#storeTime };
    const feedback = learnFrom(dialect.kind, { status, fields, body, ...of }, described);
    const lesson = { feedback, sentAt: this.#origin + answer.sentAt, headAt: this.#storeTime };
    const closeMs = feedback.throttle?.waitMs ?? hintlessMs;
    if (status === 200) this.#left -= 1;
    const settlement =
      status === 200
        ? ({ kind: 'succeeded', spent: null } as const)
        : ({ kind: 'throttled', closeMs, requeue: true, sleepMs: 0 } as const);
    const settling = { kind: 'settle', lease: leaseToken(answer.lease), settlement, lesson } as const;
    this.#report(replica, () => this.#carryOut(this.#apply(replica, settling)));
  }

  /**
   * Whoever else uses the quota is refused like everybody. Who comes for one unit at a time comes again as soon as there is
   * room and gets what it wants; of several at once those that are refused are given up.
   */
  #takeForOthers(takes: ReturnType<Outsider>): void {
    const { at, units } = takes.next().value;
    this.#at(at, () => {
      if (units > 1) this.#take(units);
      else {
        this.#owed += units;
        if (this.#owed === units) this.#takeOwed();
      }
      this.#takeForOthers(takes);
    });
  }

  #takeOwed(): void {
    this.#owed = this.#take(this.#owed);
    if (this.#owed > 0) this.#at(this.#now + this.#counter.waitMs(this.#now), () => this.#takeOwed());
  }

  #take(units: number): number {
    const now = this.#now;
    let left = units;
    for (; left > 0 && this.#counter.waitMs(now) === 0; left -= 1) {
      this.#counter.take(now);
      this.#outside += 1;
    }
    return left;
  }
}

/** The way from a replica to the store, and back. */
interface Link {
  /** `event` happens at the store. */
  report(event: () => void): void;
  /** Happens in the process of the replica, `afterMs` from now or when it runs again. */
  here(afterMs: number, run_: () => void): void;
  /** Happens in the process of the replica as soon as the store has reported it. */
  hear(run_: () => void): void;
}

const sameProcess: Link = {
  report: (event) => event(),
  here: (_afterMs, run_) => run_(),
  hear: (run_) => run_(),
};

const maxBatch = 32;

/**
 * The way to a store that several replicas share: one batch of events under way at a time, what comes meanwhile goes with the next
 * one, and now and then the whole process stands still.
 */
class StoreLink implements Link {
  readonly #fleet: Fleet;
  readonly #time;
  #events: (() => void)[] = [];
  #isBusy = false;
  #stallsAt: number;
  #stallsUntil = 0;
  #freeAt = 0;

  constructor(
    fleet: Fleet,
    time: { now(): number; at(at: number, run_: () => void): void; between(range: Range): number },
  ) {
    this.#fleet = fleet;
    this.#time = time;
    this.#stallsAt = time.between(fleet.stallsAfterMs);
  }

  report(event: () => void): void {
    this.#events.push(event);
    if (!this.#isBusy) this.#flush();
  }

  here(afterMs: number, run_: () => void): void {
    this.#time.at(this.#awakeAt(this.#time.now() + afterMs), run_);
  }

  hear(run_: () => void): void {
    this.here(this.#time.between(this.#fleet.wayMs), run_);
  }

  #flush(): void {
    this.#isBusy = true;
    const batch = this.#events.splice(0, maxBatch);
    this.#time.at(this.#time.now() + this.#time.between(this.#fleet.wayMs), () => {
      for (const event of batch) event();
      this.hear(() => {
        this.#isBusy = false;
        if (this.#events.length > 0) this.#flush();
      });
    });
  }

  #awakeAt(at: number): number {
    const { stallMs, stallsAfterMs, jobMs } = this.#fleet;
    while (this.#stallsUntil <= at && this.#stallsAt <= at) {
      this.#stallsUntil = this.#stallsAt + this.#time.between(stallMs);
      this.#stallsAt = this.#stallsUntil + this.#time.between(stallsAfterMs);
    }
    this.#freeAt = Math.max(at, this.#stallsUntil, this.#freeAt) + this.#time.between(jobMs);
    return this.#freeAt;
  }
}
