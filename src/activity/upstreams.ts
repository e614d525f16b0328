/**
 * The state of each upstream, of all replicas together: whether it takes calls, how full its limits are, what waits and what was
 * refused, and how much more fits. Owns: what is read of whom. Does not own: the words (`answer.policy.ts`), the counts.
 */
import type { Clock } from '../clock.ts';
import { heldByReasons } from '../errors.ts';
import type {
  ConfigurationState,
  LimiterHealth,
  LivePressure,
  ObservedBreaker,
  ObservedCredential,
  ProcessPressure,
} from '../telemetry/events.ts';
import {
  answerOf,
  shortAnswer,
  type UpstreamState,
  type Condition,
  type LimitState,
  type SluiceState,
} from './answer.policy.ts';
import { addInto, countOf, emptyCell, refusedIn, type Cell } from './cell.ts';
import type { Headrooms } from './headrooms.ts';
import type { InForce } from './in-force.ts';
import { minuteMs } from './minutes.ts';
import type { Recorder } from './recorder.ts';
import type { AllUpstreams, UpstreamActivity } from './shape.ts';

/** What is asked of the gateway. */
export interface UpstreamSource {
  inForce(upstream: string): InForce | null;
  /** Calls of this replica, by upstream. */
  live(): readonly LivePressure[];
  breakers(upstream: string): readonly ObservedBreaker[];
  /** How long an operator's pause holds yet, milliseconds; 0 = there is none. */
  pausedMs(upstream: string): number;
  credentials(): readonly ObservedCredential[];
  process(): ProcessPressure;
  limiterHealth(): LimiterHealth;
  configuration(): ConfigurationState;
  replicas(): Promise<number>;
  /** The label under which a workspace is shown. */
  labelOf(workspaceId: string): string;
}

const shownMinutes = 15;
/** Ceilings shown of an upstream: the fullest. */
const shownCeilings = 3;

export class Upstreams {
  readonly #recorder: Recorder;
  readonly #headrooms: Headrooms;
  readonly #source: UpstreamSource;
  readonly #clock: Clock;

  constructor(parts: {
    readonly recorder: Recorder;
    readonly headrooms: Headrooms;
    readonly source: UpstreamSource;
    readonly clock: Clock;
  }) {
    this.#recorder = parts.recorder;
    this.#headrooms = parts.headrooms;
    this.#source = parts.source;
    this.#clock = parts.clock;
  }

  async read(): Promise<AllUpstreams> {
    const upstreams: UpstreamActivity[] = [];
    for (const live of this.#source.live()) upstreams.push(await this.#one(live));
    return { answer: answerOf(upstreams, await this.#sluice()), upstreams };
  }

  async #sluice(): Promise<SluiceState> {
    const { mode, modeSince } = this.#source.limiterHealth();
    const { inForceSince, refused } = this.#source.configuration();
    return {
      now: this.#clock.now(),
      mode: mode ?? 'memory',
      modeSince,
      replicas: await this.#source.replicas(),
      sheddingShare: this.#source.process().sheddingShare,
      refusedReload: refused === null ? null : { ...refused, inForceSince },
    };
  }

  async #one({ upstream, mode, oldestMs }: LivePressure): Promise<UpstreamActivity> {
    const inForce = this.#source.inForce(upstream);
    const byMinute = await this.#recorder.totalByMinute(upstream, 60);
    const now = this.#clock.now();
    const headroom = await this.#headrooms.ofUpstream(upstream);
    const { waiting, inFlight } = await this.#recorder.callsTo(upstream);
    const state: UpstreamState = {
      upstream,
      condition: this.#conditionOf(upstream, mode, inForce),
      growth: headroom?.growth ?? null,
      limits: inForce === null ? [] : this.#limitsOf(inForce),
      waiting,
      oldestMs: Math.round(oldestMs),
      maxWaitMs: inForce?.maxWaitMs ?? 0,
      recent: recentOf(byMinute, now),
      lastHour: hourOf(byMinute),
    };
    const minutes = byMinute.slice(-shownMinutes).map((cell) => ({
      calls: arrivalsOf(cell),
      refused: refusedIn(cell) + countOf(cell, 'upstreamRefused'),
      held: countOf(cell, 'held'),
    }));
    const rehearsed = await this.#headrooms.rehearsed(upstream);
    return { ...state, answer: shortAnswer(state, now), inFlight, headroom, rehearsed, minutes };
  }

  #conditionOf(upstream: string, mode: LivePressure['mode'], inForce: InForce | null): Condition {
    const [breaker] = this.#source.breakers(upstream);
    if (breaker !== undefined) return { kind: 'refusing', ...breaker };
    const ends = this.#source.credentials().filter((each) => each.upstream === upstream);
    const endsInMs = Math.min(Infinity, ...ends.map(({ expiresInMs }) => expiresInMs));
    if (endsInMs <= 0) return { kind: 'credential_ended', sinceMs: -endsInMs };
    const pausedMs = this.#source.pausedMs(upstream);
    if (pausedMs > 0) return { kind: 'paused', ms: pausedMs };
    if (mode === 'observe') return { kind: 'observing' };
    return inForce === null ? { kind: 'taking' } : closing(inForce);
  }

