/**
 * What `/activity` answers and the page shows: of each upstream, over all replicas, whether it takes calls, how full its limits are, what
 * waits and was refused, and how much more fits; of workspaces their state now and their pressure in the requested window. Owns also who is
 * shown by label. The words are made in `answer.policy.ts`.
 */
import type { MeterSnapshot } from '../bucket.ts';
import type { Clock } from '../clock.ts';
import type { Settings } from '../config/settings.ts';
import { secondsInQuery } from '../duration.policy.ts';
import type { WhenDown } from '../limiter/limiter.ts';
import type { LivePressure } from '../telemetry/events.ts';
import type { RunningTelemetry } from '../telemetry/telemetry.ts';
import {
  answerOf,
  fullest,
  shortAnswer,
  used,
  type Condition,
  type LimitState,
  type UpstreamState,
} from './answer.policy.ts';
import { hourOf, lastMinuteOf, without, type Cell } from './cell.policy.ts';
import { createHeadrooms, type LimitsSource } from './headrooms.ts';
import { keptMinutes, type CellName, type Hour, type Recorder } from './recorder.ts';
import type { CeilingState, GatewayState, InForce } from './shape.ts';
import { dayMs, minuteMs } from '../time-units.ts';

/** Calls of one workspace to an upstream in the window. `workspaceId`: `null` = only other replicas have seen it. */
interface Lane {
  readonly name: CellName;
  readonly upstream: string;
  readonly label: string;
  readonly workspaceId: string | null;
  readonly cell: Cell;
}

export type Activity = ReturnType<typeof createActivity>;
export type WorkspaceActivity = Awaited<ReturnType<Activity['ofWorkspace']>>;
/** A workspace on an upstream: `waiting` and `inFlight` are its calls there, on all replicas. */
export type LaneActivity = WorkspaceActivity['upstreams'][number];
/**
 * Of all workspaces: those with a label of their own, the one with most calls first, and `other`: all calls that are not
 * in those rows. Without state and headroom: `other`, and workspaces that have called other replicas only. The rows of an upstream
 * together are all calls to it.
 */
export type AllActivity = Awaited<ReturnType<Activity['ofAll']>>;

/** Labels that are shown at a time. */
const maxLabels = 100;
const shownMinutes = 15;
/** Ceilings shown of an upstream: the fullest. */
const shownCeilings = 3;

