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

interface Refused {
  readonly kind: 'refused';
  readonly status: number;
  readonly throttle: Throttle;
  readonly said: ProviderError | null;
}

/** What an attempt shows of the upstream. `silent`: neither, because it broke, was refused for a reason of its own, or was not made. */
export type Observation = Refused | { readonly kind: 'succeeded' | 'silent' };

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

export type Breakers = ReturnType<typeof createBreakers>;

export function createBreakers(parts: {
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
}) {
  const { clock, onFailure } = parts;
  const now = (): number => clock.monotonic();
  const replica = parts.random.hex(8);
  let changes = 0;
  const nextVersion = (): string => `${replica}.${++changes}`;
  /** By name. Looked at with `peek`, so that their order is that of changes. */
  const breakers = new LRUCache<string, KnownBreaker>(atMost(maxKnown));
  /** Names of the breakers that may concern a call: a waiting call is asked about again and again. */
  const namesOfCalls = new WeakMap<BreakerSubject, ReadonlyMap<Concern, BreakerId>>();
  /** When a refusal was met that has to be confirmed, by breaker. */
  const unconfirmed = new LRUCache<string, number>(atMost(maxUnconfirmed));
  const map: SharedMap<SharedBreaker> = parts.createMap({
    name: 'breaker.5',
    onChange: (_name, entry) => {
      if (!entry.owner.startsWith(replica)) adopt(entry);
    },
  });

  /** Names are keyed digests, the same on every replica. */
  const keyedName = (purpose: string, ...words: readonly string[]): string =>
    digest(parts.labelKey, `breaker ${purpose}`, ...words);

  function namesOf(subject: BreakerSubject): ReadonlyMap<Concern, BreakerId> {
    const known = namesOfCalls.get(subject);
    if (known !== undefined) return known;
    const { upstream, credential } = subject;
    const owner = {
      upstream: keyedName('upstream', upstream),
      credential: keyedName('owner', upstream, credential),
    };
    const names = new Map<Concern, BreakerId>();
    for (const concern of Object.keys(partsOf) as Concern[]) {
      const words = partsOf[concern](subject);
      if (words.every((word) => word !== null))
        names.set(concern, { key: keyedName(concern, upstream, credential, ...words), ...owner });
    }
    namesOfCalls.set(subject, names);
    return names;
  }

  /** The breakers of a call. Those that no call has asked for in a long time are forgotten. */
  function* concerning(subject: BreakerSubject): Iterable<KnownBreaker> {
    for (const { key } of namesOf(subject).values()) {
      const known = breakers.peek(key);
      if (known === undefined) continue;
      if (isForgotten(known.state, now())) breakers.delete(key);
      else yield known;
    }
  }

  function set(id: BreakerId, state: Breaker, version = nextVersion()): KnownBreaker {
    const known = { id, state, version };
    breakers.set(id.key, known);
    if (state.kind === 'open') parts.onBreakerOpened();
    return known;
  }

  /** Puts a state into the map, over that of the version `over`; `null`: where there is none. */
  function put({ id, state, version }: KnownBreaker, over: string | null): Promise<PutReply<SharedBreaker>> {
    const { until, ...shared } = state;
    const ttlMs = memoryMs + Math.max(0, until - now());
    return map.put({ name: id.key }, { id, state: shared }, { owner: version, ttlMs, over });
  }

  /** Makes this breaker what an entry says. Returns its state; `null` = it is closed. */
  function adopt({ value: { id, state }, owner, leftMs }: Entry<SharedBreaker>): Breaker | null {
    const known = breakers.peek(id.key);
    if (known?.version === owner) return known.state;
    if (state !== null) return set(id, { ...state, until: now() + leftMs - memoryMs }, owner).state;
    breakers.delete(id.key);
    return null;
  }

  /**
   * The change holds here at once. Of two replicas that change a breaker in the same moment the later one counts; but one that opens a
   * breaker of which it does not know takes over what the others know: how often it was refused.
   */
  async function changeTo(id: BreakerId, state: Breaker): Promise<void> {
    const over = breakers.has(id.key) ? anybody : null;
    const changed = set(id, state);
    const reply = await put(changed, over);
    if (reply.kind !== 'lost' || reply.to.kind !== 'entry') return;
    // It was closed before the refusal.
    if (reply.to.value.state === null) await put(changed, anybody);
    else if (breakers.peek(id.key) === changed) adopt(reply.to);
  }

  function close(id: BreakerId): void {
    breakers.delete(id.key);
    const closed = { owner: nextVersion(), ttlMs: closedMs, over: anybody };
    map.put({ name: id.key }, { id, state: null }, closed).catch(onFailure);
  }

  /** True: the call is the probe. False: the breaker has been closed meanwhile. @throws Refusal */
  async function claim({ id, state, version }: KnownBreaker): Promise<boolean> {
    const probing = asProbe(state, now());
    if (probing === null) throw breakerRefusal(state, now());
    // Calls of this replica are refused from here on, whatever the map has.
    const reply = await put(set(id, probing), version);
    if (reply.kind !== 'lost' || reply.to.kind !== 'entry') return true;
    const other = adopt(reply.to);
    if (other === null) return false;
    throw breakerRefusal(other, now());
  }

  /** The breaker that a refusal opens; `null` = none, or none yet: it may lie in the call alone, and is the first of that kind. */
  function refusedBreaker(subject: BreakerSubject, { throttle }: Refused): BreakerId | null {
    const concern = concernOf(throttle);
    const id = concern === null ? undefined : namesOf(subject).get(concern);
    if (id === undefined) return null;
    if (!needsConfirmation(throttle) || breakers.has(id.key)) return id;
    const metAt = unconfirmed.get(id.key) ?? -Infinity;
    unconfirmed.set(id.key, now());
    return now() - metAt <= unconfirmedMs ? id : null;
  }

  /** What became of a call that was sent, and for which breakers it was the probe. */
  function observe(subject: BreakerSubject, probed: readonly BreakerId[], observation: Observation): void {
    const hasSucceeded = observation.kind === 'succeeded';
    if (hasSucceeded && unconfirmed.size > 0)
      for (const { key } of namesOf(subject).values()) unconfirmed.delete(key);
    const refused = observation.kind === 'refused' ? refusedBreaker(subject, observation) : null;
    for (const id of probed) {
      if (id.key === refused?.key) continue;
      const state = breakers.peek(id.key)?.state;
      if (hasSucceeded) close(id);
      else if (state?.kind === 'probing') changeTo(id, afterSilence(state, now())).catch(onFailure);
    }
    if (refused === null || observation.kind !== 'refused') return;
    const before = breakers.peek(refused.key)?.state ?? null;
    const isProbe = probed.some(({ key }) => key === refused.key);
    const state = afterRefusal(before, { ...observation, isProbe }, { ms: now(), unixMs: clock.now() });
    if (state === before) return;
    changeTo(refused, state).catch(onFailure);
    parts.onRefused(subject.upstream, shown(state, now()));
  }

  function ofUpstream(upstream: string): readonly KnownBreaker[] {
    if (breakers.size === 0) return [];
    const wanted = keyedName('upstream', upstream);
    return [...breakers.values()].filter(({ id }) => id.upstream === wanted);
  }

  return {
    observe,

    /** False: no call needs to be asked about. */
    get isAnyOpen(): boolean {
      return breakers.size > 0;
    },

    /** Why a call must not be sent now; `null` = it may, or would be a probe. */
    openBreakerRefusal(subject: BreakerSubject): Refusal | null {
      if (breakers.size === 0) return null;
      for (const { state } of concerning(subject))
        if (asProbe(state, now()) === null) return breakerRefusal(state, now());
      return null;
    },

    /**
     * A call is about to be sent. Resolves with the breakers for which this call is the one that finds out for all others.
     * @throws Refusal `upstream_refused`
     */
    async pass(subject: BreakerSubject): Promise<readonly BreakerId[]> {
      const probed: BreakerId[] = [];
      try {
        for (const known of concerning(subject)) if (await claim(known)) probed.push(known.id);
      } catch (refusal) {
        observe(subject, probed, { kind: 'silent' });
        throw refusal;
      }
      return probed;
    },

    /** Breakers of an upstream, or of one credential of it; the one whose next probe is due first comes first. */
    observed(upstream: string, credential: string | null = null): readonly ObservedBreaker[] {
      const own = credential === null ? null : keyedName('owner', upstream, credential);
      return ofUpstream(upstream)
        .filter(({ id, state }) => (own === null || id.credential === own) && !isForgotten(state, now()))
        .map(({ state }) => shown(state, now()))
        .toSorted((a, b) => a.retryInMs - b.retryInMs);
    },

    /** Closes all breakers of an upstream, on all replicas: an operator says that it takes calls again. */
    closeAllOf(upstream: string): void {
      for (const { id } of ofUpstream(upstream)) close(id);
    },
  };
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
