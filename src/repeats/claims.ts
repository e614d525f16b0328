/**
 * Repeats over all replicas: who makes a call, how the others get its response, and what clients that left may come back for.
 *
 * A replica that makes a call claims it in a map that all replicas see, and renews the claim while the call is under way; a repeat at
 * another replica waits for its result. A claim that is not renewed belonged to a replica that is gone: a repeat then makes the call
 * again, and that is counted.
 *
 * Keeps: while the map does not answer each replica answers for itself. A call with a key that has run is not made again only
 * because its response cannot be read; one without a key has nothing that forbids it, and is made again.
 */
import { deserialize, serialize } from 'node:v8';
import { delay, type Clock } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { MemoryMap, anybody, change } from '../replicated/shared-map.ts';
import type { CreateMap, MapKey, PutReply, SharedMap } from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { assertSameCall, noResponse, type CallResult, type KeptResponse, type RepeatKey } from './repeat.ts';

/** Time between two renewals of a claim, milliseconds. */
const renewEveryMs = 500;
/** A claim that is not renewed for so long belongs to a replica that is gone. Milliseconds. */
const claimMs = 5_000;
/** How long such a claim stays: a repeat then knows that its call is made again. Milliseconds. */
const traceMs = 60_000;
const heldMs = claimMs + traceMs;
/** A repeat that comes later than this after its call was left is a new call. Milliseconds. */
export const leftKeptMs = 60_000;
/** How long the repeats that wait for a call can have a result that is not kept. Milliseconds. */
const passedOnMs = 10_000;
/** A waiting repeat looks this often, milliseconds. */
const checkEveryMs = 100;
/** Of equal calls that clients have left, at most so many are remembered. */
const maxLeftOfOne = 100;

type ClaimState =
  /** It waits or is under way. */
  | { readonly kind: 'held' }
  /** Its client left while it waited. It had come at `arrivedAt`, milliseconds since the epoch. */
  | { readonly kind: 'left'; readonly arrivedAt: number }
  /**
   * It has ended. What is not kept is only for the repeats that waited for it. `until`: when the result expires, milliseconds since the
   * epoch, sealed with it, because whoever can write to Redis can put an expired entry back.
   */
  | {
      readonly kind: 'ended';
      readonly result: KeptResponse | 'too_large' | Pick<Refusal, 'code' | 'details'>;
      readonly isKept: boolean;
      readonly until: number;
    };

interface Claim {
  readonly fingerprint: string;
  readonly state: ClaimState;
}

/** What a call that may be a repeat does: it is made, or gets a response. */
type Found =
  /** `arrivedAt`: the position of the call that it repeats, milliseconds since the epoch; `null` = it has its own. */
  | { readonly kind: 'make'; readonly arrivedAt: number | null }
  /** Another replica has got it. `isReplayed`: its call had ended before it was asked for. */
  | { readonly kind: 'response'; readonly response: KeptResponse; readonly isReplayed: boolean };

/**
 * What a client left, for whoever repeats its call. `name`: of the call, which goes on or was answered; `null` = the call waited and has
 * ended, and its position is offered. `arrivedAt`: that position, milliseconds since the epoch.
 */
export interface LeftCall {
  readonly name: string | null;
  readonly arrivedAt: number;
}

export interface ClaimsParts {
  readonly clock: Clock;
  /** `null`: there are no other replicas. */
  readonly createMap: CreateMap | null;
  /** Opaque name of this replica, new with every start. */
  readonly replica: string;
  readonly telemetry: Pick<Telemetry, 'count'>;
}

export class Claims {
  readonly #parts: ClaimsParts;
  readonly #claims: SharedMap<Claim>;
  /** By the digest of the call: equal calls without a key are calls of their own, and each is given out once. */
  readonly #left: SharedMap<readonly LeftCall[]>;
  /** Calls of this replica whose claims are renewed. A later call of the same name has a key object of its own. */
  readonly #underWay = new Set<RepeatKey>();
  /** Under which name this replica writes the entry of a call. */
  readonly #owners = new WeakMap<RepeatKey, string>();
  #ownerCount = 0;
  #work: Promise<unknown> = Promise.resolve();
  #cancelRenewal: (() => void) | null = null;

