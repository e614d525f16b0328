/**
 * Random histories of a log, entry by entry: the steps of `bucket-history.ts` in up to three buckets at once, by several replicas, and
 * what only a log has: entries at the time that an entry named, replicas that fall silent, lost entries, and terms in which the replicas
 * say what they have under way.
 */
import {
  backgroundLane,
  bucketKey,
  callerKey,
  ceilingKey,
  laneKey,
  leaseToken,
  replicaId,
  ticketId,
  type BucketKey,
  type LaneKey,
  type TicketId,
} from '../../../src/ids.ts';
import type { Entry } from '../../../src/log/log.ts';
import { createState, fold } from '../../../src/limiter/over-log/fold.ts';
import type { LogEvent, SentCall, SharedGrant, SharedState } from '../../../src/limiter/over-log/state.ts';
import {
  type BucketEvent,
  type StoredAdmission,
  timed,
} from '../../../src/limiter/policy/bucket-state.policy.ts';
import { Draw, historyOf, randomFrom, type AdmitStep, type Step } from '../bucket-history.ts';

export const leaseMs = 15_000;

/** The same seed and origin give the same entries, as long as the fold does the same. */
export const entriesOf = (seed: number, originMs: number): readonly Entry<LogEvent>[] =>
  new History(seed, originMs).run();

class History {
  readonly #seed: number;
  readonly #draw: Draw;
  readonly #entries: Entry<LogEvent>[] = [];
  #state: SharedState = createState(leaseMs);
  readonly #admissions = new Map<string, StoredAdmission>();
  /** Newest first, also of lost entries. */
  readonly #grants: SharedGrant[] = [];
  readonly #batches = new Map<string, number>();
  #at: number;
  #term = 1;
  #nextAt: number | null = null;

  constructor(seed: number, originMs: number) {
    this.#seed = seed;
    this.#at = originMs;
    this.#draw = new Draw(randomFrom(seed * 7_919));
  }

