/**
 * What `/activity` answers and the page shows: of each upstream, over all replicas, whether it takes calls, how full its limits are, what
 * waits and was refused, and how much more fits; of workspaces their state now and their pressure in the requested window. Owns also who is
 * shown by label, and the pauses in which the process handles other events. Does not own: counting (`recorder.ts`), headroom
 * (`headrooms.ts`), the words (`answer.policy.ts`).
 */
import type { Clock } from '../clock.ts';
import { secondsInQuery } from '../duration.policy.ts';
import { heldByReasons } from '../errors.ts';
import type { Settings } from '../config/settings.ts';
import type { WhenDown } from '../limiter/when-down.policy.ts';
import type { Labels } from '../telemetry/labels.ts';
import type { ConfigurationState, LimiterHealth, LivePressure } from '../telemetry/events.ts';
import {
  answerOf,
  shortAnswer,
  workspaceAnswer,
  type Condition,
  type LimitState,
  type SluiceState,
  type UpstreamState,
} from './answer.policy.ts';
import {
  addInto,
  countOf,
  emptyCell,
  isEmpty,
  minuteMs,
  recentOf,
  refusedIn,
  takeOut,
  type Cell,
} from './cell.ts';
import { Headrooms, type LimitsSource } from './headrooms.ts';
import type { ActivityLaneId, CountedId, Recorder, Span } from './recorder.ts';
import type {
  AllActivity,
  AllUpstreams,
  CeilingState,
  GatewayState,
  InForce,
  LaneActivity,
  UpstreamActivity,
  WorkspaceActivity,
} from './shape.ts';
import type { SharedActivity } from './shared.ts';

export interface ActivityParts {
  readonly clock: Clock;
  readonly recorder: Recorder;
  readonly shared: Pick<SharedActivity, 'busiest' | 'replicas'>;
  readonly settings: () => Pick<Settings, 'workspaces' | 'upstreams'>;
  readonly gateway: () => GatewayState;
  readonly limits: LimitsSource;
  readonly telemetry: {
    readonly labels: Pick<Labels, 'peek' | 'prefer' | 'holders'>;
    live(): readonly LivePressure[];
    limiterHealth(): LimiterHealth;
    configuration(): ConfigurationState;
  };
  /** The setting that this process has started with; `null` = no Redis is configured. */
  readonly whenDown: WhenDown | null;
  /** The label of a workspace, whether it is shown under it now or not. */
  readonly labelOf: (workspaceId: string) => string;
}

type Counted<Id> = Id & { readonly cell: Cell };
/** A lane that may be shown, with the label of its workspace. */
type ShownLane = ActivityLaneId & { readonly label: string };
/** One workspace with its lanes. */
type WorkspaceRow = AllActivity['workspaces'][number];

/** Labels that are shown at a time. */
const maxLabels = 100;
/** Counts read concurrently, because those of other replicas are read over the network. */
const readAtOnce = 16;
/** Lanes shown in one go, before other events are handled: the replay of each takes 1 to 2 ms (`headrooms.ts`). */
const shownAtOnce = 4;
const shownMinutes = 15;
/** Ceilings shown of an upstream: the fullest. */
const shownCeilings = 3;

export class Activity {
  readonly headrooms: Headrooms;
  readonly #parts: ActivityParts;

  constructor(parts: ActivityParts) {
    this.#parts = parts;
    this.headrooms = new Headrooms(parts.recorder, parts.limits, parts.clock);
  }