  constructor(parts: ClaimsParts) {
    const { clock, createMap } = parts;
    this.#parts = parts;
    // Entries are sealed, so what is read was written by a replica.
    const codec = { write: serialize, read: (bytes: Buffer) => deserialize(bytes) as Claim };
    this.#claims = createMap?.({ name: 'repeat.5', codec }) ?? new MemoryMap(clock);
    this.#left = createMap?.({ name: 'left.5' }) ?? new MemoryMap(clock);
  }

  /**
   * Claims the call for this replica, or waits for the response of the one that it repeats.
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call that this one repeats was refused with;
   * the signal's reason when nobody waits any more
   */
  async find(key: RepeatKey, signal: AbortSignal): Promise<Found> {
    const { clock, telemetry } = this.#parts;
    let answeredAt = -Infinity;
    for (let free: Written | null = null, isReplayed = true; ;) {
      const over = free?.kind === 'entry' ? free.owner : free === null ? null : anybody;
      const reply: PutReply<Claim> = await this.#put(key, { kind: 'held' }, heldMs, over);
      // While the map is away for a moment, the call that it repeats may go on elsewhere.
      const isAway = reply.kind === 'unavailable' && clock.monotonic() - answeredAt < claimMs;
      if (reply.kind !== 'lost' && !isAway) {
        // Without a reply of the map the call is claimed with the first renewal that gets one.
        this.#hold(key);
        const former = free?.kind === 'entry' ? free.value.state : null;
        if (former?.kind === 'held')
          telemetry.count('sluice_repeats_made_again_total', { upstream: key.upstream });
        signal.throwIfAborted();
        return { kind: 'make', arrivedAt: former?.kind === 'left' ? former.arrivedAt : null };
      }
      signal.throwIfAborted();
      if (reply.kind === 'lost') {
        answeredAt = clock.monotonic();
        const response = responseIn(key, reply.to, isReplayed, clock.now());
        if (typeof response === 'object') return { kind: 'response', response, isReplayed };
        free = response === 'free' ? reply.to : null;
        if (free !== null) continue;
      }
      await delay(clock, checkEveryMs, signal);
      isReplayed = false;
    }
  }

  /** The client left while its call with a key waited. `arrivedAt`: the call's position, milliseconds since the epoch. */
  left(key: RepeatKey, arrivedAt: number): void {
    if (this.#underWay.delete(key)) this.#do(this.#put(key, { kind: 'left', arrivedAt }, leftKeptMs));
  }

  /** A call without a key goes on here without a client: it is claimed under its own name, so that a repeat elsewhere can wait for it. */
  abandoned(key: RepeatKey): void {
    this.#hold(key);
    this.#do(this.#put(key, { kind: 'held' }, heldMs, anybody));
  }

  /** The call has ended with this result. `keepMs`: how long a response is kept that shows that the call ran. */
  ended(key: RepeatKey, ended: CallResult, keepMs: number): void {
    if (!this.#underWay.delete(key)) return;
    const isKept = ended.kind === 'answered' && ended.isKept && keepMs > 0;
    const failure = ended.kind === 'failed' && ended.failure instanceof Refusal ? ended.failure : null;
    const refused = failure === null ? null : { code: failure.code, details: failure.details };
    const result = ended.kind === 'answered' ? ended.response : refused;
    if (result === null || (result === 'too_large' && !isKept)) this.forget(key);
    else {
      const lifeMs = isKept ? keepMs : passedOnMs;
      const until = this.#parts.clock.now() + lifeMs;
      this.#do(this.#put(key, { kind: 'ended', result, isKept, until }, lifeMs));
    }
  }

  /** What this replica has written about the call counts no longer. */
  forget(key: RepeatKey): void {
    this.#do(this.#claims.delete(entryOf(key), this.#ownerOf(key)));
  }

  /** Whoever repeats the call with this digest next may have this, at whichever replica. */
  offer(digest: string, left: LeftCall): void {
    this.#do(this.#changeLeft(digest, (offers) => [...offers, left].slice(-maxLeftOfOne)));
  }

  /** The oldest, which is nobody else's from now on; `null` = there is none. */
  async take(digest: string): Promise<LeftCall | null> {
    let taken: LeftCall | undefined;
    const isTaken = await this.#changeLeft(digest, ([oldest, ...others]) => {
      taken = oldest;
      return oldest === undefined ? null : others;
    });
    return isTaken ? (taken ?? null) : null;
  }

