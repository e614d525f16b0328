/**
 * The ledger of a history: what the driver did and what the store was asked, kept apart from the code under test, and
 * the safety checks that can be made the moment something happens.
 *
 * Owns: the judgement of single steps (invariants 1 to 5, 8 to 10). Does not own: progress (`progress.ts`) and the
 * balance at the end (`balance.ts`).
 */
import type { Costs, MeterName } from '../../src/call.ts';
import type { Settlement } from '../../src/limiter/limiter.ts';
import { pilotCrowd, pilotMs, silenceMs } from '../../src/limiter/policy/in-flight.policy.ts';
import { sendableUntil, type DriverLedger } from './driver.ts';
import type { BucketPlan, CallPlan, LanePlan, MeterPlan, Plan, WorkspacePlan } from './plan.ts';
import {
  capOf,
  entrySettingsOf,
  highest,
  isBackground,
  isStatedAlone,
  keyed,
  lowest,
  misleads,
  perDayOf,
  perMinuteOf,
  Rules,
  statedOf,
  type Regime,
} from './rules.ts';
import { BackgroundMinute, CallerTurns, type Served as ServedCaller } from './levels.ts';
import { Stated } from './stated.ts';
import { Story } from './story.ts';
import { refusedCallOf, type RefusedCall } from './refused-call.ts';

export interface CallRecord {
  readonly plan: CallPlan;
  readonly workspace: WorkspacePlan;
  /** What it asks for, of which the store took no more than the limits that it knew then. */
  asked: Costs;
  /** Which of the processes it came to, and as the how many-th of all calls. */
  home: number;
  arrival: number;
  admittedAt: number;
  isRefusedAtEntry: boolean;
  inLineSince: number;
  state: 'new' | 'entering' | 'waiting' | 'sent' | 'ended';
  enteredAt: number;
  enteredMs: number;
  sends: number;
  readonly sentAt: number[];
  executed: number;
  ends: string[];
  /** -1 = it has not ended. */
  endedAt: number;
  /** Calls of its lane that left while this one, which stands before them, was waiting: wrong if it leaves later. */
  readonly overtakenBy: string[];
}

export interface LeaseRecord {
  readonly call: CallRecord;
  readonly issuedAt: number;
  /** How many grants the store had issued before. */
  readonly sequence: number;
  sent: boolean;
  /** When a call of the bucket had been sent before this one was. */
  othersSentAt: number;
  /** The upstream has counted it. */
  counted: boolean;
  /** Ended as never sent. */
  returned: boolean;
  settlements: number;
  settledAt: number;
  /** Of a background call: since when its bucket had granted none before it. */
  backgroundSince: number | null;
  /** Until then it counts for its lane; `Infinity` while held. */
  heldUntil: number;
}

export interface LaneRecord {
  readonly plan: LanePlan;
  /** Tickets in the line of the store. */
  readonly line: Set<CallRecord>;
  readonly leases: Set<LeaseRecord>;
  /** A response sent it to sleep, whatever its ceiling allows. */
  backoffUntil: number;
  /** Its ceiling had no slot until then, under the limits with this tag. */
  full: { readonly until: number; readonly ceilingTag: string } | null;
  /** When a call of it that was not sent last gave its slot back; what was refused before says nothing any more. */
  slotBackAt: number;
  backloggedSince: number;
  /** What its latest grant took of its share. */
  lastServiceMs: number;
  /** Since when each of its callers waits. */
  readonly callers: Map<string, number>;
  readonly turns: CallerTurns;
}

/** What the store believes of a meter when it grants. */
export interface Rate {
  readonly meter: MeterName;
  readonly limit: number;
  readonly windowMs: number;
}

/** Turns taken, and the largest of them; the one before counts too, the lane may stand behind it yet. */
interface Served {
  readonly since: number;
  units: number;
  largest: number;
}

