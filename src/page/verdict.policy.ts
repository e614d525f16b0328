/**
 * The one sentence at the top of the page: can somebody raise traffic now? Pure. The worst finding wins; each names
 * what it saw, so that the sentence can be checked against the figures below it.
 */

import { defaultWaits } from '../config/defaults.ts';

export interface VerdictInput {
  readonly mode: 'redis' | 'local' | 'memory' | 'deny';
  readonly redisErrorsLastMinute: number;
  readonly leasesLostLastMinute: number;
  readonly upstreams: readonly {
    readonly name: string;
    readonly fullest: number;
    readonly closedMs: number;
    readonly refusing: { readonly status: number; readonly retryInMs: number } | null;
    readonly waiting: number;
    readonly oldestMs: number;
    readonly shedLastMinute: number;
    readonly absorbedLastMinute: number;
  }[];
}

export interface Verdict {
  readonly level: 'calm' | 'pressed' | 'degraded';
  readonly title: string;
  readonly detail: string;
}

/** A bucket this full is near its limit. */
const nearlyFull = 0.9;
/** Four fifths of the default wait: 60 s. Beyond the wait calls are refused. */
const longWaitMs = 0.8 * defaultWaits.maxWaitSeconds * 1_000;

const seconds = (ms: number): string => `${Math.round(ms / 1_000)} s`;

export function verdict(input: VerdictInput): Verdict {
  return degraded(input) ?? pressed(input) ?? calm(input);
}

function degraded({ mode, redisErrorsLastMinute, leasesLostLastMinute }: VerdictInput): Verdict | null {
  const as = (detail: string): Verdict => ({ level: 'degraded', title: 'Degraded', detail });
  if (mode === 'deny') return as('Redis is away and this replica refuses calls.');
  if (mode === 'local') return as('Redis is away: this replica enforces its own share of every limit.');
  if (leasesLostLastMinute > 0)
    return as(`${leasesLostLastMinute} in-flight leases were lost in the last minute.`);
  if (redisErrorsLastMinute > 0) return as(`Redis errors in the last minute: ${redisErrorsLastMinute}.`);
  return null;
}

function pressed({ upstreams }: VerdictInput): Verdict | null {
  const as = (detail: string): Verdict => ({ level: 'pressed', title: 'Pressed', detail });
  const worst = (of: (each: VerdictInput['upstreams'][number]) => number) =>
    upstreams.reduce<(typeof upstreams)[number] | null>(
      (found, each) => (of(each) > (found === null ? 0 : of(found)) ? each : found),
      null,
    );
  const refusing = upstreams.find((each) => each.refusing !== null);
  if (refusing !== undefined && refusing.refusing !== null) {
    const { status, retryInMs } = refusing.refusing;
    return as(`${refusing.name} refuses calls with ${status}; it is asked again in ${seconds(retryInMs)}.`);
  }
  const shed = worst((each) => each.shedLastMinute);
  if (shed !== null) return as(`${shed.name} refused ${shed.shedLastMinute} calls in the last minute.`);
  const late = worst((each) => (each.oldestMs >= longWaitMs ? each.oldestMs : 0));
  if (late !== null) return as(`A call to ${late.name} has waited for ${seconds(late.oldestMs)}.`);
  const closed = worst((each) => each.closedMs);
  if (closed !== null) {
    return as(
      `${closed.name} is closed for ${seconds(Math.max(1_000, closed.closedMs))}; ${closed.waiting} calls wait.`,
    );
  }
  const full = worst((each) => (each.fullest >= nearlyFull ? each.fullest : 0));
  if (full !== null) return as(`${full.name} uses ${Math.round(full.fullest * 100)} % of a limit.`);
  return null;
}

function calm({ upstreams }: VerdictInput): Verdict {
  const absorbed = upstreams.reduce((sum, each) => sum + each.absorbedLastMinute, 0);
  const waiting = upstreams.reduce((sum, each) => sum + each.waiting, 0);
  const fullest = upstreams.reduce((most, each) => Math.max(most, each.fullest), 0);
  const waits = waiting === 0 ? 'Nothing waits' : `${waiting} calls wait briefly`;
  const kept = absorbed === 0 ? 'no throttles' : `${absorbed} throttles absorbed in the last minute`;
  return {
    level: 'calm',
    title: 'Calm',
    detail: `${waits}, ${kept}, fullest limit at ${Math.round(fullest * 100)} %.`,
  };
}
