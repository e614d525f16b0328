/**
 * The breakers that this replica knows: whether a call may be sent, and what its response changes. Decisions are those of
 * `breaker.policy.ts`; they hold here at once, and the map that all replicas see settles which of them came first: the owner of an entry
 * is one change of the breaker, and the next change replaces only the one that it knows.
 *
 * Invariants: while no breaker is known, a call costs one check of the size of a table; what leaves this process are keyed digests and
 * numbers.
 */
import { LRUCache } from 'lru-cache';
import type { BreakerSubject } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { digest } from '../identity.ts';
import {
  anybody,
  type CreateMap,
  type Entry,
  type PutReply,
  type SharedMap,
} from '../replicated/shared-map.ts';
import type { ObservedBreaker } from '../telemetry/events.ts';
import type { ProviderError } from '../provider-error.policy.ts';
import {
  afterRefusal,
  afterSilence,
  ask,
  concernOf,
  concerns,
  isForgotten,
  memoryMs,
  needsConfirmation,
  partsOf,
} from './breaker.policy.ts';
import type { Breaker, Concern, Observation, PermanentRefusal } from './breaker.policy.ts';

/** Breakers that are known at most; the one that changed longest ago is forgotten first. */
const maxKnown = 10_000;

/** Known breakers are compared with the map this often, so that a lost message is made up for. Milliseconds. */
const refreshMs = 5_000;
const readPerRefresh = 100;
/** How long replicas that missed the end of a breaker still find that it is closed. Milliseconds. */
const closedMs = 60_000;
/** Entry that names breakers, for replicas that start later; other names are digests. */
const listName = 'list';
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

/** What replicas share. The life of an entry says when the state's time comes: each has a clock of its own. */
export type SharedBreaker =
  | { readonly kind: 'state'; readonly id: BreakerId; readonly state: Omit<Breaker, 'until'> }
  | { readonly kind: 'closed'; readonly id: BreakerId }
  | { readonly kind: 'list'; readonly keys: readonly string[] };

/** Permission to be the one call that asks whether a refusal still stands. */
export interface Probe {
  readonly ids: readonly BreakerId[];
}

/** A breaker that is not closed, as far as this replica knows. */
interface KnownBreaker {
  readonly id: BreakerId;
  readonly state: Breaker;
  /** Owner of its entry in the map; `null` = the map does not have it. */
  readonly version: string | null;
}

export class Breakers {
  readonly #parts: BreakersParts;
  readonly #map: SharedMap<SharedBreaker>;
  readonly #replica: string;
  #changes = 0;
  /** By name. Looked at with `peek`, so that their order is that of changes. */
  readonly #known = new LRUCache<string, KnownBreaker>({ max: maxKnown });
  /** Names of the breakers that may concern a call: a waiting call is asked about again and again. */
  readonly #names = new WeakMap<BreakerSubject, ReadonlyMap<Concern, BreakerId>>();
  /** When a refusal was met that has to be confirmed, by breaker. */
  readonly #unconfirmed = new LRUCache<string, number>({ max: maxUnconfirmed });
  #cancelRefresh: (() => void) | null = null;
  #isStopped = false;

  constructor(parts: BreakersParts) {
    this.#parts = parts;
    this.#replica = parts.random.hex(8);
    this.#map = parts.createMap({
      name: 'breaker.4',
      onChange: (_name, entry) => {
        if (!entry.owner.startsWith(this.#replica)) this.#adopt(entry);
      },
      onHeard: () => this.#background(this.catchUp()),
    });
  }