export interface BucketRecord {
  readonly key: string;
  readonly closings: { readonly at: number; readonly until: number }[];
  closedUntil: number;
  lastIssueAt: number;
  lastSentAt: number;
  /** A crowd waits for the response to a call that went first after a silence, at most until then. */
  pilotUntil: number;
  lastLessonAt: number;
  readonly lanes: LaneRecord[];
  /** Turns per lane pair since both have been waiting: `[first/second]` counts the first lane's. */
  readonly served: Map<string, Served>;
  opened: boolean;
  /** A call was given up before it had arrived: its units are neither on their way nor counted. */
  blurred: boolean;
  /** It was sent a call that it refuses for other reasons than its quota, or whose response gets lost. */
  isTroubled: boolean;
  readonly stated: Stated;
  readonly minute: BackgroundMinute;
}

export interface CeilingRecord {
  readonly plan: WorkspacePlan;
  /** Slots that may count yet: as the store names them, and when they were taken. */
  taken: { readonly slot: number; readonly at: number }[];
  takes: number;
  givenBack: number;
  daily: number;
}

export class Ledger extends Story implements DriverLedger {
  readonly plan: Plan;
  readonly rules: Rules;
  readonly calls = new Map<string, CallRecord>();
  readonly leases = new Map<string, LeaseRecord>();
  readonly lanes = new Map<string, LaneRecord>();
  readonly buckets = new Map<string, BucketRecord>();
  readonly ceilings = new Map<string, CeilingRecord>();
  readonly refusedCalls: RefusedCall[] = [];
  #arrivals = 0;
  /** Calls that have not ended, those included that have not come. */
  #open = 0;
  /** What is wrong unless the same instant brings more: an arriving call's own grant is reported after those of others. */
  #doubts: (() => void)[] = [];

  constructor(plan: Plan, keepsLog: boolean) {
    super(keepsLog);
    this.plan = plan;
    this.rules = new Rules(plan);
    for (const workspace of plan.workspaces) {
      const record = { plan: workspace, taken: [], takes: 0, givenBack: 0, daily: 0 };
      this.ceilings.set(workspace.name, record);
    }
    for (const { key, probe } of plan.buckets) {
      this.buckets.set(key, {
        key,
        closings: [],
        closedUntil: 0,
        lastIssueAt: 0,
        lastSentAt: 0,
        pilotUntil: 0,
        lastLessonAt: 0,
        lanes: [],
        served: new Map(),
        opened: probe === 0,
        blurred: false,
        isTroubled: false,
        stated: new Stated(),
        minute: new BackgroundMinute(),
      });
    }
    for (const lane of plan.lanes) {
      const record: LaneRecord = {
        plan: lane,
        line: new Set(),
        leases: new Set(),
        backoffUntil: 0,
        full: null,
        slotBackAt: -Infinity,
        backloggedSince: Infinity,
        lastServiceMs: 0,
        callers: new Map(),
        turns: new CallerTurns(),
      };
      this.lanes.set(lane.key, record);
      this.bucket(lane.bucket).lanes.push(record);
    }
    for (const call of plan.calls) {
      const workspace = plan.workspaces.find(({ name }) => name === call.lane.workspace);
      if (workspace === undefined) continue;
      const fresh = {
        home: 0,
        arrival: 0,
        admittedAt: -1,
        isRefusedAtEntry: false,
        inLineSince: -1,
        state: 'new',
        enteredAt: call.at,
        enteredMs: 0,
        sends: 0,
        executed: 0,
      } as const;
      this.calls.set(call.id, {
        ...fresh,
        plan: call,
        asked: call.costs,
        workspace,
        sentAt: [],
        ends: [],
        endedAt: -1,
        overtakenBy: [],
      });
    }
    this.#open = this.calls.size;
  }

  /** Every call has ended. */
  get isOver(): boolean {
    return this.#open === 0;
  }

