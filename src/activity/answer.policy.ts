/**
 * The answer to "can we raise traffic?", in words: one sentence for all APIs, what holds them, what is wrong now, and a few words for each
 * API. The page, `/activity` and `sluice top` say the same, because it is made here only. Pure.
 *
 * Of several findings the worst comes first; two more are told with it. Colours are what callers feel: red where calls are refused, amber
 * where there is no room or calls wait long, green where there is room, blue where an API is only watched, grey where nothing is known.
 */
import type { WhenDown } from '../limiter/when-down.policy.ts';
import type { ConfigurationState, LimiterHealth } from '../telemetry/events.ts';
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
  readonly replicas: number;
  /** Share of new calls that this replica refuses for load, 0 to 1. */
  readonly sheddingShare: number;
}

const count = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
/** No-break space, before units. */
const nbsp = '\u00a0';

const calls = (n: number): string => (n === 1 ? `1${nbsp}call` : `${count.format(n)}${nbsp}calls`);
const were = (n: number): string => (n === 1 ? 'was' : 'were');

/** 300 → 0.3 s, 65,000 → 1 min 5 s, 7,800,000 → 2 h 10 min. */
export function duration(ms: number): string {
  const seconds = ms / 1_000;
  if (seconds < 9.95) return `${seconds < 0.05 ? 0 : seconds.toFixed(1).replace(/\.0$/, '')}${nbsp}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${nbsp}s`;
  const [unit, big, small] = whole < 3_600 ? [60, 'min', 's'] : [3_600, 'h', 'min'];
  const rest = Math.floor((whole % unit) / (unit / 60));
  return `${Math.floor(whole / unit)}${nbsp}${big}${rest === 0 ? '' : ` ${rest}${nbsp}${small}`}`;
}

/** 21:04:52 UTC; to the minute where seconds say nothing. */
function clock(at: number, isExact = false): string {
  const parts = [3_600, 60, 1].map((unit) => Math.floor(at / 1_000 / unit) % (unit === 3_600 ? 24 : 60));
  const shown = parts.slice(0, isExact ? 3 : 2).map((part) => String(part).padStart(2, '0'));
  return `${shown.join(':')}${nbsp}UTC`;
}

/** A share above 0 is never written as 0 %. */
export const percent = (share: number): string =>
  `${share === 0 ? 0 : Math.max(1, Math.round(share * 100))}${nbsp}%`;

/** "a, b and c"; of more than three the first two, and how many more there are. */
function listed(names: readonly string[]): string {
  const shown = names.length > 3 ? [...names.slice(0, 2), `${names.length - 2} more`] : names;
  return shown.length < 2 ? (shown[0] ?? '') : `${shown.slice(0, -1).join(', ')} and ${shown.at(-1)}`;
}

/** How much more fits, rounded down; `null`: nothing. */
function roomText(growth: number): string | null {
  const tenths = Math.floor(growth * 10 + 1e-9);
  if (tenths < 11) return null;
  if (tenths < 20) return `${(tenths - 10) * 10}${nbsp}% more`;
  if (tenths < 30) return 'twice as much';
  return tenths < 100 ? `${Math.floor(tenths / 10)} times as much` : '10 times or more';
}

const windowNames: Readonly<Record<number, string>> = {
  1e3: 'second',
  6e4: 'minute',
  36e5: 'hour',
  864e5: 'day',
};

/** "60 requests a minute". */
function limitText({ unit, limit, windowMs }: LimitState): string {
  const name = windowNames[windowMs];
  const plain = unit
    .replace(/_(?:day|hour|burst)$/, '')
    .replace(/^cost$/, 'cost points')
    .replace('_', ' ');
  const article = name === 'hour' ? 'an' : 'a';
  return `${count.format(limit)} ${plain} ${name === undefined ? `in ${duration(windowMs)}` : `${article} ${name}`}`;
}

export const used = ({ used: units, limit }: LimitState): number => (limit > 0 ? units / limit : 0);

/** The fullest limit of an API; of its own ones before ceilings of equal use. */
export const fullest = (limits: readonly LimitState[]): LimitState | null =>
  limits.toSorted((a, b) => used(b) - used(a))[0] ?? null;

function whose(limit: LimitState | null, upstream: string): string {
  if (limit === null) return `The limits of ${upstream}`;
  if (limit.owner === 'provider') return `The provider’s limit of ${limitText(limit)}`;
  if (limit.owner === 'setting') return `Your setting for ${upstream} of ${limitText(limit)}`;
  const of = limit.workspace === null ? '' : ` for ${limit.workspace}`;
  return `Your ceiling of ${limitText(limit)} to ${upstream}${of}`;
}

