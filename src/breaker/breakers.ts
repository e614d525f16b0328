/**
 * The breakers that this replica knows: whether a call may be sent, and what its response changes. Decisions are those of
 * `breaker.policy.ts`; they hold here at once, and the store settles who of several replicas came first.
 *
 * Invariants: while no breaker is known, a call costs one check of the size of a table; what leaves this process are keyed digests and
 * numbers.
 */
import { LRUCache } from 'lru-cache';
import type { BreakerSubject } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { Refusal } from '../errors.ts';
import { digest } from '../identity.ts';
import type { BreakerId, BreakerStore, SharedBreaker, Stored } from '../limiter/breaker-store.ts';
import type { ObservedBreaker } from '../telemetry/events.ts';
import type { ProviderError } from '../provider-error.policy.ts';
import {
  afterRefusal,
  afterSilence,
  ask,
  concernOf,
  concerns,
  isForgotten,
  needsConfirmation,
  partsOf,
} from './breaker.policy.ts';
import type { Breaker, Concern, Observation, PermanentRefusal } from './breaker.policy.ts';

/** Breakers that are known at most; the one that changed longest ago is forgotten first. */
const maxKnown = 10_000;

/** Known breakers are compared with the store this often, so that a lost message is made up for. Milliseconds. */
const refreshMs = 5_000;
const readPerRefresh = 100;
/** Refusals to be confirmed that are remembered at most, and for how long, milliseconds. */
const maxUnconfirmed = 1_000;
const unconfirmedMs = 900_000;

export interface BreakersParts {
  readonly clock: Clock;
  readonly random: Random;
  readonly labelKey: string;
  readonly store: BreakerStore;
  /** A breaker opened: calls that wait may be concerned. */
  readonly onBreakerOpened: () => void;
  /** A call of this replica was refused; `shown` says when the next one may probe. */
  readonly onRefused: (upstream: string, shown: ObservedBreaker) => void;
  /** Called when background work fails. */
  readonly onFailure: (failure: unknown) => void;
}

/** Permission to be the one call that asks whether a refusal still stands. */
export interface Probe {
  readonly ids: readonly BreakerId[];
}

/** A breaker that is not closed, as far as this replica knows. */
interface KnownBreaker {
  readonly id: BreakerId;
  readonly state: Breaker;
  /** Version in the store; `''` = the store does not have the breaker. */
  readonly version: string;
}

export class Breakers {
  readonly #parts: BreakersParts;
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
    parts.store.listen(({ id, state }) => this.#adopt(id, state ?? 'closed'));
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
    const state = this.#refused(refused, { status, said, statedMs: throttle.waitMs, isProbe });
    if (state !== null)
      this.#parts.onRefused(subject.upstream, { status, retryInMs: state.until - this.#now() });
  }

