/**
 * A recording: a first line, with the limits of a configuration, then a line of JSON for each call, as `/recording` writes them and
 * `sluice rehearse` reads them. Labels only: nothing in it can be led back to a workspace, a host or a credential without the label key.
 */
import { z } from 'zod';
import { bucketSetting, operationOf, settingsOfOperations } from '../admission/buckets.policy.ts';
import { meterNames, type Costs, type MeterName } from '../call.ts';
import { defaultWaits } from '../config/defaults.ts';
import type { Settings, UpstreamSettings, WorkspaceSettings } from '../config/settings.ts';
import { outcomes } from '../telemetry/events.ts';

export const recordingVersion = 1;
/** A recording takes the calls of so many seconds at most. */
export const maxRecordingSeconds = 600;

const ms = z.number().min(0);
const limit = z.number().positive().nullable();
const meterName = z.enum(meterNames);
const costs = z.partialRecord(meterName, z.number().min(0)) as unknown as z.ZodType<Costs>;

/** A call counts against the day what it counts against the minute: costs are written without the one, and read with it (`withDays`). */
export const withoutDays = ({ requests_day: _requests, tokens_day: _tokens, ...costs }: Costs): Costs =>
  costs;

/** One window of a bucket's quota. */
const meter = z.object({
  meter: meterName,
  limit: z.number().positive(),
  windowMs: z.number().positive(),
  counts: z.enum(['rolling', 'fixed']).exactOptional(),
  /** Nobody wrote it down: it is what the kind of the upstream has. */
  isDefault: z.literal(true).exactOptional(),
  /** Responses state it. */
  isStated: z.literal(true).exactOptional(),
  /** Units that were used when the recording began; absent: none. */
  used: z.number().positive().exactOptional(),
});
export type RecordedMeter = z.output<typeof meter>;

/** Ceilings of a workspace on an upstream; `null` = none. */
const ceiling = z.object({ perMinute: limit, perDay: limit });

/** What was configured for an upstream, and the quotas of its buckets that were known when the recording began, by label. */
const upstreamLimits = z.object({
  ceiling,
  /** Nobody wrote it down: the ceiling yields to what responses state. */
  isDefault: z.object({ perMinute: z.boolean(), perDay: z.boolean() }),
  meters: z.array(meter),
  /** Calls sent to a bucket of which nothing is known before its first response; 0 = any number. */
  probe: z.number().min(0).default(0),
  maxInFlight: limit,
  maxInFlightTotal: limit,
  maxQueued: z.number().min(0),
  maxWaitMs: ms,
  /** The quotas of operations in place of `meters`, by what `calls` of their windows says. */
  operations: z.record(z.string(), z.array(meter)).default({}),
  reserveMs: ms.default(defaultWaits.reserveSeconds * 1_000),
  maxReserved: z.number().min(0).default(defaultWaits.maxReserved),
  buckets: z.record(z.string(), z.array(meter)).default({}),
});
export type UpstreamLimits = z.output<typeof upstreamLimits>;

/** What is special to a workspace, by label; the others have weight 1 and the ceilings of each upstream. */
const workspaceLimits = z.object({
  weight: z.number().positive(),
  /** By upstream. */
  perMinute: z.record(z.string(), limit),
  perDay: z.record(z.string(), limit),
});
export type WorkspaceLimits = z.output<typeof workspaceLimits>;

export const recordingHeader = z.object({
  sluice: z.literal('recording'),
  version: z.literal(recordingVersion),
  startedAt: z.iso.datetime({ offset: true }),
  limits: z
    .object({
      upstreams: z.record(z.string(), upstreamLimits).default({}),
      workspaces: z.record(z.string(), workspaceLimits).default({}),
    })
    .prefault({}),
});
export type RecordingHeader = z.output<typeof recordingHeader>;

/** Written in place of further calls when a recording ends early. */
export const recordingEnded = z.object({
  sluice: z.literal('recording'),
  ended: z.literal('reader_too_slow'),
});