  /** Of each kind of limit the fullest, and the fullest ceilings. */
  #limitsOf({ buckets, lanes }: InForce): readonly LimitState[] {
    const own = new Map<string, LimitState>();
    for (const { meter, limit, level, windowMs, isReported } of buckets.flatMap(({ meters }) => meters)) {
      const owner = isReported === true ? 'provider' : 'setting';
      const state: LimitState = { owner, workspace: null, unit: meter, windowMs, limit, used: level };
      const known = own.get(`${meter} ${windowMs}`);
      if (known === undefined || shareOf(state) > shareOf(known)) own.set(`${meter} ${windowMs}`, state);
    }
    const ceilings = lanes
      .flatMap(({ workspaceId, perMinute, perDay, used }) => [
        { workspaceId, limit: perMinute, windowMs: minuteMs, share: used.minute },
        { workspaceId, limit: perDay, windowMs: 1_440 * minuteMs, share: used.day },
      ])
      .toSorted((a, b) => b.share - a.share);
    const shown = new Map<string, LimitState>();
    for (const { workspaceId, limit, windowMs, share } of ceilings) {
      const name = `${workspaceId} ${windowMs}`;
      if (limit === null || share === 0 || shown.has(name) || shown.size >= shownCeilings) continue;
      const workspace = this.#source.labelOf(workspaceId);
      shown.set(name, {
        owner: 'ceiling',
        workspace,
        unit: 'requests',
        windowMs,
        limit,
        used: share * limit,
      });
    }
    return [...own.values(), ...shown.values()];
  }
}

const shareOf = ({ used, limit }: LimitState): number => (limit > 0 ? used / limit : 0);

/** An upstream is closed when buckets are that take half of its calls or more: one shop of many that is closed closes no other. */
function closing({ buckets, lanes }: InForce): Condition {
  const closed = new Map(
    buckets.filter(({ closedMs }) => closedMs > 0).map((each) => [each.bucket, each.closedMs]),
  );
  if (closed.size === 0) return { kind: 'taking' };
  const all = lanes.reduce((sum, { calls }) => sum + calls, 0);
  const held = lanes.reduce((sum, { bucket, calls }) => (closed.has(bucket) ? sum + calls : sum), 0);
  return held * 2 >= all ? { kind: 'closed', ms: Math.max(...closed.values()) } : { kind: 'taking' };
}

const arrivalsOf = (cell: Cell): number => cell.seconds.reduce((sum, n) => sum + n, 0);

function recentOf(byMinute: readonly Cell[], now: number): UpstreamState['recent'] {
  const [before, running] = byMinute.slice(-2);
  const second = Math.floor((now % minuteMs) / 1_000);
  const earlier = before?.seconds.slice(second + 1).reduce((sum, n) => sum + n, 0) ?? 0;
  return {
    calls: earlier + (running === undefined ? 0 : arrivalsOf(running)),
    refused: byMinute.slice(-2).reduce((sum, cell) => sum + refusedIn(cell), 0),
    since: (before?.minute ?? 0) * minuteMs,
  };
}

function hourOf(byMinute: readonly Cell[]): UpstreamState['lastHour'] {
  const cell = emptyCell(0);
  for (const each of byMinute) addInto(cell, each);
  const heldBy = heldByReasons.map((reason) => [reason, countOf(cell, `held_by_${reason}`)] as const);
  const last = byMinute.findLast((each) => refusedIn(each) > 0);
  return {
    calls: byMinute.reduce((sum, each) => sum + arrivalsOf(each), 0),
    refused: refusedIn(cell),
    answeredInstead: countOf(cell, 'upstreamRefused'),
    longestWaitMs: Math.round(countOf(cell, 'waitMaxMs')),
    heldBy: Object.fromEntries(heldBy.filter(([, n]) => n > 0)),
    refusedAt: last === undefined ? null : last.minute * minuteMs,
  };
}