  /** Breakers of an upstream, or of one credential of it; the one whose next probe is due first comes first. */
  observed(upstream: string, credential: string | null = null): readonly ObservedBreaker[] {
    if (this.#known.size === 0) return [];
    const now = this.#now();
    const wanted = this.#digest('upstream', upstream);
    const own = credential === null ? null : this.#digest('owner', upstream, credential);
    return [...this.#known.values()]
      .filter(({ id }) => id.upstream === wanted && (own === null || id.credential === own))
      .map(({ state: { status, until } }) => ({ status, retryInMs: Math.max(0, until - now) }))
      .sort((a, b) => a.retryInMs - b.retryInMs);
  }

  /** Closes all breakers of an upstream, here and in the store: an operator says that it takes calls again. */
  closeAllOf(upstream: string): void {
    const wanted = this.#digest('upstream', upstream);
    const own = [...this.#known.values()].filter(({ id }) => id.upstream === wanted);
    for (const { id } of own) this.#close(id);
  }

  /** Ends the comparing with the store. */
  stop(): void {
    this.#isStopped = true;
    this.#cancelRefresh?.();
  }

  /** Opens or reopens the breaker that a refusal names. `null`: the breaker was open already. */
  #refused(id: BreakerId, refusal: PermanentRefusal): Breaker | null {
    const before = this.#known.peek(id.key);
    const state = afterRefusal(before?.state ?? null, refusal, this.#now());
    if (state === before?.state) return null;
    this.#change(id, state, (next) => this.#parts.store.put(id, before?.version ?? '', next));
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
    this.#change(id, state, (next) => this.#parts.store.put(id, before.version, next));
  }

  #close(id: BreakerId): void {
    this.#known.delete(id.key);
    this.#background(this.#parts.store.close(id));
  }

  /** True: the call is the probe. False: the breaker has been closed meanwhile. @throws Refusal */
  async #claim(known: KnownBreaker): Promise<boolean> {
    const asked = ask(known.state, this.#now());
    if (asked.kind === 'refused') throw breakerRefusal(asked);
    const next = this.#shared(asked.next);
    const { id, version } = known;
    // Calls of this replica are refused from here on, whatever the store takes.
    this.#set({ id, state: asked.next, version: next.version });
    const stored = await this.#parts.store.take(id, version, next);
    if (stored === 'unavailable') {
      this.#notStored(id, next.version);
      return true;
    }
    this.#adopt(id, stored);
    if (stored === 'closed') return false;
    if (stored.version === next.version) return true;
    throw breakerRefusal({ ...stored, retryInMs: stored.leftMs });
  }

  /** The change holds here at once; what the store says afterwards counts. */
  #change(id: BreakerId, state: Breaker, store: (next: SharedBreaker) => Promise<Stored>): void {
    const next = this.#shared(state);
    this.#set({ id, state, version: next.version });
    if (state.kind === 'open') this.#parts.onBreakerOpened();
    const storing = store(next).then((stored) => {
      if (this.#known.peek(id.key)?.version !== next.version) return;
      if (stored === 'unavailable') this.#notStored(id, next.version);
      else if (stored !== 'closed') this.#adopt(id, stored);
    });
    this.#background(storing);
  }

  /** The store could not be reached: keeps the breaker to be stored when it can. */
  #notStored(id: BreakerId, version: string): void {
    const now = this.#known.peek(id.key);
    if (now?.version === version) this.#known.set(id.key, { ...now, version: '' });
  }

  #adopt(id: BreakerId, stored: Stored): void {
    if (stored === 'unavailable') return;
    if (stored === 'closed') {
      this.#known.delete(id.key);
      return;
    }
    const { version, kind, status, said, refusals, leftMs } = stored;
    if (this.#known.peek(id.key)?.version === version) return;
    this.#set({ id, version, state: { kind, status, said, refusals, until: this.#now() + leftMs } });
    if (kind === 'open') this.#parts.onBreakerOpened();
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

  /** Forgets breakers that no call asks for any more, and reads the state of the others from the store. */
  async #refresh(): Promise<void> {
    const { store } = this.#parts;
    const old = [...this.#known.values()].filter(({ state }) => isForgotten(state, this.#now()));
    for (const { id } of old) this.#known.delete(id.key);
    if (this.#known.size > 0) this.#refreshLater();
    if (!store.isShared) return;
    for (const { id, state, version } of [...this.#known.values()].toReversed().slice(0, readPerRefresh)) {
      const stored = version === '' ? await store.put(id, '', this.#shared(state)) : await store.read(id);
      if (this.#known.peek(id.key)?.version === version) this.#adopt(id, stored);
    }
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

  #shared({ kind, status, said, refusals, until }: Breaker): SharedBreaker {
    const leftMs = Math.max(0, until - this.#now());
    return { version: this.#parts.random.hex(8), kind, status, said, refusals, leftMs };
  }

  #background(work: Promise<unknown>): void {
    work.catch(this.#parts.onFailure);
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}

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
  return new Refusal('upstream_refused', {
    status,
    retryInMs,
    detail: `The upstream refuses such calls with ${status}, for a reason that waiting does not cure. One call asks it again at the time named here.`,
    shouldRetry: false,
    ...(said === null ? {} : { said }),
    ...(status === 429 ? { heldBy: 'closed' as const } : {}),
  });
}
