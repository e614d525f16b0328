/**
 * The policy's side of the parity property: runs a history through `scheduler.policy.ts` and says what every script
 * call must answer, publish and leave behind. What a store adds to the policy (time that never steps back, grants kept
 * until their replica names them, messages) is stated here once more, independently of the Lua.
 */
import { createBucket, type Bucket } from '../../src/limiter/bucket-state.policy.ts';
import type { Admission } from '../../src/limiter/limiter.ts';
import * as scheduler from '../../src/limiter/scheduler.policy.ts';
import type { Effects, TimedLesson } from '../../src/limiter/scheduler.policy.ts';
import {
  admitCall,
  cancelCall,
  chargedCall,
  forecastCall,
  learnCall,
  leasesPerTick,
  settleCall,
  tickCall,
  type Asking,
  type ScriptCall,
} from '../../src/limiter/script-calls.ts';
import type { AdmitReply, BucketReply, ReplicaMessage, ToldGrant } from '../../src/limiter/script-replies.ts';
import type { AdmitStep, Learned, Step } from './parity-history.ts';
import { stateOfPolicy, type Normal } from './parity-state.ts';

export interface Planned {
  readonly step: Step;
  /** `null`: everything is lost. */
  readonly call: ScriptCall | null;
  readonly admission: Admission | null;
  readonly reply: object | null;
  /** `undefined`: not looked at after this call. */
  readonly state: Normal | undefined;
}

export interface Plan {
  readonly planned: readonly Planned[];
  /** Messages of the bucket in order, as `replica` and content. */
  readonly messages: readonly (ReplicaMessage & { readonly replica: string })[];
}

type Entering = Extract<Step, { kind: 'admit' }>;

const far = 1_700_000_000_000.123;
const meterNames = ['requests', 'tokens', 'requests_day', 'tokens_day', 'cost', 'images'] as const;

export function planOf(history: readonly Step[], bucket: string, start: number): Plan {
  return new Model(bucket, start).run(history);
}

/** Where the time of a history begins: a server's clock, or small numbers whose fractions have more bits. */
export const startOf = (seed: number): number => (seed % 3 === 0 ? 1_000.1 + seed / 7 : far + seed / 3);

class Model {
  readonly #key: string;
  readonly #planned: Planned[] = [];
  readonly #messages: (ReplicaMessage & { replica: string })[] = [];
  readonly #orders = new Map<string, number>();
  /** Newest first. */
  readonly #leases: { token: string; replica: string }[] = [];
  #bucket: Bucket | null = null;
  #born = 0;
  #seen = 0;
  #unnamed = new Map<string, string>();
  /** Who pumps next, and when. */
  #promise: { readonly replica: string; readonly at: number } | null = null;
  /** What the caller's clock says; may step back. */
  #clock: number;

  constructor(key: string, start: number) {
    this.#key = key;
    this.#clock = start;
  }

