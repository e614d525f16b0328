/**
 * The breakers that this replica knows: whether a call may be sent, and what its response changes. Decisions are those of
 * `breaker.policy.ts`. They hold here at once and are told to the other replicas; of those that want to probe, the shared map lets one.
 *
 * A replica that has missed a change, because it started later or Redis was away, sends a call that the others would not have sent, and
 * its response corrects the replica. Invariant: what leaves this process are keyed digests and numbers.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { BreakerSubject } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { digest } from '../identity.ts';
import { anybody, type CreateMap, type Entry, type SharedMap } from '../replicated/shared-map.ts';
import type { ObservedBreaker } from '../telemetry/events.ts';
import {
  afterRefusal,
  afterSilence,
  asProbe,
  concernOf,
  isForgotten,
  memoryMs,
  needsConfirmation,
  partsOf,
  type Breaker,
  type Concern,
  type Observation,
  type Refused,
} from './breaker.policy.ts';

/** Breakers that are known at most; the one that changed longest ago is forgotten first. */
const maxKnown = 10_000;
/** How long replicas that missed the end of a breaker still find that it is closed. Milliseconds. */
const closedMs = 60_000;
/** Refusals to be confirmed that are remembered at most, and for how long, milliseconds. */
const maxUnconfirmed = 1_000;
const unconfirmedMs = 900_000;

export interface BreakersParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly labelKey: string;
  readonly createMap: CreateMap;
  /** A breaker opened: calls that wait may be concerned. */
  readonly onBreakerOpened: () => void;
  /** A call of this replica was refused; `shown` says when the next one may probe. */
  readonly onRefused: (upstream: string, shown: ObservedBreaker) => void;
  /** Called when background work fails. */
  readonly onFailure: (failure: unknown) => void;
}

/** A breaker's name, and by what it is found to belong to an upstream and a credential. Keyed digests. */
export interface BreakerId {
  readonly key: string;
  readonly upstream: string;
  readonly credential: string;
}

/** What replicas share; `null` = it is closed. The life of an entry says when the state's time comes: each has a clock of its own. */
interface SharedBreaker {
  readonly id: BreakerId;
  readonly state: Omit<Breaker, 'until'> | null;
}

/** A breaker that is not closed. `version`: owner of its entry in the map. */
interface KnownBreaker {
  readonly id: BreakerId;
  readonly state: Breaker;
  readonly version: string;
}

export class Breakers {
  readonly #parts: BreakersParts;
  readonly #map: SharedMap<SharedBreaker>;
  readonly #replica: string;
  #changes = 0;
  /** By name. Looked at with `peek`, so that their order is that of changes. */
  readonly #known = new LRUCache<string, KnownBreaker>(atMost(maxKnown));
  /** Names of the breakers that may concern a call: a waiting call is asked about again and again. */
  readonly #names = new WeakMap<BreakerSubject, ReadonlyMap<Concern, BreakerId>>();
  /** When a refusal was met that has to be confirmed, by breaker. */
  readonly #unconfirmed = new LRUCache<string, number>(atMost(maxUnconfirmed));

  constructor(parts: BreakersParts) {
    this.#parts = parts;
    this.#replica = parts.random.hex(8);
    this.#map = parts.createMap({
      name: 'breaker.5',
      onChange: (_name, entry) => {
        if (!entry.owner.startsWith(this.#replica)) this.#adopt(entry);
      },
    });
  }

  /** False: no call needs to be asked about. */
  get isAnyOpen(): boolean {
    return this.#known.size > 0;
  }

