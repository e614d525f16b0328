/** One history: the product's own stores and queues in simulated processes, over a simulated Redis, network and faults. Equal seeds give equal histories. */
import type { TicketId } from '../../../src/ids.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { Chance } from '../chance.ts';
import { maxCourseMs } from '../counterfactual.ts';
import { drive, reserveMs } from '../driver.ts';
import type { CallPlan, Fault, Plan } from '../plan.ts';
import { describedOf, entrySettingsOf, found, keyed } from '../rules.ts';
import { Upstream } from '../upstream.ts';
import { balance, idleTimers } from './balance.ts';
import { ReplicaLedger, type Call, type LedgerWorld } from './ledger.ts';
import { Replica, type World } from './replica.ts';
import { Server, type Channels } from './server.ts';
import { checkEveryMs, Watch } from './watch.ts';

/** A client that is refused again comes back so many times. */
const maxReturns = 3;
/** So that calls end within the history. Virtual milliseconds. */
const lastReturnMs = 200_000;
/** Nobody waits longer than this, faults and responses included. Virtual milliseconds. */
const maxMs = 500_000;
const recheckMs = 5_000;
/** The share of a limit that the gateway may keep free for other users of the quota. */
const keptFree = 0.1;
/** Another course is looked at so often. Milliseconds. */
const courseEveryMs = 500;
/** A reload reaches every bucket that its replica has used lately, and the meters are read afterwards. Milliseconds. */
const reloadMs = 2_500;

export type History = Awaited<ReturnType<typeof run>>;

export const run = (plan: Plan, keepsLog = false) => new Run(plan, keepsLog).toEnd();

export const follow = (plan: Plan, id: string, course: Course) => new Run(plan, false).follow(id, course);

interface Course {
  readonly after: number;
  /** `null`: as long as it takes. */
  readonly until: number | null;
}

class Run {
  readonly #plan: Plan;
  readonly #chance: Chance;
  readonly #clock: FakeClock;
  readonly #ledger: ReplicaLedger;
  readonly #server: Server;
  readonly #upstreams: ReadonlyMap<string, Upstream>;
  readonly #slots: Replica[] = [];
  readonly #all: Replica[] = [];
  #downs = 0;
  #absent = 0;
  #reloadedAt = -Infinity;

