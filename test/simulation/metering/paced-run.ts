/** Calls paced by the scheduler's policy before an upstream that counts in its own way: virtual time, one history per seed; the store's clock begins anywhere. */
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import type { Dialect as DescribedDialect } from '../../../src/config/settings.ts';
import { leaseToken, replicaId } from '../../../src/ids.ts';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import { type BucketEvent, createBucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { type Effects, pump } from '../../../src/limiter/policy/pump.policy.ts';
import { apply } from '../../../src/limiter/policy/scheduler.policy.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { tick } from '../../limiter/policy/scheduling.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import type { Counter, Dialect, Outsider } from './upstreams.ts';

export type Range = readonly [from: number, until: number];

export interface Fleet {
  readonly replicas: number;
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
  readonly stated?: readonly MeterSetting[];
  readonly probe?: number;
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
  readonly arrivals: readonly { readonly at: number; readonly admitted: boolean }[];
  /** Units that other clients took until the last call was admitted. */
  readonly outside: number;
  /** Wait of the last call as it was forecast when it came, and what it was. Milliseconds. */
  readonly lastWait: { readonly forecastMs: number; readonly trueMs: number };
}

const hintlessMs = 500;

export interface Waits {
  queued?(forecastMs: number): void;
  granted(lease: string): void;
  /** Left out: it can wait, and is not refused. */
  refused?(retryInMs: number): void;
}

/** The policy of one bucket, with replicas that share its store, on virtual time without promises. */
export class PacedBucket {
  now = 0;
  readonly #origin: number;
  readonly #random;
  readonly #bucket;
  readonly #links: readonly Link[];
  readonly #events: { readonly at: number; readonly run: () => void }[] = [];
  readonly #waiting = new Map<string, Waits>();
  #wakeAt: number | null = null;

  constructor({ probe = 0, fleet }: Pick<Scene, 'probe' | 'fleet'>, random: SeededRandom, origin: number) {
    this.#origin = origin;
    this.#random = random;
    this.#bucket = createBucket(probe, origin);
    this.#links =
      fleet === undefined
        ? [sameProcess]
        : Array.from({ length: fleet.replicas }, () => new StoreLink(fleet, this));
  }

  /** To be called when the first events are there. */
  begin(): void {
    this.#links.forEach((_link, replica) => this.at(0, () => this.#tick(replica)));
  }

  runWhile(goesOn: () => boolean): void {
    for (let event = this.#events.pop(); event !== undefined && goesOn();) {
      this.now = event.at;
      event.run();
      event = this.#events.pop();
    }
  }

  /** Events are kept from the last to the next, those of one time in the order of asking. */
  at(at: number, run_: () => void): void {
    let low = 0;
    let high = this.#events.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#events[middle]?.at ?? 0) > at) low = middle + 1;
      else high = middle;
    }
    this.#events.splice(low, 0, { at, run: run_ });
  }

  between([from, until]: Range): number {
    return from + this.#random.next() * (until - from);
  }

  storeTimeOf(at: number): number {
    return this.#origin + at;
  }

  here(replica: number, run_: () => void): void {
    this.#linkOf(replica).here(0, run_);
  }

  enter(ticket: string, replica: number, asked: AdmissionOptions, waits: Waits): void {
    const arrivedAt = this.storeTimeOf(this.now);
    this.#waiting.set(ticket, waits);
    this.#report(replica, () => {
      const admitted = admission(ticket, { maxQueued: 100_000, leaseMs: 1e9, ...asked, arrivedAt });
      const { reply, ...effects } = this.#apply(replica, { kind: 'admit', admission: admitted });
      if (reply.kind === 'refused') {
        if (waits.refused === undefined) throw new Error('a call that can wait was refused');
        waits.refused(reply.retryInMs);
      }
      if (reply.kind === 'queued') waits.queued?.(reply.forecastMs);
      this.#carryOut(effects);
    });
  }

  tell(replica: number, event: Extract<BucketEvent, { kind: 'settle' | 'learn' }>): void {
    this.#report(replica, () => this.#carryOut(this.#apply(replica, event)));
  }

  #linkOf(replica: number): Link {
    return this.#links[replica % this.#links.length] ?? sameProcess;
  }

  #report(replica: number, event: () => void): void {
    const link = this.#linkOf(replica);
    link.here(0, () => link.report(event));
  }

  #apply(replica: number, event: BucketEvent): ReturnType<typeof apply> {
    return apply(this.#bucket, { replica: replicaId(String(replica)), event }, this.storeTimeOf(this.now));
  }

  #carryOut({ grants, nextAt }: Effects): void {
    for (const { lease, replica, ticket } of grants)
      this.#linkOf(Number(replica)).hear(() => this.#waiting.get(ticket)?.granted(lease));
    if (nextAt === null) return;
    // As a timer of Node: whole milliseconds, at least one.
    const at = this.now + Math.max(1, Math.ceil(nextAt - this.storeTimeOf(this.now)));
    if (this.#wakeAt !== null && this.#wakeAt <= at && this.#wakeAt > this.now) return;
    this.#wakeAt = at;
    this.at(at, () => {
      if (this.#wakeAt === at) this.#wakeAt = null;
      this.#report(0, () => this.#carryOut(pump(this.#bucket, this.storeTimeOf(this.now))));
    });
  }

  #tick(replica: number): void {
    const heard = { replica: replicaId(String(replica)), leases: [] };
    this.#report(replica, () => this.#carryOut(tick(this.#bucket, heard, this.storeTimeOf(this.now))));
    this.at(this.now + 1_000, () => this.#tick(replica));
  }
}

