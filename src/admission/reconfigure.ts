/**
 * A reload for calls that are in admission, here or at other replicas: each goes on under the new limits, and the limiter gets
 * the new settings of each bucket once.
 *
 * Owns: which calls and lanes a change concerns. Does not own: what the new settings are (the gateway), waking lanes (the limiter).
 * Keeps: a limit that was raised or taken away lets waiting calls go, one that was lowered holds them (14).
 */
import type { BucketKey, BucketSetting, LaneKey, LaneSetting } from '../limiter/limiter.ts';
import type { CallSettings } from './buckets.policy.ts';
import { applyLimits, type LaneView } from './lanes.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import type { AdmissionRequest } from './ticket.ts';

interface BucketChange {
  readonly setting: BucketSetting;
  readonly lanes: Map<LaneKey, LaneSetting & { readonly lane: LaneKey }>;
}

/**
 * A lane that this process used within this time is reconfigured although no call of it is in admission here: its last call may have
 * brought the former settings to a bucket where calls of other replicas wait, which were reloaded before. No call waits longer.
 * Milliseconds.
 */
const usedWithinMs = 600_000;

/** Where a reload may change something. */
interface Known {
  readonly calls: Iterable<QueuedCall>;
  readonly lanes: Iterable<LaneView>;
}

/** Returns the calls whose settings changed. */
export function reconfigure(
  { limiter, background, clock }: AdmissionParts,
  { calls, lanes: known }: Known,
  settingsOf: (request: AdmissionRequest) => CallSettings | null,
): readonly QueuedCall[] {
  const changes = new Map<BucketKey, BucketChange>();
  const changed: QueuedCall[] = [];
  for (const call of calls) {
    const settings = settingsOf(call.request);
    if (settings === null || isSame(call.request, settings)) continue;
    call.request = withSettings(call.request, settings);
    call.lane.latest = call.request;
    applyLimits(call.lane, settings.ceilingTag);
    changed.push(call);
    note(changes, call.request);
  }
  const usedSince = clock.monotonic() - usedWithinMs;
  for (const lane of known) {
    if (lane.calls > 0 || lane.usedAt < usedSince) continue;
    const settings = settingsOf(lane.latest);
    if (settings === null || isSame(lane.latest, settings)) continue;
    lane.latest = withSettings(lane.latest, settings);
    applyLimits(lane, settings.ceilingTag);
    note(changes, lane.latest);
  }
  for (const [bucket, { setting, lanes }] of changes) {
    background(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
  }
  return changed;
}

function note(changes: Map<BucketKey, BucketChange>, { admission }: AdmissionRequest): void {
  const { bucket, setting, lane, weight, maxInFlight, perMinute, ceilingTag } = admission;
  let change = changes.get(bucket);
  if (change === undefined) changes.set(bucket, (change = { setting, lanes: new Map() }));
  change.lanes.set(lane, { lane, weight, maxInFlight, perMinute, ceilingTag });
}

const isSame = ({ admission }: AdmissionRequest, settings: CallSettings): boolean =>
  isSameBucket(admission.setting, settings.setting) &&
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceilingTag === settings.ceilingTag &&
  admission.maxQueued === settings.maxQueued;

function withSettings(request: AdmissionRequest, settings: CallSettings): AdmissionRequest {
  const { setting, weight, maxInFlight, ceilingTag, maxQueued, perMinute, perDay } = settings;
  return {
    ...request,
    admission: { ...request.admission, setting, weight, maxInFlight, perMinute, ceilingTag, maxQueued },
    ceiling: { key: request.ceiling.key, perMinute, perDay },
  };
}

function isSameBucket(one: BucketSetting, other: BucketSetting): boolean {
  if (one === other) return true;
  if (one.learn !== other.learn || one.probe !== other.probe || one.meters.length !== other.meters.length) {
    return false;
  }
  return one.meters.every(({ meter, limit, windowMs, counts }, index) => {
    const twin = other.meters[index];
    return (
      twin?.meter === meter && twin.limit === limit && twin.windowMs === windowMs && twin.counts === counts
    );
  });
}
