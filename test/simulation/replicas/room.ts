/**
 * Room that is there and that nobody takes (6), also because it was made by a reload (14): what waits in a bucket may go by what
 * configuration says now, and the bucket has room, by its own level or by what the operator states. Judged only where nothing else can hold
 * a call: no closing, no back-off, no probe, no loss of data, all replicas at hand.
 */
import { leaseToken, ticketId } from '../../../src/ids.ts';
import type { StoredBucket } from './log-copies.ts';
import { capOf, entrySettingsOf, isBackground, isStatedAlone, keyed, lowest, perDayOf } from '../rules.ts';
import type { Upstream } from '../upstream.ts';
import type { Call, Lease, ReplicaLedger } from './ledger.ts';
import { rememberedMs, type Server } from './server.ts';

/** Share of a limit that may be kept free for others or for jitter. */
const keptFree = 0.22;
const minLevel = 1e-9;
/** A reload takes effect within a second of store time, and a tick makes up for a wake-up that was lost. Milliseconds. */
const withinMs = 1_000;
const tickMs = 1_500;
/** Lateness that a meter may hold, and a tick. Milliseconds. */
const standstillMs = 2_500;
/** In one process nothing is on its way; a crowd may wait for a pilot. Milliseconds. */
const quicklyMs = 150;

export class Room {
  readonly #ledger: ReplicaLedger;
  readonly #server: Server;
  readonly #upstreams: ReadonlyMap<string, Upstream>;
  readonly #since = new Map<string, number>();
  readonly #still = new Map<string, { movedAt: number; from: number; drainMs: number }>();

  constructor(ledger: ReplicaLedger, server: Server, upstreams: ReadonlyMap<string, Upstream>) {
    this.#upstreams = upstreams;
    this.#ledger = ledger;
    this.#server = server;
  }

