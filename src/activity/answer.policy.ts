/**
 * The answer to "can we raise traffic?", in words: one sentence for all APIs, what holds them, what is wrong now, and a few words for each
 * API. The page, `/activity` and `sluice top` say the same, because it is made here only. Pure.
 *
 * Of several findings the worst comes first; two more are told with it. Colours are what callers feel: red where calls are refused, amber
 * where there is no room or calls wait long, green where there is room, blue where an API is only watched, grey where nothing is known.
 */
import type { WhenDown } from '../limiter/limiter.ts';
import type { ConfigurationState, LimiterHealth } from '../telemetry/events.ts';
import { dayMs, hourMs, minuteMs, secondMs } from '../time-units.ts';
import type { Cell, hourOf, lastMinuteOf } from './cell.policy.ts';

export type Tone = 'red' | 'amber' | 'green' | 'blue' | 'grey';

/** A few words about one API or workspace. */
export interface ShortAnswer {
  readonly tone: Tone;
  readonly text: string;
}

export interface Answer {
  readonly tone: Tone;
  /** The sentence, and in `rest` what it says of the other APIs. */
  readonly sentence: string;
  readonly rest: string;
  readonly heldBy: string;
  readonly wrongNow: string;
  /** Commands that mend it, and places of the page. */
  readonly next: readonly Next[];
}
export type Next =
  { readonly text: string; readonly command: string } | { readonly text: string; readonly place: string };

/** Whether an API takes calls; times in milliseconds. */
export type Condition =
  | { readonly kind: 'taking' }
  /** Limits hold no call: they are only reckoned. */
  | { readonly kind: 'observing' }
  | { readonly kind: 'closed'; readonly ms: number }
  /** `since`, here and below: Unix milliseconds. */
  | { readonly kind: 'paused'; readonly ms: number; readonly since: number }
  | {
      readonly kind: 'refusing';
      readonly status: number;
      readonly since: number;
      readonly said: string | null;
      readonly retryInMs: number;
    }
  | { readonly kind: 'credential_ended'; readonly sinceMs: number };

/** One limit and what is used of it. `owner`: who says so; of a ceiling also whose it is. */
export interface LimitState {
  readonly owner: 'provider' | 'setting' | 'ceiling';
  readonly workspace: string | null;
  readonly unit: string;
  readonly windowMs: number;
  readonly limit: number;
  readonly used: number;
}

type Refusals = Cell['heldBy'];

/** What the words about one API are made of. */
export interface UpstreamState {
  readonly upstream: string;
  readonly condition: Condition;
  readonly growth: number | null;
  readonly limits: readonly LimitState[];
  readonly waiting: number;
  readonly oldestMs: number;
  readonly maxWaitMs: number;
  readonly recent: ReturnType<typeof lastMinuteOf>;
  readonly lastHour: ReturnType<typeof hourOf>;
}

/** What the words about Sluice itself are made of. */
export interface SluiceState {
  /** Unix milliseconds. */
  readonly now: number;
  readonly limiter: LimiterHealth;
  readonly configuration: ConfigurationState;
  /** The setting; a replica that has never reached Redis and does not know its share refuses calls with `local`, too. */
  readonly whenDown: WhenDown | null;
  /** Share of new calls that this replica refuses for load, 0 to 1. */
  readonly sheddingShare: number;
}

const count = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const list = new Intl.ListFormat('en-GB');
/** No-break space, before units. */
const nbsp = '\u00a0';

const calls = (n: number): string => (n === 1 ? `1${nbsp}call` : `${count.format(n)}${nbsp}calls`);

/** 300 → 0.3 s, 65,000 → 65 s, 7,800,000 → 2.2 h. */
export function duration(ms: number): string {
  const [unit, name] = ms < 90_000 ? [1_000, 's'] : ms < 90 * minuteMs ? [minuteMs, 'min'] : [hourMs, 'h'];
  const n = ms / unit;
  return `${n < 10 ? Math.round(n * 10) / 10 : Math.round(n)}${nbsp}${name}`;
}

/** 21:04 UTC, or 21:04:52 UTC. */
const clock = (at: number, timeStyle: 'short' | 'medium' = 'short'): string =>
  `${new Intl.DateTimeFormat('en-GB', { timeStyle, timeZone: 'UTC' }).format(at)}${nbsp}UTC`;

