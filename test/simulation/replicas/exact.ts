/**
 * What can be judged of a process alone: nothing gets lost, so that each step has one right moment. Who waits, who holds a place and which
 * lanes sleep is kept here from what was asked of the store; no state of the product is in it.
 *
 * Owns: order (4), places in flight (3) and leases (8) at each grant and each send. Does not own: whether anybody should have been
 * granted (`progress.ts`).
 */
import type { LocalSlot } from '../../../src/limiter/ceiling-store.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import {
  pilotCrowd,
  pilotMs,
  silenceMs,
  type BucketEvent,
  type EventReply,
} from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { LanePlan } from '../plan.ts';
import { capOf, entrySettingsOf, highest, keyed, lowest, perDayOf } from '../rules.ts';
import type { Call, Lease, ReplicaLedger } from './ledger.ts';
import type { StoredBucket } from './stored-bucket.ts';

export interface LaneRecord {
  readonly plan: LanePlan;
  readonly line: Set<Call>;
  readonly leases: Set<Lease>;
  /** A response sent it to sleep, whatever its ceiling allows. */
  backoffUntil: number;
  /** Its ceiling had no slot until then, under the limits with this tag. */
  full: { readonly until: number; readonly ceilingTag: string } | null;
  /** When a call of it that was not sent last gave its slot back; what was refused before says nothing any more. */
  slotBackAt: number;
}

export interface BucketRecord {
  readonly key: string;
  readonly lanes: readonly LaneRecord[];
  closedUntil: number;
  lastIssueAt: number;
  lastSentAt: number;
  lastLessonAt: number;
  /** A crowd waits for the response to a call that went first after a silence, at most until then. */
  pilotUntil: number;
  opened: boolean;
  /** It was sent a call that it refuses for other reasons than its quota, or whose response gets lost. */
  isTroubled: boolean;
}

/** Slots that may count yet: as the store names them, and when they were taken. */
interface CeilingRecord {
  taken: { readonly slot: number; readonly at: number }[];
  daily: number;
}

/** Times of day that were added up are not exact. */
const roundingMs = 1e-3;
/** A slot of a ceiling frees after a minute and a margin for the time in the network. Milliseconds. */
const ceilingMs = 60_150;

export class Exact {
  readonly buckets: ReadonlyMap<string, BucketRecord>;
  readonly #lanes: ReadonlyMap<string, LaneRecord>;
  readonly #ceilings: ReadonlyMap<string, CeilingRecord>;
  readonly #ledger: ReplicaLedger;
  readonly #now: () => number;

  constructor(ledger: ReplicaLedger, now: () => number) {
    this.#ledger = ledger;
    this.#now = now;
    const { buckets, lanes, workspaces } = ledger.plan;
    const records = lanes.map((plan): LaneRecord => {
      const awake = { backoffUntil: 0, full: null, slotBackAt: -Infinity };
      return { plan, line: new Set(), leases: new Set(), ...awake };
    });
    this.#lanes = new Map(records.map((lane) => [lane.plan.key, lane]));
    this.#ceilings = new Map(workspaces.map(({ name }) => [name, { taken: [], daily: 0 }]));
    this.buckets = new Map(
      buckets.map(({ key, probe }) => [
        key,
        {
          key,
          lanes: records.filter(({ plan }) => plan.bucket === key),
          closedUntil: 0,
          lastIssueAt: 0,
          lastSentAt: 0,
          lastLessonAt: 0,
          pilotUntil: 0,
          opened: probe === 0,
          isTroubled: false,
        },
      ]),
    );
  }

  get lanes(): Iterable<LaneRecord> {
    return this.#lanes.values();
  }