  /** Called when an instant is over. */
  judgeDoubts(now: number): void {
    for (const bucket of this.buckets.values()) bucket.stated.check(this.statedOf(bucket, now), now);
    if (this.#doubts.length > 0) for (const judge of this.#doubts.splice(0)) judge();
  }

  counted(token: string): void {
    must(this.leases.get(token), token).counted = true;
  }

  suspected(): void {
    // One process alone: nothing can overlap.
  }

  /** The limiter hears that it is over before the upstream has even counted it: its figures are blurred for a moment. */
  blur(bucket: string): void {
    this.bucket(bucket).blurred = true;
  }

  isExact(bucket: BucketPlan): boolean {
    const { wireMs, stalls } = this.plan;
    const { key, calm } = bucket;
    if (misleads(this.plan, key)) return false;
    return calm && !this.bucket(key).blurred && (wireMs === 0 || (wireMs <= 1 && stalls.length === 0));
  }

  call(id: string): CallRecord {
    return must(this.calls.get(id), id);
  }

  /** Calls of the bucket have come and not ended. */
  isInUse(bucket: string): boolean {
    return [...this.calls.values()].some(
      ({ plan, state }) => plan.lane.bucket === bucket && state !== 'new' && state !== 'ended',
    );
  }

  lane(key: string): LaneRecord {
    return must(this.lanes.get(key), key);
  }

  bucket(key: string): BucketRecord {
    return must(this.buckets.get(key), key);
  }

  ceiling(key: string): CeilingRecord {
    return must(this.ceilings.get(key), key);
  }

  /** What some process goes by, or went by so shortly before that its effects may last. */
  regimes(now: number): readonly Regime[] {
    return this.rules.during(now - effectWays * this.plan.wireMs, now);
  }

  /** Requests that the operator states of a bucket, or stated a moment ago. */
  statedOf({ key }: BucketRecord, now: number): readonly (MeterPlan | null)[] {
    return statedOf(this.regimes(now), key);
  }

  /** Until when a lane sleeps. What its ceiling was before a reload does not hold it any more. */
  asleepUntil({ plan, backoffUntil, full }: LaneRecord, now: number): number {
    if (full === null || full.until <= backoffUntil) return backoffUntil;
    const holds = this.regimes(now).some(
      (regime) => entrySettingsOf(regime, plan.key).ceilingTag === full.ceilingTag,
    );
    return holds ? full.until : backoffUntil;
  }

  /** A process goes by another configuration. */
  reconfigured(now: number): void {
    this.reach('reconfigured');
    for (const bucket of this.buckets.values()) bucket.lastLessonAt = now;
    const waiting = [...this.lanes.values()].some(({ line }) => line.size > 0);
    if (waiting) this.reach('reconfigured while calls wait');
    this.note(now, 'reconfigured');
  }

  /** A call comes to one of the processes: its place in its lane is decided here. */
  arrived(id: string, home: number): void {
    const call = this.call(id);
    call.home = home;
    call.arrival = ++this.#arrivals;
  }

  /** Set by whoever has the upstreams: a call of the bucket comes to the store with what configuration says. */
  onAdmission: (bucket: string, now: number) => void = () => {};

  /** The store takes in a ticket. */
  admitted(id: string, rates: readonly Rate[], now: number): void {
    const call = this.call(id);
    this.onAdmission(call.plan.lane.bucket, now);
    call.asked = within(call.plan.costs, rates);
    call.admittedAt = now;
    const { lanes, minute } = this.bucket(call.plan.lane.bucket);
    const isFirst = !lanes.some(({ plan, line }) => isBackground(plan) && line.size > 0);
    if (isFirst && isBackground(call.plan.lane)) minute.begins(now);
    this.intoLine(call, now);
  }

  /** The store has not let it in, and its process will hear of it. */
  refusedAtEntry(id: string): void {
    const call = this.call(id);
    call.isRefusedAtEntry = true;
    this.outOfLine(call);
  }

  /** The store has let it in: the line is bounded, but a call that is sent again is never turned away. */
  accepted(id: string, now: number): void {
    const { plan } = this.call(id);
    const arriving = [...this.lane(plan.lane.key).line].filter(({ sends }) => sends === 0).length;
    const settings = this.regimes(now).map((regime) => entrySettingsOf(regime, plan.lane.key));
    if (arriving > Math.max(...settings.map(({ maxQueued }) => maxQueued)))
      this.broken(now, '10', `${arriving} tickets in the line of ${plan.lane.key}`);
  }

  intoLine(call: CallRecord, now: number): void {
    const lane = this.lane(call.plan.lane.key);
    if (lane.line.size === 0) lane.backloggedSince = now;
    lane.line.add(call);
    call.inLineSince = now;
    const caller = callerOf(call);
    if (!lane.callers.has(caller)) lane.callers.set(caller, now);
  }

  outOfLine(call: CallRecord): void {
    const lane = this.lane(call.plan.lane.key);
    lane.line.delete(call);
    if (lane.line.size === 0) lane.backloggedSince = Infinity;
    const caller = callerOf(call);
    if (![...lane.line].some((other) => callerOf(other) === caller)) lane.callers.delete(caller);
  }

  /** The lane, and the other one of its workspace in the bucket: what one has in flight counts for both. */
  lanesOfWorkspace({ plan }: LaneRecord): readonly LaneRecord[] {
    return this.bucket(plan.bucket).lanes.filter((other) => other.plan.workspace === plan.workspace);
  }

  /** The store grants a ticket. */
  issued(id: string, token: string, rates: readonly Rate[], now: number): void {
    const call = this.call(id);
    const lane = this.lane(call.plan.lane.key);
    const bucket = this.bucket(call.plan.lane.bucket);
    if (this.leases.has(token)) this.broken(now, '8', `lease ${token} issued twice`);
    if (!lane.line.has(call)) this.broken(now, '8', `${id} granted while it does not wait`);
    if (now + roundingMs < bucket.closedUntil)
      this.broken(now, '2', `${id} granted while ${bucket.key} is closed`);
    const cap = highest(this.regimes(now), capOf(lane.plan.key));
    if (call.state === 'entering') this.reach('grant before its caller waited');
    if (call.state === 'ended' || now >= call.plan.leavesAt) this.reach('client left with a grant under way');
    let held = 0;
    for (const { leases } of this.lanesOfWorkspace(lane))
      for (const { heldUntil } of leases) if (heldUntil > now) held += 1;
    for (const lease of lane.leases) {
      if (lease.heldUntil < now && lease.heldUntil > lease.settledAt) this.reach('lease expired');
      // Nobody asks for it any more.
      else if (lease.heldUntil < now && lease.counted) lane.leases.delete(lease);
    }
    this.#noteProbes(bucket, now);
    if (cap !== null && held >= cap) this.broken(now, '3', `${id} granted, ${held} of ${cap} in flight`);
    for (const other of lane.line) {
      if (other.admittedAt >= now || !isBefore(other, call)) continue;
      this.broken(now, '4', `${id} granted before ${other.plan.id}`);
      break;
    }
    const serviceMs = serviceMsOf(call.asked, rates);
    this.#fair(bucket, lane, serviceMs, now);
    this.#fairToCallers(lane, { caller: callerOf(call), serviceMs }, now);
    this.#behindOthers(bucket, call, now);
    this.#withinStated(bucket, call, now);
    this.outOfLine(call);
    const lease = {
      call,
      issuedAt: now,
      sequence: this.leases.size,
      sent: false,
      othersSentAt: bucket.lastSentAt,
      returned: false,
      counted: false,
      settlements: 0,
      settledAt: 0,
      backgroundSince: isBackground(lane.plan) ? bucket.minute.granted(now) : null,
      heldUntil: Infinity,
    };
    this.leases.set(token, lease);
    lane.leases.add(lease);
    bucket.lastIssueAt = now;
    this.#notePilot(bucket, now);
    this.note(now, `issue ${id} ${token}`);
  }

  /** A grant counts as given when it was made, a call as sent when it was: a second lies between them at most. */
  #notePilot(bucket: BucketRecord, now: number): void {
    const waiting = bucket.lanes.reduce((sum, { line }) => sum + line.size, 0);
    if (now - bucket.lastSentAt < silenceMs - 1_000 || waiting < pilotCrowd) return;
    bucket.pilotUntil = now + pilotMs;
    this.reach('a pilot before a crowd');
  }

