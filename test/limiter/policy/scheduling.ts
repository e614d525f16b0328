/** One bucket, as tests of the scheduler drive it: calls by their names, times in milliseconds since the origin. */
import type { Feedback, MeterName } from '../../../src/call.ts';
import {
  laneKey,
  leaseToken,
  replicaId,
  ticketId,
  type LeaseToken,
  type ReplicaId,
} from '../../../src/ids.ts';
import {
  type AdmitReply,
  type Bucket,
  createBucket,
  type Lane,
  type BucketEvent,
  type StoredAdmission,
  type TimedLesson,
} from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { BucketSetting, CeilingEdge, LaneSetting, Settlement } from '../../../src/limiter/limiter.ts';
import {
  pump,
  type Effects,
  type Granted,
  apply,
  upkeep,
} from '../../../src/limiter/policy/scheduler.policy.ts';
import type { Meter } from '../../../src/limiter/policy/meter.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { admission, arrivalStepMs, type AdmissionOptions } from '../../support/admission.ts';
import type { Instant } from '../../support/at-origins.ts';

export const replica = replicaId('r');

/** A call into a bucket of ten a ten seconds, with all the time in the world. */
export const call = (ticket: string, options: AdmissionOptions = {}): StoredAdmission =>
  admission(ticket, { lane: 'l', limit: 10, maxQueued: 1_000_000, maxWaitMs: Infinity, ...options });

export const done = { kind: 'succeeded', spent: null } as const;
export const dropped = { kind: 'dropped' } as const;
export const unknown = { kind: 'unknown' } as const;
type Returned = Extract<Settlement, { kind: 'returned' }>;
export const returned = (because: Returned['because'], sleepMs = 50_000): Returned => ({
  kind: 'returned',
  sleepMs,
  because,
});
/** A refusal that closes the bucket for so long; with `requeue` the call waits again, at its position. */
export const throttled = (closeMs: number, { requeue = false, sleepMs = 0 } = {}): Settlement => ({
  kind: 'throttled',
  closeMs,
  requeue,
  sleepMs,
});

/** So many names, `t0` first. */
export const names = (count: number, prefix = 't'): string[] =>
  Array.from({ length: count }, (_, at) => `${prefix}${at}`);

/** Calls arrive this long before they are entered, so that many of one moment have arrivals of their own. Milliseconds. */
const enteringMs = 500;

export class TestBucket {
  readonly bucket: Bucket;
  /** Milliseconds since the origin. */
  ms = 1_000;
  /** What `tick`, `pump` and the like asked for last: when to run again. */
  nextAt: number | null = null;
  /** Those that left last, with what the bucket says of them. */
  granted: readonly Granted[] = [];
  readonly #instant: Instant;
  readonly #options: AdmissionOptions;
  readonly #leases = new Map<string, LeaseToken>();
  #lastArrival = -Infinity;

  /** @param options of all calls. */
  constructor(instant: Instant, options: AdmissionOptions = {}) {
    this.#instant = instant;
    this.#options = options;
    this.bucket = createBucket(options.probe ?? 0, instant(0));
  }

  get now(): number {
    return this.#instant(this.ms);
  }

  /** It is this late, and the replica has just been heard of. */
  at(ms: number): this {
    this.ms = ms;
    this.bucket.replicas.set(replica, this.now);
    return this;
  }

  later(ms: number): this {
    return this.at(this.ms + ms);
  }