  /** Why a call must not be sent now; `null` = it may, or would be a probe. */
  openBreakerRefusal(subject: BreakerSubject): Refusal | null {
    if (this.#known.size === 0) return null;
    const now = this.#now();
    for (const { state } of this.#concerning(subject)) {
      const asked = ask(state, now);
      if (asked.kind === 'refused') return breakerRefusal(asked);
    }
    return null;
  }

  /** True when no breaker is known at all: nothing has to be asked before a call is sent. */
  get areClosed(): boolean {
    return this.#known.size === 0;
  }

  /** True when the success of a call changes something, also of one that is no probe. */
  get awaitSuccess(): boolean {
    return this.#unconfirmed.size > 0;
  }

  /**
   * A call is about to be sent. Resolves with a probe when this call is the one that finds out for all others, else with `null`.
   * @throws Refusal `upstream_refused`
   */
  async pass(subject: BreakerSubject): Promise<Probe | null> {
    const ids: BreakerId[] = [];
    try {
      for (const known of this.#concerning(subject)) {
        if (await this.#claim(known)) ids.push(known.id);
      }
    } catch (refusal) {
      this.observe(subject, { ids }, { kind: 'silent' });
      throw refusal;
    }
    return ids.length === 0 ? null : { ids };
  }

  /** What became of a call that was sent, `probe` if it was one. */
  observe(subject: BreakerSubject, probe: Probe | null, observation: Observation): void {
    const concern = observation.kind === 'refused' ? concernOf(observation.throttle) : null;
    const named = concern === null ? null : (this.#namesOf(subject).get(concern) ?? null);
    if (observation.kind === 'succeeded' && this.awaitSuccess) this.#doubtsEnd(subject);
    const refused = named !== null && this.#isConfirmed(named, observation) ? named : null;
    const asked = probe?.ids ?? [];
    for (const id of asked) {
      if (id.key === refused?.key) continue;
      if (observation.kind === 'succeeded') this.#close(id);
      else this.#silent(id);
    }
    if (refused === null || observation.kind !== 'refused') return;
    const isProbe = asked.some(({ key }) => key === refused.key);
    const { status, throttle, said = null } = observation;
    const at = this.#parts.clock.now();
    const state = this.#refused(refused, { status, said, statedMs: throttle.waitMs, at, isProbe });
    if (state !== null) this.#parts.onRefused(subject.upstream, shown(state, this.#now()));
  }

  /** Breakers of an upstream, or of one credential of it; the one whose next probe is due first comes first. */
  observed(upstream: string, credential: string | null = null): readonly ObservedBreaker[] {
    if (this.#known.size === 0) return [];
    const now = this.#now();
    const wanted = this.#digest('upstream', upstream);
    const own = credential === null ? null : this.#digest('owner', upstream, credential);
    return [...this.#known.values()]
      .filter(({ id }) => id.upstream === wanted && (own === null || id.credential === own))
      .map(({ state }) => shown(state, now))
      .sort((a, b) => a.retryInMs - b.retryInMs);
  }

  /** Learns of the breakers that other replicas have opened. Never rejects. */
  async catchUp(): Promise<void> {
    const list = await this.#map.read({ name: listName });
    if (list.kind !== 'entry' || list.value.kind !== 'list') return;
    for (const name of list.value.keys) {
      const read = await this.#map.read({ name });
      if (read.kind === 'entry') this.#adopt(read);
    }
  }

  /** Closes all breakers of an upstream, on all replicas: an operator says that it takes calls again. */
  closeAllOf(upstream: string): void {
    const wanted = this.#digest('upstream', upstream);
    const own = [...this.#known.values()].filter(({ id }) => id.upstream === wanted);
    for (const { id } of own) this.#close(id);
  }

  /** Ends the comparing with the map. */
  stop(): void {
    this.#isStopped = true;
    this.#cancelRefresh?.();
  }

  /** Opens or reopens the breaker that a refusal names. `null`: the breaker was open already. */
  #refused(id: BreakerId, refusal: PermanentRefusal): Breaker | null {
    const before = this.#known.peek(id.key);
    const state = afterRefusal(before?.state ?? null, refusal, this.#now());
    if (state === before?.state) return null;
    this.#change(id, state, before?.version ?? null);
    return state;
  }

  /** False for the first of the refusals that may lie in their call alone; an open breaker is proof enough. */
  #isConfirmed({ key }: BreakerId, observation: Observation): boolean {
    if (observation.kind !== 'refused' || !needsConfirmation(observation.throttle)) return true;
    if (this.#known.peek(key) !== undefined) return true;
    const now = this.#now();
    const metAt = this.#unconfirmed.get(key);
    this.#unconfirmed.set(key, now);
    return metAt !== undefined && now - metAt <= unconfirmedMs;
  }

  /** A call with the credential succeeded: what refused another one lay in that call. */
  #doubtsEnd(subject: BreakerSubject): void {
    for (const { key } of this.#namesOf(subject).values()) this.#unconfirmed.delete(key);
  }

  #silent(id: BreakerId): void {
    const before = this.#known.peek(id.key);
    if (before === undefined || before.state.kind === 'open') return;
    const state = afterSilence(before.state, this.#now());
    this.#change(id, state, before.version);
  }

  #close(id: BreakerId): void {
    this.#known.delete(id.key);
    const closed = { owner: this.#nextVersion(), ttlMs: closedMs, over: anybody };
    this.#background(this.#map.put({ name: id.key }, { kind: 'closed', id }, closed));
  }

  /** True: the call is the probe. False: the breaker has been closed meanwhile. @throws Refusal */
  async #claim(known: KnownBreaker): Promise<boolean> {
    const asked = ask(known.state, this.#now());
    if (asked.kind === 'refused') throw breakerRefusal(asked);
    const { id, version: before } = known;
    const claimed = { id, state: asked.next, version: this.#nextVersion() };
    // Calls of this replica are refused from here on, whatever the map has.
    this.#set(claimed);
    const reply = await this.#put(claimed, before);
    if (reply.kind !== 'lost' || reply.to.kind !== 'entry') {
      if (reply.kind !== 'put') this.#notShared(claimed);
      return true;
    }
    const won = this.#adopt(reply.to);
    if (won === null) return false;
    throw breakerRefusal({ ...won, retryInMs: won.until - this.#now() });
  }

  /** The change holds here at once; what the map says afterwards counts. */
  #change(id: BreakerId, state: Breaker, before: string | null): void {
    const changed = { id, state, version: this.#nextVersion() };
    this.#set(changed);
    if (state.kind === 'open') this.#parts.onBreakerOpened();
    this.#background(this.#share(changed, before));
  }

  /** Puts a state into the map, over that of the version `before`. What is there instead holds here, too. */
  async #share(changed: KnownBreaker, before: string | null): Promise<void> {
    let reply = await this.#put(changed, before);
    // It was closed before the refusal.
    if (reply.kind === 'lost' && reply.to.kind === 'entry' && reply.to.value.kind === 'closed')
      reply = await this.#put(changed, reply.to.owner);
    if (this.#known.peek(changed.id.key)?.version !== changed.version) return;
    if (reply.kind === 'lost' && reply.to.kind === 'entry') this.#adopt(reply.to);
    else if (reply.kind !== 'put') this.#notShared(changed);
    else if (before === null) await this.#list();
  }

  /** The map does not have it: keeps the breaker to be put there later. */
  #notShared(changed: KnownBreaker): void {
    if (this.#known.peek(changed.id.key)?.version === changed.version)
      this.#known.set(changed.id.key, { ...changed, version: null });
  }

  #put({ id, state, version }: KnownBreaker, over: string | null): Promise<PutReply<SharedBreaker>> {
    const { until, ...shared } = state;
    const ttlMs = memoryMs + Math.max(0, until - this.#now());
    const owner = version ?? this.#nextVersion();
    return this.#map.put({ name: id.key }, { kind: 'state', id, state: shared }, { owner, ttlMs, over });
  }

  /** Makes this breaker what an entry says. Returns its state; `null` = it is closed. */
  #adopt({ value, owner: version, leftMs }: Entry<SharedBreaker>): Breaker | null {
    if (value.kind === 'list') return null;
    const { id } = value;
    const known = this.#known.peek(id.key);
    if (known?.version === version) return known.state;
    if (value.kind === 'closed') {
      this.#known.delete(id.key);
      return null;
    }
    const state = { ...value.state, until: this.#now() + leftMs - memoryMs };
    this.#set({ id, version, state });
    if (state.kind === 'open') this.#parts.onBreakerOpened();
    return state;
  }

  #set(known: KnownBreaker): void {
    this.#known.set(known.id.key, known);
    this.#refreshLater();
  }

  #refreshLater(): void {
    if (this.#isStopped || this.#cancelRefresh !== null) return;
    this.#cancelRefresh = this.#parts.clock.after(refreshMs, () => {
      this.#cancelRefresh = null;
      this.#background(this.#refresh());
    });
  }

  /** Forgets breakers that no call asks for any more, and compares the others with the map. */
  async #refresh(): Promise<void> {
    const old = [...this.#known.values()].filter(({ state }) => isForgotten(state, this.#now()));
    for (const { id } of old) this.#known.delete(id.key);
    if (this.#known.size === 0) return;
    this.#refreshLater();
    for (const known of [...this.#known.values()].toReversed().slice(0, readPerRefresh)) {
      const { id, version } = known;
      if (version === null) {
        const changed = { ...known, version: this.#nextVersion() };
        this.#known.set(id.key, changed);
        await this.#share(changed, null);
        continue;
      }
      const read = await this.#map.read({ name: id.key });
      if (this.#known.peek(id.key)?.version !== version) continue;
      if (read.kind === 'entry') this.#adopt(read);
      else if (read.kind === 'none') this.#known.delete(id.key);
    }
    await this.#list();
  }

  async #list(): Promise<void> {
    const keys = [...this.#known.keys()].slice(0, readPerRefresh);
    const options = { owner: this.#replica, ttlMs: memoryMs, over: anybody };
    await this.#map.put({ name: listName }, { kind: 'list', keys }, options);
  }

  #nextVersion(): string {
    this.#changes += 1;
    return `${this.#replica}.${this.#changes}`;
  }

  *#concerning(subject: BreakerSubject): Iterable<KnownBreaker> {
    for (const { key } of this.#namesOf(subject).values()) {
      const known = this.#known.peek(key);
      if (known !== undefined) yield known;
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
    for (const concern of concerns) {
      const parts = partsOf(subject, concern);
      if (parts !== null)
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
const wordOf = (said: ProviderError | null): string | null =>
  said === null ? null : typeof said.code === 'string' ? said.code : said.type;

const shown = ({ status, since, until, said }: Breaker, now: number): ObservedBreaker => ({
  status,
  since,
  retryInMs: Math.max(0, until - now),
  said: wordOf(said),
});

/** The upstream's refusal, repeated by Sluice. */
function breakerRefusal({
  status,
  said,
  retryInMs,
}: {
  readonly status: number;
  readonly said: ProviderError | null;
  readonly retryInMs: number;
}): Refusal {
  const word = wordOf(said);
  return new Refusal('upstream_refused', {
    status,
    retryInMs,
    detail: `The upstream refuses such calls with ${status}${word === null ? '' : ` (${word})`}, which waiting does not cure. One call asks it again in ${Math.ceil(retryInMs / 1_000)} s; once it is cured, the operator can let all go at once (\`sluice open\`).`,
    ...(said === null ? {} : { said }),
    ...(status === 429 ? { heldBy: 'closed' as const } : {}),
  });
}