  /** One workspace's own view. `windowMs` is rounded up to minutes, an hour at most. */
  async ofWorkspace(workspaceId: string, windowMs: number): Promise<WorkspaceActivity> {
    const minutes = minutesOf(windowMs);
    const { upstreams } = await this.upstreams();
    const lanes: LaneActivity[] = [];
    for (const lane of await this.#counted(this.#lanesOf(workspaceId), { minutes }))
      lanes.push(await this.#laneActivity(lane, upstreams));
    const workspace = this.#parts.telemetry.labels.peek(workspaceId);
    return { workspace, ...(await this.#frame(minutes)), upstreams: lanes };
  }

  async ofAll(windowMs: number): Promise<AllActivity> {
    const { recorder, settings, clock } = this.#parts;
    const minutes = minutesOf(windowMs);
    const { workspaceIds, elsewhere } = await this.preferBusiest();
    const labelled = workspaceIds.flatMap((workspaceId) => this.#lanesOf(workspaceId));
    // Totals first: a call that comes meanwhile is then in the row of its workspace, never in `other` for a moment.
    const span = { minutes, readSince: clock.monotonic() };
    const names = new Set([...settings().upstreams.keys(), ...recorder.upstreams()]);
    const totals = await this.#counted(
      Array.from(names, (upstream) => ({ upstream })),
      span,
    );
    const counted = await this.#counted(await recorder.active(labelled, 60), span);
    const byLabel = elsewhere.flatMap((label) =>
      Array.from(settings().upstreams.keys(), (upstream) => ({ label, upstream })),
    );
    const others = (await this.#counted(byLabel, span)).filter(({ cell }) => !isEmpty(cell));
    const all = await this.upstreams();
    const rows = [...(await this.#rows(counted, all.upstreams)), ...rowsOf(others)].sort(
      (a, b) => callsOf(b) - callsOf(a),
    );
    return {
      ...all,
      ...(await this.#frame(minutes)),
      workspaces: [...rows, ...restOf(totals, [...counted, ...others])],
    };
  }

  /** The state of each upstream, and the answer for all. */
  async upstreams(): Promise<AllUpstreams> {
    const upstreams: UpstreamActivity[] = [];
    for (const live of this.#parts.telemetry.live()) {
      if (upstreams.length > 0) await this.headrooms.yieldToCalls();
      upstreams.push(await this.#upstream(live));
    }
    return { answer: answerOf(upstreams, await this.#sluice()), upstreams };
  }

  /**
   * Lets the busiest workspaces of all replicas have the labels (how busy one is: `recorder.ts`; when a label changes hands:
   * `telemetry/labels.ts`); called before they are shown, and every few seconds. Resolves with those to be shown: workspaces that have a
   * label here, and labels under which other replicas alone have counted calls.
   */
  async preferBusiest(): Promise<{
    readonly workspaceIds: readonly string[];
    readonly elsewhere: readonly string[];
  }> {
    const { shared, recorder, settings, labelOf, telemetry } = this.#parts;
    const elsewhere = new Map(await shared.busiest());
    const busy = new Map<string, number>();
    for (const [workspaceId, here] of recorder.busiest()) {
      const label = labelOf(workspaceId);
      // A workspace that was removed has no row: its calls are among the others.
      if (settings().workspaces.has(workspaceId)) busy.set(workspaceId, here + (elsewhere.get(label) ?? 0));
      elsewhere.delete(label);
    }
    telemetry.labels.prefer(busy);
    const own = Array.from(telemetry.labels.holders(), (workspaceId) => ({
      workspaceId,
      busy: busy.get(workspaceId) ?? 0,
    }));
    for (const { workspaceId } of own) elsewhere.delete(labelOf(workspaceId));
    const others = Array.from(elsewhere, ([label, there]) => ({ label, busy: there }));
    const shown = [...own, ...others].sort((a, b) => b.busy - a.busy).slice(0, maxLabels);
    return {
      workspaceIds: shown.flatMap((each) => ('workspaceId' in each ? [each.workspaceId] : [])),
      elsewhere: shown.flatMap((each) => ('label' in each ? [each.label] : [])),
    };
  }

  async #frame(minutes: number) {
    return {
      generatedAt: new Date(this.#parts.clock.now()).toISOString(),
      windowSeconds: minutes * 60,
      replicas: await this.#parts.shared.replicas(),
    };
  }

  /** All lanes that a workspace may have. */
  #lanesOf(workspaceId: string): readonly ShownLane[] {
    const { settings, telemetry } = this.#parts;
    const label = telemetry.labels.peek(workspaceId);
    const upstreams = settings().workspaces.get(workspaceId)?.upstreams ?? [];
    return Array.from(upstreams, (upstream) => ({ workspaceId, upstream, label }));
  }

  async #counted<Id extends CountedId>(ids: readonly Id[], span: Span): Promise<readonly Counted<Id>[]> {
    const found: Counted<Id>[] = [];
    for (let from = 0; from < ids.length; from += readAtOnce) {
      if (from > 0) await this.headrooms.yieldToCalls();
      const some = ids.slice(from, from + readAtOnce);
      const reading = some.map(async (id) => ({ ...id, cell: await this.#parts.recorder.sum(id, span) }));
      found.push(...(await Promise.all(reading)));
    }
    return found;
  }

  /** One row for each workspace, in the order of the lanes. */
  async #rows(
    lanes: readonly Counted<ShownLane>[],
    upstreams: readonly UpstreamActivity[],
  ): Promise<readonly WorkspaceRow[]> {
    const byLabel = new Map<string, LaneActivity[]>();
    for (const [i, lane] of lanes.entries()) {
      if (i % shownAtOnce === shownAtOnce - 1) await this.headrooms.yieldToCalls();
      const own = byLabel.get(lane.label) ?? [];
      own.push(await this.#laneActivity(lane, upstreams));
      byLabel.set(lane.label, own);
    }
    return [...byLabel].map(([workspace, upstreams]) => ({ workspace, upstreams }));
  }

  /** The lane with its state now and its headroom. */
  async #laneActivity(
    { workspaceId, upstream, cell }: Counted<ActivityLaneId>,
    upstreams: readonly UpstreamActivity[],
  ): Promise<LaneActivity> {
    const { gateway, recorder, clock } = this.#parts;
    const headroom = await this.headrooms.ofLane({ workspaceId, upstream });
    const state = upstreams.find((each) => each.upstream === upstream) ?? null;
    const ceilings = await gateway().ceilings(workspaceId, upstream);
    const { perMinute, perDay, nextSlotMs, refusing, ...others } = ceilings;
    const own = { growth: headroom?.growth ?? null, refused: refusedIn(cell) };
    const pausedMs = gateway().pauseOf(upstream)?.ms ?? 0;
    return {
      upstream,
      ceilings: { perMinute: inWholeMs(perMinute), perDay: inWholeMs(perDay) },
      ...(await recorder.calls({ workspaceId, upstream })),
      nextSlotMs:
        nextSlotMs === null && pausedMs === 0 ? null : Math.ceil(Math.max(nextSlotMs ?? 0, pausedMs)),
      ...others,
      refusing: refusing === null ? null : { ...refusing, retryInMs: Math.ceil(refusing.retryInMs) },
      recent: recentOf(cell),
      headroom,
      answer: workspaceAnswer(state, own, clock.now()),
    };
  }

  async #sluice(): Promise<SluiceState> {
    const { clock, telemetry, gateway, shared, whenDown } = this.#parts;
    const { mode, modeSince } = telemetry.limiterHealth();
    const { inForceSince, refused } = telemetry.configuration();
    return {
      now: clock.now(),
      mode: mode ?? 'memory',
      modeSince,
      whenDown,
      replicas: await shared.replicas(),
      sheddingShare: gateway().process().sheddingShare,
      refusedReload: refused === null ? null : { ...refused, inForceSince },
    };
  }

  async #upstream({ upstream, mode, oldestMs }: LivePressure): Promise<UpstreamActivity> {
    const { recorder, limits, clock } = this.#parts;
    const inForce = limits.inForce(upstream);
    const byMinute = await recorder.byMinute({ upstream }, 60);
    const now = clock.now();
    const headroom = await this.headrooms.ofUpstream(upstream);
    const { waiting, inFlight } = await recorder.calls({ upstream });
    const state: UpstreamState = {
      upstream,
      condition: this.#conditionOf(upstream, mode, inForce),
      growth: headroom?.growth ?? null,
      limits: inForce === null ? [] : this.#limitsOf(inForce),
      waiting,
      oldestMs: Math.round(oldestMs),
      maxWaitMs: inForce?.maxWaitMs ?? 0,
      recent: lastMinuteOf(byMinute, now),
      lastHour: hourOf(byMinute),
    };
    const reserved = inForce?.buckets.reduce((sum, bucket) => sum + bucket.reserved, 0) ?? 0;
    const minutes = byMinute.slice(-shownMinutes).map((cell) => ({
      calls: arrivalsOf(cell),
      refused: refusedIn(cell) + countOf(cell, 'upstreamRefused'),
      held: countOf(cell, 'held'),
    }));
    const rehearsed = await this.headrooms.rehearsed(upstream);
    const answer = shortAnswer(state, now);
    return { ...state, answer, inFlight, reserved, headroom, rehearsed, minutes };
  }

  #conditionOf(upstream: string, mode: LivePressure['mode'], inForce: InForce | null): Condition {
    const gateway = this.#parts.gateway();
    const [breaker] = gateway.breakers(upstream);
    if (breaker !== undefined) return { kind: 'refusing', ...breaker };
    const ends = gateway.credentials().filter((each) => each.upstream === upstream);
    const endsInMs = Math.min(Infinity, ...ends.map(({ expiresInMs }) => expiresInMs));
    if (endsInMs <= 0) return { kind: 'credential_ended', sinceMs: -endsInMs };
    const pause = gateway.pauseOf(upstream);
    if (pause !== null) return { kind: 'paused', ...pause };
    if (mode === 'observe') return { kind: 'observing' };
    return inForce === null ? { kind: 'taking' } : closing(inForce);
  }

  /** Of each kind of limit the fullest, and the fullest ceilings. */
  #limitsOf({ buckets, lanes }: InForce): readonly LimitState[] {
    const own = new Map<string, LimitState>();
    for (const { meter, limit, level, windowMs, isReported } of buckets.flatMap(({ meters }) => meters)) {
      const owner = isReported === true ? 'provider' : 'setting';
      const state: LimitState = {
        owner,
        workspace: null,
        unit: meter,
        windowMs,
        limit,
        used: hundredths(level),
      };
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
      const workspace = this.#parts.telemetry.labels.peek(workspaceId);
      const used = hundredths(share * limit);
      shown.set(name, { owner: 'ceiling', workspace, unit: 'requests', windowMs, limit, used });
    }
    return [...own.values(), ...shown.values()];
  }
}

/** One hour: counts are kept no longer. */
const maxWindowMs = 3_600_000;

/**
 * `window=90s`, `15m` or `1h` in a raw query string, as milliseconds; an hour when absent. `null` when the value has another
 * form, appears twice, is below a second, or is longer than an hour.
 */
export function windowOf(rawQuery: string): number | null {
  if (!/(?:^|&)window(?:=|&|$)/.test(rawQuery)) return maxWindowMs;
  const windowMs = (secondsInQuery(`?${rawQuery}`, 'window') ?? 0) * 1_000;
  return windowMs >= 1_000 && windowMs <= maxWindowMs ? windowMs : null;
}

const minutesOf = (windowMs: number): number => Math.min(60, Math.max(1, Math.ceil(windowMs / minuteMs)));

const callsOf = ({ upstreams }: WorkspaceRow): number =>
  upstreams.reduce((sum, { recent }) => sum + recent.calls, 0);

const rowsOf = (
  lanes: readonly Counted<{ readonly label: string; readonly upstream: string }>[],
): WorkspaceRow[] =>
  [...Map.groupBy(lanes, ({ label }) => label)].map(([workspace, own]) => ({
    workspace,
    upstreams: own.map(({ upstream, cell }) => ({ upstream, recent: recentOf(cell) })),
  }));

/** The totals less what was counted in the lanes, as one row `other`. Returns no row when the rest is empty. */
function restOf(
  totals: readonly Counted<{ readonly upstream: string }>[],
  lanes: readonly Counted<{ readonly upstream: string }>[],
): readonly WorkspaceRow[] {
  const upstreams = totals.flatMap(({ upstream, cell }) => {
    const own = lanes.filter((lane) => lane.upstream === upstream).map((lane) => lane.cell);
    const rest = takeOut(cell, own);
    return isEmpty(rest) ? [] : [{ upstream, recent: recentOf(rest) }];
  });
  return upstreams.length === 0 ? [] : [{ workspace: 'other', upstreams }];
}

/** Rounds up, so that a client that returns then finds the slot free. */
const inWholeMs = (state: CeilingState | null): CeilingState | null =>
  state === null ? null : { ...state, resetMs: Math.ceil(state.resetMs) };

/** Levels are sums of fractions of units. */
const hundredths = (units: number): number => Math.round(units * 100) / 100;

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

const heldByOf = (cell: Cell): UpstreamState['recent']['heldBy'] =>
  Object.fromEntries(
    heldByReasons
      .map((reason) => [reason, countOf(cell, `held_by_${reason}`)] as const)
      .filter(([, n]) => n > 0),
  );

function lastMinuteOf(byMinute: readonly Cell[], now: number): UpstreamState['recent'] {
  const [before, running] = byMinute.slice(-2);
  const second = Math.floor((now % minuteMs) / 1_000);
  const earlier = before?.seconds.slice(second + 1).reduce((sum, n) => sum + n, 0) ?? 0;
  const latest = emptyCell(0);
  for (const cell of byMinute.slice(-2)) addInto(latest, cell);
  return {
    calls: earlier + (running === undefined ? 0 : arrivalsOf(running)),
    refused: refusedIn(latest),
    heldBy: heldByOf(latest),
    failed: countOf(latest, 'failed'),
    succeeded: countOf(latest, 'ok'),
    errors: countOf(latest, 'upstream_error'),
    since: (before?.minute ?? 0) * minuteMs,
  };
}

function hourOf(byMinute: readonly Cell[]): UpstreamState['lastHour'] {
  const cell = emptyCell(0);
  for (const each of byMinute) addInto(cell, each);
  const lastWith = (count: (cell: Cell) => number): number | null => {
    const last = byMinute.findLast((each) => count(each) > 0);
    return last === undefined ? null : last.minute * minuteMs;
  };
  return {
    calls: byMinute.reduce((sum, each) => sum + arrivalsOf(each), 0),
    refused: refusedIn(cell),
    answeredInstead: countOf(cell, 'upstreamRefused'),
    longestWaitMs: Math.round(countOf(cell, 'waitMaxMs')),
    heldBy: heldByOf(cell),
    refusedAt: lastWith(refusedIn),
    throttledAt: lastWith((each) => countOf(each, 'throttledRate')),
  };
}
