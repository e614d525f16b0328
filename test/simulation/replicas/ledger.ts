/**
 * What the clients asked, the server carried out and the upstream saw, and the judgement of each step (2, 3, 4, 5, 8, 9, 10, 11): what only
 * time shows is judged in `watch.ts`, the balance at the end in `balance.ts`. Of a replica that is stopped, cut off or was not understood
 * nothing is asked but that it does no harm.
 */
import type { Reckoned } from '../../../src/call.ts';
import { leaseToken, ticketId, type TicketId } from '../../../src/ids.ts';
import type { BucketEvent } from '../../../src/limiter/policy/bucket-state.policy.ts';
import { wayMs } from '../described.ts';
import {
  capOf,
  entrySettingsOf,
  found,
  highest,
  isStatedAlone,
  keyed,
  misleads,
  perMinuteOf,
  Rules,
  statedOf,
  type Regime,
} from '../rules.ts';
import { Stated } from '../stated.ts';
import { sendableUntil } from '../driver.ts';
import type { BucketPlan, CallPlan, MeterPlan, Plan, WorkspacePlan } from '../plan.ts';
import { refusedCallOf, type RefusedCall } from '../refused-call.ts';
import { Fairness } from './fairness.ts';
import { Levels } from './levels.ts';
import { Reservations } from './reservations.ts';
import type { Replica } from './replica.ts';
import type { ServerWatch } from './server.ts';
import type { Asked, Done, StoredBucket } from './log-copies.ts';

export type Call = ReturnType<typeof planned>;

/** A call before it comes, and what becomes of it. */
const planned = (plan: CallPlan, workspace: WorkspacePlan) => ({
  plan,
  workspace,
  state: 'new' as 'new' | 'entering' | 'waiting' | 'sent' | 'ended',
  enteredAt: plan.at,
  /** How long it took until it stood in its lane or was granted. Milliseconds. */
  enteredMs: 0,
  executed: 0,
  reservation: undefined as TicketId | undefined,
  /** Where it is; `null` before it came, or when no replica was there. */
  replica: null as Replica | null,
  order: Infinity,
  /** When the store took its ticket in, or refused it; -1 = it has not come there. */
  admittedAt: -1,
  /** As the how many-th of all calls it came. */
  arrival: 0,
  /** When it last came to stand in its line. */
  inLineSince: -1,
  /** Calls of its lane that left while this one, which stands before them, was waiting: wrong if it leaves later. */
  overtakenBy: [] as string[],
  /** When Redis heard last that it is back in its line, and knew no lease of it. */
  backAt: -Infinity,
  /** Until when its responses close the bucket, from when its replica said so first. */
  closesUntil: -Infinity,
  wasGranted: false,
  sends: 0,
  sentAt: [] as number[],
  ends: [] as string[],
  /** -1 = it has not ended. */
  endedAt: -1,
  isRefusedAtEntry: false,
  /** Of a call that limits did not hold: what was said of it with its response, and in the end. */
  would: null as Reckoned | null,
  reckoned: null as Reckoned | null,
});

export type Lease = ReturnType<typeof issued>;

/** @param skipped earlier calls of the lane that Redis did not know, though their replicas had had the time to tell it */
const issued = (token: string, call: Call, issuedAt: number, skipped: readonly Call[], life: number) => ({
  token,
  call,
  issuedAt,
  skipped,
  life,
  sent: false,
  /** As the store has heard them, and as admission has asked for them. */
  settlements: 0,
  ends: 0,
  returned: false,
  /** It was sent by a replica that knew no ceiling of its workspace: nobody tells the bucket that it took a slot. */
  isUncharged: false,
});

interface Running {
  readonly call: Call;
  readonly send: number;
  readonly at: number;
}

interface Closing {
  readonly at: number;
  /** As its life of the log has it: from when the log was told. */
  readonly until: number;
  /** As its replica knows it, whatever the log loses: from when that said so, which the log may have heard a while later. */
  readonly knownUntil: number;
  readonly by: string;
  readonly life: number;
}

