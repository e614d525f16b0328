/** The gauges of upstreams, buckets and breakers. Owns: setting them from state that is read at the moment of a scrape. */
import type { MeterName } from '../call.ts';
import { readCredentials } from './credential-gauge.ts';
import type {
  LivePressure,
  ObservedBreaker,
  ObservedBucket,
  ObservedCredential,
  ProcessPressure,
} from './events.ts';
import type { Instruments } from './instruments.ts';
import { readProcess } from './process-gauges.ts';

/** What gauges read at scrape time. */
export interface GaugeReadings {
  /** Wall clock, milliseconds: exemplars are dated. */
  now(): number;
  process(): ProcessPressure;
  buckets(): readonly ObservedBucket[];
  breakers(upstream: string): readonly ObservedBreaker[];
  live(): readonly LivePressure[];
  credentials(): readonly ObservedCredential[];
}

/**
 * Dimensions of `sluice_bucket_used_ratio`; `tokens` is the fullest of all, input and output tokens. The image meter is shown by
 * activity only.
 */
const dimensions: readonly MeterName[] = ['requests', 'tokens', 'requests_day', 'tokens_day', 'cost'];

/** Sets every gauge from the readings. Upstreams that are no longer configured disappear. */
export function readGauges(instruments: Instruments, readings: GaugeReadings): void {
  const { queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed, breakerOpen } = instruments;
  for (const gauge of [queueDepth, queueOldest, inFlight, bucketUsed, bucketClosed, breakerOpen])
    gauge.reset();
  readProcess(instruments, readings.process());
  readCredentials(instruments, readings.credentials());
  const known = new Set<string>();
  for (const { upstream, dimensions: expected, waiting, oldestMs, inFlight: sent } of readings.live()) {
    known.add(upstream);
    queueDepth.set({ upstream }, waiting);
    queueOldest.set({ upstream }, oldestMs / 1000);
    inFlight.set({ upstream }, sent);
    bucketClosed.set({ upstream }, 0);
    breakerOpen.set({ upstream }, readings.breakers(upstream).length > 0 ? 1 : 0);
    for (const dimension of expected) bucketUsed.set({ upstream, dimension }, 0);
  }
  const closed = new Map<string, number>();
  const used = new Map<string, { upstream: string; dimension: MeterName; ratio: number }>();
  for (const { upstream, snapshot } of readings.buckets()) {
    if (!known.has(upstream)) continue;
    closed.set(upstream, Math.max(closed.get(upstream) ?? 0, snapshot.closedMs));
    for (const { meter, level, limit } of snapshot.meters) {
      const dimension = meter.endsWith('_tokens') ? 'tokens' : meter;
      if (!dimensions.includes(dimension)) continue;
      const ratio = limit > 0 ? level / limit : 0;
      const key = `${upstream} ${dimension}`;
      if (ratio > (used.get(key)?.ratio ?? -1)) used.set(key, { upstream, dimension, ratio });
    }
  }
  for (const [upstream, closedMs] of closed) bucketClosed.set({ upstream }, closedMs / 1000);
  for (const { upstream, dimension, ratio } of used.values()) bucketUsed.set({ upstream, dimension }, ratio);
}