/** "a, b and c"; of more than three the first two, and how many more there are. */
const listed = (names: readonly string[]): string =>
  list.format(names.length > 3 ? [...names.slice(0, 2), `${names.length - 2} more`] : names);

/** How much more fits, rounded down; `null`: nothing. */
function roomText(growth: number): string | null {
  const tenths = Math.floor(growth * 10 + 1e-9);
  if (tenths >= 100) return '10 times or more';
  if (tenths >= 20) return `${Math.floor(tenths / 10)} times as much`;
  return tenths < 11 ? null : `${(tenths - 10) * 10}${nbsp}% more`;
}

const windowNames: Readonly<Record<number, string>> = {
  [secondMs]: 'a second',
  [minuteMs]: 'a minute',
  [hourMs]: 'an hour',
  [dayMs]: 'a day',
};

/** "60 requests a minute". */
const limitText = ({ unit, limit, windowMs }: LimitState): string =>
  `${count.format(limit)} ${unit.replace(/_(?:day|hour|burst)$/, '').replace('_', ' ')} ${windowNames[windowMs] ?? `in ${duration(windowMs)}`}`;

export const used = ({ used: units, limit }: LimitState): number => (limit > 0 ? units / limit : 0);

/** The fullest limit of an API; of its own ones before ceilings of equal use. */
export const fullest = (limits: readonly LimitState[]): LimitState | null =>
  limits.toSorted((a, b) => used(b) - used(a))[0] ?? null;

function whose(limit: LimitState | null, upstream: string): string {
  if (limit === null) return `The limits of ${upstream}`;
  const text = limitText(limit);
  if (limit.owner === 'provider') return `The provider’s limit of ${text}`;
  if (limit.owner === 'setting') return `Your setting for ${upstream} of ${text}`;
  return `Your ceiling of ${text} to ${upstream} for ${limit.workspace}`;
}

/** What held most of the refused calls; `''` = nothing that is known. */
const mainCause = (heldBy: Refusals): string =>
  Object.entries(heldBy).toSorted(([, a], [, b]) => b - a)[0]?.[0] ?? '';

/** Whose limit most of the refused calls met: that of the kind, window and unit that held them, because another may be fuller now. */
function whoseRefused({ upstream, limits }: UpstreamState, cause: string): string {
  if (cause === 'serialized') return `The calls in flight that ${upstream} may have (maxInFlight)`;
  if (cause === 'queue') return `The calls that may wait for ${upstream} (maxQueued)`;
  const byCeiling = cause.startsWith('ceiling_');
  const isOfDay = cause.endsWith('_day');
  const ofKind = limits.filter(({ owner }) => (owner === 'ceiling') === byCeiling);
  const met = ofKind.filter(
    ({ windowMs, unit }) => windowMs >= dayMs === isOfDay && (byCeiling || isOfDay || unit.includes(cause)),
  );
  return whose(fullest(met) ?? fullest(ofKind), upstream);
}

/** The time of the upstream's latest throttle, and how long it stays closed. */
function throttleText({ upstream, condition, lastHour: { throttledAt } }: UpstreamState): string {
  const at = throttledAt === null ? '' : ` of ${clock(throttledAt)}`;
  const left = condition.kind === 'closed' ? `; ${duration(condition.ms)} are left` : '';
  return `${upstream}’s own “too many requests”${at}${left}.`;
}

/** What refused calls and is no limit that was used up: behind "calls were refused ", and what held them. */
const besideLimits: Readonly<Record<string, readonly [why: string, heldBy: string]>> = {
  paused: ['while it was paused', 'A pause of the last hour, which is over.'],
  credential: ['for want of a credential', 'A credential that could not be fetched.'],
  closed: ['while it refused them for good', 'A refusal for good of the last hour, which is over.'],
};

/** Why calls were refused where no limit held most of them; `null` = one did, or nobody knows. */
function causeBesideLimits(api: UpstreamState, cause: string): Pick<Finding, 'why' | 'heldBy'> | null {
  const { throttledAt } = api.lastHour;
  const [why = null, heldBy = ''] = besideLimits[cause] ?? [];
  const isThrottle =
    throttledAt !== null &&
    (why === null ? cause === '' : cause === 'closed' || throttledAt >= api.recent.since);
  if (isThrottle) return { why: 'it says “too many requests”', heldBy: throttleText(api) };
  return why === null ? null : { why: `calls were refused ${why}`, heldBy };
}

