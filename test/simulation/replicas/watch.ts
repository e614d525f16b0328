/** What only time shows, looked at every 50 ms: a bucket with room grants (6), a waiting call is known to Redis (7), nobody waits beyond its deadline (10). */
import { sendableUntil } from '../driver.ts';
import { leaseToken, ticketId } from '../../../src/ids.ts';
import type { StoredBucket } from './log-copies.ts';
import type { Call, Lease, ReplicaLedger } from './ledger.ts';
import type { Replica } from './replica.ts';
import { capOf, keyed, lowest, perDayOf, perMinuteOf } from '../rules.ts';
import type { Upstream } from '../upstream.ts';
import { Room } from './room.ts';
import type { Server } from './server.ts';

export const checkEveryMs = 50;
/** A tick, a wake-up of a replica that follows, and their ways. Milliseconds. */
const tickMs = 1_500;
/** The same where commands get lost: several are repeated until one succeeds. */
const lossyMs = 6_000;
/** A call that waits longer than it may. Asking Redis what to tell it takes up to this long. */
const overdueMs = 1_500;

export class Watch {
  readonly #ledger: ReplicaLedger;
  readonly #server: Server;
  readonly #room: Room;
  /** Since when a grant is due that was due at this time (the server's), by bucket. */
  readonly #idleSince = new Map<string, { readonly due: number; readonly from: number }>();
  readonly #unknownSince = new Map<string, number>();
  /** By bucket and call. */
  readonly #leftSince = new Map<string, ReadonlyMap<string, number>>();

  constructor(ledger: ReplicaLedger, server: Server, upstreams: ReadonlyMap<string, Upstream>) {
    this.#ledger = ledger;
    this.#server = server;
    this.#room = new Room(ledger, server, upstreams);
  }

  check(now: number): void {
    this.#ledger.checkStated(now);
    for (const model of this.#server.models) {
      this.#room.check(model, now);
      if (!this.#ledger.isAlone) this.#looksIdle(model, now);
      if (this.#ledger.isFaultless) this.#keepsNothing(model, now);
    }
    for (const call of this.#ledger.calls.values()) {
      if (call.state === 'waiting' && call.replica !== null) this.#waits(call, call.replica, now);
      else this.#forget(call.plan.id);
    }
  }

  /** The time at which a pump would grant has passed, and no replica ran the pump. */
  #looksIdle(model: StoredBucket, now: number): void {
    const { bucket, effects } = model;
    const dueIn = bucket === null || bucket.waiting === 0 || effects.nextAt === null ? null : effects.nextAt;
    const helpers = dueIn === null || this.#server.timeOf(model.key) < dueIn ? [] : this.#helpers(model);
    if (dueIn === null || helpers.length === 0) {
      this.#idleSince.delete(model.key);
      return;
    }
    // Somebody has asked where another time is named than a moment ago, though that one may have come, too.
    const known = this.#idleSince.get(model.key);
    const from = known?.due === dueIn ? known.from : now;
    this.#idleSince.set(model.key, { due: dueIn, from });
    const clean = helpers.some((replica) => replica.undisturbedSince(now) <= from - 1_000);
    const withinMs = this.#ledger.isFaultless
      ? 60 + 12 * this.#ledger.plan.network.meanMs
      : clean
        ? tickMs
        : lossyMs;
    if (now - from <= withinMs) return;
    this.#ledger.broken('6', `${model.key} may grant since ${from.toFixed(0)}, and nobody asks`);
    this.#idleSince.set(model.key, { due: dueIn, from: now + 60_000 });
  }

  /** A lease or a ticket whose call is over goes within a tick, or with its lease where commands arrive late, unless its fate is unknown (9). */
  #keepsNothing({ key, bucket }: StoredBucket, now: number): void {
    const before = this.#leftSince.get(key);
    const left = new Map<string, number>();
    this.#leftSince.set(key, left);
    for (const { id, lease: token } of bucket?.tickets.values() ?? []) {
      const call = this.#ledger.calls.get(id);
      if (call === undefined || call.state !== 'ended' || call.replica === null) continue;
      const lease = bucket?.leases.get(leaseToken(token ?? ''));
      // A process that is stopped says nothing.
      if (lease?.stage === 'abandoned' || now < call.replica.process.pausedUntil) continue;
      const from = before?.get(id) ?? now;
      left.set(id, now - from > 1_000 ? now + 60_000 : from);
      if (now - from > 1_000)
        this.#ledger.broken('9', `${id} is over since ${from.toFixed(0)}, and Redis keeps ${token ?? 'it'}`);
    }
  }

