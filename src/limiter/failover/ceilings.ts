/**
 * The ceilings that a replica uses: Redis while it is available, else what the operator chose. `local`: this replica counts
 * by itself and lets its share of every ceiling through. `deny`: calls are refused.
 *
 * Owns: which store is asked, names of slots, restoring this replica's sends where Redis lost or missed them. Does not
 * own: counting (`redis/ceilings.ts`, `embedded/ceilings.ts`), noticing that Redis is unavailable (`health.ts`).
 * Invariants: every send is counted here as well, so that the share counts the whole window from the first moment on;
 * every 60 s window holds at most the ceiling over all replicas (1), also over a loss of Redis' data, as long as the
 * replicas that sent are alive; without Redis nobody is let through unseen.
 */
import { Refusal } from '../../errors.ts';
import { holdAt } from '../policy/ceiling.policy.ts';
import {
  CeilingSlot,
  type CeilingHold,
  type CeilingKey,
  type CeilingRef,
  type Ceilings,
  type CeilingState,
  type ForecastQuestion,
  type TakeReply,
} from '../ceilings.ts';
import type { Clock } from '../../clock.ts';
import type { ReplicaId } from '../../ids.ts';
import { EmbeddedCeilings } from '../embedded/ceilings.ts';
import { quotaShare } from './quota-share.ts';
import { RecentSends } from './recent-sends.ts';
import { ceilingOf, type RedisCeilings, type RedisTake } from '../redis/ceilings.ts';
import { retryUnavailableMs, type WhenDown } from './when-down.ts';

/** A slot as this replica knows it. */
class ReplicaSlot extends CeilingSlot {
  protected readonly store = 'failover';
  /** The slot's name in Redis. */
  readonly id: string;
  /** True when Redis counts the slot. */
  readonly isInRedis: boolean;
  /** The slot of this send in the embedded store. */
  readonly local: CeilingSlot;
  isGivenBack = false;

  constructor(id: string, isInRedis: boolean, local: CeilingSlot) {
    super();
    this.id = id;
    this.isInRedis = isInRedis;
    this.local = local;
  }
}

export interface FailoverCeilingsParts {
  readonly redis: RedisCeilings;
  readonly clock: Clock;
  readonly replica: { readonly id: ReplicaId; count(): number };
  /** What this replica does while Redis is unavailable. */
  readonly whenDown: () => WhenDown;
}

export class FailoverCeilings implements Ceilings {
  readonly #parts: FailoverCeilingsParts;
  readonly #local: EmbeddedCeilings;
  readonly #sends: RecentSends;
  #slots = 0;
  #onSlotBack: (ceiling: CeilingKey) => void = () => {};

  constructor(parts: FailoverCeilingsParts) {
    this.#parts = parts;
    this.#local = new EmbeddedCeilings(parts.clock);
    this.#sends = new RecentSends(parts.clock);
  }

