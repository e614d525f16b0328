/**
 * Calls paced by the scheduler's policy in front of an upstream that counts in its own way: virtual time, no promises,
 * one history per seed. The store's clock begins anywhere.
 */
import { leaseToken, replicaId } from '../../../src/ids.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { admission } from '../../support/admission.ts';
import { createBucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { admit } from '../../../src/limiter/policy/admit.policy.ts';
import { type Effects, pump } from '../../../src/limiter/policy/pump.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import { tick } from '../../limiter/policy/scheduling.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import type { Counter } from './counters.ts';
import { Link } from './links.ts';
import type { Outcome, Range, Scene, Sent } from './scene.ts';

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
  readonly #bucket;
  readonly #links: readonly (Link | null)[];
  readonly #events: Event[] = [];
  readonly #arrivals: Sent[] = [];
  readonly #refusedAtEntry: number[] = [];
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
    this.#bucket = createBucket(scene.probe, origin);
    this.#counter = scene.counter();
    this.#left = scene.calls.length;
    const { fleet } = scene;
    const time = { now: () => this.#now, at: (at: number, run: () => void) => this.#at(at, run) };
    this.#links =
      fleet === undefined
        ? [null]
        : Array.from({ length: fleet.replicas }, () => new Link(fleet, this.#random, time));
    scene.calls.forEach((at, n) => this.#at(at, () => this.#enter(`t${n}`, n % this.#links.length)));
    this.#links.forEach((_link, replica) => this.#at(0, () => this.#tick(replica)));
    if (scene.outsider !== null) {
      const perMs = (scene.outsider.share * this.#counter.limit) / scene.windowMs;
      this.#takeForOthers(scene.outsider.comes(perMs, scene.windowMs, this.#random));
    }
  }

  outcome(): Outcome {
    for (let event = this.#events.pop(); event !== undefined && this.#left > 0;) {
      this.#now = event.at;
      event.run();
      event = this.#events.pop();
    }
    return { arrivals: this.#arrivals, refusedAtEntry: this.#refusedAtEntry, outside: this.#outsideAtLast };
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

  /** The commands of a replica to the store. */
  #report(replica: number, event: () => void): void {
    const link = this.#links[replica] ?? null;
    if (link === null) event();
    else link.here(0, () => link.report(event));
  }

  #enter(ticket: string, replica: number): void {
    const arrivedAt = this.#storeTime;
    this.#report(replica, () => this.#admit(ticket, replica, arrivedAt));
  }

  #admit(ticket: string, replica: number, arrivedAt: number): void {
    const { stated, probe, maxInFlight, maxWaitMs } = this.#scene;
    const { effects, ...reply } = admit(
      this.#bucket,
      {
        admission: admission(ticket, {
          setting: { meters: stated, learn: true, probe },
          maxInFlight,
          maxQueued: 100_000,
          maxWaitMs,
          leaseMs: 1e9,
          arrivedAt,
        }),
        replica: replicaId(String(replica)),
      },
      this.#storeTime,
    );
    if (reply.kind === 'refused') {
      this.#refusedAtEntry.push(reply.retryInMs);
      this.#left -= 1;
    }
    this.#carryOut(effects);
  }

  #carryOut({ grants, nextAt }: Effects): void {
    for (const { lease, replica } of grants) {
      const link = this.#links[Number(replica)] ?? null;
      if (link === null) this.#send(lease, Number(replica));
      else link.hear(() => this.#send(lease, Number(replica)));
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
    this.#report(replica, () =>
      this.#carryOut(
        tick(this.#bucket, { replica: replicaId(String(replica)), leases: [] }, this.#storeTime),
      ),
    );
    this.#at(this.#now + 1_000, () => this.#tick(replica));
  }

  #send(lease: string, replica: number): void {
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
      const response = { status: waitMs > 0 ? 429 : 200, fields };
      this.#at(now + tookMs, () => {
        const link = this.#links[replica] ?? null;
        if (link === null) this.#answered(lease, { sentAt, replica }, response);
        else link.here(0, () => this.#answered(lease, { sentAt, replica }, response));
      });
    });
  }

  #answered(
    lease: string,
    { sentAt, replica }: { readonly sentAt: number; readonly replica: number },
    { status, fields }: { readonly status: number; readonly fields: ReadonlyMap<string, string> },
  ): void {
    const facts = {
      status,
      fields,
      body: status === 200 ? null : (this.#scene.dialect.refusal ?? null),
      callClass: 'rest',
      method: 'GET',
      path: '/',
      nowMs: this.#storeTime,
    } as const;
    const feedback = learnFrom(this.#scene.dialect.kind, facts, this.#scene.described);
    const lesson = { feedback, sentAt: this.#origin + sentAt, headAt: this.#storeTime };
    const closeMs = feedback.throttle?.waitMs ?? hintlessMs;
    if (status === 200) this.#left -= 1;
    const settlement =
      status === 200
        ? ({ kind: 'succeeded', spent: null } as const)
        : ({ kind: 'throttled', closeMs, requeue: true, sleepMs: 0 } as const);
    this.#report(replica, () =>
      this.#carryOut(settle(this.#bucket, { lease: leaseToken(lease), settlement, lesson }, this.#storeTime)),
    );
  }

  /**
   * Whoever else uses the quota is refused like everybody. Who comes for one unit at a time comes again as soon as there is
   * room and gets what it wants; of several at once those that are refused are given up.
   */
  #takeForOthers(takes: Generator<{ readonly at: number; readonly units: number }, never>): void {
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
