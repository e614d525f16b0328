/**
 * A reload for calls that are in admission, here or at other replicas: each goes on under the new limits, and the limiter gets
 * the new settings of each bucket once.
 *
 * Owns: which calls and lanes a change concerns. Does not own: what the new settings are (the gateway), waking lanes (the limiter).
 * Keeps: a limit that was raised or taken away lets waiting calls go, one that was lowered holds them (14).
 */
import type { CancelTimer } from '../clock.ts';
import type { BucketKey, BucketSetting, LaneKey, LaneSetting } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/over-log/limiter.ts';
import { ceilingUnder } from '../limiter/policy/ceiling.policy.ts';
import type { CallSettings } from './buckets.policy.ts';
import type { LaneView } from './lanes.ts';
import type { AdmissionParts, AdmissionRequest } from './ticket.ts';
import type { QueuedCall } from './queued-call.ts';

interface BucketChange {
  readonly setting: BucketSetting;
  readonly lanes: Map<LaneKey, LaneSetting & { readonly lane: LaneKey }>;
}

type BucketChanges = Map<BucketKey, BucketChange>;

/**
 * A lane that this process used within this time is reconfigured although no call of it is in admission here: its last call may have
 * brought the former settings to a bucket where calls of other replicas wait, which were reloaded before. No call waits longer.
 * Milliseconds.
 */
const usedWithinMs = 600_000;

/**
 * So many lanes without calls are looked at in one turn, and so many of them reported; the next turn is `stepMs` (milliseconds) later.
 * There may be 10,000, each in a bucket of its own, and other calls go on in between.
 */
const lanesPerStep = 1_000;
const changesPerStep = 64;
const stepMs = 1;

type SettingsOf = (request: AdmissionRequest) => CallSettings | null;

/** Where a reload may change something. */
interface Known {
  readonly calls: Iterable<QueuedCall>;
  readonly lanes: Iterable<LaneView>;
}

export class Reconfiguring {
  readonly #parts: AdmissionParts;
  /** Lanes that the latest reload has yet to look at. */
  #lanes: Iterator<LaneView> = [][Symbol.iterator]();
  #cancel: CancelTimer = () => {};

  constructor(parts: AdmissionParts) {
    this.#parts = parts;
  }

  /** Returns the calls whose settings changed. Lanes without calls follow, those of an earlier reload among them. */
  reconfigure({ calls, lanes }: Known, reloaded: SettingsOf): readonly QueuedCall[] {
    const settingsOf: SettingsOf = (request) => {
      const settings = reloaded(request);
      return settings === null ? null : this.#present(settings, request);
    };
    const changed = this.#change(calls, settingsOf);
    this.#cancel();
    this.#lanes = [...lanes].values();
    this.#step(settingsOf);
    return changed;
  }

  /** A response may have stated a limit of the bucket: default ceilings hold none of these calls any more then. */
  onAnswer(bucket: BucketKey, { calls, lanes }: Known): void {
    const { limiter } = this.#parts;
    if (!limiter.statesLimit(bucket)) return;
    let isNew = false;
    for (const lane of lanes) {
      if (lane.bucket !== bucket || lane.latest.yielded === null) continue;
      lane.latest = present(lane.latest, limiter);
      isNew = true;
    }
    if (isNew)
      this.#change(calls, ({ admission, yielded }) => (admission.bucket === bucket ? yielded : null));
  }

  #present(settings: CallSettings, { admission }: AdmissionRequest): CallSettings {
    const { yielded } = settings;
    return yielded !== null && this.#parts.limiter.statesLimit(admission.bucket) ? yielded : settings;
  }

  #change(calls: Iterable<QueuedCall>, settingsOf: SettingsOf): readonly QueuedCall[] {
    const changes: BucketChanges = new Map();
    const changed: QueuedCall[] = [];
    for (const call of calls) {
      const settings = settingsOf(call.request);
      if (settings === null || isSame(call.request, settings)) continue;
      call.request = withSettings(call.request, settings);
      call.lane.latest = call.request;
      changed.push(call);
      note(changes, call.request);
    }
    this.#report(changes);
    return changed;
  }

  #step(settingsOf: SettingsOf): void {
    const { clock } = this.#parts;
    const changes: BucketChanges = new Map();
    const usedSince = clock.monotonic() - usedWithinMs;
    let changed = 0;
    for (let looked = 0; looked < lanesPerStep && changed < changesPerStep; looked += 1) {
      const next = this.#lanes.next();
      if (next.done === true) return this.#report(changes);
      const lane = next.value;
      if (lane.calls > 0 || lane.usedAt < usedSince) continue;
      const settings = settingsOf(lane.latest);
      if (settings === null || isSame(lane.latest, settings)) continue;
      lane.latest = withSettings(lane.latest, settings);
      note(changes, lane.latest);
      changed += 1;
    }
    this.#report(changes);
    this.#cancel = clock.after(stepMs, () => this.#step(settingsOf));
  }

  #report(changes: BucketChanges): void {
    const { limiter, detached } = this.#parts;
    for (const [bucket, { setting, lanes }] of changes)
      detached(limiter.reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
  }
}

/**
 * The request as default ceilings let it go: without them where a response of its bucket has stated a limit, here or at another replica.
 */
export function present(request: AdmissionRequest, limiter: Pick<Limiter, 'statesLimit'>): AdmissionRequest {
  const { yielded, admission } = request;
  return yielded !== null && limiter.statesLimit(admission.bucket) ? withSettings(request, yielded) : request;
}

function note(changes: BucketChanges, { admission }: AdmissionRequest): void {
  const { bucket, setting, lane, weight, maxInFlight, perMinute, ceilingTag } = admission;
  let change = changes.get(bucket);
  if (change === undefined) changes.set(bucket, (change = { setting, lanes: new Map() }));
  change.lanes.set(lane, { lane, weight, maxInFlight, perMinute, ceilingTag });
}

const isSame = ({ admission, mode }: AdmissionRequest, settings: CallSettings): boolean =>
  mode === settings.mode &&
  isSameBucket(admission.setting, settings.setting) &&
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceilingTag === settings.ceilingTag &&
  admission.maxQueued === settings.maxQueued;

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

function isSameBucket(one: BucketSetting, other: BucketSetting): boolean {
  if (one === other) return true;
  if (one.learn !== other.learn || one.probe !== other.probe) return false;
  if (one.maxInFlightTotal !== other.maxInFlightTotal || one.meters.length !== other.meters.length)
    return false;
  return one.meters.every(({ meter, limit, windowMs, counts }, index) => {
    const twin = other.meters[index];
    return (
      twin?.meter === meter && twin.limit === limit && twin.windowMs === windowMs && twin.counts === counts
    );
  });
}