export const recordedCall = z.object({
  /** When it asked for admission, milliseconds since the start. */
  at: ms,
  upstream: z.string(),
  bucket: z.string(),
  /** What `calls` of its windows says; absent: it has those of its upstream. */
  operation: z.string().exactOptional(),
  workspace: z.string(),
  /** Of the workspace in the bucket: of workspaces whose turn it is alike, the first in the order of these labels goes first. */
  lane: z.string().exactOptional(),
  caller: z.string().nullable().default(null),
  /** RFC 9218, 0 to 7. */
  urgency: z.number().min(0).max(7).default(3),
  /** Reserved when it was granted, and what the upstream took in the end: `{}` = it was not sent. */
  costs,
  charged: costs.default({}),
  /** Units of the bucket that were used when the upstream had counted the call, as its response states it: of meters of which the call used other than was reserved. */
  stated: costs.exactOptional(),
  /** From its last sending to the end of its response; `null` = it was not sent. */
  serviceMs: ms.nullable(),
  /** How long it might wait, and whether the call or its client had asked for that. */
  maxWaitMs: ms,
  asked: z.boolean().exactOptional(),
  waitedMs: ms,
  /** Of a call that keeps its position if it is refused, or came back for one: attempts of one client have one label. */
  reservation: z.string().exactOptional(),
  outcome: z.enum(outcomes),
  /** When it was sent the upstream was closed: so long after the arrival of the call, for so long. */
  closings: z.array(z.object({ afterMs: ms, forMs: ms })).exactOptional(),
  /** The quota of its bucket, where that was learned since the recording began. */
  limits: z.array(meter).exactOptional(),
});
export type RecordedCall = z.output<typeof recordedCall>;

// The limits of a configuration: by upstream, and what is special to each workspace

/** What is written down for an upstream; no bucket of it is known. */
function upstreamLimitsOf(upstream: UpstreamSettings): UpstreamLimits {
  const { limits } = upstream;
  const { meters, probe } = bucketSetting(upstream);
  return {
    ceiling: { perMinute: limits.requestsPerMinute, perDay: limits.requestsPerDay },
    isDefault: { perMinute: limits.isDefault.perMinute, perDay: limits.isDefault.perDay },
    meters: meters.map((meter) =>
      isDefaultMeter(upstream, meter.meter) ? { ...meter, isDefault: true } : meter,
    ),
    probe,
    maxInFlight: limits.maxInFlight,
    maxInFlightTotal: limits.maxInFlightTotal,
    maxQueued: limits.maxQueued,
    maxWaitMs: limits.maxWaitSeconds * 1_000,
    operations: Object.fromEntries(
      settingsOfOperations(upstream).map((one) => [operationOf(one), [...bucketSetting(one).meters]]),
    ),
    reserveMs: limits.reserveSeconds * 1_000,
    maxReserved: limits.maxReserved,
    buckets: {},
  };
}

function isDefaultMeter(
  { kind, limits: { isDefault }, dialect }: UpstreamSettings,
  name: MeterName,
): boolean {
  if (kind === 'commerce') return name === 'requests' && isDefault.bucket;
  if (dialect !== null && dialect.windows.length > 0) return false;
  return (name === 'requests' && isDefault.perMinute) || (name === 'requests_day' && isDefault.perDay);
}

export const upstreamsOf = ({ upstreams }: Settings): Record<string, UpstreamLimits> =>
  Object.fromEntries(Array.from(upstreams, ([name, upstream]) => [name, upstreamLimitsOf(upstream)]));

/** `null` = nothing is special to it. */
export function workspaceLimitsOf(workspace: WorkspaceSettings): WorkspaceLimits | null {
  const { weight, requestsPerMinute, requestsPerDay } = workspace;
  if (weight === 1 && requestsPerMinute.size + requestsPerDay.size === 0) return null;
  return {
    weight,
    perMinute: Object.fromEntries(requestsPerMinute),
    perDay: Object.fromEntries(requestsPerDay),
  };
}