  /** Why a call must not be sent now; `null` = it may, or would be a probe. */
  openBreakerRefusal(subject: BreakerSubject): Refusal | null {
    if (!this.isAnyOpen) return null;
    const now = this.#now();
    for (const { state } of this.#concerning(subject))
      if (asProbe(state, now) === null) return breakerRefusal(state, now);
    return null;
  }

  /**
   * A call is about to be sent. Resolves with the breakers for which this call is the one that finds out for all others.
   * @throws Refusal `upstream_refused`
   */
  async pass(subject: BreakerSubject): Promise<readonly BreakerId[]> {
    const probed: BreakerId[] = [];
    try {
      for (const known of this.#concerning(subject)) if (await this.#claim(known)) probed.push(known.id);
    } catch (refusal) {
      this.observe(subject, probed, { kind: 'silent' });
      throw refusal;
    }
    return probed;
  }

  /** What became of a call that was sent, and for which breakers it was the probe. */
  observe(subject: BreakerSubject, probed: readonly BreakerId[], observation: Observation): void {
    if (observation.kind === 'succeeded' && this.#unconfirmed.size > 0)
      for (const { key } of this.#namesOf(subject).values()) this.#unconfirmed.delete(key);
    const refused = observation.kind === 'refused' ? this.#refusedBreaker(subject, observation) : null;
    for (const id of probed) {
      if (id.key === refused?.key) continue;
      const state = this.#known.peek(id.key)?.state;
      if (observation.kind === 'succeeded') this.#close(id);
      else if (state?.kind === 'probing') this.#change(id, afterSilence(state, this.#now()));
    }
    if (refused === null || observation.kind !== 'refused') return;
    const before = this.#known.peek(refused.key)?.state ?? null;
    const now = { ms: this.#now(), unixMs: this.#parts.clock.now() };
    const isProbe = probed.some(({ key }) => key === refused.key);
    const state = afterRefusal(before, { ...observation, isProbe }, now);
    if (state === before) return;
    this.#change(refused, state);
    this.#parts.onRefused(subject.upstream, shown(state, now.ms));
  }

  /** Breakers of an upstream, or of one credential of it; the one whose next probe is due first comes first. */
  observed(upstream: string, credential: string | null = null): readonly ObservedBreaker[] {
    const now = this.#now();
    const own = credential === null ? null : this.#digest('owner', upstream, credential);
    return this.#of(upstream)
      .filter(({ id, state }) => (own === null || id.credential === own) && !isForgotten(state, now))
      .map(({ state }) => shown(state, now))
      .toSorted((a, b) => a.retryInMs - b.retryInMs);
  }

  /** Closes all breakers of an upstream, on all replicas: an operator says that it takes calls again. */
  closeAllOf(upstream: string): void {
    for (const { id } of this.#of(upstream)) this.#close(id);
  }

  #of(upstream: string): readonly KnownBreaker[] {
    if (this.#known.size === 0) return [];
    const wanted = this.#digest('upstream', upstream);
    return [...this.#known.values()].filter(({ id }) => id.upstream === wanted);
  }

  /** The breaker that a refusal opens; `null` = none, or none yet: it may lie in the call alone, and is the first of that kind. */
  #refusedBreaker(subject: BreakerSubject, { throttle }: Refused): BreakerId | null {
    const concern = concernOf(throttle);
    const id = concern === null ? undefined : this.#namesOf(subject).get(concern);
    if (id === undefined) return null;
    if (!needsConfirmation(throttle) || this.#known.peek(id.key) !== undefined) return id;
    const now = this.#now();
    const metAt = this.#unconfirmed.get(id.key) ?? -Infinity;
    this.#unconfirmed.set(id.key, now);
    return now - metAt <= unconfirmedMs ? id : null;
  }

  #close(id: BreakerId): void {
    this.#known.delete(id.key);
    const closed = { owner: this.#nextVersion(), ttlMs: closedMs, over: anybody };
    this.#background(this.#map.put({ name: id.key }, { id, state: null }, closed));
  }

  /** True: the call is the probe. False: the breaker has been closed meanwhile. @throws Refusal */
  async #claim({ id, state, version }: KnownBreaker): Promise<boolean> {
    const probing = asProbe(state, this.#now());
    if (probing === null) throw breakerRefusal(state, this.#now());
    // Calls of this replica are refused from here on, whatever the map has.
    const other = await this.#share(this.#set(id, probing), version);
    const won = other === null ? probing : this.#adopt(other);
    if (won === null || won === probing) return won !== null;
    throw breakerRefusal(won, this.#now());
  }

  /** The change holds here at once; where another replica has made one that is not known here, that holds instead. */
  #change(id: BreakerId, state: Breaker): void {
    const before = this.#known.peek(id.key)?.version ?? null;
    const changed = this.#set(id, state);
    const share = async (): Promise<void> => {
      const other = await this.#share(changed, before);
      // It was closed before the refusal.
      if (other?.value.state === null) await this.#share(changed, anybody);
      else if (other !== null && this.#known.peek(id.key) === changed) this.#adopt(other);
    };
    this.#background(share());
  }

  /** Puts a state into the map, over that of the version `over`. Resolves with what another replica has put there instead, if one has. */
  async #share(
    { id, state, version }: KnownBreaker,
    over: string | null,
  ): Promise<Entry<SharedBreaker> | null> {
    const { until, ...shared } = state;
    const ttlMs = memoryMs + Math.max(0, until - this.#now());
    const reply = await this.#map.put(
      { name: id.key },
      { id, state: shared },
      { owner: version, ttlMs, over },
    );
    return reply.kind === 'lost' && reply.to.kind === 'entry' ? reply.to : null;
  }

  /** Makes this breaker what an entry says. Returns its state; `null` = it is closed. */
  #adopt({ value: { id, state }, owner, leftMs }: Entry<SharedBreaker>): Breaker | null {
    const known = this.#known.peek(id.key);
    if (known?.version === owner) return known.state;
    if (state !== null)
      return this.#set(id, { ...state, until: this.#now() + leftMs - memoryMs }, owner).state;
    this.#known.delete(id.key);
    return null;
  }

  #set(id: BreakerId, state: Breaker, version = this.#nextVersion()): KnownBreaker {
    const known = { id, state, version };
    this.#known.set(id.key, known);
    if (state.kind === 'open') this.#parts.onBreakerOpened();
    return known;
  }

  #nextVersion(): string {
    this.#changes += 1;
    return `${this.#replica}.${this.#changes}`;
  }

  /** The breakers of a call. Those that no call has asked for in a long time are forgotten. */
  *#concerning(subject: BreakerSubject): Iterable<KnownBreaker> {
    for (const { key } of this.#namesOf(subject).values()) {
      const known = this.#known.peek(key);
      if (known === undefined) continue;
      if (isForgotten(known.state, this.#now())) this.#known.delete(key);
      else yield known;
    }
  }

  #namesOf(subject: BreakerSubject): ReadonlyMap<Concern, BreakerId> {
    const known = this.#names.get(subject);
    if (known !== undefined) return known;
    const { upstream, credential } = subject;
    const owner = {
      upstream: this.#digest('upstream', upstream),
      credential: this.#digest('owner', upstream, credential),
    };
    const names = new Map<Concern, BreakerId>();
    for (const concern of Object.keys(partsOf) as Concern[]) {
      const parts = partsOf[concern](subject).filter((part) => part !== null);
      if (parts.length === partsOf[concern](subject).length)
        names.set(concern, { key: this.#digest(concern, upstream, credential, ...parts), ...owner });
    }
    this.#names.set(subject, names);
    return names;
  }

  /** Names are keyed digests, the same on every replica. */
  #digest(purpose: string, ...parts: readonly string[]): string {
    return digest(this.#parts.labelKey, `breaker ${purpose}`, ...parts);
  }

  #background(work: Promise<unknown>): void {
    work.catch(this.#parts.onFailure);
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}

/** The word that tells most: the code, or else the type. */
const wordOf = ({ said }: Breaker): string | null =>
  typeof said?.code === 'string' ? said.code : (said?.type ?? null);

const shown = (breaker: Breaker, now: number): ObservedBreaker => ({
  status: breaker.status,
  since: breaker.since,
  retryInMs: Math.max(0, breaker.until - now),
  said: wordOf(breaker),
});

/** The upstream's refusal, repeated by Sluice. */
function breakerRefusal(breaker: Breaker, now: number): Refusal {
  const { status, said, until } = breaker;
  const retryInMs = until - now;
  const word = wordOf(breaker);
  return new Refusal('upstream_refused', {
    status,
    retryInMs,
    detail: `The upstream refuses such calls with ${status}${word === null ? '' : ` (${word})`}, which waiting does not cure. One call asks it again in ${Math.ceil(retryInMs / 1_000)} s; once it is cured, the operator can let all go at once (\`sluice open\`).`,
    ...(said === null ? {} : { said }),
    ...(status === 429 ? { heldBy: 'closed' as const } : {}),
  });
}