  run(): readonly Entry<LogEvent>[] {
    const buckets = ['b1', 'b2', 'b3'].slice(0, this.#draw.one(1, 2, 3)).map(bucketKey);
    const steps = buckets.map((_bucket, n) => historyOf(this.#seed + 1_000 * n));
    while (steps.some((left) => left.length > 0)) {
      const n = this.#draw.whole(0, buckets.length - 1);
      const bucket = buckets[n];
      const [first] = steps[n] ?? [];
      if (bucket === undefined || first === undefined) continue;
      const events: LogEvent[] = [];
      this.#pass(Math.max(0, first.afterMs), first.replica);
      for (let step = steps[n]?.shift(); step !== undefined; step = steps[n]?.shift()) {
        if (step.kind === 'loss') this.#lose();
        else
          for (let time = step.twice ? 2 : 1; time > 0; time -= 1)
            events.push(...this.#eventsOf(step, bucket));
        if (steps[n]?.[0]?.joins !== true) break;
      }
      this.#append(first.replica, events);
    }
    return this.#entries;
  }

  /** Time goes on; somebody mostly writes when something is due. */
  #pass(ms: number, replica: string): void {
    const until = this.#at + ms;
    for (let ticks = 0; ticks < 20 && this.#nextAt !== null && this.#nextAt <= until; ticks += 1) {
      if (this.#draw.chance(0.2)) break;
      this.#at = Math.max(this.#at + (this.#nextAt <= this.#at ? 0.5 : 0), this.#nextAt);
      this.#append(this.#draw.chance(0.7) ? replica : 'r1', [{ kind: 'tick' }]);
    }
    this.#at = Math.max(this.#at, until);
  }

  #append(replica: string, events: readonly LogEvent[]): void {
    const batch = (this.#batches.get(replica) ?? 0) + 1;
    this.#batches.set(replica, batch);
    const sequence = this.#entries.length + 1;
    const entry = { sequence, term: this.#term, at: this.#at, replica: replicaId(replica), batch, events };
    this.#entries.push(entry);
    const { grants, nextAt } = fold(this.#state, entry);
    this.#grants.unshift(...grants);
    this.#nextAt = nextAt;
  }

  /** The last entries are lost, or nothing; then most replicas say what they have under way. */
  #lose(): void {
    const lost = this.#draw.one(0, 0, 1, 3, 8);
    this.#entries.splice(Math.max(0, this.#entries.length - lost), lost);
    this.#state = createState(leaseMs);
    for (const entry of this.#entries) this.#nextAt = fold(this.#state, entry).nextAt;
    this.#term += 1;
    for (const replica of ['r1', 'r2', 'r3']) {
      if (this.#draw.chance(0.3)) continue;
      this.#pass(this.#draw.one(0, 5, 400, 1_400), replica);
      this.#append(replica, [this.#reportOf(replica), { kind: 'here', term: this.#term }]);
    }
  }

  #reportOf(replica: string): LogEvent {
    const own = this.#grants.filter((grant) => grant.replica === replica);
    const gone = own.filter(
      ({ bucket, lease }) => this.#state.buckets.get(bucket)?.leases.has(lease) !== true,
    );
    const some = gone.slice(0, this.#draw.whole(0, 4));
    const held = some.flatMap((grant) => this.#heldBy(grant) ?? []);
    const closedMs = this.#draw.one(0, 0, 900);
    const used = held
      .slice(2)
      .map(({ bucket, admission: { setting, costs } }) => ({ bucket, setting, costs, closedMs }));
    return { kind: 'report', sent: held.slice(0, 2), used };
  }

  #heldBy({ bucket, ticket, lease }: SharedGrant): SentCall | null {
    const known = this.#admissions.get(`${bucket} ${ticket}`);
    if (known === undefined) return null;
    const order = known.urgency * 2 ** 48 + Math.floor(Math.max(0, this.#at - 100) * 64);
    return { bucket, lease, admission: { ...known, position: { kind: 'kept', order } } };
  }

  #eventsOf(step: Step, bucket: BucketKey): LogEvent[] {
    if (step.kind === 'admit')
      return Array.from({ length: step.count }, (_, n) => this.#admit(step, n, bucket));
    if (step.kind === 'tick') return [{ kind: 'tick' }];
    const event = this.#eventOf(step, bucket);
    return event === null ? [] : [{ kind: 'in', bucket, event }];
  }

  #eventOf(step: Step, bucket: BucketKey): Exclude<BucketEvent, { kind: 'admit' }> | null {
    const lease = 'lease' in step ? this.#lease(step.lease, bucket) : leaseToken('none');
    switch (step.kind) {
      case 'settle': {
        const lesson = step.lesson === null ? null : timed(step.lesson, this.#at);
        return { kind: 'settle', lease, settlement: step.settlement, lesson };
      }
      case 'learn':
        return { kind: 'learn', lease, lesson: timed(step.lesson, this.#at) };
      case 'slot_taken':
        return { kind: 'slot_taken', lease, edge: step.edge };
      case 'reconfigure': {
        const lanes = step.lanes.map((lane) => ({ ...lane, lane: laneKey(`l${lane.lane}`) }));
        return { kind: 'reconfigure', setting: step.setting, lanes };
      }
      case 'wake':
        return { kind: 'wake', lane: laneKey(`l${step.lane}`) };
      case 'open':
        return { kind: 'open', agoMs: step.agoMs };
      case 'cancel':
        return { kind: 'cancel', ticket: this.#waiting(step.ticket, bucket) };
      case 'admit':
      case 'tick':
      case 'forecast':
      case 'loss':
        return null;
    }
  }

  #admit(step: AdmitStep, n: number, bucket: BucketKey): LogEvent {
    const ticket = ticketId(`t${step.ticket + n}`);
    const own = laneKey(step.spread ? `m${step.lane}-${n}` : `l${step.lane}`);
    const lane = step.background ? backgroundLane(own) : own;
    const order = this.#state.buckets.get(bucket)?.tickets.get(ticket)?.order;
    const position =
      step.again && order !== undefined
        ? ({ kind: 'kept', order } as const)
        : ({ kind: 'arrival', at: this.#at - (step.arrivedAgoMs ?? 0) } as const);
    const reservation = this.#reservation(lane, bucket);
    const admission: StoredAdmission = {
      ...step.asked,
      ticket,
      lane,
      position,
      ...(step.caller === null ? {} : { caller: callerKey(`c_${step.caller}`) }),
      ...(reservation === null ? {} : { reservation }),
    };
    if (this.#draw.chance(0.15)) return { kind: 'in', bucket, event: this.#reserve(admission) };
    this.#admissions.set(`${bucket} ${ticket}`, admission);
    return { kind: 'admit', bucket, admission };
  }

  /** Instead of entering, the call is refused and keeps its position. */
  #reserve(admission: StoredAdmission): Extract<BucketEvent, { kind: 'reserve' }> {
    const reserving = {
      ceiling: ceilingKey(this.#draw.one('c1', 'c2')),
      waitMs: this.#draw.one(0, 0, 700, 20_000),
      lastsMs: this.#draw.one(500, 10_000),
      maxReserved: this.#draw.one(3, 1_000, 1_000),
      begins: this.#draw.chance(0.9),
    };
    return { kind: 'reserve', admission, reserving };
  }

  /** Mostly one of the lane, seldom that of another one; `null` = the call is new. */
  #reservation(lane: LaneKey, bucket: BucketKey): TicketId | null {
    const kept = [...(this.#state.buckets.get(bucket)?.reservations.values() ?? [])];
    if (kept.length === 0 || !this.#draw.chance(0.3)) return null;
    const own = kept.find((each) => each.lane === lane && each.ticket === null);
    return (this.#draw.chance(0.1) ? kept[0]?.id : own?.id) ?? null;
  }

  /** Of the live leases, then of those that were. */
  #lease(n: number, bucket: BucketKey): SentCall['lease'] {
    const live = [...(this.#state.buckets.get(bucket)?.leases.keys() ?? [])].toReversed();
    const past = this.#grants.filter((grant) => grant.bucket === bucket).map(({ lease }) => lease);
    return [...live, ...past][n] ?? leaseToken('none');
  }

  #waiting(n: number, bucket: BucketKey): TicketId {
    const tickets = [...(this.#state.buckets.get(bucket)?.tickets.values() ?? [])];
    return tickets.filter(({ lease }) => lease === null)[n]?.id ?? ticketId('none');
  }
}