  constructor(plan: Plan, keepsLog: boolean) {
    this.#plan = plan;
    this.#chance = new Chance(plan.seed ^ 0x51ce);
    const clock = new FakeClock();
    this.#clock = clock;
    const isAlone = plan.isAlone === true;
    const monotonic = (): number => clock.monotonic();
    const backAfter = (at: number): readonly number[] =>
      this.#all.filter(({ process }) => process.alive).map((replica) => replica.backAfter(at));
    const world: LedgerWorld = {
      monotonic,
      modelOf: (bucket) => this.#server.model(bucket),
      onBusy: (ms, done) => void clock.outside(clock.monotonic() + ms, done),
      onHeard: (bucket, now) => this.#upstreams.get(bucket)?.described?.hears(now),
      allBackAfter: (at) => Math.max(at, ...backAfter(at)),
    };
    this.#ledger = new ReplicaLedger(plan, world, keepsLog);
    const channels: Channels = {
      publish: (channel, text) => this.#all.forEach(({ connection }) => connection.hear(channel, text)),
      subscribers: (channel) => this.#all.filter(({ connection }) => connection.isOn(channel)).length,
    };
    // Windows of the clock go by that of the store.
    const originMs = isAlone ? clock.now() : plan.origin.ms;
    const onDifference = isAlone ? null : (text: string) => this.#ledger.broken('15', text);
    const copies = { leaseMs: plan.leaseMs, onDifference };
    this.#server = new Server(this.#ledger, channels, { monotonic, originMs, copies });
    const stalledMs = plan.faults.reduce((sum, fault) => sum + (fault.kind === 'pause' ? fault.ms : 0), 0);
    const described = {
      wayMs: plan.network.meanMs,
      wallMs: originMs,
      stalledMs: isAlone ? stalledMs : 0,
      turnedAt: (at: number) => (isAlone ? (this.#slots[0]?.turnedAt(at) ?? at) : at),
    };
    this.#upstreams = new Map(
      plan.buckets.map((one) => [one.key, new Upstream(one, describedOf(plan, one, described))]),
    );
  }

  async toEnd() {
    this.#begin();
    await this.#toQuiet();
    for (const { process } of this.#all) process.kill();
    const { violations, reached, log, refusedCalls: refused, calls } = this.#ledger;
    return { violations, reached, log, refused, origin: this.#plan.origin.name, calls: [...calls.values()] };
  }

  async #toQuiet(): Promise<void> {
    const watch = new Watch(this.#ledger, this.#server, this.#upstreams);
    const check = (now: number): void => watch.check(now);
    await this.#until(() => this.#isOver(), maxMs, check);
    if (!this.#isOver()) this.#ledger.broken('10', 'the history does not end');
    // What is reckoned of calls outlives them.
    const quietMs = this.#plan.mode === 'observe' ? maxMs : this.#plan.leaseMs + 8_000;
    await this.#until(() => this.#isQuiet(), quietMs, check);
    // What is still on its way arrives.
    await this.#until(() => false, 1_600, check);
    if (await this.#goesOn(check)) this.#ledger.broken('11', 'idle replicas go on touching buckets');
    balance({
      ledger: this.#ledger,
      clock: this.#clock,
      server: this.#server,
      replicas: this.#all,
      upstreams: [...this.#upstreams.values()],
      // A process alone has a tick, a sweep, and a wake-up for each bucket.
      timers: this.#plan.isAlone === true ? 2 + this.#plan.buckets.length : idleTimers,
    });
  }

  /**
   * `sentAt`: when the call was first sent after this time · `vacantAt`: since when the upstream would have taken it, if that was before ·
   * `refused`: its refusal. `null` = never.
   */
  async follow(id: string, { after, until }: Course) {
    this.#begin();
    const call = this.#ledger.call(id);
    const upstream = found(this.#upstreams.get(call.plan.lane.bucket), call.plan.lane.bucket);
    const sent = (): number | null => call.sentAt.find((at) => at >= after) ?? null;
    const isKnown = (): boolean => sent() !== null || call.state === 'ended';
    const untilMs = Math.min(until ?? maxCourseMs, maxCourseMs);
    let vacantAt = null as number | null;
    const check = (now: number): void => {
      if (sent() !== null || now <= after) return;
      vacantAt = isVacant(this.#ledger, upstream, call, now) ? (vacantAt ?? now) : null;
    };
    // Up to the refusal the same steps, for the same history.
    const everyMs = (): number => (this.#clock.monotonic() <= after ? checkEveryMs : courseEveryMs);
    await this.#until(isKnown, untilMs, check, everyMs);
    for (const { process } of this.#all) process.kill();
    const refused = this.#ledger.refusedCalls.find((each) => each.id === id) ?? null;
    return { sentAt: sent(), vacantAt, refused };
  }

  #begin(): void {
    const { faults, calls, workspaces, replicas } = this.#plan;
    for (let slot = 0; slot < replicas; slot += 1) this.#start(slot);
    for (const fault of faults) this.#clock.outside(fault.at, () => this.#happen(fault));
    for (const { id, at, slot } of calls)
      if (at < Infinity) this.#clock.outside(at, () => this.#arrive(id, slot));
    for (const { revokedAt } of workspaces)
      if (revokedAt < Infinity) this.#clock.outside(revokedAt, () => this.#recheckKeys());
    for (const [index, { at, latesMs }] of this.#plan.reloads.entries()) {
      for (const [slot, lateMs] of latesMs.entries())
        this.#clock.outside(at + lateMs, () => this.#reload(slot, index + 1));
    }
    for (const [bucket, { described }] of this.#upstreams) {
      for (const at of described?.changesAt ?? [])
        this.#clock.outside(at, () => this.#ledger.isInUse(bucket) && described?.hears(at));
    }
    this.#recheckAgain();
  }

  /**
   * One replica after the other may send the command again whose reply it missed, each attempt may be carried out, and what
   * came too late for anybody is granted then and handed back: all that comes to an end.
   */
  async #goesOn(check: (now: number) => void): Promise<boolean> {
    for (let time = 0; time < 3; time += 1) {
      const commands = this.#server.bucketCommands;
      const since = this.#clock.monotonic();
      await this.#until(() => false, 2_100, check);
      if (!this.#isQuiet() || this.#server.bucketCommands <= commands + this.#plan.replicas) return false;
      // One that took Redis for lost and is back says so in its logs, and all others answer there.
      if (this.#all.some(({ process, modeSince }) => process.alive && modeSince > since)) return false;
    }
    return true;
  }

  async #until(
    done: () => boolean,
    withinMs: number,
    check: (now: number) => void,
    everyMs = () => checkEveryMs,
  ): Promise<void> {
    const until = this.#clock.monotonic() + withinMs;
    const nextCheck = (): number | null => {
      if (done() || this.#clock.monotonic() >= until) return null;
      const next = this.#clock.monotonic() + everyMs();
      this.#clock.outside(next, () => check(next));
      return next;
    };
    const first = nextCheck();
    if (first !== null) await this.#clock.run(first, undefined, nextCheck);
  }

  #isOver(): boolean {
    const ended = [...this.#ledger.calls.values()].every(({ state }) => state === 'ended');
    return (
      ended && this.#absent === 0 && this.#clock.monotonic() > Math.max(0, ...this.#plan.faults.map(endOf))
    );
  }

  /** Nothing waits and nothing is held any more in any living replica. */
  #isQuiet(): boolean {
    if (this.#clock.monotonic() < this.#reloadedAt + reloadMs) return false;
    return this.#all.every(({ process, stores, mode }) => {
      if (!process.alive) return true;
      if (mode !== 'redis' || this.#clock.monotonic() < process.pausedUntil) return false;
      return stores.limiter.snapshot().every(({ waiting, inFlight }) => waiting + inFlight === 0);
    });
  }

  #start(slot: number): void {
    const world: World = {
      clock: this.#clock,
      chance: this.#chance,
      ledger: this.#ledger,
      server: this.#server,
      uptimeMs: this.#plan.uptimesMs[this.#all.length] ?? -this.#clock.monotonic(),
    };
    const replica = new Replica(`s${slot}g${this.#all.length}`, world);
    if (this.#downs > 0) replica.connection.break();
    const now = this.#clock.monotonic();
    const reloads = this.#plan.reloads.filter(({ at }) => at <= now).length;
    this.#ledger.rules.takesOver(replica.name, reloads, now);
    this.#slots[slot] = replica;
    this.#all.push(replica);
  }

  #reload(slot: number, reloads: number): void {
    this.#reloadedAt = this.#clock.monotonic();
    const replica = this.#slots[slot];
    replica?.process.arrives(this.#clock.monotonic(), () => {
      const now = this.#clock.monotonic();
      const { rules } = this.#ledger;
      rules.takesOver(replica.name, reloads, now);
      this.#ledger.reconfigured(replica.name);
      const regime = rules.of(replica.name);
      replica.queue.reload(({ admission }) => entrySettingsOf(regime, admission.lane));
    });
  }

  /** The balancer sends a call to a replica that takes calls, the planned one if it does. */
  #arrive(id: string, slot: number): void {
    const planned = this.#slots[slot];
    const ready = this.#slots.filter(({ isReady }) => isReady);
    const replica = planned?.isReady === true ? planned : ready[slot % Math.max(1, ready.length)];
    const call = this.#ledger.call(id);
    if (replica === undefined) {
      call.enteredAt = this.#clock.monotonic();
      return this.#ledger.ended(id, 'nobody there');
    }
    this.#ledger.arrived(call, replica);
    const bucket = keyed(this.#plan.buckets, call.plan.lane.bucket);
    const upstream = found(this.#upstreams.get(bucket.key), bucket.key);
    const { process } = replica;
    let writesAt = -Infinity;
    // What a process was about to write when it was stopped and killed never leaves it.
    const outside = (at: number, run: () => void) =>
      process.outside(at, () => process.killedAt < writesAt || run());
    const freeze = (): number => {
      if (!this.#chance.happens(this.#plan.frozenWrites)) return 0;
      this.#ledger.reach('stopped before a write');
      const ms = this.#plan.leaseMs + this.#chance.between(1_000, 6_000);
      replica.pause(ms);
      writesAt = this.#clock.monotonic() + ms;
      return ms;
    };
    const comesBack = (ticket: TicketId, retryInMs: number): void =>
      this.#comeBack(call.plan, { ticket, retryInMs, slot });
    const of = { call, replica, bucket, upstream, chance: this.#chance, ledger: this.#ledger };
    process.arrives(this.#clock.monotonic(), () => void drive({ ...of, outside, freeze, comesBack }));
  }

  /** To the next replica, and to the one after it at once where the client sends its ticket twice. */
  #comeBack(
    plan: CallPlan,
    told: { readonly ticket: TicketId; readonly retryInMs: number; readonly slot: number },
  ): void {
    const { lateMs = null, isTwice = false } = plan.reserves ?? {};
    this.#ledger.keeps(plan, this.#clock.monotonic() + told.retryInMs + reserveMs);
    const returns = /\.\d/.exec(plan.id) === null ? maxReturns : Number(plan.id.split('.')[1]) - 1;
    const at = this.#clock.monotonic() + Math.max(0, told.retryInMs + (lateMs ?? 0));
    if (lateMs === null || returns === 0 || at > lastReturnMs) return;
    this.#absent += 1;
    this.#clock.outside(at, () => {
      this.#absent -= 1;
      const [name = ''] = plan.id.split('.');
      for (const copy of isTwice && returns === maxReturns ? ['', 'b'] : ['']) {
        const id = `${name}${copy}.${returns}`;
        this.#ledger.returns({ ...plan, id, leavesAt: Infinity }, told.ticket);
        this.#arrive(id, (told.slot + (copy === '' ? 1 : 2)) % this.#plan.replicas);
      }
    });
  }

  #happen(fault: Fault): void {
    const now = this.#clock.monotonic();
    this.#ledger.note(`FAULT ${JSON.stringify(fault)}`);
    this.#ledger.reach(`fault ${fault.kind}`);
    const later = (ms: number, run: () => void): void => void this.#clock.outside(now + ms, run);
    switch (fault.kind) {
      case 'pause':
        return this.#slots[fault.slot]?.pause(fault.ms);
      case 'kill': {
        const replica = this.#slots[fault.slot];
        if (replica === undefined || !replica.process.alive) return;
        replica.kill();
        this.#ledger.rules.ends(replica.name, now);
        for (const call of this.#ledger.calls.values())
          if (call.replica === replica) this.#ledger.killed(call);
        if (fault.ms < Infinity) later(fault.ms, () => this.#start(fault.slot));
        return;
      }
      case 'step':
        return this.#slots[fault.slot]?.process.step(fault.ms);
      case 'cut': {
        const connection = this.#slots[fault.slot]?.connection;
        if (connection === undefined) return;
        if (!fault.mute) connection.break();
        else {
          connection.mute();
          later(2_000, () => fault.ms > 2_000 && connection.break());
        }
        return later(fault.ms, () => this.#downs === 0 && connection.mend());
      }
      case 'start':
        return this.#start(this.#slots.length);
      case 'flush':
        return this.#server.flush();
      case 'replicate':
        return this.#server.replicate();
      case 'promote':
        return this.#goDown(fault.ms, () => this.#server.promote(fault.skewMs));
      case 'down':
        return this.#goDown(fault.ms, () => fault.back === 'empty' && this.#server.restartEmpty());
      case 'failover':
        return this.#goDown(fault.ms, () => this.#server.failOver(fault.lostMs, fault.skewMs));
      case 'hang':
        this.#server.hangsUntil = Math.max(this.#server.hangsUntil, now + fault.ms);
        for (const { connection } of this.#all) connection.trouble();
        if (fault.ms > 2_000) later(2_000, () => this.#goDown(fault.ms - 2_000, () => {}));
    }
  }

  #goDown(ms: number, back: () => void): void {
    this.#downs += 1;
    this.#server.isDown = true;
    for (const { connection } of this.#all) connection.break();
    this.#clock.outside(this.#clock.monotonic() + ms, () => {
      this.#downs -= 1;
      back();
      if (this.#downs > 0) return;
      this.#server.isDown = false;
      for (const { connection } of this.#all) connection.mend();
    });
  }

  #recheckKeys(): void {
    for (const { process, queue } of this.#all)
      process.arrives(this.#clock.monotonic(), () => queue.recheckKeys());
  }

  #recheckAgain(): void {
    this.#clock.outside(this.#clock.monotonic() + recheckMs, () => {
      this.#recheckKeys();
      if (!this.#isOver()) this.#recheckAgain();
    });
  }
}

const endOf = (fault: Fault): number =>
  fault.at + ('ms' in fault && fault.kind !== 'step' && fault.ms < Infinity ? fault.ms : 0) + 500;

/** Whether the upstream itself would take a waiting call of a calm history, and all others, whatever the gateway believes of the bucket. */
function isVacant(
  { plan, calls, leases }: ReplicaLedger,
  upstream: Upstream,
  { workspace, state }: Call,
  now: number,
): boolean {
  const isTold = plan.buckets.every(({ reports }) => reports !== 'nothing');
  if (state !== 'waiting' || !isTold || workspace.perMinute !== null) return false;
  const wanted = new Set([...calls.values()].filter((each) => /^(?:waiting|entering)$/.test(each.state)));
  for (const lease of leases.values()) if (lease.settlements === 0) wanted.add(lease.call);
  const plans = [...wanted].map((each) => each.plan);
  return upstream.hasRoom(plans, keptFree, now);
}
