/**
 * Breakers: what the upstream refuses for a reason that waiting does not cure is asked again by one call at a time, and rarely.
 *
 *   closed ── refused ──▶ open ── its time has come, a call asks ──▶ probing ── refused ──▶ open, for twice as long
 *                                                                         └─── succeeded ──▶ closed
 *
 * Invariants: while a breaker is open nobody is sent; while it probes one call is; the pause between two probes grows from
 * `firstPauseMs` to `maxPauseMs`, and is never shorter than the time that the upstream named.
 *
 * First the decisions, which are pure (times are of the clock of whoever asks, milliseconds), then the breakers that this replica knows. A
 * decision holds here at once and is told to the other replicas; of those that want to probe, the shared map lets one.
 *
 * A replica that has missed a change, because it started later or Redis was away, sends a call that the others would not have sent, and
 * its response corrects the replica. Invariant: what leaves this process are keyed digests and numbers.
 */
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import type { BreakerSubject, Feedback, Throttle } from '../call.ts';
import type { Clock, Random } from '../clock.ts';
import { type ProviderError, Refusal } from '../errors.ts';
import { digest } from '../identity.ts';
import {
  anybody,
  type CreateMap,
  type Entry,
  type PutReply,
  type SharedMap,
} from '../replicated/shared-map.ts';
import type { ObservedBreaker } from '../telemetry/events.ts';

/** Time from the first refusal to the first probe. */
export const firstPauseMs = 60_000;
export const maxPauseMs = 900_000;
/** After a probe whose response decided nothing (a server error, a request with a mistake of its own). */
export const silentPauseMs = 10_000;
/** A probe whose response has not come by then is given up: another call may ask. */
export const probeLifeMs = 60_000;
/** A breaker that no call has asked for this long after its time is forgotten. */
export const memoryMs = 3_600_000;
/** A call that comes this much before the stated time is let through: the time was computed with the clocks of several machines. */
const toleranceMs = 250;

/** A breaker that is not closed. */
export interface Breaker {
  /** `open`: nobody is sent before `until`. `probing`: one call has been sent, and its response is awaited until then. */
  readonly kind: 'open' | 'probing';
  /** Status of the refusal, which is answered in the upstream's stead. */
  readonly status: number;
  /** What the provider's own error says beside it; `null` = no known word. */
  readonly said: ProviderError | null;
  /** Probes that were refused, and the first refusal. */
  readonly refusals: number;
  /** When the first of them came, Unix milliseconds. */
  readonly since: number;
  readonly until: number;
}

/** What an attempt shows of the upstream. */
export type Observation =
  | {
      readonly kind: 'refused';
      readonly status: number;
      readonly throttle: Throttle;
      readonly said: ProviderError | null;
    }
  | { readonly kind: 'succeeded' }
  /** Neither: it broke, was refused for a reason of its own, or was not made. */
  | { readonly kind: 'silent' };

type Refused = Extract<Observation, { kind: 'refused' }>;

/**
 * The breaker after a refusal. Refusals of calls that were sent before it opened change nothing.
 * @param before `null` = it was closed
 * @param now `unixMs`: the same instant, Unix milliseconds
 */
export function afterRefusal(
  before: Breaker | null,
  { status, said, throttle, isProbe }: Refused & { readonly isProbe: boolean },
  now: { readonly ms: number; readonly unixMs: number },
): Breaker {
  if (before !== null && !isProbe) return before;
  const refusals = (before?.refusals ?? 0) + 1;
  const pauseMs = Math.min(maxPauseMs, firstPauseMs * 2 ** (refusals - 1));
  const until = now.ms + Math.max(pauseMs, throttle.waitMs ?? 0);
  return { kind: 'open', status, said, refusals, since: before?.since ?? now.unixMs, until };
}

/** The breaker after a probe whose response decided nothing. */
export const afterSilence = (before: Breaker, now: number): Breaker => ({
  ...before,
  kind: 'open',
  until: now + silentPauseMs,
});

/** The breaker when the call that asks is its probe; `null`: it refuses the call until its time. */
export const asProbe = (breaker: Breaker, now: number): Breaker | null =>
  breaker.until - now > toleranceMs ? null : { ...breaker, kind: 'probing', until: now + probeLifeMs };