  /** More calls out than the configured probes, before any response. */
  #noteProbes(bucket: BucketRecord, now: number): void {
    if (bucket.opened) return;
    const probe = this.plan.buckets.find(({ key }) => key === bucket.key)?.probe ?? 0;
    const out = bucket.lanes.flatMap(({ leases }) => [...leases]).filter(({ heldUntil }) => heldUntil > now);
    if (out.length >= probe) this.reach('probes doubled');
  }

  /** Start-time fair queueing: while two lanes wait, their shares differ by at most the largest call of each. */
  #fair(bucket: BucketRecord, lane: LaneRecord, busyMs: number, now: number): void {
    const [regime, ...others] = this.regimes(now);
    const serviceMs = busyMs / (regime === undefined ? 1 : keyed(regime.lanes, lane.plan.key).weight);
    const before = lane.lastServiceMs;
    lane.lastServiceMs = serviceMs;
    if (others.length > 0) return;
    const changedAt = (this.rules.lastChangeAt(now) ?? -Infinity) + effectWays * this.plan.wireMs;
    for (const other of bucket.lanes) {
      if (other === lane || !this.comparable(lane) || !this.comparable(other)) continue;
      if (isBackground(lane.plan) !== isBackground(other.plan)) continue;
      // Calls that come now were not there when the turn was taken: one that finds a bucket whose wake-up was lost lets others go.
      if (![...other.line].some(({ inLineSince }) => inLineSince < now)) other.backloggedSince = now;
      const since = Math.max(
        lane.backloggedSince,
        other.backloggedSince,
        this.asleepUntil(lane, now),
        this.asleepUntil(other, now),
        changedAt,
      );
      const mine = pairOf(bucket, lane, other, since, before);
      const theirs = pairOf(bucket, other, lane, since, other.lastServiceMs);
      if (since >= now) continue;
      mine.units += serviceMs;
      mine.largest = Math.max(mine.largest, serviceMs);
      const lead = (): number => mine.units - theirs.units;
      const isAhead = (): boolean => lead() > mine.largest + theirs.largest + 1e-6;
      if (!isAhead()) continue;
      this.#doubts.push(() => {
        if (!isAhead()) return;
        this.broken(now, '5', `${lane.plan.key} is ${lead().toFixed(2)} ahead of ${other.plan.key}`);
      });
    }
  }

  /** The same between the callers of a lane, whatever holds the lane back. */
  #fairToCallers(lane: LaneRecord, served: ServedCaller, now: number): void {
    if (lane.callers.size < 2 || !this.#keepsTurns(lane) || this.regimes(now).length > 1)
      return lane.turns.forget();
    const from = (this.rules.lastChangeAt(now) ?? -Infinity) + effectWays * this.plan.wireMs;
    const unfair = lane.turns.granted(served, lane.callers, { from, now });
    this.reach('callers take turns');
    if (unfair !== null) this.broken(now, '5', `${lane.plan.key}: ${unfair}`);
  }

  /** No background call goes before another one of the bucket, nor any other before a background call that is due. */
  #behindOthers({ lanes, minute }: BucketRecord, { plan: { id, lane: own } }: CallRecord, now: number): void {
    const isLast = isBackground(own);
    const isAnyBehind = lanes.some(({ plan, line }) => isBackground(plan) && line.size > 0);
    if (!isLast && isAnyBehind) this.reach('a background call waits while another goes');
    if (isLast && !minute.isBehind(now)) this.reach('a background call is due');
    if (isLast ? !minute.isBehind(now) : !minute.isDue(now)) return;
    if (this.regimes(now).length > 1) return;
    for (const other of lanes) {
      if (isBackground(other.plan) === isLast || !this.comparable(other)) continue;
      if (this.asleepUntil(other, now) >= now) continue;
      const first = [...other.line].find((call) => call.admittedAt < now && call.inLineSince < now);
      if (first !== undefined)
        this.broken(now, '5', `${id} granted before ${first.plan.id} of ${other.plan.key}`);
    }
  }

  /** Only lanes that nothing but the bucket holds back can be compared, and where a turn stays what it was. */
  comparable(lane: LaneRecord): boolean {
    const { workspace } = lane.plan;
    const regimes = [this.plan, ...this.plan.reloads];
    const isFree = [perMinuteOf(workspace), perDayOf(workspace)].every((limit) =>
      regimes.every((regime) => limit(regime) === null),
    );
    return (
      regimes.every((regime) => capOf(lane.plan.key)(regime) === null) &&
      isFree &&
      this.#keepsTurns(lane) &&
      lane.line.size > 0
    );
  }

  /** A turn stays what it was. */
  #keepsTurns({ plan }: LaneRecord): boolean {
    const { cost, reports } = keyed(this.plan.buckets, plan.bucket);
    return cost === null && reports !== 'fields';
  }

  /** No more goes than the operator states, where nothing else is known of the bucket. */
  #withinStated(bucket: BucketRecord, { plan, asked }: CallRecord, now: number): void {
    const excess = bucket.stated.take(asked.requests ?? 0, this.statedOf(bucket, now), now);
    const known = keyed(this.plan.buckets, bucket.key);
    // Where responses tell the level, a unit may come back that has not drained.
    const margin = isStatedAlone(known) ? 0 : 1;
    if ((known.learn && !isStatedAlone(known)) || excess <= margin) return;
    this.broken(now, '14', `${plan.id} is ${excess.toFixed(2)} beyond what is stated of ${bucket.key}`);
  }

  /** A settlement reaches the store. */
  settled(token: string, settlement: Settlement, answered: boolean, now: number): void {
    const lease = this.leases.get(token);
    if (lease === undefined) return this.broken(now, '8', `unknown lease ${token} settled`);
    lease.settlements += 1;
    lease.settledAt = now;
    this.bucket(lease.call.plan.lane.bucket).lastLessonAt = now;
    if (lease.settlements > 1) this.broken(now, '8', `lease ${token} settled twice`);
    const lane = this.lane(lease.call.plan.lane.key);
    const bucket = this.bucket(lane.plan.bucket);
    const capped = lowest(this.regimes(now), capOf(lane.plan.key)) !== null;
    lease.heldUntil = settlement.kind === 'unknown' && capped ? now + this.plan.leaseMs : now;
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      bucket.closedUntil = Math.max(bucket.closedUntil, now + settlement.closeMs);
      bucket.closings.push({ at: now, until: now + settlement.closeMs });
    }
    if (settlement.kind === 'succeeded' || answered) bucket.opened = true;
    const closes = settlement.kind === 'throttled' && settlement.closeMs > 0;
    const { requests = 0 } = lease.call.asked;
    if (closes || settlement.kind === 'dropped' || settlement.kind === 'returned')
      bucket.stated.back(requests);
    if (settlement.kind === 'dropped' || settlement.kind === 'returned') {
      lease.returned = true;
      // What was stopped before it was written has not been sent: a silence of the bucket goes on.
      if (!lease.counted && bucket.lastSentAt === lease.call.sentAt.at(-1))
        bucket.lastSentAt = lease.othersSentAt;
      forgetPairs(bucket, lane);
      if (lease.backgroundSince !== null) bucket.minute.notSent(lease.backgroundSince);
    }
    const sleepMs =
      settlement.kind === 'throttled' || settlement.kind === 'returned' ? settlement.sleepMs : 0;
    const isFull = settlement.kind === 'returned' && settlement.because !== 'backoff';
    if (lease.returned && !isFull) {
      lane.full = null;
      lane.slotBackAt = now;
    }
    const isOutdated = lease.issuedAt < lane.slotBackAt;
    if (sleepMs > 0 && isFull && !isOutdated) this.isFull(lane, now + sleepMs, settlement.ceilingTag ?? '');
    else if (sleepMs > 0 && !isFull)
      for (const each of this.lanesOfWorkspace(lane))
        each.backoffUntil = Math.max(each.backoffUntil, now + sleepMs);
    const back = settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue);
    if (back) {
      lane.turns.forget();
      this.intoLine(lease.call, now);
    }
    this.note(now, `settle ${token} ${settlement.kind}${back ? ' back' : ''}`);
  }

  /** The ceiling has no slot until then, under the limits with this tag. */
  isFull(lane: LaneRecord, until: number, ceilingTag: string): void {
    const known = lane.full?.ceilingTag === ceilingTag ? lane.full.until : 0;
    lane.full = { until: Math.max(known, until), ceilingTag };
  }

  /** The driver sends. `token` is the lease it holds. */
  sent(id: string, token: string, now: number): void {
    const call = this.call(id);
    const { plan, workspace } = call;
    const lease = must(this.leases.get(token), token);
    if (lease.sent) this.broken(now, '8', `${token} used twice`);
    lease.sent = true;
    call.sends += 1;
    call.sentAt.push(now);
    const bucket = this.bucket(plan.lane.bucket);
    lease.othersSentAt = bucket.lastSentAt;
    bucket.lastSentAt = now;
    if (plan.fate !== 'answered') bucket.isTroubled = true;
    call.state = 'sent';
    this.note(now, `send ${id} ${token}`);
    if (now >= plan.leavesAt && now > this.lastRunAt(plan.leavesAt))
      this.broken(now, '9', `${id}: client gone`);
    if (now >= workspace.revokedAt && now > this.lastRunAt(workspace.revokedAt)) {
      this.broken(now, '9', `${id}: key revoked`);
    }
    if (now > sendableUntil(call)) this.broken(now, '9', `${id}: its wait has passed`);
    const lane = this.lane(plan.lane.key);
    for (const { at, until } of bucket.closings) {
      const known = this.plan.wireMs > 0 ? lease.issuedAt : now;
      if (at < known && known + roundingMs < until) this.broken(now, '2', `${id} sent into a closed bucket`);
    }
    for (const other of this.calls.values()) {
      if (other.state !== 'waiting' && other.state !== 'entering') continue;
      if (other.plan.lane !== lane.plan || !isBefore(other, call)) continue;
      const held = [...lane.leases].find(
        (each) =>
          each.call === other && each.sequence < lease.sequence && !each.sent && each.settlements === 0,
      );
      // Two replicas with a grant each send in either order.
      if (held !== undefined && this.plan.queues > 1) continue;
      const stoodInLine = lane.line.has(other) && other.inLineSince < lease.issuedAt;
      if (held === undefined && !stoodInLine) continue;
      other.overtakenBy.push(`${id} at ${now}`);
    }
    if (call.overtakenBy.length > 0)
      this.broken(now, '4', `${id} was overtaken by ${call.overtakenBy.join(', ')}`);
    call.overtakenBy.length = 0;
  }

  /** When the process first turned after something happened outside: it cannot know earlier. */
  readonly lastRunAt = (at: number): number => {
    const stall = this.plan.stalls.find((each) => each.at <= at && at <= each.at + each.ms);
    return stall === undefined ? at : stall.at + stall.ms;
  };

  refused(id: string, code: string, retryInMs: number, now: number): void {
    const shortlyMs = 12 * this.plan.wireMs;
    this.refusedCalls.push(
      refusedCallOf([...this.calls.values()], { id, code, retryInMs, at: now }, shortlyMs),
    );
  }

  ended(id: string, how: string, now: number): void {
    const call = this.call(id);
    call.ends.push(how);
    call.endedAt = now;
    if (call.state !== 'ended') this.#open -= 1;
    call.state = 'ended';
    if (call.ends.length > 1) this.broken(now, '10', `${id} ended ${call.ends.join(', then ')}`);
    this.note(now, `end ${id} ${how}`);
    const { leavesAt } = call.plan;
    const lateMs = now - Math.max(call.enteredAt, this.lastRunAt(leavesAt));
    const stalledMs = this.plan.stalls.reduce((sum, { ms }) => sum + ms, 0);
    if (leavesAt < Infinity && lateMs > 30 + 12 * this.plan.wireMs + stalledMs) {
      this.broken(now, '9', `${id} went on for ${lateMs.toFixed(1)} ms without its client`);
    }
  }
}