  #helpers(model: StoredBucket): Replica[] {
    const helpers = new Set<Replica>();
    for (const { replica, state, plan } of this.#ledger.calls.values()) {
      if (state !== 'waiting' || replica === null || plan.lane.bucket !== model.key) continue;
      if (model.bucket?.tickets.get(ticketId(plan.id))?.lease !== null) continue;
      const { process, connection, mode } = replica;
      const runs = process.alive && process.pausedUntil < this.#server.monotonic() - 50;
      if (runs && connection.isWhole && mode === 'redis') helpers.add(replica);
    }
    return [...helpers];
  }

  /** Without Redis, what nothing but the bucket holds back goes on at this replica's share. */
  #goesOnAlone({ plan, workspace, enteredAt }: Call, replica: Replica, now: number): void {
    const { bucket, key } = plan.lane;
    // The upstream has sent one call of the lane to sleep, and all behind it, for up to a minute.
    const sleeps = [...this.#ledger.calls.values()].some(
      (call) => call.plan.lane === plan.lane && call.plan.fate === 'secondary' && call.sends > 0,
    );
    if (sleeps) return;
    // A ceiling may also have come with a reload.
    const regimes = [this.#ledger.plan, ...this.#ledger.regimes(now)];
    const ceilings = [perMinuteOf(workspace.name), perDayOf(workspace.name)];
    if ([capOf(key), ...ceilings].some((limit) => lowest(regimes, limit) !== null)) return;
    const { plan: whole } = this.#ledger;
    const known = [whole, ...whole.reloads].map(({ buckets }) => keyed(buckets, bucket));
    const windowMs = Math.max(
      ...known.flatMap(({ requests, windows = [] }) => [requests, ...windows].map((one) => one.windowMs)),
    );
    const closedUntil = Math.max(0, ...(this.#ledger.closings.get(bucket) ?? []).map(({ until }) => until));
    const sentAt = this.#ledger.sentAt.get(`${replica.id} ${bucket}`) ?? 0;
    // Until then it leaves free what is kept for clients, who may come back to replicas that know nothing of it.
    const keptUntil = this.#ledger.keptUntil.get(bucket) ?? 0;
    const since = Math.max(replica.modeSince, enteredAt, replica.resumedAt, closedUntil, keptUntil, sentAt);
    if (now < replica.process.pausedUntil || now - since <= 2 * windowMs + 3_000) return;
    const where = `${replica.name}, which goes on alone since ${since.toFixed(0)}`;
    this.#ledger.broken('6', `${plan.id} waits at ${where}`);
  }

  #forget(id: string): void {
    if (this.#unknownSince.size === 0) return;
    for (const each of this.#unknownSince.keys())
      if (each.startsWith(`${id} `)) this.#unknownSince.delete(each);
  }

  #holdsGrant(call: Call): boolean {
    const isOpen = (lease: Lease): boolean => lease.call === call && !lease.sent && lease.settlements === 0;
    return [...this.#ledger.leases.values()].some(isOpen);
  }

  #waits(call: Call, replica: Replica, now: number): void {
    const { id } = call.plan;
    if (!replica.process.alive) return;
    const since = Math.max(sendableUntil(call), replica.resumedAt);
    if (now > replica.process.pausedUntil && now - since > overdueMs) {
      this.#ledger.broken('10', `${id} waits ${(now - since).toFixed(0)} ms longer than it may`);
      call.enteredAt = now;
    }
    if (replica.mode === 'local') this.#goesOnAlone(call, replica, now);
    const model = this.#server.model(call.plan.lane.bucket);
    const ticket = model.bucket?.tickets.get(ticketId(id));
    const runs = replica.connection.isWhole && now >= replica.process.pausedUntil && replica.mode === 'redis';
    const isKnown = ticket !== undefined && ticket.lease === null;
    const state = `${id} ${ticket === undefined ? 'unknown' : ticket.lease}`;
    if (isKnown || !runs || now - replica.modeSince < 1_000) return this.#forget(id);
    const from = this.#unknownSince.get(state) ?? now;
    this.#unknownSince.set(state, from);
    const clean = replica.undisturbedSince(now) <= from - 1_000;
    const { leaseMs } = this.#ledger.plan;
    // A capped lane waits one lease after a loss or an absence with its grant in hand.
    const noticedAt = [replica.modeSince, replica.resumedAt, replica.connection.lastTroubleAt];
    // A bucket that was unused for a while is seen to be new when it is used again.
    if (this.#ledger.losses.length > 0) noticedAt.push(this.#ledger.lastLossAt, call.admittedAt);
    // The lease may have run out meanwhile, and have taken its ticket along.
    const isInHand = ticket !== undefined || this.#holdsGrant(call);
    const wasCapped = lowest([this.#ledger.plan, ...this.#ledger.plan.reloads], capOf(call.plan.lane.key));
    const isHeld = isInHand && wasCapped !== null;
    const heldUntil = isHeld ? Math.max(...noticedAt) + 1_500 + leaseMs : 0;
    const withinMs = this.#ledger.isFaultless
      ? 300 + 20 * this.#ledger.plan.network.meanMs
      : 1_500 + (clean ? tickMs : lossyMs);
    if (now < heldUntil || now - from <= withinMs) return;
    const what =
      ticket === undefined ? 'is not known to Redis' : `holds a grant (${ticket.lease}) it does not use`;
    this.#ledger.broken(ticket === undefined ? '7' : '6', `${id} ${what} since ${from.toFixed(0)}`);
    this.#unknownSince.set(state, now + 60_000);
  }
}
