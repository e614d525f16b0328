/**
 * A reload for calls that are in the desk: each goes on under the new limits, the limiter is told once per bucket.
 *
 * Owns: which calls a change concerns. Refuses to own: what the new settings are (the gateway), waking lanes (the limiter).
 * Keeps: a limit that was raised or taken away lets waiting calls go, one that was lowered holds them (14).
 */
import type { BucketKey, BucketSetting, LaneKey, LaneSetting } from '../limiter/limiter.ts';
import type { DeskParts } from './desk-parts.ts';
import type { Gates } from './gates.ts';
import type { Holder } from './holder.ts';
import type { Hopeless } from './hopeless.ts';
import type { EntrySettings } from './buckets.policy.ts';
import type { Entry } from './ticket.ts';
import type { Waiting } from './waiting.ts';

interface BucketChange {
  readonly setting: BucketSetting;
  readonly lanes: Map<LaneKey, LaneSetting & { readonly lane: LaneKey }>;
}

/** The desk's `reconfigure`. */
export function reviser(
  { limiter, background }: DeskParts,
  gates: Gates,
  { waiting, hopeless }: { readonly waiting: Waiting; readonly hopeless: Hopeless },
): (settingsOf: (entry: Entry) => EntrySettings | null) => void {
  return (settingsOf) => {
    const changes = new Map<BucketKey, BucketChange>();
    const revised: Holder[] = [];
    for (const holder of waiting.all()) {
      const settings = settingsOf(holder.entry);
      if (settings === null || isSame(holder.entry, settings)) continue;
      holder.entry = revisedEntry(holder.entry, settings);
      gates.underLimits(holder.entry.admission, settings.ceiling);
      revised.push(holder);
      note(changes, holder.entry);
    }
    for (const [bucket, { setting, lanes }] of changes) {
      background(limiter().reconfigure({ bucket, setting, lanes: [...lanes.values()] }));
    }
    hopeless.onReconfigured(revised);
  };
}

function note(changes: Map<BucketKey, BucketChange>, { admission }: Entry): void {
  const { bucket, setting, lane, weight, maxInFlight, perMinute, ceiling } = admission;
  let change = changes.get(bucket);
  if (change === undefined) changes.set(bucket, (change = { setting, lanes: new Map() }));
  change.lanes.set(lane, { lane, weight, maxInFlight, perMinute, ceiling });
}

const isSame = ({ admission }: Entry, settings: EntrySettings): boolean =>
  isSameBucket(admission.setting, settings.setting) &&
  admission.weight === settings.weight &&
  admission.maxInFlight === settings.maxInFlight &&
  admission.ceiling === settings.ceiling &&
  admission.maxQueued === settings.maxQueued;

function revisedEntry(entry: Entry, settings: EntrySettings): Entry {
  const { setting, weight, maxInFlight, ceiling, maxQueued, perMinute, perDay } = settings;
  return {
    ...entry,
    admission: { ...entry.admission, setting, weight, maxInFlight, perMinute, ceiling, maxQueued },
    ceiling: { key: entry.ceiling.key, perMinute, perDay },
  };
}

function isSameBucket(one: BucketSetting, other: BucketSetting): boolean {
  if (one === other) return true;
  if (one.learn !== other.learn || one.probe !== other.probe || one.meters.length !== other.meters.length) {
    return false;
  }
  return one.meters.every(({ meter, limit, windowMs }, index) => {
    const twin = other.meters[index];
    return twin?.meter === meter && twin.limit === limit && twin.windowMs === windowMs;
  });
}