  run(history: readonly Step[]): Plan {
    for (const step of history) {
      this.#clock += step.afterMs;
      const named = this.#nameOf(step);
      for (let time = 0; time < (step.twice ? 2 : 1); time += 1) this.#step(step, named);
    }
    return { planned: this.#planned, messages: this.#messages };
  }

  /** The lease or ticket a step is about: those that are live first, then those that were, newest first. */
  #nameOf(step: Step): string {
    if ('lease' in step) {
      const live = [...(this.#bucket?.leases.keys() ?? [])].toReversed();
      const ever = this.#leases.map(({ token }) => token);
      return [...live, ...ever][step.lease] ?? `none.${step.lease}`;
    }
    if (step.kind !== 'cancel' && step.kind !== 'forecast') return '';
    const waiting = [...(this.#bucket?.tickets.values() ?? [])].filter((ticket) => ticket.lease === null);
    const names = [...waiting.map((ticket) => ticket.id), ...this.#orders.keys()];
    return names[step.ticket] ?? 'none';
  }

  #step(step: Step, named: string): void {
    const asking: Asking = { bucket: this.#key, replica: step.replica, now: this.#clock };
    switch (step.kind) {
      case 'admit':
        for (let n = 0; n < step.count; n += 1) this.#admit(step, n, asking);
        return;
      case 'settle':
        return this.#settle(step, named, asking);
      case 'learn': {
        return this.#lesson(step, learnCall(asking, named, step.lesson), named, (bucket, now) =>
          scheduler.learn(bucket, named, timed(step.lesson, now), now),
        );
      }
      case 'charged': {
        const call = chargedCall(asking, named, step.places, step.nextPlaceMs);
        return this.#lesson(step, call, named, (bucket, now) =>
          scheduler.charged(bucket, named, step.places, step.nextPlaceMs, now),
        );
      }
      case 'cancel':
        return this.#cancel(step, named, asking);
      case 'forecast':
        return this.#forecast(step, named, asking);
      case 'tick':
        return this.#tick(step, step.renew, asking);
      case 'loss':
        this.#bucket = null;
        this.#planned.push({ step, call: null, admission: null, reply: null, state: null });
    }
  }

  #admit(step: Entering, n: number, asking: Asking): void {
    const ticket = `t${step.ticket + n}`;
    const order = step.again ? (this.#orders.get(ticket) ?? madeUpOrder(step, this.#clock)) : null;
    const lane = step.spread ? `m${step.lane}-${n}` : `l${step.lane}`;
    const admission: Admission = { ...step, ticket, bucket: this.#key, lane, order };
    const call = admitCall(asking, admission);
    if (this.#bucket === null) {
      this.#bucket = createBucket();
      this.#born = this.#clock;
      this.#seen = this.#clock;
      this.#unnamed = new Map();
      this.#promise = null;
    }
    const bucket = this.#bucket;
    const now = this.#now();
    const result = scheduler.admit(bucket, admission, step.replica, now);
    const common = this.#effects(result.effects, step.replica, now, ticket);
    if (result.kind !== 'refused') this.#orders.set(ticket, result.order);
    const last = n === step.count - 1;
    this.#plan(step, call, this.#admitReply(result, admission, common), last, admission);
  }

  #admitReply(result: scheduler.AdmitResult, { ticket, lane }: Admission, common: BucketReply): AdmitReply {
    if (result.kind === 'refused') return { ...common, code: result.reason, retryInMs: result.retryInMs };
    const { order, forecastMs, ahead } = result;
    if (result.kind === 'queued') return { ...common, code: 'queued', order, forecastMs, ahead };
    const lease = this.#bucket?.tickets.get(ticket)?.lease ?? '';
    const expiresAt = this.#bucket?.leases.get(lease)?.expiresAt ?? NaN;
    return { ...common, code: 'granted', order, grant: { ticket, lane, lease, expiresAt } };
  }

  #settle(step: Extract<Step, { kind: 'settle' }>, token: string, asking: Asking): void {
    const call = settleCall(asking, token, step.settlement, step.lesson);
    if (this.#bucket === null) return this.#unknown(step, call, { leaseKnown: false });
    const bucket = this.#bucket;
    const now = this.#now();
    const lease = bucket.leases.get(token);
    const held = lease !== undefined && !lease.abandoned;
    const lesson = step.lesson === null ? null : timed(step.lesson, now);
    const effects = scheduler.settle(bucket, token, step.settlement, lesson, now);
    if (held) this.#unnamed.delete(token);
    const common = this.#effects(effects, step.replica, now, null);
    if (held && step.settlement.kind === 'throttled' && step.settlement.closeMs > 0) {
      this.#closed(step.replica, common.closedMs);
    }
    this.#plan(step, call, { ...common, leaseKnown: held });
  }

  #lesson(
    step: Step,
    call: ScriptCall,
    token: string,
    transition: (bucket: Bucket, now: number) => Effects,
  ): void {
    if (this.#bucket === null) return this.#unknown(step, call, { leaseKnown: false });
    const leaseKnown = this.#bucket.leases.has(token);
    const now = this.#now();
    const effects = transition(this.#bucket, now);
    if (leaseKnown) this.#unnamed.delete(token);
    this.#plan(step, call, { ...this.#effects(effects, step.replica, now, null), leaseKnown });
  }

  #cancel(step: Step, ticket: string, asking: Asking): void {
    const call = cancelCall(asking, ticket);
    if (this.#bucket === null) return this.#unknown(step, call, { cancelled: false });
    const cancelled = this.#bucket.tickets.get(ticket)?.lease === null;
    const now = this.#now();
    const effects = scheduler.cancel(this.#bucket, ticket, now);
    this.#plan(step, call, { ...this.#effects(effects, step.replica, now, null), cancelled });
  }

  #forecast(step: Step, ticket: string, asking: Asking): void {
    const call = forecastCall(asking, ticket);
    if (this.#bucket === null) return this.#unknown(step, call, { standing: null });
    const now = this.#now();
    const standing = scheduler.forecast(this.#bucket, ticket, now);
    const common = this.#effects({ grants: [], nextAt: null }, step.replica, now, null);
    this.#plan(step, call, { ...common, standing });
  }

  #tick(step: Step, renew: number, asking: Asking): void {
    const { replica } = step;
    const own = this.#leases.filter((_lease, at) => renew > 0 && at % renew === 0).map(({ token }) => token);
    const renewed = own.slice(0, leasesPerTick);
    const call = tickCall(asking, renewed);
    const nothing = { waitingHere: 0, unnamed: 0, waiting: 0, inFlight: 0, meters: [] };
    if (this.#bucket === null) return this.#unknown(step, call, nothing);
    const bucket = this.#bucket;
    const now = this.#now();
    for (const token of renewed) {
      const lease = bucket.leases.get(token);
      if (lease?.ticket.replica === replica && !lease.abandoned) this.#unnamed.delete(token);
    }
    const effects = scheduler.tick(bucket, replica, renewed, now);
    const common = this.#effects(effects, replica, now, null);
    const unnamed = [...this.#unnamed].filter(([, of]) => of === replica).map(([token]) => token);
    const fresh = new Set(effects.grants.map((granted) => granted.lease));
    const older = unnamed
      .toSorted()
      .slice(0, 64)
      .filter((token) => !fresh.has(token));
    const tickets = [...bucket.tickets.values()];
    this.#plan(step, call, {
      ...common,
      grants: [...common.grants, ...older.map((token) => this.#told(bucket, token))],
      waitingHere: tickets.filter((ticket) => ticket.replica === replica && ticket.lease === null).length,
      unnamed: unnamed.length,
      waiting: tickets.filter((ticket) => ticket.lease === null).length,
      inFlight: bucket.leases.size,
      meters: metersOf(bucket, now),
    });
  }

  /** Time as the bucket sees it. */
  #now(): number {
    this.#seen = Math.max(this.#seen, this.#clock);
    return this.#seen;
  }

  /** What every reply carries, and what goes to others. */
  #effects(effects: Effects, caller: string, now: number, ownTicket: string | null): BucketReply {
    const bucket = this.#bucket;
    if (bucket === null) throw new Error('no bucket');
    const others = new Map<string, ToldGrant[]>();
    const grants: ToldGrant[] = [];
    for (const { ticket, lane, lease, replica, expiresAt } of effects.grants) {
      this.#unnamed.set(lease, replica);
      this.#leases.unshift({ token: lease, replica });
      const told = { ticket, lane, lease, expiresAt };
      if (replica !== caller) others.set(replica, [...(others.get(replica) ?? []), told]);
      else if (ticket !== ownTicket) grants.push(told);
    }
    for (const [replica, told] of others) {
      this.#messages.push({ replica, kind: 'grants', bucket: this.#key, born: this.#born, grants: told });
    }
    for (const token of this.#unnamed.keys()) if (!bucket.leases.has(token)) this.#unnamed.delete(token);
    return {
      now,
      nextInMs: effects.nextAt === null ? null : effects.nextAt - now,
      closedMs: Math.max(0, bucket.closedUntil - now),
      born: this.#born,
      grants,
      leads: this.#leads(bucket, caller, effects.nextAt, now),
    };
  }

  /** One replica promises to pump; kept unless it is late by more than 30 ms or another time comes 2 ms before it. */
  #leads(bucket: Bucket, replica: string, nextAt: number | null, now: number): boolean {
    if (bucket.waiting === 0) this.#promise = null;
    if (nextAt === null || bucket.waiting === 0) return false;
    const kept = this.#promise;
    if (kept !== null && kept.replica !== replica && kept.at <= nextAt + 2 && kept.at + 30 >= now)
      return false;
    this.#promise = { replica, at: nextAt };
    return true;
  }

  #closed(caller: string, closedMs: number): void {
    const waits = (replica: string): boolean =>
      [...(this.#bucket?.tickets.values() ?? [])].some((t) => t.replica === replica && t.lease === null);
    for (const replica of this.#bucket?.replicas.names().toReversed() ?? []) {
      if (replica === caller || !waits(replica)) continue;
      this.#messages.push({ replica, kind: 'closed', bucket: this.#key, closedMs });
    }
  }

  #unknown(step: Step, call: ScriptCall, own: object): void {
    const common = { now: this.#clock, nextInMs: null, closedMs: 0, born: null, grants: [], leads: false };
    this.#planned.push({ step, call, admission: null, reply: { ...common, ...own }, state: null });
  }

  #plan(step: Step, call: ScriptCall, reply: object, look = true, admission: Admission | null = null): void {
    const bucket = this.#bucket;
    const beside = { born: this.#born, seen: this.#seen, unnamed: this.#unnamed };
    const state = !look || bucket === null ? undefined : stateOfPolicy(bucket, beside);
    this.#planned.push({ step, call, admission, reply, state });
  }

  #told(bucket: Bucket, token: string): ToldGrant {
    const lease = bucket.leases.get(token);
    if (lease === undefined) throw new Error('an unnamed grant without a lease');
    return { ticket: lease.ticket.id, lane: lease.ticket.lane, lease: token, expiresAt: lease.expiresAt };
  }
}

function metersOf(bucket: Bucket, now: number): object[] {
  return meterNames.flatMap((name) => {
    const meter = bucket.meters.get(name);
    if (meter === undefined || meter.limit <= 0) return [];
    const { limit, windowMs } = meter;
    const level = Math.max(0, meter.level - Math.max(0, now - meter.at) * (limit / windowMs));
    return [{ meter: name, limit, level, windowMs }];
  });
}

/** Of a store that began earlier, or of one that was further ahead. */
const madeUpOrder = (step: AdmitStep, now: number): number =>
  step.urgency * 2 ** 48 + (step.count % 2 === 0 ? 12_345 : Math.floor(now) * 64 + 1_000_000) + step.ticket;

const timed = (lesson: Learned, now: number): TimedLesson => ({
  feedback: lesson.feedback,
  sentAt: now - lesson.sentAgoMs,
  headAt: now - lesson.headAgoMs,
});