  check(model: StoredBucket, now: number): void {
    const ledger = this.#ledger;
    const waiting = [...ledger.calls.values()].filter(
      ({ state, plan }) => state === 'waiting' && plan.lane.bucket === model.key,
    );
    const able = waiting.filter((call) => this.#mayGo(call, model, now));
    if (ledger.isAlone) this.#standsStill(model, able, now);
    // Of a process alone it is known what holds the others.
    const isHeld = able.length === 0 || (able.length < waiting.length && !ledger.isAlone);
    if (isHeld || !this.#isUndisturbed(model, now) || !this.#hasRoom(model, waiting, now))
      return void this.#since.delete(model.key);
    const from = Math.max(this.#since.get(model.key) ?? now, ledger.issuedAt.get(model.key) ?? 0);
    this.#since.set(model.key, from);
    const changedAt = ledger.rules.lastChangeAt(now);
    const isQuick = ledger.isAlone && ledger.plan.lostWakes === 0 && now > (changedAt ?? -Infinity) + 2_000;
    const patienceMs = isQuick ? quicklyMs : ledger.isFaultless ? withinMs : withinMs + tickMs;
    if (now - from <= patienceMs) return;
    const names = waiting.map(({ plan }) => plan.id).join(', ');
    const invariant = changedAt === null ? '6' : '14';
    ledger.broken(invariant, `${model.key} has room for ${names} since ${from.toFixed(0)}`);
    this.#since.set(model.key, now + 60_000);
  }

  /** Whatever the meters believe: a bucket that might go stands still at most as long as it takes to drain. */
  #standsStill({ key, bucket }: StoredBucket, able: readonly Call[], now: number): void {
    const ledger = this.#ledger;
    const { documents, windows } = keyed(ledger.plan.buckets, key);
    const isOpen =
      bucket?.opened === true && (ledger.closings.get(key) ?? []).every(({ until }) => until < now);
    const mayGo = isOpen && able.some(({ plan }) => !isBackground(plan.lane));
    const movedAt = Math.max(ledger.issuedAt.get(key) ?? 0, ledger.changedAt.get(key) ?? 0);
    const known = this.#still.get(key);
    if (!mayGo || documents.length > 0 || windows !== undefined || known?.movedAt !== movedAt) {
      const drainMs = [...(bucket?.meters.values() ?? [])].map(({ limit, level, windowMs }) =>
        limit === null ? 0 : (level / limit) * windowMs,
      );
      this.#still.set(key, { movedAt, from: now, drainMs: Math.max(0, ...drainMs) });
    } else if (now - known.from > known.drainMs * 1.01 + standstillMs) {
      ledger.broken('6', `${key} stands still since ${known.from.toFixed(0)}`);
      this.#still.delete(key);
    }
  }

  /** Its lane is below its cap, and its ceiling has a slot for it and for all grants in transit. */
  #mayGo({ plan, replica }: Call, model: StoredBucket, now: number): boolean {
    const { key, workspace, bucket } = plan.lane;
    if ((this.#ledger.asleepUntil.get(`${workspace} ${bucket}`) ?? 0) >= now) return false;
    const maxInFlight = lowest(this.#ledger.regimes(now), capOf(key));
    // A call of unknown fate counts as in flight for a lease.
    const held = [...(model.bucket?.lanes.values() ?? [])]
      .filter(({ key: lane }) => keyed(this.#ledger.plan.lanes, lane).workspace === workspace)
      .reduce((sum, { leases }) => sum + leases.size, 0);
    if (maxInFlight !== null && (held >= maxInFlight || this.#mayKeepLanes(now))) return false;
    const ticket = model.bucket?.tickets.get(ticketId(plan.id));
    if (replica === null || ticket === undefined || ticket.lease !== null) return false;
    if (replica.undisturbedSince(now) > now - withinMs) return false;
    const regimes = this.#ledger.regimes(now);
    if (lowest(regimes, perDayOf(workspace)) !== null) return false;
    const perMinute = lowest(regimes, (regime) => entrySettingsOf(regime, key).perMinute);
    if (perMinute === null) return true;
    const leases = model.bucket?.leases;
    const isKept = (lease: Lease): boolean => leases?.has(leaseToken(lease.token)) === true;
    const unreported = this.#underWay(
      (lease) => lease.call.workspace.name === workspace && isUnreported(lease),
    );
    if (unreported.some(isKept)) return false;
    const onTheWay = this.#underWay(({ call, sent }) => call.workspace.name === workspace && !sent);
    const slots = [...this.#server.sendsOf(workspace).values()];
    const taken = slots.filter((at) => at + rememberedMs > this.#server.now()).length;
    return taken + onTheWay.length < perMinute;
  }

  /** Nobody says what a killed replica had under way: in a term of the log that begins within a lease, lanes with a cap wait one more. */
  #mayKeepLanes(now: number): boolean {
    const { faults, leaseMs } = this.#ledger.plan;
    return faults.some(({ kind, at }) => kind === 'kill' && at <= now && now <= at + 2 * leaseMs);
  }

  #underWay(is: (lease: Lease) => boolean): Lease[] {
    return [...this.#ledger.leases.values()].filter((lease) => lease.settlements === 0 && is(lease));
  }

  /** Nothing has gone wrong with the bucket that may hold it longer than anybody can tell. */
  #isUndisturbed({ key, bucket }: StoredBucket, now: number): boolean {
    const ledger = this.#ledger;
    const { calm, probe } = keyed(ledger.plan.buckets, key);
    const closedUntil = Math.max(0, ...(ledger.closings.get(key) ?? []).map(({ until }) => until));
    const isTroubled = [...ledger.calls.values()].some(
      ({ plan, sends }) => plan.lane.bucket === key && sends > 0 && plan.fate !== 'answered',
    );
    if (ledger.reached.has('mode local') || ledger.mayBeOutdated || isTroubled) return false;
    // What is kept for clients that come back is left free, and whose it is nobody here says. It is there for those who have come back.
    if ((bucket?.reservations.size ?? 0) > 0 && !this.#someoneCameBack({ key, bucket })) return false;
    const isOpen = closedUntil < now && (probe === 0 || bucket?.opened === true);
    return calm && ledger.losses.length === 0 && isOpen;
  }

  /** A call waits whose client has come back at its time; those of the background go behind all others. */
  #someoneCameBack({ key, bucket }: Pick<StoredBucket, 'key' | 'bucket'>): boolean {
    const time = this.#server.timeOf(key);
    return [...(bucket?.tickets.values() ?? [])].some(
      ({ lane, lease, reservation }) =>
        lease === null &&
        reservation !== undefined &&
        reservation.from <= time &&
        !isBackground({ key: lane }),
    );
  }

  #hasRoom({ key, bucket }: StoredBucket, waiting: readonly Call[], now: number): boolean {
    const ledger = this.#ledger;
    const { reports, windows, perDay, tokens, cost } = keyed(ledger.plan.buckets, key);
    if (windows !== undefined) {
      const onTheWay = this.#underWay(({ call }) => call.plan.lane.bucket === key).length;
      const described = this.#upstreams.get(key)?.described;
      const isSure = ledger.isFaultless && !ledger.isBlurred(key) && described?.isChanging(now) === false;
      return isSure && described.hasRoom(1 + onTheWay, now);
    }
    const isRequestsOnly = perDay === null && tokens === null && cost === null;
    if (isStatedAlone({ reports }) && isRequestsOnly && !ledger.isBlurred(key))
      return ledger.stated.get(key)?.hasRoom(1, ledger.statedOf(key, now), now) === true;
    const time = this.#server.timeOf(key);
    return [...(bucket?.meters.values() ?? [])].every(({ name, limit, level, at, windowMs }) => {
      const units = Math.max(...waiting.map(({ plan }) => plan.costs[name] ?? 0));
      if (limit === null || units === 0) return true;
      const left = Math.max(0, level - (Math.max(0, time - at) * limit) / windowMs);
      return left < minLevel || left + units <= limit * (1 - keptFree);
    });
  }
}

/**
 * Whether a grant took a slot of the ceiling is never reported, so that the bucket counts with one until the lease is over: its
 * replica was killed before it sent the call, which costs a lease, or knew no ceiling yet, as long as that call runs.
 */
const isUnreported = ({ call, sent, isUncharged }: Lease): boolean =>
  sent ? isUncharged : call.replica?.process.alive !== true;