/** What is found of one API, the worst first by `rank`. */
interface Finding extends ShortAnswer, Pick<Answer, 'heldBy' | 'wrongNow' | 'next'> {
  readonly rank: number;
  /** Behind "No for NAME: ". */
  readonly why: string;
}

/** That of an API which asked us to stop; and from this one on findings are no trouble. */
const closedRank = 10;
const calmRank = 16;

/** Why an upstream refuses for good. */
const refusing: Readonly<Record<number, string>> = {
  401: 'refuses our credential',
  402: 'is out of credit',
  403: 'forbids our calls',
  423: 'has locked the shop',
};
const outOfCredit = /quota|billing|credit|balance|payment|funds|spend/i;

/** From this share of calls on, failures are no chance; and errors, from so many on without one success. */
const failingShare = 0.1;
const errorsOnly = 5;

/** How calls wait now. */
const waits = ({ waiting, oldestMs, maxWaitMs }: UpstreamState): string =>
  waiting === 0
    ? 'None wait.'
    : `${calls(waiting)} ${waiting === 1 ? 'waits' : 'wait'}, the longest for ${duration(oldestMs)} of ${duration(maxWaitMs)}.`;
const refusedText = (n: number, when: string): string =>
  n === 0 ? 'None are refused.' : `${calls(n)} ${n === 1 ? 'was' : 'were'} refused ${when}.`;

const reasons: Next = { text: 'Why does each call fail?', command: 'sluice tail' };
const redis: Next = { text: 'Why is Redis away?', command: 'curl http://127.0.0.1:9090/readyz' };
const sender: Next = { text: 'Who sends most?', place: '#workspaces' };

function findingOf(api: UpstreamState, now: number): Finding {
  const { upstream, condition, recent, lastHour, waiting, growth } = api;
  const since = `since ${clock(recent.since)}`;
  const refusedNow = refusedText(recent.refused, since);
  const callsNow = `${waits(api)} ${refusedNow}`;
  const place = { text: 'Its limits and traffic', place: `#${upstream}` };
  const found = (
    [rank, tone, text, why]: readonly [rank: number, tone: Tone, text: string, why: string],
    heldBy: string,
    wrongNow = callsNow,
    next: readonly Next[] = [sender, place],
  ): Finding => ({ rank, tone, text, why, heldBy, wrongNow, next });
  if (condition.kind === 'refusing') {
    const { status, said, retryInMs } = condition;
    const short = refusing[outOfCredit.test(said ?? '') ? 402 : status] ?? `refuses calls with ${status}`;
    const instead = lastHour.answeredInstead;
    const told = instead === 0 ? '' : `${refusedText(instead, 'for it in the last hour')} `;
    const next = retryInMs > 0 ? `one call in ${duration(retryInMs)}` : 'the next call';
    return found(
      [2, 'red', `No: ${short}`, `it ${short}`],
      `The provider refuses every call since ${clock(condition.since)} (${said ?? `status ${status}`}).`,
      `${told}Sluice asks again with ${next}.`,
      [{ text: 'Mended? Ask now', command: `sluice open --upstream ${upstream}` }],
    );
  }
  if (condition.kind === 'credential_ended')
    return found(
      [3, 'red', 'No: credential ended', 'its credential has ended'],
      `It could not be renewed, and ended at ${clock(now - condition.sinceMs)}.`,
      callsNow,
      [reasons],
    );
  if (condition.kind === 'paused')
    return found(
      [4, recent.refused > 0 ? 'red' : 'amber', 'No: paused', 'an operator paused it'],
      `The pause since ${clock(condition.since)}. It ends by itself at ${clock(now + condition.ms, 'medium')}.`,
      callsNow,
      [{ text: 'Go on now', command: `sluice resume --upstream ${upstream}` }],
    );
  if (condition.kind === 'observing') {
    const room = growth === null ? 'no limit holds a call' : (roomText(growth) ?? 'would be full');
    return found([calmRank, 'blue', `Observing: ${room}`, ''], '', '');
  }
  if (recent.failed > 0 && recent.failed >= recent.calls * failingShare)
    return found(
      [5.5, 'red', 'No: calls fail', 'it cannot be reached, or breaks calls off'],
      'No limit. The log names the reason of each call that failed.',
      `${calls(recent.failed)} failed ${since}. ${callsNow}`,
      [reasons],
    );
  if (recent.errors >= errorsOnly && recent.succeeded === 0)
    return found(
      [5.7, 'red', 'No: only errors', 'it answers every call with an error'],
      'No limit. The log has the status of each call.',
      `${calls(recent.errors)} ended so ${since}. ${callsNow}`,
      [reasons],
    );
  // What refuses calls now is told by the refusals of now, not by the more of them an hour ago.
  const cause = mainCause(recent.refused > 0 ? recent.heldBy : lastHour.heldBy);
  const byCeilings = cause.startsWith('ceiling_');
  const beside = causeBesideLimits(api, cause);
  const whoseLimit = whoseRefused(api, cause);
  if (recent.refused > 0) {
    const why = byCeilings ? 'calls are refused at your ceilings' : 'it is full, and calls are refused';
    const asked = `${whoseLimit}; ${count.format(recent.calls)} were asked for in the last minute.`;
    const wrongNow = `${refusedNow} ${waits(api)}`;
    return { ...found([6, 'red', 'No: calls refused', why], asked, wrongNow), ...beside };
  }
  if (condition.kind === 'closed') {
    const why = `it asked us to stop until ${clock(now + condition.ms, 'medium')}`;
    const text = `Not for ${duration(Math.max(1_000, condition.ms))}`;
    return found([closedRank, 'amber', text, why], throttleText(api));
  }
  // What an operator's pause refused says nothing of limits when it is over.
  if (lastHour.refused > (lastHour.heldBy.paused ?? 0)) {
    const at = lastHour.refusedAt === null ? '' : ` at ${clock(lastHour.refusedAt)}`;
    const why = `${byCeilings ? 'a workspace was at your ceiling' : 'it was full'}${at}`;
    const wrongNow = `Nothing now. ${refusedText(lastHour.refused, 'in the last hour')}`;
    return { ...found([13, 'amber', 'No: calls were refused', why], `${whoseLimit}.`, wrongNow), ...beside };
  }
  if (growth === null) {
    const text = lastHour.calls === 0 ? 'Not known yet' : 'Not known: no limit stated';
    return found([calmRank, 'grey', text, ''], '', '');
  }
  const room = roomText(growth);
  if (room !== null) return found([calmRank, 'green', `Yes: ${room}`, ''], '', '');
  const limit = fullest(api.limits);
  const isWaiting = waiting > 0 ? ', and calls wait' : '';
  const [text, why] =
    limit?.owner === 'ceiling'
      ? ['No: your ceiling', `a workspace is at your ceiling${isWaiting}`]
      : ['No: full', `it is full${isWaiting}`];
  return found([11, 'amber', text, why], `${whose(limit, upstream)}.`);
}

