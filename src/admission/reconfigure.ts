/**
 * A reload for calls that are in admission, here or at other replicas: each goes on under the new limits, and the limiter gets
 * the new settings of each bucket.
 *
 * Owns: which calls and lanes a change concerns. Does not own: what the new settings are (the gateway), waking lanes (the limiter).
 * Keeps: a limit that was raised or taken away lets waiting calls go, one that was lowered holds them (14).
 */
import { isDeepStrictEqual } from 'node:util';
import type { BucketKey } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { ceilingUnder } from '../limiter/policy/ceiling.policy.ts';
import { inSlices } from '../slices.ts';
import type { CallSettings } from './buckets.policy.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts, AdmissionRequest } from './ticket.ts';
import type { QueuedCall } from './queued-call.ts';

/**
 * A lane that this process used within this time is reconfigured although no call of it is in admission here: its last call may have
 * brought the former settings to a bucket where calls of other replicas wait, which were reloaded before. No call waits longer.
 * Milliseconds.
 */
const usedWithinMs = 600_000;

type SettingsOf = (request: AdmissionRequest) => CallSettings | null;

/** Where a reload may change something. */
interface Known {
  readonly calls: Iterable<QueuedCall>;
  readonly lanes: Iterable<LaneView>;
}

export class Reconfiguring {
  readonly #parts: AdmissionParts;
  #latest: SettingsOf | null = null;

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /** Returns the calls whose settings changed. Lanes without calls follow, some at a time: there may be 10,000 in as many buckets. */
  reconfigure({ calls, lanes }: Known, reloaded: SettingsOf): readonly QueuedCall[] {
    const { limiter, clock, detached } = this.#parts;
    const settingsOf: SettingsOf = (request) => {
      const settings = reloaded(request);
      const yielded = settings?.yielded ?? null;
      return yielded !== null && limiter.statesLimit(request.admission.bucket) ? yielded : settings;
    };
    const changed = this.#change(calls, settingsOf);
    this.#latest = settingsOf;
    const usedSince = clock.monotonic() - usedWithinMs;
    const follow = (lane: LaneView): void => {
      if (this.#latest !== settingsOf || lane.calls > 0 || lane.usedAt < usedSince) return;
      const settings = settingsOf(lane.latest);
      if (settings === null || isSame(lane.latest, settings)) return;
      lane.latest = withSettings(lane.latest, settings);
      this.#report([lane.latest]);
    };
    detached(inSlices(clock, [...lanes], follow));
    return changed;
  }

  /** A response may have stated a limit of the bucket: default ceilings hold none of these calls any more then. */
  onAnswer(bucket: BucketKey, { calls, lanes }: Known): void {
    const { limiter } = this.#parts;
    if (!limiter.statesLimit(bucket)) return;
    const yielding = [...lanes].filter((lane) => lane.bucket === bucket && lane.latest.yielded !== null);
    for (const lane of yielding) lane.latest = present(lane.latest, limiter);
    if (yielding.length > 0)
      this.#change(calls, ({ admission, yielded }) => (admission.bucket === bucket ? yielded : null));
  }

  #change(calls: Iterable<QueuedCall>, settingsOf: SettingsOf): readonly QueuedCall[] {
    const changed: QueuedCall[] = [];
    for (const call of calls) {
      const settings = settingsOf(call.request);
      if (settings === null || isSame(call.request, settings)) continue;
      call.request = withSettings(call.request, settings);
      call.lane.latest = call.request;
      changed.push(call);
    }
    this.#report(changed.map(({ request }) => request));
    return changed;
  }

  #report(changed: readonly AdmissionRequest[]): void {
    const { limiter, detached } = this.#parts;
    const admissions = changed.map(({ admission }) => admission);
    for (const [bucket, own] of Map.groupBy(admissions, (one) => one.bucket)) {
      const lanes = new Map(
        own.map(({ lane, weight, maxInFlight, perMinute, ceilingTag }) => [
          lane,
          { lane, weight, maxInFlight, perMinute, ceilingTag },
        ]),
      );
      for (const { setting } of own.slice(0, 1))
        detached(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
    }
  }
}

/**
 * The request as default ceilings let it go: without them where a response of its bucket has stated a limit, here or at another replica.
 */
export function present(request: AdmissionRequest, limiter: Pick<Limiter, 'statesLimit'>): AdmissionRequest {
  const { yielded, admission } = request;
  return yielded !== null && limiter.statesLimit(admission.bucket) ? withSettings(request, yielded) : request;
}

const isSame = ({ admission, mode }: AdmissionRequest, settings: CallSettings): boolean =>
  mode === settings.mode &&
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceilingTag === settings.ceilingTag &&
  admission.maxQueued === settings.maxQueued &&
  (admission.setting === settings.setting || isDeepStrictEqual(admission.setting, settings.setting));

function withSettings(request: AdmissionRequest, settings: CallSettings): AdmissionRequest {
  const { mode, setting, weight, maxInFlight, ceilingTag, maxQueued, perMinute, yielded } = settings;
  return {
    ...request,
    mode,
    yielded,
    admission: { ...request.admission, setting, weight, maxInFlight, perMinute, ceilingTag, maxQueued },
    ceiling: ceilingUnder(request.ceiling.key, settings),
  };
}