  lane(key: string): LaneRecord {
    return known(this.#lanes.get(key), key);
  }

  bucket(key: string): BucketRecord {
    return known(this.buckets.get(key), key);
  }

  /** The lane, and the other one of its workspace in the bucket: what one has in flight counts for both. */
  lanesOfWorkspace({ plan }: LaneRecord): readonly LaneRecord[] {
    return this.bucket(plan.bucket).lanes.filter((other) => other.plan.workspace === plan.workspace);
  }

  /** Calls in flight of the workspace in the bucket. */
  held(lane: LaneRecord, now: number): number {
    let held = 0;
    for (const { leases } of this.lanesOfWorkspace(lane))
      for (const lease of leases) if (endOf(lease) >= now) held += 1;
    return held;
  }

  /** One more may be in flight when so many others go first. */
  isBelowCap(lane: LaneRecord, ahead: number, now: number): boolean {
    const cap = lowest(this.#ledger.regimes(now), capOf(lane.plan.key));
    return cap === null || this.held(lane, now) + ahead < cap;
  }

  /** Until when a lane sleeps. What its ceiling was before a reload does not hold it any more. */
  asleepUntil({ plan, backoffUntil, full }: LaneRecord, now: number): number {
    if (full === null || full.until <= backoffUntil) return backoffUntil;
    const holds = this.#ledger
      .regimes(now)
      .some((regime) => entrySettingsOf(regime, plan.key).ceilingTag === full.ceilingTag);
    return holds ? full.until : backoffUntil;
  }

  /** So many slots are free under the lane's ceiling. Grants in transit to it count as if they had taken theirs. */
  haveSlots({ plan: { key, workspace } }: LaneRecord, slots: number, now: number): boolean {
    const record = known(this.#ceilings.get(workspace), workspace);
    const regimes = this.#ledger.regimes(now);
    const perMinute = lowest(regimes, (regime) => entrySettingsOf(regime, key).perMinute);
    const perDay = lowest(regimes, (regime) => entrySettingsOf(regime, key).perDay);
    let used = slots - 1;
    for (const { plan, leases } of this.#lanes.values()) {
      if (plan.workspace !== workspace) continue;
      for (const lease of leases) if (!lease.sent && lease.settlements === 0) used += 1;
    }
    record.taken = record.taken.filter(({ at }) => at + ceilingMs > now);
    if (perDay !== null && record.daily + used >= perDay) return false;
    return perMinute === null || record.taken.length + used < perMinute;
  }

  // ---- what is asked of the store ----------------------------------------------------------------------------------

  applied(event: BucketEvent, reply: EventReply | null, { key }: StoredBucket): void {
    const bucket = this.bucket(key);
    switch (event.kind) {
      case 'admit': {
        const call = this.#ledger.call(event.admission.ticket);
        if (reply?.kind !== 'refused') this.#intoLine(call);
        return;
      }
      case 'cancel':
        return this.#outOfLine(this.#ledger.call(event.ticket));
      case 'settle':
        return this.#settled(bucket, event.lease, event.settlement, event.lesson !== null);
      case 'learn':
        bucket.opened = true;
        bucket.lastLessonAt = this.#now();
        return;
      case 'slot_taken': {
        const call = this.#ledger.leases.get(event.lease)?.call;
        const replica = call?.replica ?? null;
        if (event.edge === null) this.#ledger.reach('left the edge of the ceiling');
        if (call === undefined || replica === null || event.edge === null || event.edge.slots > 0) return;
        this.#ledger.reach('last place under the ceiling taken');
        const { ceilingTag } = entrySettingsOf(this.#ledger.rules.of(replica.name), call.plan.lane.key);
        this.#isFull(this.lane(call.plan.lane.key), this.#now() + event.edge.nextSlotMs, ceilingTag);
        return;
      }
      case 'reserve':
      case 'reconfigure':
      case 'wake':
      case 'open':
        return;
    }
  }

  /** The settlement as the queue asked for it: once for each lease. */
  ends(token: string): void {
    const lease = this.#ledger.leases.get(token);
    if (lease === undefined) return this.#broken('8', `unknown lease ${token} settled`);
    lease.ends += 1;
    if (lease.ends > 1) this.#broken('8', `lease ${token} settled twice`);
  }

  #settled(bucket: BucketRecord, token: string, settlement: Settlement, answered: boolean): void {
    const now = this.#now();
    bucket.lastLessonAt = now;
    const lease = this.#ledger.leases.get(token);
    if (lease === undefined) return;
    lease.settledAt = now;
    const lane = this.lane(lease.call.plan.lane.key);
    const isCapped = lowest(this.#ledger.regimes(now), capOf(lane.plan.key)) !== null;
    if (!isCapped) lease.heldUntil = null;
    const closeMs = settlement.kind === 'throttled' ? settlement.closeMs : 0;
    bucket.closedUntil = Math.max(bucket.closedUntil, now + closeMs);
    if (settlement.kind === 'succeeded' || answered) bucket.opened = true;
    // What was stopped before it was written has not been sent: a silence of the bucket goes on.
    if (lease.returned && !lease.counted && bucket.lastSentAt === lease.call.sentAt.at(-1))
      bucket.lastSentAt = lease.othersSentAt;
    const sleepMs =
      settlement.kind === 'throttled' || settlement.kind === 'returned' ? settlement.sleepMs : 0;
    const isFull = settlement.kind === 'returned' && settlement.because !== 'backoff';
    if (lease.returned && !isFull) {
      lane.full = null;
      lane.slotBackAt = now;
    }
    const isOutdated = lease.issuedAt < lane.slotBackAt;
    if (sleepMs > 0 && isFull && !isOutdated) this.#isFull(lane, now + sleepMs, settlement.ceilingTag ?? '');
    else if (sleepMs > 0 && !isFull)
      for (const each of this.lanesOfWorkspace(lane))
        each.backoffUntil = Math.max(each.backoffUntil, now + sleepMs);
    const isBack = settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);
    if (isBack) this.#intoLine(lease.call);
  }

  /** The store grants a ticket. */
  issued(lease: Lease): void {
    const { call } = lease;
    const now = this.#now();
    const { id, leavesAt } = call.plan;
    const lane = this.lane(call.plan.lane.key);
    const bucket = this.bucket(lane.plan.bucket);
    if (!lane.line.has(call)) this.#broken('8', `${id} granted while it does not wait`);
    if (call.state === 'entering') this.#ledger.reach('grant before its caller waited');
    if (call.state === 'ended' || now >= leavesAt) this.#ledger.reach('client left with a grant under way');
    for (const other of lane.leases) {
      const endsAt = endOf(other);
      if (endsAt < now && endsAt > other.settledAt) this.#ledger.reach('lease expired');
      // Nobody asks for it any more.
      else if (endsAt < now && other.counted) lane.leases.delete(other);
    }
    this.#noteProbes(bucket);
    const cap = highest(this.#ledger.regimes(now), capOf(lane.plan.key));
    const held = this.held(lane, now + roundingMs);
    if (cap !== null && held >= cap) this.#broken('3', `${id} granted, ${held} of ${cap} in flight`);
    const first = [...lane.line].find((other) => other.admittedAt < now && isBefore(other, call));
    if (first !== undefined) this.#broken('4', `${id} granted before ${first.plan.id}`);
    this.#outOfLine(call);
    lease.othersSentAt = bucket.lastSentAt;
    lane.leases.add(lease);
    bucket.lastIssueAt = now;
    this.#notePilot(bucket);
  }

  sent(lease: Lease): void {
    const now = this.#now();
    const { call } = lease;
    const lane = this.lane(call.plan.lane.key);
    const bucket = this.bucket(lane.plan.bucket);
    lease.othersSentAt = bucket.lastSentAt;
    bucket.lastSentAt = now;
    if (call.plan.fate !== 'answered') bucket.isTroubled = true;
    const closings = this.#ledger.closings.get(bucket.key) ?? [];
    if (closings.some(({ at, until }) => at < now && now + roundingMs < until))
      this.#broken('2', `${call.plan.id} sent into a closed bucket`);
    for (const other of this.#ledger.calls.values()) {
      if (other.state !== 'waiting' && other.state !== 'entering') continue;
      if (other.plan.lane !== lane.plan || !isBefore(other, call)) continue;
      const isGranted = [...lane.leases].some(
        (each) =>
          each.call === other && each.issuedAt <= lease.issuedAt && !each.sent && each.settlements === 0,
      );
      const stoodInLine = lane.line.has(other) && other.inLineSince < lease.issuedAt;
      if (isGranted || stoodInLine) other.overtakenBy.push(`${call.plan.id} at ${now}`);
    }
    if (call.overtakenBy.length > 0)
      this.#broken('4', `${call.plan.id} was overtaken by ${call.overtakenBy.join(', ')}`);
    call.overtakenBy.length = 0;
  }

  slotTaken(key: string, { minute, day }: LocalSlot, lateMs = 0): void {
    const record = known(this.#ceilings.get(key), key);
    if (minute !== null) record.taken.push({ slot: minute, at: this.#now() + lateMs });
    if (day === null) return;
    record.daily += 1;
    const perDay = highest(this.#ledger.regimes(this.#now()), perDayOf(key));
    if (perDay !== null && record.daily > perDay)
      this.#broken('1', `${key} takes ${record.daily} of ${perDay} a day`);
  }

  slotReturned(key: string, { minute, day }: LocalSlot): void {
    const record = known(this.#ceilings.get(key), key);
    if (day !== null) record.daily -= 1;
    const at = record.taken.findLastIndex(({ slot }) => slot === minute);
    if (at >= 0) record.taken.splice(at, 1);
  }

  reconfigured(): void {
    for (const bucket of this.buckets.values()) bucket.lastLessonAt = this.#now();
  }

  #broken(invariant: string, text: string): void {
    this.#ledger.broken(this.#now(), invariant, text);
  }

  #intoLine(call: Call): void {
    this.lane(call.plan.lane.key).line.add(call);
    call.inLineSince = this.#now();
  }

  #outOfLine(call: Call): void {
    this.lane(call.plan.lane.key).line.delete(call);
  }

  #isFull(lane: LaneRecord, until: number, ceilingTag: string): void {
    const before = lane.full?.ceilingTag === ceilingTag ? lane.full.until : 0;
    lane.full = { until: Math.max(before, until), ceilingTag };
  }

  /** A grant counts as given when it was made, a call as sent when it was: a second lies between them at most. */
  #notePilot(bucket: BucketRecord): void {
    const waiting = bucket.lanes.reduce((sum, { line }) => sum + line.size, 0);
    if (this.#now() - bucket.lastSentAt < silenceMs - 1_000 || waiting < pilotCrowd) return;
    bucket.pilotUntil = this.#now() + pilotMs;
    this.#ledger.reach('a pilot before a crowd');
  }

  /** More calls out than the configured probes, before any response. */
  #noteProbes({ key, lanes, opened }: BucketRecord): void {
    if (opened) return;
    const { probe } = keyed(this.#ledger.plan.buckets, key);
    const out = lanes.flatMap(({ leases }) => [...leases]).filter((lease) => endOf(lease) > this.#now());
    if (out.length >= probe) this.#ledger.reach('probes doubled');
  }
}

/** Until when it counts for its lane. */
export const endOf = ({ settlements, settledAt, heldUntil }: Lease): number =>
  settlements === 0 ? Infinity : (heldUntil ?? settledAt);

/** Of one caller: by urgency, then arrival. Callers of a lane take turns. */
export function isBefore(one: Call, other: Call): boolean {
  if (one.plan.caller !== other.plan.caller) return false;
  if (one.plan.urgency !== other.plan.urgency) return one.plan.urgency < other.plan.urgency;
  return one.arrival < other.arrival;
}

export function known<T>(value: T | undefined, what: string): T {
  if (value === undefined) throw new Error(`the history does not know ${what}`);
  return value;
}