/** A few words about one API, or about what one workspace meets there. */
export function shortAnswer(api: UpstreamState, now: number): ShortAnswer {
  const { tone, text } = findingOf(api, now);
  return { tone, text };
}

const said = (
  [tone, sentence]: readonly [tone: Tone, sentence: string],
  heldBy: string,
  wrongNow: string,
  ...next: readonly Next[]
): Answer => ({ tone, sentence, rest: '', heldBy, wrongNow, next });

/** What is found of Sluice itself, and how bad it is. */
function ofSluice({ limiter, whenDown, sheddingShare }: SluiceState): [number, Answer] | null {
  const { mode, modeSince } = limiter;
  const since = clock(modeSince);
  if (mode === 'deny') {
    const never =
      'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.';
    const heldBy = whenDown === 'deny' ? 'Your redis.whenDown: deny.' : never;
    const sentence = 'No: Redis is away and Sluice refuses all calls.';
    return [1, said(['red', sentence], heldBy, `Calls are refused since ${since}.`, redis)];
  }
  if (sheddingShare > 0) {
    const heldBy = `This replica refuses ${Math.ceil(sheddingShare * 100)}${nbsp}% of new calls.`;
    const wrongNow = 'Give it more processor or memory, or run more replicas.';
    return [5, said(['red', 'No: Sluice has too much to do.'], heldBy, wrongNow)];
  }
  if (mode !== 'local') return null;
  const heldBy = `Since ${since} each replica keeps to its share of every limit.`;
  const wrongNow =
    'Calls pass, at a share of each limit. Where calls in flight are capped, as to shops, none leaves for the first 15 s.';
  return [9, said(['amber', 'Not now: Redis is away.'], heldBy, wrongNow, redis)];
}