const causesOf = (heldBy: Refusals) =>
  Object.entries(heldBy)
    .toSorted(([, a], [, b]) => b - a)
    .map(([cause]) => cause);
/** What held most of the refused calls; `''` = nothing that is known. */
const mostHeld = (heldBy: Refusals): string => causesOf(heldBy)[0] ?? '';

/** Whose limit most of the refused calls met: that of the kind, window and unit that held them, because another may be fuller now. */
function whoseRefused({ upstream, limits }: UpstreamState, cause: string): string {
  if (cause === 'serialized') return `The calls in flight that ${upstream} may have (maxInFlight)`;
  if (cause === 'queue') return `The calls that may wait for ${upstream} (maxQueued)`;
  const byCeiling = cause.startsWith('ceiling_');
  const isOfDay = cause.endsWith('_day');
  const ofKind = limits.filter(({ owner }) => (owner === 'ceiling') === byCeiling);
  const met = ofKind.filter(
    ({ windowMs, unit }) =>
      windowMs >= 86_400_000 === isOfDay && (byCeiling || isOfDay || unit.includes(cause)),
  );
  if (met.length === 0 && byCeiling)
    return `Your ceilings of requests a ${isOfDay ? 'day' : 'minute'} to ${upstream}`;
  return whose(fullest(met) ?? fullest(ofKind) ?? fullest(limits), upstream);
}

/** The time of the upstream's latest throttle, and how long it stays closed. */
function throttleText({ upstream, condition, lastHour: { throttledAt } }: UpstreamState): string {
  const at = throttledAt === null ? '' : ` of ${clock(throttledAt)}`;
  const left = condition.kind === 'closed' ? `; ${duration(condition.ms)} are left` : '';
  return `${upstream}’s own “too many requests”${at}${left}.`;
}

/** Why calls were refused where no limit held most of them; `null` = one did, or nobody knows. */
function causeBesideLimits(api: UpstreamState, heldBy: Refusals): Pick<Finding, 'why' | 'heldBy'> | null {
  const { throttledAt } = api.lastHour;
  const [cause = '', ...others] = causesOf(heldBy);
  const throttlesNow = throttledAt !== null && throttledAt >= api.recent.since;
  if (cause === 'paused' && !throttlesNow)
    return {
      why: 'calls were refused while it was paused',
      heldBy: 'A pause of the last hour, which is over.',
    };
  if (cause === 'credential')
    return {
      why: 'calls were refused for want of a credential',
      heldBy: 'A credential that could not be fetched.',
    };
  if (cause === 'closed' && throttledAt === null)
    return {
      why: 'calls were refused while it refused them for good',
      heldBy: 'A refusal for good of the last hour, which is over.',
    };
  if (throttledAt === null || !besideLimits.has(cause)) return null;
  const why = `it says “too many requests”${others.every((each) => besideLimits.has(each)) ? ', and no known limit was used up' : ''}`;
  return { why, heldBy: throttleText(api) };
}
/** What refuses calls and is no limit that was used up. */
const besideLimits = new Set(['', 'paused', 'closed', 'credential']);

/** What is found of one API, the worst first by `rank`. */
interface Finding extends ShortAnswer, Pick<Answer, 'heldBy' | 'wrongNow' | 'next'> {
  readonly rank: number;
  /** Behind "No for NAME: ". */
  readonly why: string;
}

const found = (
  [rank, tone, text, why]: readonly [rank: number, tone: Tone, text: string, why: string],
  heldBy: string,
  wrongNow: string,
  ...next: readonly Next[]
): Finding => ({ rank, tone, text, why, heldBy, wrongNow, next });

/** Why an upstream refuses for good, and in few words. */
const refusing: Readonly<Record<number, readonly [why: string, short: string]>> = {
  401: ['it does not accept our credential', 'refuses our credential'],
  402: ['it is out of credit', 'out of credit'],
  403: ['it forbids our calls', 'forbids our calls'],
  423: ['it has locked the shop', 'has locked the shop'],
};
const outOfCredit = /quota|billing|credit|balance|payment|funds|spend/i;

/** From this share of calls on, failures are no chance; and errors, from so many on without one success. */
const failingShare = 0.1;
const errorsOnly = 5;