export function run(scene: Scene, seed: number, origin: number): Outcome {
  const { dialect, described, calls, fleet, outsider, wayMs, serviceMs, stalls, maxInFlight = null } = scene;
  const random = new SeededRandom(seed);
  const counter = scene.counter();
  const bucket = new PacedBucket(scene, random, origin);
  const arrivals: { at: number; admitted: boolean }[] = [];
  const lastWait = { forecastMs: 0, trueMs: 0 };
  const setting = { meters: scene.stated ?? [], learn: true, probe: scene.probe ?? 0 };
  let [left, outside, outsideAtLast] = [calls.length, 0, 0];
  /** Units that another client could not get yet. */
  let owed = 0;

  const enter = (n: number, replica: number): void => {
    const isLast = n === calls.length - 1;
    const asked = { setting, maxInFlight, maxWaitMs: Infinity };
    bucket.enter(`t${n}`, replica, asked, {
      queued: (forecastMs) => {
        if (isLast) lastWait.forecastMs = forecastMs;
      },
      granted: (lease) => {
        if (isLast) lastWait.trueMs = bucket.now - (calls.at(-1) ?? 0);
        leave(lease, replica);
      },
    });
  };
  const leave = (lease: string, replica: number): void => {
    const { share, ms } = scene.delayed ?? { share: 0, ms: [0, 0] };
    if (share > 0 && random.next() < share)
      bucket.at(bucket.now + bucket.between(ms), () => send(lease, replica));
    else send(lease, replica);
  };
  const awake = (at: number): number => stalls?.find(([from, until]) => at >= from && at < until)?.[1] ?? at;
  const send = (lease: string, replica: number): void => {
    const sentAt = bucket.now;
    bucket.at(awake(sentAt + bucket.between(wayMs)), () => {
      const { now } = bucket;
      const waitMs = counter.waitMs(now);
      arrivals.push({ at: now, admitted: waitMs === 0 });
      if (waitMs === 0) {
        counter.take(now);
        outsideAtLast = outside;
      }
      const fields = new Map(dialect.fields(counter, waitMs, now));
      const tookMs = waitMs > 0 ? 1 : bucket.between(serviceMs);
      const answer = { status: waitMs > 0 ? 429 : 200, fields };
      bucket.at(awake(now + tookMs), () =>
        bucket.here(replica, () => answered(answer, { lease, sentAt, replica })),
      );
    });
  };
  const answered = (
    { status, fields }: { readonly status: number; readonly fields: ReadonlyMap<string, string> },
    { lease, sentAt, replica }: { readonly lease: string; readonly sentAt: number; readonly replica: number },
  ): void => {
    const body = status === 200 ? null : (dialect.refusal ?? null);
    const nowMs = bucket.storeTimeOf(bucket.now);
    const of = { callClass: 'rest', method: 'GET', path: '/', nowMs };
    const feedback = learnFrom(dialect.kind, { status, fields, body, ...of }, described);
    const lesson = { feedback, sentAt: bucket.storeTimeOf(sentAt), headAt: nowMs };
    const closeMs = feedback.throttle?.waitMs ?? hintlessMs;
    if (status === 200) left -= 1;
    const settlement =
      status === 200
        ? ({ kind: 'succeeded', spent: null } as const)
        : ({ kind: 'throttled', closeMs, requeue: true, sleepMs: 0 } as const);
    bucket.tell(replica, { kind: 'settle', lease: leaseToken(lease), settlement, lesson });
  };

  /**
   * Whoever else uses the quota is refused like everybody. Who comes for one unit at a time comes again as soon as there is
   * room and gets what it wants; of several at once those that are refused are given up.
   */
  const takeForOthers = (takes: ReturnType<Outsider>): void => {
    const { at, units } = takes.next().value;
    bucket.at(at, () => {
      if (units > 1) take(units);
      else {
        owed += units;
        if (owed === units) takeOwed();
      }
      takeForOthers(takes);
    });
  };
  const takeOwed = (): void => {
    owed = take(owed);
    if (owed > 0) bucket.at(bucket.now + counter.waitMs(bucket.now), takeOwed);
  };
  const take = (units: number): number => {
    let more = units;
    for (; more > 0 && counter.waitMs(bucket.now) === 0; more -= 1) {
      counter.take(bucket.now);
      outside += 1;
    }
    return more;
  };

  calls.forEach((at, n) => bucket.at(at, () => enter(n, n % (fleet?.replicas ?? 1))));
  bucket.begin();
  if (outsider !== undefined) {
    const perMs = (outsider.share * counter.limit) / outsider.windowMs;
    takeForOthers(outsider.comes(perMs, outsider.windowMs, random));
  }
  bucket.runWhile(() => left > 0);
  return { arrivals, outside: outsideAtLast, lastWait };
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

/** The way to a shared store: one batch of events under way at a time, what comes meanwhile goes with the next, and now and then the process stands still. */
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
    time: { readonly now: number; at(at: number, run_: () => void): void; between(range: Range): number },
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
    this.#time.at(this.#awakeAt(this.#time.now + afterMs), run_);
  }

  hear(run_: () => void): void {
    this.here(this.#time.between(this.#fleet.wayMs), run_);
  }

  #flush(): void {
    this.#isBusy = true;
    const batch = this.#events.splice(0, maxBatch);
    this.#time.at(this.#time.now + this.#time.between(this.#fleet.wayMs), () => {
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