/** Times that were added up are not exact. Milliseconds. */
const roundingMs = 1e-3;
/** A call whose client left may take so long to notice it: what is on its way comes first. Milliseconds. */
const maxGoodbyeMs = 30;
/** After a loss all replicas enter their tickets and their sends again within this time, milliseconds. */
export const settlingMs = 1_300;

export interface LedgerWorld {
  monotonic(): number;
  modelOf(bucket: string): StoredBucket;
  onBusy(ms: number, done: () => void): void;
  onHeard(bucket: string, now: number): void;
  /** When all replicas had a way to Redis after this time. */
  allBackAfter(at: number): number;
}

/** What a history tells of itself: the log of its steps, the states it has reached, the invariants it has broken. */
export class ReplicaLedger implements ServerWatch {
  readonly violations: string[] = [];
  readonly reached = new Map<string, number>();
  readonly log: string[] = [];
  /** Without a log only what was broken is known, not how: for runs over many seeds. */
  readonly keepsLog: boolean;
  readonly plan: Plan;
  readonly rules: Rules;
  /** Nothing breaks in this history, and nothing gets lost. */
  readonly isFaultless: boolean;
  readonly calls = new Map<string, Call>();
  readonly leases = new Map<string, Lease>();
  readonly closings = new Map<string, Closing[]>();
  readonly losses: number[] = [];
  /** Leases that a replica suspects of overlapping, by reason. */
  readonly suspicions: string[] = [];
  overlaps = 0;
  readonly refusedCalls: RefusedCall[] = [];
  readonly stated = new Map<string, Stated>();
  readonly issuedAt = new Map<string, number>();
  readonly takes = new Map<string, number>();
  /** Until when the last of the positions is kept that clients of refused calls were told of, by bucket. */
  readonly keptUntil = new Map<string, number>();
  /** When anything but a grant last changed what a bucket holds. */
  readonly changedAt = new Map<string, number>();
  /** Until when a response sent the lanes of a workspace to sleep, by workspace and bucket. */
  readonly asleepUntil = new Map<string, number>();
  readonly sentAt = new Map<string, number>();
  /** One process: nothing gets lost, so that each step has one right moment. */
  readonly isAlone: boolean;
  #arrivals = 0;
  readonly #running = new Map<string, Set<Running>>();
  readonly #overlapped = new Set<Running>();
  readonly #blurred = new Set<string>();
  readonly #fairness: Fairness;
  readonly #levels: Levels;
  readonly #reservations: Reservations;
  readonly #world: LedgerWorld;

  constructor(plan: Plan, world: LedgerWorld, keepsLog: boolean) {
    this.keepsLog = keepsLog;
    this.plan = plan;
    this.rules = new Rules(plan);
    this.isFaultless = isFaultless(plan);
    for (const { key } of plan.buckets) this.stated.set(key, new Stated());
    this.#world = world;
    this.#fairness = new Fairness(plan, (now) => this.regimes(now));
    this.#levels = new Levels(plan, this);
    this.#reservations = new Reservations(plan, this);
    for (const call of plan.calls) this.#plan(call);
    this.isAlone = plan.isAlone === true;
  }

  get now(): number {
    return this.#world.monotonic();
  }

  note(text: string): void {
    if (this.keepsLog) this.log.push(`${this.now.toFixed(2)} ${text}`);
  }

  reach(state: string): void {
    this.reached.set(state, (this.reached.get(state) ?? 0) + 1);
  }

  broken(invariant: string, text: string): void {
    this.violations.push(`${invariant} at ${this.now.toFixed(2)}: ${text}`);
    this.note(`BROKEN ${invariant} ${text}`);
  }

  arrived(call: Call, replica: Replica): void {
    call.replica = replica;
    call.arrival = ++this.#arrivals;
  }

  keeps({ lane: { bucket } }: CallPlan, until: number): void {
    this.keptUntil.set(bucket, Math.max(until, this.keptUntil.get(bucket) ?? 0));
  }

  returns(plan: CallPlan, ticket: TicketId): void {
    this.#plan(plan).reservation = ticket;
    this.reach('came back');
  }