  async take(ceiling: CeilingRef, again?: CeilingSlot, lateMs = 0): Promise<TakeReply> {
    if (isNone(ceiling)) return this.#local.take(ceiling);
    this.#slots += 1;
    const known = again === undefined ? null : await this.#forget(ceiling, again);
    const id = known ?? `${this.#parts.replica.id}.${this.#slots}`;
    const reply = await this.#parts.redis.take(ceiling, id, lateMs);
    switch (reply.kind) {
      case 'taken':
        return this.#taken(ceiling, id, reply);
      case 'refused': {
        const { waitMs, day: isDaily } = reply;
        const full = { limit: ceiling.perMinute ?? 0, remaining: 0, nextSlotMs: waitMs };
        return {
          kind: 'refused',
          waitMs,
          isDaily,
          state: isDaily || ceiling.perMinute === null ? null : full,
        };
      }
      case 'unavailable':
        if (this.#parts.whenDown() === 'local') return this.#takeLocally(ceiling, id);
        throw new Refusal('limiter_unavailable', { retryInMs: retryUnavailableMs });
    }
  }

  async giveSlotBack(ceiling: CeilingRef, slot: CeilingSlot): Promise<void> {
    if (isNone(ceiling)) return;
    const { redis, replica } = this.#parts;
    const id = await this.#forget(ceiling, slot);
    if (id !== null) await redis.giveSlotBack(ceiling, id);
    this.#onSlotBack(ceiling.key);
    // Not waited for: the grant of the call that had the slot goes back only after this.
    if (id !== null && replica.count() > 1) void redis.announceSlot(ceiling.key, replica.id);
  }

  listen(onSlotBack: (ceiling: CeilingKey) => void): void {
    this.#onSlotBack = onSlotBack;
  }

  /** A message on this replica's channel; false: it is about something else. */
  hears(text: string): boolean {
    const key = ceilingOf(text);
    if (key !== null) this.#onSlotBack(key);
    return key !== null;
  }

  async forecast(
    ceiling: CeilingRef,
    positions: readonly number[],
    question: ForecastQuestion = {},
  ): Promise<readonly CeilingHold[]> {
    const notHeld = (): CeilingHold[] => positions.map((k) => holdAt(0, k, null));
    if (isNone(ceiling) || positions.length === 0) return notHeld();
    const read = await this.#parts.redis.forecast(ceiling, positions, question);
    if (!('kind' in read)) return read;
    if (this.#parts.whenDown() === 'deny') return notHeld();
    return this.#local.forecast(this.#share(ceiling), positions, question);
  }

  async state(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perMinute === null) return null;
    const read = await this.#parts.redis.state(ceiling, ceiling.perMinute);
    return 'kind' in read ? this.#local.state(this.#share(ceiling)) : read;
  }

  async dayState(ceiling: CeilingRef): Promise<CeilingState | null> {
    if (ceiling.perDay === null) return null;
    const read = await this.#parts.redis.dayState(ceiling, ceiling.perDay);
    return 'kind' in read ? this.#local.dayState(this.#share(ceiling)) : read;
  }

  /** Puts this replica's own sends of the last window back, where Redis does not have them. False: Redis did not reply. */
  async restore(): Promise<boolean> {
    for (const { key, sends } of this.#sends.all()) {
      if (!(await this.#parts.redis.restore(key, sends))) return false;
    }
    return true;
  }

  async close(): Promise<void> {}

  async #taken(
    ceiling: CeilingRef,
    id: string,
    { remaining, nextSlotMs, dayLeft }: Extract<RedisTake, { kind: 'taken' }>,
  ): Promise<TakeReply> {
    const { key, perMinute } = ceiling;
    const slot = new ReplicaSlot(id, true, await this.#local.note(ceiling));
    if (perMinute !== null) this.#sends.add(key, id);
    const state = perMinute === null ? null : { limit: perMinute, remaining, nextSlotMs };
    return { kind: 'taken', slot, state, dayLeft };
  }

  async #takeLocally(ceiling: CeilingRef, id: string): Promise<TakeReply> {
    const reply = await this.#local.take(this.#share(ceiling));
    if (reply.kind === 'refused') return reply;
    if (ceiling.perMinute !== null) this.#sends.add(ceiling.key, id);
    return { ...reply, slot: new ReplicaSlot(id, false, reply.slot) };
  }

  /** Forgets a slot that is about to be taken again or goes back. Resolves with its name where Redis counts it. */
  async #forget(ceiling: CeilingRef, slot: CeilingSlot): Promise<string | null> {
    if (!(slot instanceof ReplicaSlot) || slot.isGivenBack) return null;
    slot.isGivenBack = true;
    this.#sends.remove(ceiling.key, slot.id);
    await this.#local.giveSlotBack(ceiling, slot.local);
    return slot.isInRedis ? slot.id : null;
  }

  /** This replica's share of the ceiling, which it enforces while Redis is unavailable. */
  #share({ key, perMinute, perDay }: CeilingRef): CeilingRef {
    const replicas = this.#parts.replica.count();
    const share = (limit: number | null): number | null =>
      limit === null ? null : quotaShare(limit, replicas);
    return { key, perMinute: share(perMinute), perDay: share(perDay) };
  }
}

const isNone = ({ perMinute, perDay }: CeilingRef): boolean => perMinute === null && perDay === null;