  /** Takes this call out. False when it was not there: somebody has taken it, or the map does not answer. */
  withdraw({ fingerprint, name }: RepeatKey): Promise<boolean> {
    const work = this.#changeLeft(fingerprint, (offers) => {
      const others = offers.filter((each) => each.name !== name);
      return others.length === offers.length ? null : others;
    });
    this.#do(work);
    return work;
  }

  /** Resolves when all writes that were begun have ended. */
  flushed(): Promise<unknown> {
    return this.#work;
  }

  close(): void {
    this.#underWay.clear();
    this.#cancelRenewal?.();
  }

  #newOwner(): string {
    this.#ownerCount += 1;
    return `${this.#parts.replica}.${this.#ownerCount}`;
  }

  #ownerOf(key: RepeatKey): string {
    const owner = this.#owners.get(key) ?? this.#newOwner();
    this.#owners.set(key, owner);
    return owner;
  }

  #put(key: RepeatKey, state: ClaimState, ttlMs: number, over: string | null = null) {
    const claim = { fingerprint: key.fingerprint, state };
    return this.#claims.put(entryOf(key), claim, { owner: this.#ownerOf(key), ttlMs, over });
  }

  /** Writes what `next` makes of the list of a digest; `null` leaves it as it is. True when the list was written. */
  async #changeLeft(
    digest: string,
    next: (offers: readonly LeftCall[]) => readonly LeftCall[] | null,
  ): Promise<boolean> {
    const life = { ttlMs: leftKeptMs, newOwner: () => this.#newOwner() };
    const changed = await change(this.#left, { name: digest }, life, (found) => next(found?.value ?? []));
    return changed === 'changed';
  }

  #do(work: Promise<unknown>): void {
    this.#work = Promise.all([this.#work, work]).then(() => {});
  }

  /** Renews the claim from now on. */
  #hold(key: RepeatKey): void {
    this.#underWay.add(key);
    this.#cancelRenewal ??= this.#renewLater();
  }

  #renewLater(): () => void {
    return this.#parts.clock.after(renewEveryMs, () => {
      const renewals = [...this.#underWay].map((key) => this.#put(key, { kind: 'held' }, heldMs));
      const renewed = Promise.all(renewals).then(() => {
        this.#cancelRenewal = this.#underWay.size > 0 ? this.#renewLater() : null;
      });
      this.#do(renewed);
    });
  }
}

/** The entry of a call: whoever can write to Redis cannot open it without workspace, idempotency key and label key. */
const entryOf = ({ name, secret }: RepeatKey): MapKey => ({
  name,
  secret: JSON.stringify([secret.workspaceId, secret.key]),
});

/** What somebody else has written about a call. */
type Written = Extract<PutReply<Claim>, { kind: 'lost' }>['to'];

/**
 * The response that the entry has for a repeat; `held` = it has to be waited for, `free` = the call may be made.
 * @param isFirst it is the repeat's first look at the entry
 * @param now milliseconds since the epoch
 * @throws Refusal where the call must not be made, or was refused
 */
function responseIn(
  key: RepeatKey,
  written: Written,
  isFirst: boolean,
  now: number,
): KeptResponse | 'held' | 'free' {
  /** The call has run, and its response cannot be had. */
  const unavailable = (why: Parameters<typeof noResponse>[0]): 'free' => {
    if (key.marker === 'key') throw noResponse(why);
    return 'free';
  };
  if (written.kind !== 'entry') return unavailable('no longer available');
  const { state } = written.value;
  const isAbandoned = state.kind === 'held' && written.leftMs <= traceMs;
  // What has expired counts no longer, whatever Redis holds. What is not kept is nothing to a repeat that did not wait for it.
  const isOver = state.kind === 'ended' && (state.isKept ? now >= state.until : isFirst);
  if (isAbandoned || isOver || state.kind === 'left') return 'free';
  assertSameCall(key, written.value);
  if (state.kind === 'held') return 'held';
  if (state.result === 'too_large') return unavailable('too large to be kept');
  if ('code' in state.result) throw new Refusal(state.result.code, state.result.details);
  return state.result;
}
