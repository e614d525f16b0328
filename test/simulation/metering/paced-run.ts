/**
 * Calls paced by the scheduler's policy in front of an upstream that counts in its own way: virtual time, no promises,
 * one history per seed. The store's clock begins anywhere.
 */
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { createBucket } from '../../../src/limiter/bucket-state.policy.ts';
import * as scheduler from '../../../src/limiter/scheduler.policy.ts';
import { seededRandom } from '../../../src/simulators/seeded-random.ts';
import type { Counter } from './counters.ts';
import type { Dialect } from './dialects.ts';
import type { Outsider } from './outsiders.ts';

export type Range = readonly [from: number, until: number];

export interface Scene {
  readonly counter: () => Counter;
  readonly dialect: Dialect;
  readonly windowMs: number;
  readonly stated: readonly MeterSetting[];
  readonly probe: number;
  /** When calls come, milliseconds. */
  readonly calls: readonly number[];
  readonly maxWaitMs: number;
  readonly maxInFlight: number | null;
  /** From sending to arriving, from arriving to the answer's head; a refusal is answered at once. Milliseconds. */
  readonly wayMs: Range;
  readonly serviceMs: Range;
  readonly outsider: { readonly comes: Outsider; readonly share: number } | null;
}

export interface Sent {
  readonly at: number;
  readonly admitted: boolean;
}

export interface Outcome {
  /** Arrivals at the upstream, in order. */
  readonly arrivals: readonly Sent[];
  /** Calls that we refused, with the wait that they were told, milliseconds. */
  readonly turnedAway: readonly number[];
  /** Units that somebody else took until the last call was let in. */
  readonly outside: number;
}

const replica = 'r';
const hintlessMs = 500;

interface Event {
  readonly at: number;
  readonly run: () => void;
}

export function run(scene: Scene, seed: number, origin: number): Outcome {
  return new Run(scene, seed, origin).outcome();
}

class Run {
  readonly #scene: Scene;
  readonly #origin: number;
  readonly #random;
  readonly #counter: Counter;
  readonly #bucket = createBucket();
  readonly #events: Event[] = [];
  readonly #arrivals: Sent[] = [];
  readonly #turnedAway: number[] = [];
  #outside = 0;
  /** Units that somebody else could not get yet. */
  #owed = 0;
  #outsideAtLast = 0;
  #now = 0;
  #wakeAt: number | null = null;
  #left: number;

  constructor(scene: Scene, seed: number, origin: number) {
    this.#scene = scene;
    this.#origin = origin;
    this.#random = seededRandom(seed);
    this.#counter = scene.counter();
    this.#left = scene.calls.length;
    scene.calls.forEach((at, n) => this.#at(at, () => this.#enter(`t${n}`)));
    this.#at(0, () => this.#tick());
    if (scene.outsider !== null) {
      const perMs = (scene.outsider.share * this.#counter.limit) / scene.windowMs;
      this.#drink(scene.outsider.comes(perMs, scene.windowMs, this.#random));
    }
  }

  outcome(): Outcome {
    for (let event = this.#events.pop(); event !== undefined && this.#left > 0;) {
      this.#now = event.at;
      event.run();
      event = this.#events.pop();
    }
    return { arrivals: this.#arrivals, turnedAway: this.#turnedAway, outside: this.#outsideAtLast };
  }

  /** Events are kept from the last to the next, those of one time in the order of asking. */
  #at(at: number, run: () => void): void {
    let low = 0;
    let high = this.#events.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#events[middle]?.at ?? 0) > at) low = middle + 1;
      else high = middle;
    }
    this.#events.splice(low, 0, { at, run });
  }

  #between([from, until]: Range): number {
    return from + this.#random.next() * (until - from);
  }

  get #storeTime(): number {
    return this.#origin + this.#now;
  }

  #enter(ticket: string): void {
    const { stated, probe, maxInFlight, maxWaitMs } = this.#scene;
    const { effects, ...reply } = scheduler.admit(
      this.#bucket,
      {
        ticket,
        bucket: 'b',
        setting: { meters: stated, learn: true, probe },
        lane: 'l',
        weight: 1,
        maxInFlight,
        maxQueued: 100_000,
        urgency: 3,
        callClass: 'c',
        costs: { requests: 1 },
        maxWaitMs,
        leaseMs: 1e9,
        order: null,
      },
      replica,
      this.#storeTime,
    );
    if (reply.kind === 'refused') {
      this.#turnedAway.push(reply.retryInMs);
      this.#left -= 1;
    }
    this.#carryOut(effects);
  }

  #carryOut({ grants, nextAt }: scheduler.Effects): void {
    for (const { lease } of grants) this.#send(lease);
    if (nextAt === null) return;
    // As a timer of Node: whole milliseconds, at least one.
    const at = this.#now + Math.max(1, Math.ceil(nextAt - this.#storeTime));
    if (this.#wakeAt !== null && this.#wakeAt <= at && this.#wakeAt > this.#now) return;
    this.#wakeAt = at;
    this.#at(at, () => {
      if (this.#wakeAt === at) this.#wakeAt = null;
      this.#carryOut(scheduler.pumpOnly(this.#bucket, this.#storeTime));
    });
  }

  #tick(): void {
    this.#carryOut(scheduler.tick(this.#bucket, replica, [], this.#storeTime));
    this.#at(this.#now + 1_000, () => this.#tick());
  }

  #send(lease: string): void {
    const sentAt = this.#now;
    this.#at(sentAt + this.#between(this.#scene.wayMs), () => {
      const now = this.#now;
      const waitMs = this.#counter.waitMs(now);
      this.#arrivals.push({ at: now, admitted: waitMs === 0 });
      if (waitMs === 0) {
        this.#counter.take(now);
        this.#outsideAtLast = this.#outside;
      }
      const fields = new Map(this.#scene.dialect.fields(this.#counter, waitMs, now));
      const tookMs = waitMs > 0 ? 1 : this.#between(this.#scene.serviceMs);
      this.#at(now + tookMs, () => this.#answered(lease, sentAt, { status: waitMs > 0 ? 429 : 200, fields }));
    });
  }

  #answered(
    lease: string,
    sentAt: number,
    { status, fields }: { readonly status: number; readonly fields: ReadonlyMap<string, string> },
  ): void {
    const feedback = learnFrom(this.#scene.dialect.kind, {
      status,
      fields,
      body: status === 200 ? null : (this.#scene.dialect.refusal ?? null),
      callClass: 'rest',
      method: 'GET',
      path: '/',
      nowMs: this.#storeTime,
    });
    const lesson = { feedback, sentAt: this.#origin + sentAt, headAt: this.#storeTime };
    const closeMs = feedback.throttle?.waitMs ?? hintlessMs;
    if (status === 200) this.#left -= 1;
    this.#carryOut(
      scheduler.settle(
        this.#bucket,
        lease,
        status === 200
          ? { kind: 'succeeded', spent: null }
          : { kind: 'throttled', closeMs, requeue: true, sleepMs: 0 },
        lesson,
        this.#storeTime,
      ),
    );
  }

  /**
   * Whoever else uses the quota is refused like everybody. Who comes for one unit at a time comes again as soon as there is
   * room and gets what it wants; of several at once those that are refused are given up.
   */
  #drink(gulps: Generator<{ readonly at: number; readonly units: number }, never>): void {
    const { at, units } = gulps.next().value;
    this.#at(at, () => {
      if (units > 1) this.#take(units);
      else {
        this.#owed += units;
        if (this.#owed === units) this.#takeOwed();
      }
      this.#drink(gulps);
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