/** How calls wait now. */
function waits({ waiting, oldestMs, maxWaitMs }: UpstreamState): string {
  if (waiting === 0) return 'None wait.';
  const longest = waiting === 1 ? `for ${duration(oldestMs)}` : `the longest for ${duration(oldestMs)}`;
  return `${calls(waiting)} ${waiting === 1 ? 'waits' : 'wait'}, ${longest} of ${duration(maxWaitMs)}.`;
}
const refusedText = (n: number, when: string): string =>
  n === 0 ? 'None are refused.' : `${calls(n)} ${were(n)} refused ${when}.`;

const connect = (text: string): Next => ({ text, command: 'sluice check --connect' });
const sender = (text: string): Next => ({ text, place: '#workspaces' });

/** Of one that takes no call, for a reason beside limits; `null` = it does. */
function conditionFinding(api: UpstreamState, now: number, refusedNow: string): Finding | null {
  const { upstream, condition, recent, lastHour } = api;
  if (condition.kind === 'refusing') {
    const { status, said, since, retryInMs } = condition;
    const isBroke = status === 402 || outOfCredit.test(said ?? '');
    const other = [`it refuses calls with ${status}`, `refuses calls with ${status}`] as const;
    const [why, short] = refusing[isBroke ? 402 : status] ?? other;
    const instead = refusedText(lastHour.answeredInstead, 'for it in the last hour');
    return found(
      [2, 'red', `No: ${short}`, why],
      `The provider refuses every call since ${clock(since)} (${said ?? `status ${status}`}).${isBroke ? ' Top up the account there.' : ''}`,
      `${lastHour.answeredInstead === 0 ? '' : `${instead} `}Sluice asks again with ${retryInMs > 0 ? `one call in ${duration(retryInMs)}` : 'the next call'}.`,
      { text: 'Mended? Ask now', command: `sluice open --upstream ${upstream}` },
    );
  }
  if (condition.kind === 'credential_ended')
    return found(
      [3, 'red', 'No: credential ended', 'its credential has ended'],
      `It could not be renewed, and ended at ${clock(now - condition.sinceMs)}.`,
      waits(api),
      connect('See why'),
    );
  if (condition.kind === 'paused') {
    const [rank, tone] = recent.refused > 0 ? ([4, 'red'] as const) : ([4.5, 'amber'] as const);
    return found(
      [rank, tone, 'No: paused', 'an operator paused it'],
      `The pause since ${clock(condition.since)}. It ends by itself at ${clock(now + condition.ms, true)}.`,
      `${waits(api)} ${refusedNow}`,
      { text: 'Go on now', command: `sluice resume --upstream ${upstream}` },
    );
  }
  return condition.kind === 'observing' ? observingOf(api) : null;
}

function findingOf(api: UpstreamState, now: number): Finding {
  const { upstream, condition, recent, lastHour, waiting, growth } = api;
  const since = `since ${clock(recent.since)}`;
  const refusedNow = refusedText(recent.refused, since);
  const beside = conditionFinding(api, now, refusedNow);
  if (beside !== null) return beside;
  const place = { text: 'Its limits and traffic', place: `#${upstream}` };
  if (recent.failed > 0 && recent.failed >= recent.calls * failingShare)
    return found(
      [5.5, 'red', 'No: calls fail', 'it cannot be reached, or breaks calls off'],
      'No limit. The log names the reason of each call that failed.',
      `${calls(recent.failed)} failed ${since}. ${refusedNow} ${waits(api)}`,
      connect('Can it be reached?'),
      place,
    );
  if (recent.errors >= errorsOnly && recent.succeeded === 0)
    return found(
      [5.7, 'red', 'No: only errors', 'it answers every call with an error'],
      'No limit. The log has the status of each call.',
      `${calls(recent.errors)} ended so ${since}. ${refusedNow} ${waits(api)}`,
      connect('Does it take the credential?'),
      place,
    );
  // What refuses calls now is told by the refusals of now, not by the more of them an hour ago.
  const heldBy = recent.refused > 0 ? recent.heldBy : lastHour.heldBy;
  const byCeilings = mostHeld(heldBy).startsWith('ceiling_');
  const cause = causeBesideLimits(api, heldBy);
  const whoseLimit = whoseRefused(api, mostHeld(heldBy));
  if (recent.refused > 0) {
    const [rank, why] = byCeilings
      ? ([7, 'calls are refused at your ceilings'] as const)
      : ([6, 'it is full, and calls are refused'] as const);
    const asked = `${whoseLimit}; ${count.format(recent.calls)} were asked for in the last minute.`;
    const wrongNow = `${refusedNow} ${waits(api)}`;
    return {
      ...found([rank, 'red', 'No: calls refused', why], asked, wrongNow, sender('Who sends most?'), place),
      ...cause,
    };
  }
  if (condition.kind === 'closed') {
    const { ms } = condition;
    const why = `it asked us to stop until ${clock(now + ms, true)}`;
    const text = `Not for ${duration(Math.max(1_000, ms))}`;
    return found([10, 'amber', text, why], throttleText(api), `${waits(api)} None are refused.`, place);
  }
  // What an operator's pause refused says nothing of limits when it is over.
  if (lastHour.refused > (lastHour.heldBy.paused ?? 0)) {
    const text = cause === null && !byCeilings ? 'No: was full' : 'No: calls were refused';
    const at = lastHour.refusedAt === null ? '' : ` at ${clock(lastHour.refusedAt)}`;
    const why = `${byCeilings ? 'a workspace was at your ceiling' : 'it was full'}${at}`;
    const wrongNow = `Nothing now. ${refusedText(lastHour.refused, 'in the last hour')}`;
    return {
      ...found([13, 'amber', text, why], `${whoseLimit}.`, wrongNow, sender('Who sent most?'), place),
      ...cause,
    };
  }
  if (growth === null || roomText(growth) !== null) return calmOf(api);
  const limit = fullest(api.limits);
  const isWaiting = waiting > 0 ? ', and calls wait' : '';
  return found(
    limit?.owner === 'ceiling'
      ? [12, 'amber', 'No: your ceiling', `a workspace is at your ceiling${isWaiting}`]
      : [11, 'amber', 'No: full', `it is full${isWaiting}`],
    `${whose(limit, upstream)}.`,
    `${waits(api)} None are refused.`,
    sender('Who sends most?'),
    place,
  );
}

