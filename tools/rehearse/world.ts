/**
 * The limits under which recorded calls are rehearsed: those of the recording, or a configuration's over them. Where the configuration
 * writes no number, and where it writes the one that it had when the calls were recorded, what was in force then stays.
 *
 * Does not own: which calls share a bucket; that stays as recorded, because a label does not show what a call was made with.
 */
import type { Costs, MeterName } from '../../src/call.ts';
import type { Settings, WorkspaceSettings } from '../../src/config/settings.ts';
import { workspaceLabel } from '../../src/identity.ts';
import type { BucketSetting } from '../../src/limiter/limiter.ts';
import type {
  RecordedCall,
  RecordedMeter,
  RecordingHeader,
  UpstreamLimits,
  WorkspaceLimits,
} from '../../src/recording/format.ts';
import { upstreamsOf, workspaceLimitsOf } from '../../src/recording/format.ts';

/** Under which limits a call is admitted. */
export interface Rules {
  readonly setting: BucketSetting;
  /** The same meters, with what is known of each. */
  readonly meters: readonly RecordedMeter[];
  readonly weight: number;
  readonly maxInFlight: number | null;
  readonly perMinute: number | null;
  readonly perDay: number | null;
  readonly maxQueued: number;
  /** How long after its told time a position is kept, milliseconds, and of how many calls of a workspace. */
  readonly reserveMs: number;
  readonly maxReserved: number;
  /** The recorded callers of the workspace share its turns. */
  readonly tellsCallersApart: boolean;
  /** Of calls that ask for no wait of their own; `null` = as recorded. */
  readonly maxWaitMs: number | null;
}

/** The rules of each call of a bucket and workspace. */
export type World = (call: Pick<RecordedCall, 'upstream' | 'operation' | 'bucket' | 'workspace'>) => Rules;

/** What was in force when the calls were recorded. */
export interface Recorded {
  readonly limits: RecordingHeader['limits'];
  /** Of buckets, also as they were learned during the recording. */
  readonly buckets: ReadonlyMap<string, readonly RecordedMeter[]>;
}

/**
 * What responses taught later holds from the beginning: nobody had been sent to the bucket before, or its limit changed. The latest is what
 * the call that ended last was written with.
 */
export function recordedLimits({ limits }: RecordingHeader, calls: readonly RecordedCall[]): Recorded {
  const buckets = new Map(
    Object.values(limits.upstreams).flatMap((upstream) => Object.entries(upstream.buckets)),
  );
  const telling = calls.filter((call) => call.limits !== undefined);
  for (const { bucket, limits: learned } of telling.toSorted((one, other) => endOf(one) - endOf(other)))
    if (learned !== undefined) buckets.set(bucket, learned);
  return { limits, buckets };
}

const endOf = ({ at, waitedMs, serviceMs }: RecordedCall): number => at + waitedMs + (serviceMs ?? 0);

/** What was used of a bucket when the recording began. */
export interface UsedBefore {
  readonly bucket: string;
  readonly costs: Costs;
}

export function usedBefore({ limits }: RecordingHeader): readonly UsedBefore[] {
  const used: UsedBefore[] = [];
  for (const { buckets } of Object.values(limits.upstreams))
    for (const [bucket, meters] of Object.entries(buckets)) {
      const costs = Object.fromEntries(
        meters.flatMap((each) => (each.used === undefined ? [] : [[each.meter, each.used]])),
      );
      if (Object.keys(costs).length > 0) used.push({ bucket, costs });
    }
  return used;
}

const unknownUpstream: UpstreamLimits = {
  ceiling: { perMinute: null, perDay: null },
  isDefault: { perMinute: true, perDay: true },
  meters: [],
  probe: 0,
  maxInFlight: null,
  maxInFlightTotal: null,
  maxQueued: Number.MAX_SAFE_INTEGER,
  maxWaitMs: 0,
  operations: {},
  reserveMs: 0,
  maxReserved: 0,
  buckets: {},
};
const unknownWorkspace: WorkspaceLimits = { weight: 1, perMinute: {}, perDay: {} };

/** The recording's own limits. */
export function recordedWorld({ limits, buckets }: Recorded): World {
  return remembered(({ upstream: name, operation, bucket, workspace: label }) => {
    const upstream = ofOperation(limits.upstreams[name] ?? unknownUpstream, operation);
    const workspace = limits.workspaces[label] ?? unknownWorkspace;
    const learned = buckets.get(bucket) ?? [];
    const isStated = learned.some(({ meter, isStated }) => isStated === true && meter.startsWith('requests'));
    const ceilingOf = (window: Window): number | null => {
      const own = workspace[window][name];
      if (own !== undefined) return own;
      return upstream.isDefault[window] && isStated ? null : upstream.ceiling[window];
    };
    return {
      ...rulesOf(upstream, withLearned(upstream.meters, learned)),
      weight: workspace.weight,
      perMinute: ceilingOf('perMinute'),
      perDay: ceilingOf('perDay'),
      tellsCallersApart: true,
      maxWaitMs: null,
    };
  });
}

