/**
 * The series of one workspace on one upstream, and of one upstream: looked up once, created at 0 (so that the first
 * increase is seen) and then only incremented.
 */
import {
  failureReasons,
  heldByReasons,
  refusals,
  type FailureReason,
  type HeldBy,
  type RefusalCode,
} from '../errors.ts';
import type { Instruments } from './instruments.ts';
import { outcomes, type CallOutcome } from './outcome.policy.ts';
import type { CounterSeries, HistogramSeries } from './series.ts';

/** Counters of one workspace label on one upstream. */
export interface WorkspaceSeries {
  ended(outcome: CallOutcome): void;
  shed(code: RefusalCode): void;
  throttled(kind: 'rate' | 'permanent'): void;
  absorbed(): void;
}

/** Histograms of one upstream, and its failed attempts. `traceId` becomes an exemplar when they are on. */
export interface UpstreamSeries {
  waited(outcome: CallOutcome, seconds: number, traceId: string | null): void;
  upstream(seconds: number, traceId: string | null): void;
  overhead(seconds: number, traceId: string | null): void;
  failed(reason: FailureReason): void;
  refusedFor(heldBy: HeldBy): void;
}

/** Reasons of `sluice_shed_total`: every refusal of the shed family. */
export const shedReasons = (Object.keys(refusals) as RefusalCode[]).filter(
  (code) => refusals[code].family === 'shed',
);

export function createWorkspaceSeries(
  instruments: Instruments,
  workspace: string,
  upstream: string,
): WorkspaceSeries {
  const { requests, shed, throttles, absorbed } = instruments;
  const ended = new Map(outcomes.map((outcome) => [outcome, requests.of({ workspace, upstream, outcome })]));
  const refused = new Map(shedReasons.map((reason) => [reason, shed.of({ workspace, upstream, reason })]));
  const rate = throttles.of({ workspace, upstream, kind: 'rate' });
  const permanent = throttles.of({ workspace, upstream, kind: 'permanent' });
  const kept = absorbed.of({ workspace, upstream });
  const add = (series: CounterSeries | undefined): void => {
    if (series !== undefined) series.value += 1;
  };
  return {
    ended: (outcome) => add(ended.get(outcome)),
    shed: (code) => add(refused.get(code)),
    throttled: (kind) => add(kind === 'rate' ? rate : permanent),
    absorbed: () => add(kept),
  };
}

export function createUpstreamSeries(
  instruments: Instruments,
  upstream: string,
  wallClock: (() => number) | null,
): UpstreamSeries {
  const { queueWait, upstreamTime, overhead, failures, heldRefusals } = instruments;
  const { replays, joins, madeAgain, refusedAgain } = instruments;
  // These series exist from the start, so that the first event of each is seen as an increase.
  for (const counter of [replays, joins, madeAgain, refusedAgain]) counter.of({ upstream });
  const held = new Map(heldByReasons.map((name) => [name, heldRefusals.of({ upstream, held_by: name })]));
  const failed = new Map(failureReasons.map((reason) => [reason, failures.of({ upstream, reason })]));
  const waits = new Map(outcomes.map((outcome) => [outcome, queueWait.of({ upstream, outcome })]));
  const times = upstreamTime.of({ upstream });
  const overheads = overhead.of({ upstream });
  const observe = (series: HistogramSeries | undefined, seconds: number, traceId: string | null): void => {
    series?.observe(seconds);
    if (traceId !== null && wallClock !== null) series?.exemplify(seconds, traceId, wallClock() / 1000);
  };
  return {
    waited: (outcome, seconds, traceId) => observe(waits.get(outcome), seconds, traceId),
    upstream: (seconds, traceId) => observe(times, seconds, traceId),
    overhead: (seconds, traceId) => observe(overheads, seconds, traceId),
    failed(reason) {
      const series = failed.get(reason);
      if (series !== undefined) series.value += 1;
    },
    refusedFor(heldBy) {
      const series = held.get(heldBy);
      if (series !== undefined) series.value += 1;
    },
  };
}

/** Removes what {@link createWorkspaceSeries} created. */
export function removeSeries(instruments: Instruments, workspace: string, upstream: string): void {
  const { requests, shed, throttles, absorbed } = instruments;
  for (const outcome of outcomes) requests.remove({ workspace, upstream, outcome });
  for (const reason of shedReasons) shed.remove({ workspace, upstream, reason });
  throttles.remove({ workspace, upstream, kind: 'rate' });
  throttles.remove({ workspace, upstream, kind: 'permanent' });
  absorbed.remove({ workspace, upstream });
}