/** True when no call has asked for the breaker for so long that its state says nothing about the upstream any more. */
export const isForgotten = ({ until }: Breaker, now: number): boolean => now > until + memoryMs;

// Which other calls a refusal concerns: all that carry the credential, or those to one host, for one model or on one path with it. A
// refusal that lies in the call itself (it is too large, its query too expensive) concerns no other call; those by a limit that is not
// the bucket's own (`secondary`) do.

/**
 * The parts of a breaker's name beside upstream and credential, by what it concerns; `null` among them: the call lacks that part, and has
 * no such breaker.
 */
export const partsOf = {
  credential: () => [],
  host: ({ host }) => [host],
  model: ({ model }) => [model],
  path: ({ host, operation }) => [host, operation],
  bucket: ({ bucket }) => [bucket],
} satisfies Record<string, (subject: BreakerSubject) => readonly (string | null)[]>;
export type Concern = keyof typeof partsOf;

const ofReason = {
  quota: 'credential',
  unclear: 'credential',
  store_state: 'host',
  daily: 'model',
  too_large: null,
  max_cost: null,
} as const;

/** `null`: no other call is concerned. */
export function concernOf(throttle: Throttle): Concern | null {
  if (throttle.kind === 'secondary') return 'path';
  if (throttle.kind !== 'permanent') return null;
  const concern = throttle.scope ?? ofReason[throttle.reason];
  return concern === 'call' ? null : concern;
}

/**
 * True for a refusal that may lie in the call itself: it opens a breaker only where a second one follows before any call with the
 * credential succeeds. Until then each such call is refused by the upstream itself, which costs nobody anything.
 */
const needsConfirmation = (throttle: Throttle): boolean =>
  throttle.kind === 'permanent' && throttle.reason === 'unclear';

/** What an attempt shows. `null`: it was not made. */
export function observationOf(
  result:
    | {
        readonly kind: 'answered';
        readonly head: { readonly status: number };
        readonly feedback: Pick<Feedback, 'throttle' | 'errorStatus' | 'said'>;
      }
    | { readonly kind: 'failed' }
    | null,
): Observation {
  if (result?.kind !== 'answered') return { kind: 'silent' };
  const { throttle, errorStatus, said = null } = result.feedback;
  const status = errorStatus ?? result.head.status;
  if (throttle === null) return { kind: status < 400 ? 'succeeded' : 'silent' };
  // A client that is asked to slow down is not refused for good.
  if (throttle.kind === 'rate') return { kind: 'succeeded' };
  // A server error proves nothing of an account, whatever code it carries; a shop is refused with 540, too.
  const isRefused =
    throttle.kind === 'secondary' ||
    (throttle.kind === 'permanent' && (status < 500 || throttle.reason === 'store_state'));
  return isRefused ? { kind: 'refused', status, throttle, said } : { kind: 'silent' };
}

// The breakers of this replica

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
    const reply = await this.#put(this.#set(id, probing), version);
    if (reply.kind !== 'lost' || reply.to.kind !== 'entry') return true;
    const other = this.#adopt(reply.to);
    if (other === null) return false;
    throw breakerRefusal(other, this.#now());
  }

  /**
   * The change holds here at once. Of two replicas that change a breaker in the same moment the later one counts; but one that opens a
   * breaker of which it does not know takes over what the others know: how often it was refused.
   */
  #change(id: BreakerId, state: Breaker): void {
    const over = this.#known.has(id.key) ? anybody : null;
    const changed = this.#set(id, state);
    const share = async (): Promise<void> => {
      const reply = await this.#put(changed, over);
      if (reply.kind !== 'lost' || reply.to.kind !== 'entry') return;
      // It was closed before the refusal.
      if (reply.to.value.state === null) await this.#put(changed, anybody);
      else if (this.#known.peek(id.key) === changed) this.#adopt(reply.to);
    };
    this.#background(share());
  }

  /** Puts a state into the map, over that of the version `over`; `null`: where there is none. */
  #put({ id, state, version }: KnownBreaker, over: string | null): Promise<PutReply<SharedBreaker>> {
    const { until, ...shared } = state;
    const ttlMs = memoryMs + Math.max(0, until - this.#now());
    return this.#map.put({ name: id.key }, { id, state: shared }, { owner: version, ttlMs, over });
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
