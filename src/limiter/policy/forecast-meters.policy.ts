/**
 * How long a call waits for the meters of its bucket when so many units go before it, from a given time on. Part of the
 * specification in `scheduler.policy.ts`.
 *
 * Owns: the wait for each meter, what windows make of each other, and what refusals name then. Does not own: which calls go first
 * (`forecast.policy.ts`). Pure.
 */
import type { MeterName } from '../../call.ts';
import type { HeldBy } from '../../errors.ts';
import type { Bucket } from './bucket-state.policy.ts';
import { callWindows, keptFree, levelAt, type Meter, netRate, restMs, roomInMs } from './meter.policy.ts';
import { loggedUnits, periodMs, windowWaitMs } from './window-log.policy.ts';

export interface Forecast {
  readonly waitMs: number;
  /** What causes the longest wait; `queue` where nothing but the line does. */
  readonly heldBy: HeldBy;
}

/** Units of one meter: those of the call itself, and those of the calls that go first. */
export interface Needed {
  readonly name: MeterName;
  readonly units: number;
  readonly ahead: number;
}

/** What refusals name when this meter is full. */
const heldByMeter: Readonly<Record<MeterName, HeldBy>> = {
  requests: 'requests',
  images: 'requests',
  requests_burst: 'requests',
  requests_hour: 'requests',
  tokens: 'tokens',
  input_tokens: 'tokens',
  output_tokens: 'tokens',
  requests_day: 'upstream_day',
  tokens_day: 'upstream_day',
  cost: 'cost',
};

/** The longest wait for any meter, if nobody takes from them before `from`; its milliseconds count from then on. */
export function metersForecast(bucket: Bucket, needs: readonly Needed[], from: number): Forecast {
  let longest: Forecast = { waitMs: 0, heldBy: 'queue' };
  for (const need of needs) {
    const waitMs = drainMs(bucket, need, from);
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy: heldByMeter[need.name] };
  }
  if (!needs.some(({ name }) => (bucket.meters.get(name)?.log ?? null) !== null)) return longest;
  const windows = needs.flatMap(({ name, units, ahead }): NeededWindow[] => {
    const meter = bucket.meters.get(name);
    if (meter === undefined || !callWindows.includes(name)) return [];
    const waitMs = (fewer: number): number =>
      drainMs(bucket, { name, units, ahead: Math.max(0, ahead - fewer) }, from);
    return [{ meter, units: units + ahead, waitMs }];
  });
  if (windows.length > 1) {
    const byLength = windows.toSorted((one, other) => one.meter.windowMs - other.meter.windowMs);
    const waitMs = nestedWaitMs(byLength, 0, from);
    if (waitMs > longest.waitMs) longest = { waitMs, heldBy: 'requests' };
  }
  return longest;
}

/** Milliseconds until the meter has room for the call and for everything that goes first. */
function drainMs(bucket: Bucket, { name, units, ahead }: Needed, from: number): number {
  const meter = bucket.meters.get(name);
  if (meter === undefined || meter.limit === null) return 0;
  if (meter.log !== null) return windowWaitMs(meter, units + ahead, from);
  const waiting = bucket.waitingCosts.get(name) ?? 0;
  const ownMs = roomInMs(meter, { units, waiting }, from);
  // Waiting calls use up what is kept free for others by the time the last of them leaves, so it is not subtracted here.
  const over = levelAt(meter, from) + (units + ahead) - (meter.limit - keptFree(meter, 0));
  return ahead > 0 ? Math.max(ownMs, restMs(meter, from) + over / netRate(meter)) : ownMs;
}

// Where several windows of one upstream count a call: a window that opens does not let everybody go at once who waits for it, because the
// shorter windows in it go on counting.

export interface NeededWindow {
  readonly meter: Meter;
  /** Units of the call and of all that go before it. */
  readonly units: number;
  /** The wait for this window alone, if so many units fewer go before. Milliseconds. */
  readonly waitMs: (fewer: number) => number;
}

/** The wait for all of these windows together, shortest first, if so many units fewer go before. Milliseconds. */
function nestedWaitMs(windows: readonly NeededWindow[], fewer: number, now: number): number {
  const longest = windows.at(-1);
  if (longest === undefined) return 0;
  const shorter = windows.slice(0, -1);
  const { meter, waitMs } = longest;
  const { log, limit } = meter;
  const aloneMs = waitMs(fewer);
  const waitsMs = Math.max(aloneMs, nestedWaitMs(shorter, fewer, now));
  if (log === null || limit === null || shorter.length === 0) return waitsMs;
  const units = longest.units - fewer;
  if (log.counts === 'fixed') {
    const beyond = units - Math.max(0, limit - loggedUnits(log, now));
    if (beyond <= 0) return waitsMs;
    const inWindow = beyond - (Math.ceil(beyond / limit) - 1) * limit;
    return Math.max(waitsMs, aloneMs + Math.max(...shorter.map((each) => fromEmptyMs(each.meter, inWindow))));
  }
  // Each call of a rolling window goes one window after the one that is a whole limit before it, and that one went by the shorter windows.
  const rounds = Math.ceil(units / limit) - 1;
  if (rounds <= 0) return waitsMs;
  const before = fewer + rounds * limit;
  const firstMs = Math.max(waitMs(before), nestedWaitMs(shorter, before, now));
  return Math.max(waitsMs, rounds * periodMs(meter) + firstMs);
}

/** When the last of so many units leaves through a window in which nothing is counted yet. Milliseconds. */
function fromEmptyMs(meter: Meter, units: number): number {
  const { log, limit, windowMs } = meter;
  if (limit === null) return 0;
  if (log === null) return (Math.max(0, units - limit) * windowMs) / limit;
  return (Math.ceil(units / limit) - 1) * periodMs(meter);
}