/** Nothing where the latest configuration is in use. */
function reloadText({ refusedAt, inForceSince }: ConfigurationState): readonly string[] {
  if (refusedAt === null) return [];
  const since = `The settings of ${clock(inForceSince)} hold; keys removed since then still work.`;
  return [`Your configuration was refused at ${clock(refusedAt)}. ${since}`];
}

/** The answer for all. */
export function answerOf(apis: readonly UpstreamState[], sluice: SluiceState): Answer {
  const all = apis
    .map((api) => ({ upstream: api.upstream, ...findingOf(api, sluice.now) }))
    .toSorted((a, b) => a.rank - b.rank);
  const troubled = all.filter(({ rank }) => rank < calmRank);
  const [worst] = troubled;
  const own = ofSluice(sluice);
  const reload = reloadText(sluice.configuration);
  const told = [...troubled.map(({ upstream, why }) => `${upstream}: ${why}.`), ...reload];
  if (own !== null && own[0] < (worst?.rank ?? Infinity))
    return { ...own[1], wrongNow: withMore(own[1].wrongNow, told) };
  if (worst !== undefined) {
    const isOne = troubled.length === 1;
    const of = isOne ? '' : `${worst.upstream}: `;
    const names = listed(troubled.map(({ upstream }) => upstream));
    const onlyClosed = troubled.every(({ rank }) => rank === closedRank);
    const green = all.filter(({ tone }) => tone === 'green').length;
    const also = [...(own === null ? [] : [own[1].sentence]), ...told.slice(1)];
    return {
      tone: worst.tone,
      sentence: `${onlyClosed ? 'Not now' : 'No'} for ${names}${isOne ? `: ${worst.why}` : ''}.`,
      rest: green === 0 ? '' : `Yes for ${green} of ${all.length}.`,
      heldBy: of + worst.heldBy,
      wrongNow: withMore(of + worst.wrongNow, also),
      next: worst.next,
    };
  }
  const calm = calmAnswer(apis);
  const [wrongNow] = reload;
  if (wrongNow === undefined) return calm;
  const sentence = `${calm.tone === 'green' ? 'Yes, but your' : 'Your'} last change is not in force.`;
  return said(['amber', sentence], calm.heldBy, wrongNow, {
    text: 'See all mistakes',
    command: 'sluice check',
  });
}

/** Two more findings, and how many there are beyond them. */
function withMore(first: string, also: readonly string[]): string {
  const more = also.length > 2 ? [`And ${also.length - 2} more below.`] : [];
  return [first, ...also.slice(0, 2), ...more].join(' ');
}

function calmAnswer(all: readonly UpstreamState[]): Answer {
  const apis = all.filter(({ condition }) => condition.kind !== 'observing');
  const names = listed(all.map(({ upstream }) => upstream));
  if (apis.length === 0 && all.length > 0)
    return said(
      ['blue', `Not known: Sluice only observes ${names}.`],
      'Nothing: no limit holds a call. Each response says what limits would have done.',
      'Nothing.',
    );
  if (apis.every(({ lastHour }) => lastHour.calls === 0))
    return said(
      ['grey', 'Not known yet: no calls so far.'],
      'Nothing: no call has come.',
      `Nothing. Sluice is ready for ${names}.`,
      { text: 'Check the configuration', command: 'sluice check' },
    );
  const longest = Math.max(0, ...apis.map(({ lastHour }) => lastHour.longestWaitMs));
  const wrongNow = `Nothing. No call was refused in the last hour; longest wait ${duration(longest)}.`;
  const [nearest] = apis
    .flatMap(({ upstream, growth }) => (growth === null ? [] : [{ upstream, growth }]))
    .toSorted((a, b) => a.growth - b.growth);
  if (nearest === undefined)
    return said(
      ['grey', 'Not known: no limit is known of the APIs that were called.'],
      'Nothing. Write their limits into the configuration to see how much more fits.',
      wrongNow,
    );
  const isSilent = apis.some(({ growth, lastHour }) => growth === null && lastHour.calls > 0);
  return said(
    ['green', `Yes: every API ${isSilent ? 'of which a limit is known ' : ''}can take more.`],
    `Nothing now. Nearest to its limit is ${nearest.upstream}: ${roomText(nearest.growth) ?? 'nothing more'} fits.`,
    wrongNow,
  );
}