  /** Calls arrive in the order in which they are entered. */
  admit(ticket: string, options: AdmissionOptions = {}, by = replica): AdmitReply & { effects: Effects } {
    const at = Math.max(this.now - enteringMs, this.#lastArrival + arrivalStepMs);
    this.#lastArrival = at;
    const asked = call(ticket, { ...this.#options, ...options });
    return this.admitAs({ ...asked, position: { kind: 'arrival', at } }, by);
  }

  /** With the position that the call claims. */
  admitAs(asked: StoredAdmission, by = replica): AdmitReply & { effects: Effects } {
    const { reply, ...effects } = apply(
      this.bucket,
      { replica: by, event: { kind: 'admit', admission: asked } },
      this.now,
    );
    this.#take(effects);
    if (!('order' in reply) && reply.kind !== 'refused')
      throw new Error(`no reply to an admission: ${reply.kind}`);
    return { ...reply, effects };
  }

  /** As `admit`, for one call after the other; returns the calls that left. */
  enter(tickets: readonly string[], options: AdmissionOptions = {}, by = replica): string[] {
    return tickets.flatMap((each) => {
      const { effects } = this.admit(each, options, by);
      return effects.grants.map(({ ticket }) => ticket);
    });
  }

  settle(ticket: string, settlement: Settlement = done, lesson: TimedLesson | null = null): string[] {
    return this.#apply({ kind: 'settle', lease: this.leaseOf(ticket), settlement, lesson });
  }

  /** A response that is not over teaches this. */
  learn(ticket: string, lesson: TimedLesson): string[] {
    return this.#apply({ kind: 'learn', lease: this.leaseOf(ticket), lesson });
  }

  lesson(feedback: Partial<Feedback>, sentMs = this.ms): TimedLesson {
    const taught = { meters: [], throttle: null, ...feedback };
    return { feedback: taught, sentAt: this.#instant(sentMs), headAt: this.now };
  }

  slotTaken(ticket: string, edge: CeilingEdge | null): string[] {
    return this.#apply({ kind: 'slot_taken', lease: this.leaseOf(ticket), edge });
  }

  /** Lanes by their names; what is not said of a lane is as a call of the bucket has it. */
  reconfigure(lanes: Readonly<Record<string, Partial<LaneSetting>>>, setting?: BucketSetting): string[] {
    const any = call('any', this.#options);
    const { weight, maxInFlight, perMinute, ceilingTag } = any;
    const changed = Object.entries(lanes).map(([lane, of]) => {
      return { lane: laneKey(lane), weight, maxInFlight, perMinute, ceilingTag, ...of };
    });
    return this.#apply({ kind: 'reconfigure', setting: setting ?? any.setting, lanes: changed });
  }

  cancel(ticket: string): string[] {
    return this.#apply({ kind: 'cancel', ticket: ticketId(ticket) });
  }

  pump(): string[] {
    return this.#take(pump(this.bucket, this.now));
  }

  /** The replica is heard of, its leases go on, and the bucket has its upkeep. */
  tick(): string[] {
    // Thousands of them are renewed when they would end soon.
    const ending = [...this.bucket.leases.values()].filter(({ expiresAt }) => expiresAt < this.now + 2_000);
    return this.#take(tick(this.bucket, { replica, leases: ending.map(({ token }) => token) }, this.now));
  }

  /** Ticks every second, and when one is due; when each call left, in milliseconds since the origin. */
  run(untilMs: number, awaited = ''): Map<string, number> {
    const left = new Map<string, number>();
    while (this.ms <= untilMs && !left.has(awaited)) {
      for (const ticket of this.tick()) left.set(ticket, this.ms);
      const due = this.nextAt === null ? Infinity : this.nextAt - this.#instant(0);
      this.ms = Math.min(this.ms + 1_000, Math.max(this.ms + 0.5, due));
    }
    return left;
  }

  /** Who leaves until then, in order. */
  leaving(untilMs: number): string[] {
    return [...this.run(untilMs).keys()];
  }

  /** Runs until the call leaves. */
  leavesAt(ticket: string, untilMs = this.ms + 700_000): number {
    return this.run(untilMs, ticket).get(ticket) ?? Infinity;
  }

  forecast(ticket: string): ReturnType<typeof forecast> {
    return forecast(this.bucket, ticketId(ticket), this.now);
  }

  waitMs(ticket: string): number {
    return this.forecast(ticket)?.waitMs ?? NaN;
  }

  leaseOf(ticket: string): LeaseToken {
    return this.#leases.get(ticket) ?? leaseToken('none');
  }

  lane(name = 'l'): Lane {
    const lane = this.bucket.lanes.get(laneKey(name));
    if (lane === undefined) throw new Error(`no lane ${name}`);
    return lane;
  }

  meter(name: MeterName = 'requests'): Meter {
    const meter = this.bucket.meters.get(name);
    if (meter === undefined) throw new Error(`no meter ${name}`);
    return meter;
  }

  #apply(event: BucketEvent): string[] {
    return this.#take(apply(this.bucket, { replica, event }, this.now));
  }

  #take(effects: Effects): string[] {
    this.granted = effects.grants;
    this.nextAt = effects.nextAt;
    for (const { ticket, lease } of effects.grants) this.#leases.set(ticket, lease);
    return effects.grants.map(({ ticket }) => ticket);
  }
}

/** The replica is heard of, these leases of it go on, and the bucket has its upkeep. */
export function tick(
  bucket: Bucket,
  { replica: of, leases }: { readonly replica: ReplicaId; readonly leases: readonly LeaseToken[] },
  now: number,
): Effects {
  bucket.replicas.set(of, now);
  for (const token of leases) {
    const lease = bucket.leases.get(token);
    if (lease === undefined || lease.stage === 'abandoned' || lease.ticket.replica !== of) continue;
    lease.expiresAt = now + lease.ticket.leaseMs;
    bucket.expiries.set(token, lease.expiresAt);
  }
  return upkeep(bucket, now);
}