/** Ways of commands to the store until what was asked before a reload has no effect any more. */
const effectWays = 12;

/** Calls that come to two processes within this time have no order. Milliseconds. */
const sameMomentMs = 1;
/** Times of day that were added up are not exact. */
const roundingMs = 1e-3;

const callerOf = ({ plan: { caller = '' } }: CallRecord): string => caller;

/** Of one caller: by urgency, then arrival. Callers of a lane take turns. */
export function isBefore(one: CallRecord, other: CallRecord): boolean {
  if (one.plan.caller !== other.plan.caller) return false;
  if (one.plan.urgency !== other.plan.urgency) return one.plan.urgency < other.plan.urgency;
  if (one.home === other.home) return one.arrival < other.arrival;
  return one.enteredAt + sameMomentMs <= other.enteredAt;
}

function within(costs: Costs, rates: readonly Rate[]): Costs {
  const known: Partial<Record<MeterName, number>> = { ...costs };
  for (const { meter, limit } of rates) known[meter] = Math.min(limit, unitsOf(costs, meter));
  return known;
}

function pairOf(
  bucket: BucketRecord,
  lane: LaneRecord,
  other: LaneRecord,
  since: number,
  before: number,
): Served {
  const key = `${lane.plan.key}/${other.plan.key}`;
  let pair = bucket.served.get(key);
  if (pair === undefined || pair.since !== since) {
    pair = { since, units: 0, largest: before };
    bucket.served.set(key, pair);
  }
  return pair;
}

/** How long the costs keep the slowest of these meters busy: a day is no rate. Where no limit is known all calls are equal. */
export function serviceMsOf(costs: Costs, rates: readonly Rate[]): number {
  const busy = rates
    .filter(({ meter }) => meter !== 'requests_day' && meter !== 'tokens_day')
    .map(({ meter, limit, windowMs }) => windowMs * Math.min(1, unitsOf(costs, meter) / limit));
  return Math.max(0, ...busy) || 1;
}

/** Each window of requests counts what a call counts as a request. */
const unitsOf = (costs: Costs, meter: MeterName): number =>
  costs[meter] ?? (meter === 'requests_burst' || meter === 'requests_hour' ? (costs.requests ?? 0) : 0);

export function must<T>(value: T | undefined, what: string): T {
  if (value === undefined) throw new Error(`the history does not know ${what}`);
  return value;
}

function forgetPairs(bucket: BucketRecord, lane: LaneRecord): void {
  for (const other of bucket.lanes) {
    bucket.served.delete(`${lane.plan.key}/${other.plan.key}`);
    bucket.served.delete(`${other.plan.key}/${lane.plan.key}`);
  }
}