/** `whenDown`: the setting that this process has started with; `null` = no Redis is configured. */
export function createActivity(parts: {
  readonly clock: Clock;
  readonly recorder: Recorder;
  readonly settings: () => Pick<Settings, 'workspaces' | 'upstreams'>;
  readonly gateway: () => GatewayState;
  readonly limits: LimitsSource;
  readonly telemetry: Pick<RunningTelemetry, 'labels' | 'live' | 'limiterHealth' | 'configuration'>;
  readonly whenDown: WhenDown | null;
}) {
  const { recorder, settings, gateway, limits, telemetry, whenDown } = parts;
  const headrooms = createHeadrooms(recorder, limits, parts.clock);

  /** Lets the busiest workspaces of this replica have the labels; called before they are shown, and every few seconds. */
  const preferBusiest = (): void => telemetry.labels.prefer(recorder.busiest());

  /**
   * The lanes of the workspaces with most calls in the hour, those with most in the last `minutes` first. Of equals the ones that
   * hold a label here: they are in the metrics as well.
   */
  function shown(hour: Hour, minutes: number): readonly Lane[] {
    const named = Array.from(hour.names(), ([name, counted]) => {
      const [upstream = '', label = null] = name.split(' ');
      return { name, upstream, label, ...counted };
    });
    const ofLabels = [...Map.groupBy(named, ({ label }) => label)].flatMap(([label, own]) => {
      const workspaceId = own.find((each) => each.workspaceId !== null)?.workspaceId ?? null;
      if (label === null || (workspaceId !== null && !settings().workspaces.has(workspaceId))) return [];
      const ended = own.reduce((sum, each) => sum + each.ended, 0);
      const isHeld = workspaceId !== null && telemetry.labels.holds(workspaceId);
      return { ended, isHeld, lanes: own.map((each) => ({ ...each, label, workspaceId })) };
    });
    const callsOf = (own: readonly Lane[]) => own.reduce((sum, { cell }) => sum + cell.of('ended'), 0);
    return ofLabels
      .sort((a, b) => b.ended - a.ended || Number(b.isHeld) - Number(a.isHeld))
      .slice(0, maxLabels)
      .map(({ lanes }) => lanes.map((lane) => ({ ...lane, cell: hour.sum(lane.name, minutes) })))
      .sort((a, b) => callsOf(b) - callsOf(a))
      .flat();
  }

  /** The lane with its state now and its headroom. */
  async function laneNow(
    workspaceId: string,
    { upstream, name, cell }: Pick<Lane, 'upstream' | 'name' | 'cell'>,
    upstreams: readonly UpstreamState[],
    hour: Hour,
  ) {
    const headroom = await headrooms.ofLane(workspaceId, upstream);
    const calls = hour.calls(name);
    const byMinute = hour.byMinute(name);
    /** What the words are made of, of this workspace's calls alone. */
    const ownState: UpstreamState = {
      upstream,
      condition: upstreams.find((each) => each.upstream === upstream)?.condition ?? { kind: 'taking' },
      growth: headroom?.growth ?? null,
      limits: [],
      waiting: calls.waiting,
      oldestMs: 0,
      maxWaitMs: 0,
      recent: lastMinuteOf(byMinute, hour.now),
      lastHour: hourOf(byMinute),
    };
    const own = await gateway().ceilings(workspaceId, upstream);
    const { perMinute, perDay, nextSlotMs, refusing, ...others } = own;
    const pause = gateway().pauseOf(upstream);
    const next = nextSlotMs === null && pause === null ? null : Math.max(nextSlotMs ?? 0, pause?.ms ?? 0);
    return {
      upstream,
      ceilings: { perMinute: inWholeMs(perMinute), perDay: inWholeMs(perDay) },
      ...calls,
      nextSlotMs: next === null ? null : Math.ceil(next),
      ...others,
      refusing: refusing === null ? null : { ...refusing, retryInMs: Math.ceil(refusing.retryInMs) },
      recent: cell.recent,
      headroom,
      /** Whether this workspace can send more, in words. */
      answer: shortAnswer(ownState, hour.now),
    };
  }

  /** Whether traffic can be raised, in words, and each upstream. */
  async function allUpstreams(hour: Hour) {
    const upstreams = [];
    for (const live of telemetry.live()) upstreams.push(await upstreamNow(live, hour));
    const answer = answerOf(upstreams, {
      now: hour.now,
      limiter: telemetry.limiterHealth(),
      configuration: telemetry.configuration(),
      whenDown,
      sheddingShare: gateway().process().sheddingShare,
    });
    return { answer, upstreams };
  }

  async function upstreamNow({ upstream, mode, oldestMs }: LivePressure, hour: Hour) {
    const inForce = limits(upstream);
    const byMinute = hour.byMinute(upstream);
    const headroom = await headrooms.ofUpstream(upstream);
    const { waiting, inFlight } = hour.calls(upstream);
    const recent = lastMinuteOf(byMinute, hour.now);
    const state: UpstreamState = {
      upstream,
      condition: conditionOf(upstream, mode, inForce),
      growth: headroom?.growth ?? null,
      limits: inForce === null ? [] : limitsOf(inForce, recent.calls === 0),
      waiting,
      oldestMs: Math.round(oldestMs),
      maxWaitMs: inForce?.maxWaitMs ?? 0,
      recent,
      lastHour: hourOf(byMinute),
    };
    return {
      ...state,
      answer: shortAnswer(state, hour.now),
      inFlight,
      /** Positions that are kept for clients of refused calls, which will come back. */
      reserved: inForce?.buckets.reduce((sum, bucket) => sum + bucket.reserved, 0) ?? 0,
      headroom,
      /** What multiples of the last hour's traffic and of the limits would meet; empty where nothing limits it. */
      rehearsed: await headrooms.rehearsed(upstream),
      /** The last quarter of an hour, the running minute last. `held`: calls that ended in it and had waited. */
      minutes: byMinute.slice(-shownMinutes).map((cell) => ({
        calls: cell.arrivals,
        refused: cell.refused + cell.of('upstreamRefused'),
        held: cell.of('held'),
      })),
    };
  }

  function conditionOf(upstream: string, mode: LivePressure['mode'], inForce: InForce | null): Condition {
    const [breaker] = gateway().breakers(upstream);
    if (breaker !== undefined) return { kind: 'refusing', ...breaker };
    const ends = gateway()
      .credentials()
      .filter((each) => each.upstream === upstream);
    const endsInMs = Math.min(Infinity, ...ends.map(({ expiresInMs }) => expiresInMs));
    if (endsInMs <= 0) return { kind: 'credential_ended', sinceMs: -endsInMs };
    const pause = gateway().pauseOf(upstream);
    if (pause !== null) return { kind: 'paused', ...pause };
    if (mode === 'observe') return { kind: 'observing' };
    // An upstream is closed when all of its buckets are: one shop of many that is closed closes no other.
    const { buckets = [] } = inForce ?? {};
    const ms = buckets.length === 0 ? 0 : Math.min(...buckets.map(({ closedMs }) => closedMs));
    return ms > 0 ? { kind: 'closed', ms } : { kind: 'taking' };
  }

  /**
   * Of each kind of limit the fullest, and the fullest ceilings. `isIdle`: nobody has called for a minute, so that what the configuration
   * states for a minute or less is unused, also where no bucket is known here.
   */
  function limitsOf({ buckets, lanes, stated }: InForce, isIdle: boolean): readonly LimitState[] {
    const unused = stated.filter(({ windowMs }) => isIdle && windowMs <= minuteMs);
    const meters: readonly MeterSnapshot[] =
      buckets.length === 0
        ? unused.map((each) => ({ ...each, level: 0 }))
        : buckets.flatMap(({ meters: own }) => own);
    const own = meters.map(({ meter: unit, limit, level, windowMs, isReported }): LimitState => {
      const owner = isReported === true ? 'provider' : 'setting';
      return { owner, workspace: null, unit, windowMs, limit, used: hundredths(level) };
    });
    const ceilings = lanes.flatMap(({ workspaceId, perMinute, perDay, used: { minute, day } }) => {
      const of = {
        owner: 'ceiling',
        workspace: telemetry.labels.peek(workspaceId),
        unit: 'requests',
      } as const;
      return [
        { ...of, windowMs: minuteMs, limit: perMinute ?? 0, used: hundredths(minute * (perMinute ?? 0)) },
        { ...of, windowMs: dayMs, limit: perDay ?? 0, used: hundredths(day * (perDay ?? 0)) },
      ];
    });
    const fullestOf = (some: readonly LimitState[]): readonly LimitState[] =>
      [...Map.groupBy(some, (each) => `${each.workspace} ${each.unit} ${each.windowMs}`).values()].flatMap(
        (same) => fullest(same) ?? [],
      );
    const met = fullestOf(ceilings.filter((each) => each.used > 0)).toSorted((a, b) => used(b) - used(a));
    return [...fullestOf(own), ...met.slice(0, shownCeilings)];
  }

  return {
    headrooms,
    preferBusiest,

    /** One workspace's own view. `windowMs` is rounded up to minutes, an hour at most. */
    async ofWorkspace(workspaceId: string, windowMs: number) {
      const hour = await recorder.hour();
      const all = await allUpstreams(hour);
      const workspace = telemetry.labels.peek(workspaceId);
      const upstreams = [];
      for (const upstream of settings().workspaces.get(workspaceId)?.upstreams ?? []) {
        const name = recorder.nameOf(workspaceId, upstream);
        const cell = hour.sum(name, minutesOf(windowMs));
        upstreams.push(await laneNow(workspaceId, { name, upstream, cell }, all.upstreams, hour));
      }
      return { workspace, ...frameOf(hour, windowMs), upstreams };
    },

    async ofAll(windowMs: number) {
      preferBusiest();
      const hour = await recorder.hour();
      const all = await allUpstreams(hour);
      const lanes = shown(hour, minutesOf(windowMs));
      const rows = [];
      for (const lane of lanes) {
        const { label, upstream, cell, workspaceId } = lane;
        const own = workspaceId === null ? null : await laneNow(workspaceId, lane, all.upstreams, hour);
        rows.push({ label, row: own ?? { upstream, recent: cell.recent } });
      }
      for (const upstream of hour.names().keys()) {
        const own = lanes.filter((lane) => lane.upstream === upstream).map(({ cell }) => cell);
        const cell = upstream.includes(' ') ? null : without(hour.sum(upstream, minutesOf(windowMs)), own);
        if (cell !== null) rows.push({ label: 'other', row: { upstream, recent: cell.recent } });
      }
      const workspaces = Array.from(
        Map.groupBy(rows, ({ label }) => label),
        ([workspace, own]) => ({ workspace, upstreams: own.map(({ row }) => row) }),
      );
      return { ...all, ...frameOf(hour, windowMs), workspaces };
    },

    /** The state of each upstream, the answer for all, and how many replicas there are. */
    async upstreams() {
      const hour = await recorder.hour();
      return { ...(await allUpstreams(hour)), replicas: hour.replicas };
    },
  };
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

const minutesOf = (windowMs: number): number =>
  Math.min(keptMinutes - 1, Math.max(1, Math.ceil(windowMs / minuteMs)));

const frameOf = (hour: Hour, windowMs: number) => ({
  generatedAt: new Date(hour.now).toISOString(),
  windowSeconds: minutesOf(windowMs) * 60,
  replicas: hour.replicas,
});

/** Rounds up, so that a client that returns then finds the slot free. */
const inWholeMs = (state: CeilingState | null): CeilingState | null =>
  state === null ? null : { ...state, resetMs: Math.ceil(state.resetMs) };

/** Levels are sums of fractions of units. */
const hundredths = (units: number): number => Math.round(units * 100) / 100;