/** An API whose limits are reckoned and hold no call. */
function observingOf(api: UpstreamState): Finding {
  const { upstream, growth } = api;
  const room = growth === null ? 'no limit holds a call' : roomText(growth);
  if (room !== null) {
    const text = `Observing: ${room}${growth === null ? '' : ' would fit'}`;
    return { ...calmOf(api), rank: 16, tone: 'blue', text };
  }
  return found(
    [15, 'blue', 'Observing: would be full', 'with its limits enforced it would be full'],
    `Nothing: ${upstream} is only observed.`,
    'Nothing. No limit of ours refuses a call to it.',
    { text: 'Would it fit? Rehearse', command: 'sluice rehearse --traffic FILE' },
  );
}

/** An API that has room, or of which nothing is known. */
function calmOf({ growth, lastHour }: UpstreamState): Finding {
  if (growth !== null) return found([16, 'green', `Yes: ${roomText(growth) ?? ''}`, ''], '', '');
  return found(
    [17, 'grey', lastHour.calls === 0 ? 'Not known yet' : 'Not known: no limit stated', ''],
    '',
    '',
  );
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
function ofSluice({ limiter, whenDown, sheddingShare, replicas }: SluiceState): [number, Answer] | null {
  const { mode, modeSince } = limiter;
  const since = clock(modeSince);
  if (mode === 'deny') {
    const never =
      'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.';
    const heldBy = whenDown === 'deny' ? 'Your redis.whenDown: deny.' : never;
    const sentence = 'No: Redis is away and Sluice refuses all calls.';
    return [1, said(['red', sentence], heldBy, `Calls are refused since ${since}.`, connect('See why'))];
  }
  if (sheddingShare > 0) {
    const heldBy = `This replica refuses ${percent(sheddingShare)} of new calls.`;
    const wrongNow = 'Give it more processor or memory, or run more replicas.';
    return [5, said(['red', 'No: Sluice has too much to do.'], heldBy, wrongNow)];
  }
  if (mode !== 'local') return null;
  const heldBy = `Since ${since} each replica keeps to ${replicas > 1 ? 'its own share' : 'a share'} of every limit.`;
  const wrongNow =
    'Calls pass, at a share of each limit. Where calls in flight are capped, as to shops, none leaves for the first 15 s.';
  return [9, said(['amber', 'Not now: Redis is away.'], heldBy, wrongNow, connect('See why'))];
}

/** `''` = the latest configuration is in use. */
function reloadText({ refused, inForceSince }: ConfigurationState): string {
  if (refused === null) return '';
  const lines = [...new Set(refused.lines)].map(String);
  const where = lines.length === 0 ? '' : `, line${lines.length === 1 ? '' : 's'} ${listed(lines)}`;
  return `Your configuration was refused at ${clock(refused.at)}${where}. The settings of ${clock(inForceSince)} hold; keys removed since then still work.`;
}

/** The answer for all. */
export function answerOf(apis: readonly UpstreamState[], sluice: SluiceState): Answer {
  const all = apis
    .map((api) => ({ api, finding: findingOf(api, sluice.now) }))
    .toSorted((a, b) => a.finding.rank - b.finding.rank);
  const own = ofSluice(sluice);
  const troubled = all.filter(({ finding }) => finding.rank < 16);
  const [worst] = troubled;
  const reload = reloadText(sluice.configuration);
  const also = [
    ...troubled.slice(1).map(({ api, finding }) => `${api.upstream}: ${finding.why}.`),
    ...(reload === '' ? [] : [reload]),
  ];
  if (own !== null && own[0] < (worst?.finding.rank ?? 99)) {
    const others = worst === undefined ? also : [`${worst.api.upstream}: ${worst.finding.why}.`, ...also];
    return { ...own[1], wrongNow: withMore(own[1].wrongNow, others) };
  }
  const check = { text: 'See all mistakes', command: 'sluice check' };
  if (worst !== undefined) {
    const alsoOwn = own === null ? also : [own[1].sentence, ...also];
    const { tone, why, heldBy, wrongNow, next } = worst.finding;
    const isOne = troubled.length === 1;
    const of = isOne ? '' : `${worst.api.upstream}: `;
    const names = listed(troubled.map(({ api }) => api.upstream));
    const onlyClosed = troubled.every(({ finding }) => finding.rank === 10);
    return {
      tone,
      sentence: `${onlyClosed ? 'Not now' : 'No'} for ${names}${isOne ? `: ${why}` : ''}.`,
      rest: restText(troubled.length, all),
      heldBy: of + heldBy,
      wrongNow: withMore(of + wrongNow, alsoOwn),
      next: [...next, ...(reload === '' ? [] : [check])],
    };
  }
  const enforced = apis.filter(({ condition }) => condition.kind !== 'observing');
  const calm = enforced.length === 0 && apis.length > 0 ? observedAnswer(apis) : calmAnswer(enforced);
  if (reload === '') return calm;
  return {
    ...calm,
    tone: 'amber',
    sentence: `${calm.tone === 'green' ? 'Yes, but your' : 'Your'} last change is not in force.`,
    wrongNow: reload,
    next: [check],
  };
}

/** Two more findings, and how many there are beyond them. */
function withMore(first: string, also: readonly string[]): string {
  const more = also.length > 2 ? [`And ${also.length - 2} more below.`] : [];
  return [first, ...also.slice(0, 2), ...more].join(' ');
}

/** "Yes for shop.", "Yes for the other 2.", "Yes for 33 of 40." */
function restText(
  troubled: number,
  all: readonly { readonly api: UpstreamState; readonly finding: Finding }[],
): string {
  const green = all.filter(({ finding }) => finding.tone === 'green').map(({ api }) => api.upstream);
  if (green.length === 0) return '';
  if (green.length + troubled < all.length || troubled > 1)
    return `Yes for ${green.length} of ${all.length}.`;
  return green.length === 1 ? `Yes for ${green[0]}.` : `Yes for the other ${green.length}.`;
}

const observedAnswer = (apis: readonly UpstreamState[]): Answer =>
  said(
    ['blue', `Not known: Sluice only observes ${listed(apis.map(({ upstream }) => upstream))}.`],
    'Nothing: no limit holds a call. Each response says what limits would have done.',
    'Nothing.',
  );

function calmAnswer(apis: readonly UpstreamState[]): Answer {
  if (apis.every(({ lastHour }) => lastHour.calls === 0))
    return said(
      ['grey', 'Not known yet: no calls so far.'],
      'Nothing: no call has come.',
      `Nothing. Sluice is ready for ${listed(apis.map(({ upstream }) => upstream))}.`,
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
  const [queue] = apis.filter((api) => api.waiting > 0).toSorted((a, b) => b.oldestMs - a.oldestMs);
  return said(
    ['green', `Yes: every API ${isSilent ? 'of which a limit is known ' : ''}can take more.`],
    `${queue === undefined ? 'Nothing now.' : `${queue.upstream}: ${waits(queue)}`} Nearest to its limit is ${nearest.upstream}: ${roomText(nearest.growth) ?? 'nothing more'} fits.`,
    wrongNow,
  );
}
