/**
 * Which meter goes on with which described window when configuration is loaded again.
 *
 * The names of windows follow from how many there are (`config/speaks.ts`): the window of a second is `requests` while it is
 * alone, and `requests_burst` beside one of a minute. What was counted belongs to the window, so that a meter takes the name that
 * its window has from now on. Leases in flight go on under the name by which they took from it (`heldAs`).
 *
 * Owns: names of the meters of windows. Does not own: limit, length and kind in force (`meter-quota.policy.ts`,
 * `window-log.policy.ts`). Invariant: a window of the same length goes on with what it counted, whatever it is called. Pure.
 */
import type { MeterName } from '../../call.ts';
import type { MeterSetting } from '../limiter.ts';
import type { Bucket } from './bucket-state.policy.ts';
import { createMeter, freeMarkName, markName, type Meter, windowNames } from './meter-state.policy.ts';
import { levelAt } from './meter.policy.ts';

type Fits = (meter: Meter, window: MeterSetting) => boolean;

const isAsLong: Fits = ({ stated }, { windowMs }) => stated?.windowMs === windowMs;
const isOf: Fits = (meter, window) =>
  isAsLong(meter, window) && (meter.log?.counts ?? null) === (window.counts ?? null);
const isNamed: Fits = ({ name }, { meter }) => name === meter;
const isUnused: Fits = ({ stated, reported }) => stated === null && reported === null;

/** Of several meters that fit a window, the first of these decides: what it counted, how long it is, its name, or none. */
const preferences: readonly Fits[] = [isOf, isAsLong, isNamed, isUnused];

/** Gives each described window its meter, before the settings are applied to it. */
export function followWindows(bucket: Bucket, settings: readonly MeterSetting[], now: number): void {
  if (settings.every((stated) => goesOn(bucket, stated))) return;
  const windows = settings.filter(({ meter }) => windowNames.includes(meter));
  const left = windowNames.flatMap((name) => bucket.meters.get(name) ?? []);
  const source = left
    .toSorted((one, other) => other.windowMs - one.windowMs)
    .find(({ limit }) => limit !== null);
  const next = new Map<MeterName, Meter>();
  for (const fits of preferences) {
    for (const window of windows) {
      const own = left.find((meter) => isNamed(meter, window) && fits(meter, window));
      const found = own ?? left.find((meter) => fits(meter, window));
      if (next.has(window.meter) || found === undefined) continue;
      next.set(window.meter, found);
      left.splice(left.indexOf(found), 1);
    }
  }
  park(left, { next, stated: windows.map(({ meter }) => meter) });
  for (const { meter: name } of windows) {
    if (next.has(name) || source === undefined) continue;
    next.set(name, begunFrom(source, { name, others: [...next.values()] }, now));
  }
  for (const name of windowNames) bucket.meters.delete(name);
  for (const [name, meter] of next) {
    const heldAs = markName(meter);
    meter.name = name;
    meter.heldAs = heldAs === name ? null : heldAs;
    bucket.meters.set(name, meter);
  }
}

/** No window, or one whose meter has its name already. */
function goesOn({ meters }: Bucket, stated: MeterSetting): boolean {
  const meter = meters.get(stated.meter);
  return !windowNames.includes(stated.meter) || (meter !== undefined && isOf(meter, stated));
}

/** Meters without a window keep their names, or take free ones; where there is none, they are forgotten. */
function park(
  left: readonly Meter[],
  { next, stated }: { readonly next: Map<MeterName, Meter>; readonly stated: readonly MeterName[] },
): void {
  const isFree = (name: MeterName): boolean => !stated.includes(name) && !next.has(name);
  const kept = left.filter(({ name }) => isFree(name));
  for (const meter of kept) next.set(meter.name, meter);
  for (const meter of left.filter((one) => !kept.includes(one))) {
    const name = windowNames.find(isFree);
    if (name !== undefined) next.set(name, meter);
  }
}

/** An added window begins with what the longest of the others has counted: that was sent, whoever counts it. */
function begunFrom(
  source: Meter,
  { name, others }: { readonly name: MeterName; readonly others: readonly Meter[] },
  now: number,
): Meter {
  const { windowMs, log, at } = source;
  const meter = createMeter(name, now, freeMarkName(others, name));
  return { ...meter, windowMs, log, level: levelAt(source, now), at: Math.max(at, now) };
}
