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
import type {
  Codec,
  CreateMap,
  Entry,
  MapKey,
  PutReply,
  Reading,
  SharedMap,
} from '../replicated/shared-map.ts';
import type { Telemetry } from '../telemetry/telemetry.ts';
import { assertSameCall, tooLarge, unreadable } from './repeat.ts';
import type { CallResult, KeptResponse, RepeatKey } from './repeat.ts';

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
  /** It has ended. What is not kept is only for the repeats that waited for it. */
  | {
      readonly kind: 'ended';
      readonly result: KeptResponse | 'too_large' | Pick<Refusal, 'code' | 'details'>;
      readonly isKept: boolean;
    };

interface Claim {
  readonly fingerprint: string;
  readonly state: ClaimState;
}

/** Entries are sealed, so what is read was written by a replica. */
const claimCodec: Codec<Claim> = {
  write: (claim) => serialize(claim),
  read: (bytes) => deserialize(bytes) as Claim,
};

/** The entry of a call: whoever can write to Redis cannot open it without workspace, idempotency key and label key. */
const entryOf = ({ name, secret }: RepeatKey): MapKey => ({
  name,
  secret: JSON.stringify([secret.workspaceId, secret.key]),
});

/** A response that another replica has got. `isReplayed`: its call had ended before it was asked for. */
interface ResponseGiven {
  readonly kind: 'response';
  readonly response: KeptResponse;
  readonly isReplayed: boolean;
}

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
    this.#claims = createMap?.({ name: 'repeat.5', codec: claimCodec }) ?? new MemoryMap(clock);
    this.#left = createMap?.({ name: 'left.5' }) ?? new MemoryMap(clock);
  }

  /**
   * What a call with a key does: it is made (at the position of the call that it repeats, in milliseconds since the epoch), or gets
   * the response of that call.
   * @throws Refusal `idempotency_mismatch`, `idempotency_conflict`, or what the call that this one repeats was refused with;
   * the signal's reason when nobody waits any more
   */
  async find(
    key: RepeatKey,
    signal: AbortSignal,
  ): Promise<ResponseGiven | { readonly kind: 'make'; readonly arrivedAt: number | null }> {
    for (let free: Entry<Claim> | null = null; ;) {
      const claimed: PutReply<Claim> = await this.#put(key, { kind: 'held' }, heldMs, free?.owner);
      if (claimed.kind !== 'lost') {
        // Without a reply of the map the call is claimed with the first renewal that gets one.
        this.#hold(key);
        const former = free?.value.state;
        if (former?.kind === 'held')
          this.#parts.telemetry.count('sluice_repeats_made_again_total', { upstream: key.upstream });
        signal.throwIfAborted();
        return { kind: 'make', arrivedAt: former?.kind === 'left' ? former.arrivedAt : null };
      }
      const found = await this.#waitFor(key, signal, claimed.to);
      if (found?.kind === 'response') return found;
      free = found;
    }
  }

  /**
   * The response of the call with this name, which another replica makes or has made; `null` = there is none to wait for.
   * @throws as {@link find}
   */
  async ofAnother(key: RepeatKey, signal: AbortSignal): Promise<ResponseGiven | null> {
    const found = await this.#waitFor(key, signal, await this.#claims.read(entryOf(key)));
    return found?.kind === 'response' ? found : null;
  }

  /** Waits for the result of a call while another replica makes it. Resolves with its entry, or `null`, where the call may be made. */
  async #waitFor(
    key: RepeatKey,
    signal: AbortSignal,
    first: Reading<Claim>,
  ): Promise<ResponseGiven | Entry<Claim> | null> {
    const { clock } = this.#parts;
    let answeredAt = clock.monotonic();
    for (let read = first, isReplayed = true; ; isReplayed = false) {
      signal.throwIfAborted();
      if (read.kind === 'none') return null;
      if (read.kind === 'unreadable') return unavailable(key, unreadable());
      if (read.kind === 'entry') {
        const { state } = read.value;
        answeredAt = clock.monotonic();
        if (state.kind === 'held' ? read.leftMs <= traceMs : state.kind === 'left') return read;
        if (state.kind === 'ended' && isReplayed && !state.isKept) return read;
        assertSameCall(key, read.value);
        if (state.kind === 'ended') {
          const { result } = state;
          if (result === 'too_large') return unavailable(key, tooLarge());
          if ('code' in result) throw new Refusal(result.code, result.details);
          return { kind: 'response', response: result, isReplayed };
        }
      } else if (clock.monotonic() - answeredAt >= claimMs) return null;
      await delay(clock, checkEveryMs, signal);
      read = await this.#claims.read(entryOf(key));
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
    const result = passedOn(ended);
    if (result === null || (result === 'too_large' && !isKept)) this.forget(key);
    else this.#do(this.#put(key, { kind: 'ended', result, isKept }, isKept ? keepMs : passedOnMs));
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

  /** Renews the claim from now on. */
  #hold(key: RepeatKey): void {
    this.#underWay.add(key);
    this.#cancelRenewal ??= this.#renewLater();
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

  #renewLater(): () => void {
    return this.#parts.clock.after(renewEveryMs, () => {
      const renewals = [...this.#underWay].map((key) => this.#put(key, { kind: 'held' }, heldMs));
      this.#do(
        Promise.all(renewals).then(() => {
          this.#cancelRenewal = this.#underWay.size > 0 ? this.#renewLater() : null;
        }),
      );
    });
  }
}

/** What repeats elsewhere get of a call that has ended; `null` = nothing: they make it. */
function passedOn(ended: CallResult) {
  if (ended.kind === 'answered') return ended.response;
  const { failure } = ended;
  return failure instanceof Refusal ? { code: failure.code, details: failure.details } : null;
}

/** A call that has run, and whose response cannot be had. @throws Refusal where the key forbids to make it again */
function unavailable({ marker }: RepeatKey, refusal: Refusal): null {
  if (marker === 'key') throw refusal;
  return null;
}
