/**
 * The one sentence at the top of the page: can somebody raise traffic now? Pure. Of several findings the first wins, in the
 * order in which they stand here, worst first; each names what it saw, so that the sentence can be checked against the figures below it.
 */

import { defaultWaits } from '../config/defaults.ts';

export interface VerdictInput {
  readonly mode: 'redis' | 'local' | 'memory' | 'deny';
  readonly redisErrorsLastMinute: number;
  readonly leasesLostLastMinute: number;
  /** Share of new calls that this replica refuses for load, 0 to 1. */
  readonly sheddingShare: number;
  /** Calls and connections that this replica refused in the last minute, because one of its own bounds was reached. */
  readonly overloadedLastMinute: number;
  readonly upstreams: readonly {
    readonly name: string;
    /** How full its fullest limit is, 0 to 1; `null`: none has been used yet. */
    readonly fullest: number | null;
    readonly closedMs: number;
    /** Its breaker is open: calls are refused with this status. */
    readonly refusing: { readonly status: number; readonly retryInMs: number } | null;
    readonly waiting: number;
    readonly oldestMs: number;
    readonly shedLastMinute: number;
    readonly absorbedLastMinute: number;
    /** Throttled responses that were passed on to clients. */
    readonly throttledLastMinute: number;
    /** All replicas together; counts since the last full minute. `null`: not read, or there is one replica. */
    readonly whole: { readonly waiting: number; readonly shed: number; readonly absorbed: number } | null;
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

/** A share above 0 is never written as 0 %. */
const percent = (share: number): string => `${Math.max(1, Math.round(share * 100))} %`;
const calls = (n: number): string => (n === 1 ? '1 call' : `${n} calls`);
const waiting = (n: number): string => `${calls(n)} ${n === 1 ? 'waits' : 'wait'}`;
const throttles = (n: number): string => (n === 1 ? '1 throttle' : `${n} throttles`);

/** Sluice itself cannot do all it should. */
function degraded(input: VerdictInput): Verdict | null {
  const { mode, redisErrorsLastMinute, leasesLostLastMinute, sheddingShare } = input;
  const as = (detail: string): Verdict => ({ level: 'degraded', title: 'Degraded', detail });
  if (mode === 'deny') return as('Redis is away and this replica refuses calls.');
  if (sheddingShare > 0)
    return as(`This replica is overloaded and refuses ${percent(sheddingShare)} of new calls.`);
  if (mode === 'local') return as('Redis is away: this replica enforces its own share of every limit.');
  if (leasesLostLastMinute > 0)
    return as(`${leasesLostLastMinute} in-flight leases were lost in the last minute.`);
  if (redisErrorsLastMinute > 0) return as(`Redis errors in the last minute: ${redisErrorsLastMinute}.`);
  return null;
}

type Upstream = VerdictInput['upstreams'][number];

/** The upstream with the highest figure; `null`: all figures are 0. */
const worst = (upstreams: readonly Upstream[], of: (each: Upstream) => number): Upstream | null =>
  upstreams.reduce<Upstream | null>(
    (found, each) => (of(each) > (found === null ? 0 : of(found)) ? each : found),
    null,
  );

function pressed({ upstreams, overloadedLastMinute }: VerdictInput): Verdict | null {
  const detail = refusing(upstreams) ?? refused(upstreams, overloadedLastMinute) ?? nearLimit(upstreams);
  return detail === null ? null : { level: 'pressed', title: 'Pressed', detail };
}

function refusing(upstreams: readonly Upstream[]): string | null {
  for (const { name, refusing: breaker } of upstreams)
    if (breaker !== null)
      return `${name} refuses calls with ${breaker.status}; it is asked again in ${seconds(breaker.retryInMs)}.`;
  return null;
}

/** Clients were turned away. */
function refused(upstreams: readonly Upstream[], overloadedLastMinute: number): string | null {
  const shed = worst(upstreams, (each) => each.shedLastMinute);
  if (shed !== null)
    return `Sluice refused ${calls(shed.shedLastMinute)} to ${shed.name} in the last minute.`;
  if (overloadedLastMinute > 0)
    return `This replica was full and refused ${calls(overloadedLastMinute)} in the last minute.`;
  const elsewhere = worst(upstreams, ({ whole }) => whole?.shed ?? 0);
  if (elsewhere?.whole)
    return `All replicas together refused ${calls(elsewhere.whole.shed)} to ${elsewhere.name} since the last full minute.`;
  const passedOn = worst(upstreams, (each) => each.throttledLastMinute);
  if (passedOn === null) return null;
  return `${throttles(passedOn.throttledLastMinute)} of ${passedOn.name} reached clients in the last minute.`;
}

/** Clients wait, or soon will. */
function nearLimit(upstreams: readonly Upstream[]): string | null {
  const late = worst(upstreams, (each) => (each.oldestMs >= longWaitMs ? each.oldestMs : 0));
  if (late !== null) return `A call to ${late.name} has waited for ${seconds(late.oldestMs)}.`;
  const closed = worst(upstreams, (each) => each.closedMs);
  if (closed !== null)
    return `${closed.name} is closed for ${seconds(Math.max(1_000, closed.closedMs))}; ${waiting(closed.waiting)}.`;
  const full = worst(upstreams, ({ fullest }) => (fullest !== null && fullest >= nearlyFull ? fullest : 0));
  return full === null ? null : `${full.name} uses ${Math.round((full.fullest ?? 0) * 100)} % of a limit.`;
}

function calm({ upstreams }: VerdictInput): Verdict {
  const known = upstreams.map(({ fullest }) => fullest).filter((fullest) => fullest !== null);
  const fullest =
    known.length === 0 ? 'no limit in use yet' : `fullest limit at ${Math.round(Math.max(...known) * 100)} %`;
  return {
    level: 'calm',
    title: 'Calm',
    detail: `${waits(upstreams)}, ${absorbed(upstreams)}, ${fullest}.`,
  };
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, each) => total + each, 0);

function waits(upstreams: readonly Upstream[]): string {
  const here = sum(upstreams.map(({ waiting }) => waiting));
  const all = sum(upstreams.map(({ waiting, whole }) => Math.max(waiting, whole?.waiting ?? 0)));
  if (all === 0) return 'Nothing waits';
  if (here === 0) return `Nothing waits here, ${calls(all)} on other replicas`;
  return `${waiting(here)} briefly`;
}

function absorbed(upstreams: readonly Upstream[]): string {
  const here = sum(upstreams.map(({ absorbedLastMinute }) => absorbedLastMinute));
  if (here > 0) return `${throttles(here)} absorbed in the last minute`;
  const all = sum(upstreams.map(({ whole }) => whole?.absorbed ?? 0));
  return all === 0 ? 'no throttles' : `${throttles(all)} absorbed since the last full minute`;
}