  #plan(plan: CallPlan): Call {
    const { workspace: name } = plan.lane;
    const workspace = this.plan.workspaces.find((each) => each.name === name);
    const call = planned(plan, found(workspace, name));
    this.calls.set(plan.id, call);
    return call;
  }

  /**
   * What some replica goes by, or went by so shortly before that its effects may last. A reload that a replica could not report,
   * because it had no way to Redis, has no effect there before the replica is back.
   */
  regimes(now: number): readonly Regime[] {
    const since = now - this.effectMs;
    const changedAt = this.isFaultless ? null : this.rules.lastChangeAt(now);
    const isReported = changedAt === null || this.#world.allBackAfter(changedAt) <= since;
    return this.rules.during(isReported ? since : Math.min(since, changedAt - 1), now);
  }

  /** Requests that the operator states of a bucket, or stated a moment ago. */
  statedOf(key: string, now: number): readonly (MeterPlan | null)[] {
    return statedOf(this.regimes(now), key);
  }

  /** To be called often, so that what is stated drains at the limits of the time. */
  checkStated(now: number): void {
    for (const [key, stated] of this.stated) stated.check(this.statedOf(key, now), now);
  }

  isInUse(bucket: string): boolean {
    return [...this.calls.values()].some(
      ({ plan, state }) => plan.lane.bucket === bucket && state !== 'new' && state !== 'ended',
    );
  }

  isBlurred(bucket: string): boolean {
    return this.#blurred.has(bucket);
  }

  /** How long a configuration may have effects when all replicas have taken the next one over. Milliseconds. */
  get effectMs(): number {
    if (this.isAlone) return 0;
    return this.isFaultless ? 50 + 12 * this.plan.network.meanMs : 1_000;
  }

  /** A command may be carried out when all that came after it was carried out: what it says of limits holds again. */
  get mayBeOutdated(): boolean {
    const { late, repeated, disorder } = this.plan.network;
    return late + repeated > 0 || disorder;
  }

  reconfigured(replica: string): void {
    this.reach('reconfigured');
    if ([...this.calls.values()].some(({ state }) => state === 'waiting'))
      this.reach('reconfigured while calls wait');
    this.#fairness.forgetAll();
    if (this.isAlone) this.#levels.forgetTurns();
    else this.#levels.forgetAll();
    this.checkStated(this.now);
    this.note(`${replica} reconfigured`);
  }

  call(id: string): Call {
    return found(this.calls.get(id), id);
  }

  /** By so much the clock of another primary may be ahead. Milliseconds. */
  get #skewMs(): number {
    const skews = this.plan.faults.map((fault) => ('skewMs' in fault ? Math.abs(fault.skewMs) : 0));
    return skews.reduce((sum, skewMs) => sum + skewMs, 0) * 2;
  }

  get lastLossAt(): number {
    return this.losses.at(-1) ?? -Infinity;
  }

  applied({ event, reply }: Done, model: StoredBucket, asked: Asked): void {
    const { now } = this;
    if (event?.kind === 'admit' || event?.kind === 'reconfigure') this.#world.onHeard(model.key, now);
    if (event?.kind === 'admit' && reply !== null && isCall(event.admission.ticket))
      this.#admitted(model, event, reply, now);
    if (event?.kind === 'settle' && reply?.kind === 'lease') {
      if (reply.known) this.#settled(model, asked, event, now);
      else {
        const call = this.leases.get(event.lease)?.call;
        if (call !== undefined) call.backAt = now;
        this.reach('lease expired');
      }
    }
    if (event !== null && /^(?:settle|learn|reconfigure)$/.test(event.kind))
      this.changedAt.set(model.key, now);
    if (event?.kind === 'slot_taken' && event.edge === null) this.reach('left the edge of the ceiling');
    if (event?.kind === 'slot_taken' && event.edge?.slots === 0)
      this.reach('last place under the ceiling taken');
    if (model.bucket === null) return;
    if (this.keepsLog && event !== null) this.#noteEvent(event, model, asked);
    this.#fairness.check(model, now);
    for (const [at, { ticket, lease }] of model.effects.grants.entries()) {
      if (!isCall(ticket)) continue;
      this.#issued(model, ticket, lease, now);
      const unfair = this.#fairness.granted(model, at, this.call(ticket).plan.costs, now);
      if (unfair !== null) this.broken('5', unfair);
    }
    const isSure = this.regimes(now).length === 1;
    const keepsPositions = model.bucket.reservations.size > 0;
    // Whoever came back went out of turn.
    if (keepsPositions) this.#fairness.forgetAll();
    // The clock of the process goes on evenly.
    if (event === null)
      this.#levels.judge(model, this.isAlone ? now : asked.clock, isSure && !keepsPositions);
    this.#reservations.judge(model, asked.clock);
  }

  /**
   * A shorter life of the log gives way to a longer copy. What responses closed in it is closed again when their replicas have reported
   * it, for which the others wait. A replica that is idle and misses all messages hears of it too late.
   */
  replaced(bucket: string): void {
    this.#levels.forgetAll();
    this.#reservations.forgetAll();
    if (this.plan.network.lostMessages > 0) this.closings.delete(bucket);
  }

  #noteEvent(event: BucketEvent, model: StoredBucket, asked: Asked): void {
    const { nextAt } = model.effects;
    const next = nextAt === null ? '' : `, next in ${(nextAt - model.seen).toFixed(1)}`;
    const name = 'lease' in event ? event.lease : 'ticket' in event ? event.ticket : '';
    const what = event.kind === 'admit' ? event.admission.ticket : name;
    const kind = event.kind === 'settle' ? event.settlement.kind : '';
    this.note(`redis ${model.key} ${event.kind} ${asked.replica} ${what} ${kind}${next}`);
  }

  #admitted(
    model: StoredBucket,
    { admission }: Extract<BucketEvent, { kind: 'admit' }>,
    reply: object,
    now: number,
  ): void {
    const id = admission.ticket;
    const call = this.call(id);
    const order: unknown = Reflect.get(reply, 'order');
    if (typeof order !== 'number') {
      call.admittedAt = now;
      call.isRefusedAtEntry = true;
      if (model.bucket?.tickets.has(id) === true) this.broken('11', `${id} was refused, and waits`);
      return;
    }
    if (call.admittedAt >= 0 && admission.position.kind === 'kept') this.reach('entered again');
    call.order = order;
    call.admittedAt = now;
    call.inLineSince = now;
    this.#levels.admitted(model.key, id);
    // Whoever has left the line for a ceiling that turned out to be full is back in addition.
    const arriving = [...(model.bucket?.tickets.values() ?? [])].filter(
      (ticket) =>
        ticket.lane === call.plan.lane.key &&
        ticket.lease === null &&
        this.calls.get(ticket.id)?.wasGranted === false,
    ).length;
    const settings = this.regimes(now).map((regime) => entrySettingsOf(regime, call.plan.lane.key));
    if (this.isFaultless && arriving > Math.max(...settings.map(({ maxQueued }) => maxQueued)))
      this.broken('10', `${arriving} tickets in the line of ${call.plan.lane.key}`);
  }

  #settled(
    model: StoredBucket,
    asked: Asked,
    { lease: token, settlement }: Extract<BucketEvent, { kind: 'settle' }>,
    now: number,
  ): void {
    const lease = this.leases.get(token);
    if (lease === undefined) return;
    if (lease.settlements > 0) this.reach('told again');
    lease.settlements += 1;
    lease.returned = settlement.kind === 'dropped' || settlement.kind === 'returned';
    if (lease.returned) this.#levels.notSent(model.key, token);
    if (settlement.kind === 'returned' || (settlement.kind === 'throttled' && settlement.requeue)) {
      this.#levels.back(model.key, lease.call.plan.id);
      lease.call.inLineSince = now;
    }
    const { workspace, bucket } = lease.call.plan.lane;
    const isBackoff = settlement.kind === 'returned' && settlement.because === 'backoff';
    if (isBackoff || settlement.kind === 'throttled') {
      const key = `${workspace} ${bucket}`;
      this.asleepUntil.set(key, Math.max(now + settlement.sleepMs, this.asleepUntil.get(key) ?? 0));
    }
    const closes = settlement.kind === 'throttled' && settlement.closeMs > 0;
    if (lease.returned || closes) this.stated.get(model.key)?.back(lease.call.plan.costs.requests ?? 0);
    if (lease.call.replica !== null && lease.call.replica.id !== asked.replica)
      this.broken('3', `${lease.token} was settled by another replica`);
    if (settlement.kind === 'throttled' && settlement.closeMs > 0) {
      this.reach('bucket closed');
      const closings = this.closings.get(model.key) ?? [];
      const until = now + settlement.closeMs;
      const knownUntil = Math.min(until, lease.call.closesUntil);
      closings.push({ at: now, until, knownUntil, by: asked.replica, life: this.losses.length });
      this.closings.set(model.key, closings);
    }
  }

  #issued(model: StoredBucket, ticket: string, token: string, now: number): void {
    const call = this.call(ticket);
    const skipped = [...this.calls.values()].filter(
      (other) =>
        other.plan.lane === call.plan.lane &&
        other.plan.caller === call.plan.caller &&
        other.order < call.order &&
        other.state === 'waiting' &&
        other.admittedAt < now &&
        other.backAt < now - settlingMs &&
        model.bucket?.tickets.has(ticketId(other.plan.id)) !== true &&
        other.replica !== null &&
        other.replica.undisturbedSince(now) <= Math.min(now - settlingMs, this.lastLossAt - 50),
    );
    const closed = this.closings.get(model.key)?.find(({ at, until, life }) => {
      return life === this.losses.length && at < now && now < until - this.#skewMs;
    });
    if (closed !== undefined) this.broken('2', `${ticket} granted while ${model.key} is closed`);
    this.issuedAt.set(model.key, now);
    this.#withinStated(model.key, ticket, now);
    if (this.isAlone) {
      if (this.leases.has(token)) this.broken('8', `lease ${token} issued twice`);
      const first = this.#before(call).find((other) => other.admittedAt < now && this.#isInLine(other));
      if (first !== undefined) this.broken('4', `${ticket} granted before ${first.plan.id}`);
    }
    call.wasGranted = true;
    if (call.state === 'entering') this.reach('grant before its caller waited');
    if (call.state === 'ended' || now >= call.plan.leavesAt) this.reach('client left with a grant under way');
    if (model.bucket?.opened === false && model.bucket.leases.size > 1) this.reach('probes doubled');
    if (model.bucket?.pilot !== null) this.reach('a pilot before a crowd');
    this.leases.set(token, issued(token, call, now, skipped, this.losses.length));
    this.note(`issue ${ticket} ${token}`);
  }

  /** No more goes than the operator states, where nothing else is known of the bucket (14). */
  #withinStated(key: string, ticket: string, now: number): void {
    const known = keyed(this.plan.buckets, key);
    const { requests = 0 } = this.call(ticket).plan.costs;
    const excess = this.stated.get(key)?.take(requests, this.statedOf(key, now), now) ?? 0;
    // Where responses state the level, a unit may come back that has not drained.
    const margin = isStatedAlone(known) ? 0 : 1;
    const holds = isStatedAlone(known) || !known.learn;
    if (!holds || excess <= margin || this.losses.length > 0 || this.mayBeOutdated) return;
    this.broken('14', `${ticket} is ${excess.toFixed(2)} beyond what is stated of ${key}`);
  }

  slotTaken(key: string, id: string): void {
    this.takes.set(key, (this.takes.get(key) ?? 0) + 1);
    this.note(`place ${key} ${id}`);
  }

  slotReturned(key: string, id: string): void {
    this.reach('place given back');
    this.takes.set(key, (this.takes.get(key) ?? 0) - 1);
    this.note(`place back ${key} ${id}`);
  }

  lost(what: string): void {
    this.losses.push(this.now);
    this.#fairness.forgetAll();
    this.#levels.forgetAll();
    this.#reservations.forgetAll();
    this.note(`LOST ${what}`);
  }

  sent(id: string, token: string): void {
    const { now } = this;
    const call = this.call(id);
    const { plan, workspace, replica } = call;
    const known = this.leases.get(token);
    // Without Redis a replica numbers its leases on from the positions that Redis gave.
    const isLocal =
      known === undefined || (replica?.mode === 'local' && (known.sent || known.settlements > 0));
    const lease = isLocal ? undefined : known;
    this.note(`send ${id} ${token}${lease === undefined ? ' (local)' : ''} from ${replica?.name ?? '?'}`);
    if (call.state === 'sent') this.broken('8', `${id} is sent twice at once`);
    call.state = 'sent';
    call.sends += 1;
    call.sentAt.push(now);
    this.sentAt.set(`${replica?.id ?? ''} ${plan.lane.bucket}`, now);
    const turnedAt = (at: number): number => replica?.turnedAt(at) ?? at;
    if (now >= plan.leavesAt && now > turnedAt(plan.leavesAt)) this.broken('9', `${id}: client gone`);
    if (now >= workspace.revokedAt && now > turnedAt(workspace.revokedAt))
      this.broken('9', `${id}: key revoked`);
    if (now > sendableUntil(call)) this.broken('9', `${id}: its wait has passed`);
    if (lease === undefined) {
      this.reach('sent without Redis');
      if (this.plan.whenDown === 'deny') this.broken('1', `${id} sent without Redis, which is denied`);
      return;
    }
    if (lease.call !== call) this.broken('8', `${id} sent with the lease of ${lease.call.plan.id}`);
    if (lease.sent) this.broken('8', `${token} used twice`);
    lease.sent = true;
    if (replica !== null) {
      const regime = this.rules.of(replica.name);
      lease.isUncharged = perMinuteOf(workspace.name)(regime) === null;
    }
    if (
      lease.life === this.losses.length &&
      this.#world.modelOf(plan.lane.bucket).bucket?.leases.has(leaseToken(token)) !== true
    )
      this.broken('3', `${id} sent with a lease that had run out`);
    if (this.isAlone) this.#sentInOrder(lease, now);
    for (const { at, by, life, ...closing } of this.closings.get(plan.lane.bucket) ?? []) {
      const isLost = life !== lease.life;
      if (isLost && by !== replica?.id) continue;
      const until = isLost ? closing.knownUntil : closing.until;
      if (at < lease.issuedAt && lease.issuedAt < until - this.#skewMs && now < until)
        this.broken('2', `${id} sent into a closed bucket`);
    }
    for (const other of lease.skipped)
      if (other.state === 'waiting') this.broken('4', `${id} overtook ${other.plan.id}`);
  }

  /** Of a process alone: nothing is open, and whoever stands before this call leaves before it. */
  #sentInOrder({ call, issuedAt }: Lease, now: number): void {
    const { id, lane } = call.plan;
    if ((this.closings.get(lane.bucket) ?? []).some(({ at, until }) => at < now && now + roundingMs < until))
      this.broken('2', `${id} sent into a closed bucket`);
    for (const other of this.#before(call)) {
      const isGranted = [...this.leases.values()].some(
        (each) => each.call === other && each.issuedAt <= issuedAt && !each.sent && each.settlements === 0,
      );
      if (isGranted || (this.#isInLine(other) && other.inLineSince < issuedAt)) other.overtakenBy.push(id);
    }
    if (call.overtakenBy.length > 0)
      this.broken('4', `${id} was overtaken by ${call.overtakenBy.join(', ')}`);
    call.overtakenBy.length = 0;
  }

  /** Calls of its lane and caller that wait and go first: by urgency, then arrival. */
  #before({ plan, arrival }: Call): Call[] {
    return [...this.calls.values()].filter(
      (other) =>
        (other.state === 'waiting' || other.state === 'entering') &&
        other.plan.lane === plan.lane &&
        other.plan.caller === plan.caller &&
        (other.plan.urgency - plan.urgency || other.arrival - arrival) < 0,
    );
  }

  #isInLine({ plan }: Call): boolean {
    return this.#world.modelOf(plan.lane.bucket).bucket?.tickets.get(ticketId(plan.id))?.lease === null;
  }

  counted({ plan }: Call, busyMs: number): void {
    const { key, workspace, bucket } = plan.lane;
    const call = this.call(plan.id);
    this.#reservations.ran(plan.id);
    // Its background has no places of its own.
    const capped = `${workspace} ${bucket}`;
    const running = this.#running.get(capped) ?? new Set<Running>();
    this.#running.set(capped, running);
    const one = { call, send: call.sends, at: this.now };
    running.add(one);
    this.#world.onBusy(busyMs, () => running.delete(one));
    // A safe call that was given up lets its lane go on at once: running it twice does no harm.
    const busy = [...running].filter(
      (each) => !each.call.plan.safe || (each.call.state === 'sent' && each.call.sends === each.send),
    );
    // What was let go under an earlier, higher limit still runs.
    const since = Math.min(...busy.map(({ at }) => at)) - this.effectMs - wayMs;
    const maxInFlight = highest(this.rules.during(since, this.now), capOf(key));
    if (maxInFlight === null || busy.length <= maxInFlight) return;
    // One lease that was used too late overlaps with all that come while its call runs.
    if (!busy.some((each) => this.#overlapped.has(each))) this.overlaps += 1;
    for (const each of busy) this.#overlapped.add(each);
    this.reach('overlap');
    this.note(`OVERLAP ${busy.length} of ${maxInFlight} in ${key}`);
    if (this.#mayNotOverlap())
      this.broken('3', `${plan.id} overlaps: ${busy.length} of ${maxInFlight} in ${key}`);
  }

  ends(token: string): void {
    const lease = this.leases.get(token);
    if (lease !== undefined) lease.ends += 1;
    if (this.isAlone && lease?.ends !== 1)
      this.broken('8', `lease ${token} settled ${lease?.ends ?? 'unknown'} times`);
  }

  suspected(reason: string): void {
    this.suspicions.push(reason);
    this.reach(`suspicion ${reason}`);
    this.note(`suspicion ${reason}`);
  }

  /** Neither stopped for long at the wrong moment nor without Redis: then there is no excuse at all. */
  #mayNotOverlap(): boolean {
    const { frozenWrites, faults, whenDown } = this.plan;
    const stopped = faults.some((fault) => fault.kind === 'pause' && fault.ms > 5_000);
    return frozenWrites === 0 && !stopped && (whenDown === 'deny' || !this.reached.has('sent without Redis'));
  }

  blur(bucket: string): void {
    this.#blurred.add(bucket);
  }

  isExact({ key, calm }: BucketPlan): boolean {
    if (misleads(this.plan, key)) return false;
    return calm && !this.#blurred.has(key) && this.isFaultless && this.plan.network.meanMs <= 1;
  }

  refused(id: string, code: string, retryInMs: number): void {
    const refusal = { id, code, retryInMs, at: this.now };
    this.refusedCalls.push(refusedCallOf([...this.calls.values()], refusal, 12 * this.plan.network.meanMs));
  }

  closes(id: string, closeMs: number): void {
    const call = this.call(id);
    call.closesUntil = Math.max(call.closesUntil, this.now + closeMs);
  }

  ended(id: string, how: string): void {
    const { now } = this;
    const call = this.call(id);
    call.ends.push(how);
    call.endedAt = now;
    call.state = 'ended';
    this.note(`end ${id} ${how}`);
    if (call.ends.length > 1) this.broken('10', `${id} ended ${call.ends.join(', then ')}`);
    const { leavesAt } = call.plan;
    if (!this.isAlone || leavesAt === Infinity) return;
    const lateMs = now - Math.max(call.enteredAt, call.replica?.turnedAt(leavesAt) ?? leavesAt);
    if (lateMs > maxGoodbyeMs)
      this.broken('9', `${id} went on for ${lateMs.toFixed(1)} ms without its client`);
  }

  killed(call: Call): void {
    if (call.state !== 'ended') this.ended(call.plan.id, 'killed');
  }
}

/** Usage without Redis is reported as a ticket that is no call. */
const isCall = (ticket: string | undefined): boolean => ticket?.startsWith('seed.') !== true;

function isFaultless({ faults, network, frozenWrites, isAlone }: Plan): boolean {
  if (isAlone === true) return true;
  const { lostRequests, lostReplies, late, repeated, lostMessages, disorder } = network;
  const lost = lostRequests + lostReplies + late + repeated + lostMessages;
  return faults.length === 0 && frozenWrites === 0 && !disorder && lost === 0;
}