/** A configuration over what was recorded. Calls to upstreams that it does not have keep what was in force. */
export function configuredWorld(recorded: Recorded, settings: Settings): World {
  const upstreams = upstreamsOf(settings);
  const workspaces = workspacesOf(settings);
  const asRecorded = recordedWorld(recorded);
  return remembered((call) => {
    const former = asRecorded(call);
    const { upstream: name, operation, workspace: label } = call;
    const workspace = workspaces.get(label);
    const own = workspace === undefined ? recorded.limits.workspaces[label] : workspaceLimitsOf(workspace);
    const { weight, ...ceilings } = own ?? unknownWorkspace;
    const configured = upstreams[name];
    if (configured === undefined) return { ...former, weight };
    const upstream = ofOperation(configured, operation);
    const ceilingOf = (window: Window): number | null => {
      const written = ceilings[window][name];
      if (written !== undefined) return written;
      return upstream.isDefault[window] ? former[window] : upstream.ceiling[window];
    };
    const before = ofOperation(recorded.limits.upstreams[name] ?? unknownUpstream, operation);
    const meters = changedMeters(upstream, before, former.meters);
    return {
      ...rulesOf(upstream, meters),
      weight,
      perMinute: ceilingOf('perMinute'),
      perDay: ceilingOf('perDay'),
      tellsCallersApart: workspace === undefined || workspace.callers !== null,
      maxWaitMs: upstream.maxWaitMs,
    };
  });
}

/** Which upstreams and workspaces of the calls the configuration does not have. Labels agree under one label key only. */
export function unmatched(
  calls: readonly RecordedCall[],
  settings: Settings,
): { readonly upstreams: readonly string[]; readonly workspaces: readonly string[] } {
  const missing = (names: readonly string[], known: ReadonlyMap<string, unknown>): string[] =>
    [...new Set(names)].filter((name) => !known.has(name));
  return {
    upstreams: missing(
      calls.map(({ upstream }) => upstream),
      settings.upstreams,
    ),
    workspaces: missing(
      calls.map(({ workspace }) => workspace),
      workspacesOf(settings),
    ),
  };
}

/** The limits of a call's operation; those of the upstream where it has no such operation. */
const ofOperation = (upstream: UpstreamLimits, operation = ''): UpstreamLimits => ({
  ...upstream,
  meters: upstream.operations[operation] ?? upstream.meters,
});

type Window = 'perMinute' | 'perDay';

/** By label. */
const workspacesOf = ({
  workspaces,
  privacy: { labelKey },
}: Settings): ReadonlyMap<string, WorkspaceSettings> =>
  new Map(Array.from(workspaces.values(), (each) => [workspaceLabel(labelKey, each.id), each]));

const rulesOf = (
  { probe, maxInFlight, maxInFlightTotal, maxQueued, reserveMs, maxReserved }: UpstreamLimits,
  meters: readonly RecordedMeter[],
): Pick<Rules, 'setting' | 'meters' | 'maxInFlight' | 'maxQueued' | 'reserveMs' | 'maxReserved'> => ({
  setting: {
    meters: meters.map(({ meter, limit, windowMs, counts }) =>
      counts === undefined ? { meter, limit, windowMs } : { meter, limit, windowMs, counts },
    ),
    learn: true,
    probe,
    ...(maxInFlightTotal === null ? {} : { maxInFlightTotal }),
  },
  meters,
  maxInFlight,
  maxQueued,
  reserveMs,
  maxReserved,
});

/** Written meters with what was learned of each, and meters that were only learned of. */
function withLearned(written: readonly RecordedMeter[], learned: readonly RecordedMeter[]): RecordedMeter[] {
  const names = new Set(written.map(({ meter }) => meter));
  return [
    ...written.map((each) => ({ ...each, ...learned.find(({ meter }) => meter === each.meter) })),
    ...learned.filter(({ meter }) => !names.has(meter)),
  ];
}

/** What was in force, but for what the configuration writes otherwise than before. */
function changedMeters(
  upstream: UpstreamLimits,
  former: UpstreamLimits,
  inForce: readonly RecordedMeter[],
): RecordedMeter[] {
  const stays = inForce.filter(({ meter: name }) => {
    const written = upstream.meters.find(({ meter }) => meter === name);
    if (written === undefined) return !isLifted(upstream, name);
    const before = former.meters.find(({ meter }) => meter === name);
    return written.isDefault === true || isSame(written, before);
  });
  const names = new Set(stays.map(({ meter }) => meter));
  const isStated = ({ meter: name }: RecordedMeter): boolean =>
    inForce.some(({ meter, isStated }) => meter === name && isStated === true);
  const others = upstream.meters.filter(({ meter }) => !names.has(meter));
  // An upstream that states a limit states the new one from now on.
  return [
    ...stays,
    ...others.map((meter) => (isStated(meter) ? { ...meter, isStated: true as const } : meter)),
  ];
}

/** The configuration says `none`. */
const isLifted = ({ isDefault }: UpstreamLimits, name: MeterName): boolean =>
  (name === 'requests' && !isDefault.perMinute) || (name === 'requests_day' && !isDefault.perDay);

const isSame = (a: RecordedMeter, b: RecordedMeter | undefined): boolean =>
  b !== undefined && a.limit === b.limit && a.windowMs === b.windowMs && a.counts === b.counts;

/** Worked out once for each bucket and workspace. */
function remembered(world: World): World {
  const known = new Map<string, Rules>();
  return (call) => {
    const { bucket, workspace, upstream, operation } = call;
    const key = `${bucket} ${workspace} ${upstream} ${operation}`;
    let rules = known.get(key);
    if (rules === undefined) known.set(key, (rules = world(call)));
    return rules;
  };
}
