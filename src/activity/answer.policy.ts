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

const unitNames = new Map([['cost', 'cost points']]);
const windowNames = new Map([
  [1_000, 'a second'],
  [60_000, 'a minute'],
  [3_600_000, 'an hour'],
  [86_400_000, 'a day'],
]);

/** "60 requests a minute". */
function limitText({ unit, limit, windowMs }: LimitState): string {
  const name = windowNames.get(windowMs) ?? `in ${duration(windowMs)}`;
  const plain = unit.replace(/_(?:day|hour|burst)$/, '');
  return `${count.format(limit)} ${unitNames.get(plain) ?? plain.replace('_', ' ')} ${name}`;
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

/** What held most of the refused calls; `''` = nothing that is known. */
const mostHeld = (heldBy: Refusals): string =>
  Object.entries(heldBy).toSorted(([, a], [, b]) => b - a)[0]?.[0] ?? '';

/** Whose limit most of the refused calls met: that of the kind, window and unit that held them, because another may be fuller now. */
function whoseRefused({ upstream, limits }: UpstreamState, cause: string): string {
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
  const cause = mostHeld(heldBy);
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
  if (throttledAt === null || !['', 'paused', 'closed'].includes(cause)) return null;
  const ofLimits = Object.keys(heldBy).some((each) => !['paused', 'closed', 'credential'].includes(each));
  const why = `it says “too many requests”${ofLimits ? '' : ', and no known limit was used up'}`;
  return { why, heldBy: throttleText(api) };
}

/** What is found of one API, the worst first by `rank`. */
interface Finding extends ShortAnswer, Pick<Answer, 'heldBy' | 'wrongNow' | 'next'> {
  readonly rank: number;
  /** Behind "No for NAME: ". */
  readonly why: string;
}

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

function findingOf(api: UpstreamState, now: number): Finding {
  const { upstream, condition, recent, lastHour, waiting, growth } = api;
  const refusedNow = refusedText(recent.refused, `since ${clock(recent.since)}`);
  const place = { text: 'Its limits and traffic', place: `#${upstream}` };
  const limit = fullest(api.limits);
  // What refuses calls now is told by the refusals of now, not by the more of them an hour ago.
  const heldBy = recent.refused > 0 ? recent.heldBy : lastHour.heldBy;
  const byCeilings = mostHeld(heldBy).startsWith('ceiling_');
  const cause = causeBesideLimits(api, heldBy);
  switch (condition.kind) {
    case 'refusing': {
      const { status, said } = condition;
      const isBroke = status === 402 || outOfCredit.test(said ?? '');
      const other = [`it refuses calls with ${status}`, `refuses calls with ${status}`] as const;
      const [why, short] = refusing[isBroke ? 402 : status] ?? other;
      const advice = isBroke ? ' Top up the account there.' : '';
      return {
        rank: 2,
        tone: 'red',
        text: `No: ${short}`,
        why,
        heldBy: `The provider refuses every call since ${clock(condition.since)} (${said ?? `status ${status}`}).${advice}`,
        wrongNow: `${lastHour.answeredInstead === 0 ? '' : `${refusedText(lastHour.answeredInstead, 'for it in the last hour')} `}Sluice asks again with one call in ${duration(condition.retryInMs)}.`,
        next: [{ text: 'Mended? Ask now', command: `sluice open --upstream ${upstream}` }],
      };
    }
    case 'credential_ended':
      return {
        rank: 3,
        tone: 'red',
        text: 'No: credential ended',
        why: 'its credential has ended',
        heldBy: `It could not be renewed, and ended at ${clock(now - condition.sinceMs)}.`,
        wrongNow: waits(api),
        next: [{ text: 'See why', command: 'sluice check --connect' }],
      };
    case 'paused':
      return {
        rank: recent.refused > 0 ? 4 : 4.5,
        tone: recent.refused > 0 ? 'red' : 'amber',
        text: 'No: paused',
        why: 'an operator paused it',
        heldBy: `The pause since ${clock(condition.since)}. It ends by itself at ${clock(now + condition.ms, true)}.`,
        wrongNow: `${waits(api)} ${refusedNow}`,
        next: [{ text: 'Go on now', command: `sluice resume --upstream ${upstream}` }],
      };
    case 'observing':
      return observingOf(api);
    case 'closed':
    case 'taking':
      break;
  }
  if (recent.failed > 0 && recent.failed >= recent.calls * failingShare)
    return {
      rank: 5.5,
      tone: 'red',
      text: 'No: calls fail',
      why: 'it cannot be reached, or breaks calls off',
      heldBy: 'No limit. The log names the reason of each call that failed.',
      wrongNow: `${calls(recent.failed)} failed since ${clock(recent.since)}. ${refusedNow} ${waits(api)}`,
      next: [{ text: 'Can it be reached?', command: 'sluice check --connect' }, place],
    };
  if (recent.errors >= errorsOnly && recent.succeeded === 0)
    return {
      rank: 5.7,
      tone: 'red',
      text: 'No: only errors',
      why: 'it answers every call with an error',
      heldBy: 'No limit. The log has the status of each call.',
      wrongNow: `${calls(recent.errors)} ended so since ${clock(recent.since)}. ${refusedNow} ${waits(api)}`,
      next: [{ text: 'Does it take the credential?', command: 'sluice check --connect' }, place],
    };
  if (recent.refused > 0) {
    const asked = `${count.format(recent.calls)} were asked for in the last minute`;
    const ofLimits = {
      why: byCeilings ? 'calls are refused at your ceilings' : 'it is full, and calls are refused',
      heldBy: `${whoseRefused(api, mostHeld(heldBy))}; ${asked}.`,
    };
    return {
      rank: byCeilings ? 7 : 6,
      tone: 'red',
      text: 'No: calls refused',
      ...(cause ?? ofLimits),
      wrongNow: `${refusedNow} ${waits(api)}`,
      next: [{ text: 'Who sends most?', place: '#workspaces' }, place],
    };
  }
  if (condition.kind === 'closed')
    return {
      rank: 10,
      tone: 'amber',
      text: `Not for ${duration(Math.max(1_000, condition.ms))}`,
      why: `it asked us to stop until ${clock(now + condition.ms, true)}`,
      heldBy: throttleText(api),
      wrongNow: `${waits(api)} None are refused.`,
      next: [place],
    };
  const isFull = growth !== null && roomText(growth) === null;
  if (lastHour.refused > 0)
    return {
      rank: 13,
      tone: 'amber',
      text: cause === null && !byCeilings ? 'No: was full' : 'No: calls were refused',
      why: `${byCeilings ? 'a workspace was at your ceiling' : 'it was full'}${lastHour.refusedAt === null ? '' : ` at ${clock(lastHour.refusedAt)}`}`,
      heldBy: `${whoseRefused(api, mostHeld(heldBy))}.`,
      ...cause,
      wrongNow: `Nothing now. ${refusedText(lastHour.refused, 'in the last hour')}`,
      next: [{ text: 'Who sent most?', place: '#workspaces' }, place],
    };
  if (isFull) {
    const atCeiling = limit?.owner === 'ceiling';
    return {
      rank: atCeiling ? 12 : 11,
      tone: 'amber',
      text: atCeiling ? 'No: your ceiling' : 'No: full',
      why: `${atCeiling ? 'a workspace is at your ceiling' : 'it is full'}${waiting > 0 ? ', and calls wait' : ''}`,
      heldBy: `${whose(limit, upstream)}.`,
      wrongNow: `${waits(api)} None are refused.`,
      next: [{ text: 'Who sends most?', place: '#workspaces' }, place],
    };
  }
  return calmOf(api);
}

/** An API whose limits are reckoned and hold no call. */
function observingOf(api: UpstreamState): Finding {
  const { upstream, growth } = api;
  const room = growth === null ? null : roomText(growth);
  if (growth === null || room !== null) {
    const text = room === null ? 'Observing: no limit holds a call' : `Observing: ${room} would fit`;
    return { ...calmOf(api), rank: 16, tone: 'blue', text };
  }
  return {
    rank: 15,
    tone: 'blue',
    text: 'Observing: would be full',
    why: 'with its limits enforced it would be full',
    heldBy: `Nothing: ${upstream} is only observed.`,
    wrongNow: 'Nothing. No limit of ours refuses a call to it.',
    next: [{ text: 'Would it fit? Rehearse', command: 'sluice rehearse --traffic FILE' }],
  };
}

/** An API that has room, or of which nothing is known. */
function calmOf({ upstream, growth, limits, lastHour }: UpstreamState): Finding {
  const none = { why: '', heldBy: '', wrongNow: '', next: [] };
  if (growth !== null) return { ...none, rank: 16, tone: 'green', text: `Yes: ${roomText(growth) ?? ''}` };
  if (lastHour.calls === 0) return { ...none, rank: 17, tone: 'grey', text: 'Not known yet' };
  const why = limits.length === 0 ? `no limit of ${upstream} is known` : 'no call of the last hour counts';
  return { ...none, rank: 17, tone: 'grey', text: 'Not known: no limit stated', why };
}

/** A few words about one API. */
export function shortAnswer(api: UpstreamState, now: number): ShortAnswer {
  const { tone, text } = findingOf(api, now);
  return { tone, text };
}

/** A few words about one workspace on an API. */
export function workspaceAnswer(
  api: UpstreamState | null,
  own: { readonly growth: number | null; readonly refused: number },
  now: number,
): ShortAnswer {
  const condition = api?.condition.kind ?? 'taking';
  if (api !== null && condition !== 'taking') return shortAnswer(api, now);
  if (own.refused > 0) return { tone: 'red', text: 'No: calls refused' };
  if (own.growth === null) return { tone: 'grey', text: 'Not known yet' };
  const room = roomText(own.growth);
  return room === null ? { tone: 'amber', text: 'No: full' } : { tone: 'green', text: `Yes: ${room}` };
}

/** What is found of Sluice itself, and how bad it is. */
function ofSluice(state: SluiceState): (Answer & { readonly rank: number }) | null {
  const { whenDown, sheddingShare, replicas } = state;
  const { mode, modeSince } = state.limiter;
  const since = clock(modeSince);
  const next = [{ text: 'See why', command: 'sluice check --connect' }];
  if (mode === 'deny')
    return {
      rank: 1,
      tone: 'red',
      sentence: 'No: Redis is away and Sluice refuses all calls.',
      rest: '',
      heldBy:
        whenDown === 'deny'
          ? 'Your redis.whenDown: deny.'
          : 'This replica has never reached Redis, and redis.replicas, which tells its share, is not set.',
      wrongNow: `Calls are refused since ${since}.`,
      next,
    };
  if (sheddingShare > 0)
    return {
      rank: 5,
      tone: 'red',
      sentence: 'No: Sluice has too much to do.',
      rest: '',
      heldBy: `This replica refuses ${percent(sheddingShare)} of new calls.`,
      wrongNow: 'Give it more processor or memory, or run more replicas.',
      next: [],
    };
  if (mode !== 'local') return null;
  return {
    rank: 9,
    tone: 'amber',
    sentence: 'Not now: Redis is away.',
    rest: '',
    heldBy: `Since ${since} each replica keeps to ${replicas > 1 ? 'its own share' : 'a share'} of every limit.`,
    wrongNow: 'Calls pass. Busy replicas make calls wait sooner.',
    next,
  };
}

const linesText = (lines: readonly number[]): string =>
  lines.length === 0 ? '' : `, line${lines.length === 1 ? '' : 's'} ${listed(lines.map(String))}`;

/** `''` = the latest configuration is in use. */
function reloadText({ refused, inForceSince }: ConfigurationState): string {
  if (refused === null) return '';
  const lines = linesText([...new Set(refused.lines)]);
  return `Your configuration was refused at ${clock(refused.at)}${lines}. The settings of ${clock(inForceSince)} hold; keys removed since then still work.`;
}

/** The answer for all. */
export function answerOf(apis: readonly UpstreamState[], sluice: SluiceState): Answer {
  const found = apis
    .map((api) => ({ api, finding: findingOf(api, sluice.now) }))
    .toSorted((a, b) => a.finding.rank - b.finding.rank);
  const own = ofSluice(sluice);
  const troubled = found.filter(({ finding }) => finding.rank < 16);
  const [worst] = troubled;
  const reload = reloadText(sluice.configuration);
  const also = [
    ...troubled.slice(1).map(({ api, finding }) => `${api.upstream}: ${finding.why}.`),
    ...(reload === '' ? [] : [reload]),
  ];
  if (own !== null && own.rank < (worst?.finding.rank ?? 99)) {
    const all = worst === undefined ? also : [`${worst.api.upstream}: ${worst.finding.why}.`, ...also];
    const { rank: _, ...answer } = own;
    return { ...answer, wrongNow: withMore(own.wrongNow, all) };
  }
  const check = { text: 'See all mistakes', command: 'sluice check' };
  if (worst !== undefined) {
    const alsoOwn = own === null ? also : [own.sentence, ...also];
    const isOne = troubled.length === 1;
    const names = listed(troubled.map(({ api }) => api.upstream));
    const onlyClosed = troubled.every(({ finding }) => finding.rank === 10);
    const no = `${onlyClosed ? 'Not now' : 'No'} for ${names}`;
    return {
      tone: worst.finding.tone,
      sentence: isOne ? `${no}: ${worst.finding.why}.` : `${no}.`,
      rest: restText(found.length - troubled.length, apis.length, found),
      heldBy: isOne ? worst.finding.heldBy : `${worst.api.upstream}: ${worst.finding.heldBy}`,
      wrongNow: withMore(
        isOne ? worst.finding.wrongNow : `${worst.api.upstream}: ${worst.finding.wrongNow}`,
        alsoOwn,
      ),
      next: [...worst.finding.next, ...(reload === '' ? [] : [check])],
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
  others: number,
  all: number,
  found: readonly { readonly api: UpstreamState; readonly finding: Finding }[],
): string {
  const green = found.filter(({ finding }) => finding.tone === 'green').map(({ api }) => api.upstream);
  if (green.length === 0) return '';
  if (green.length < others || all - others > 1) return `Yes for ${green.length} of ${all}.`;
  return green.length === 1 ? `Yes for ${green[0]}.` : `Yes for the other ${green.length}.`;
}

const observedAnswer = (apis: readonly UpstreamState[]): Answer => ({
  tone: 'blue',
  sentence: `Not known: Sluice only observes ${listed(apis.map(({ upstream }) => upstream))}.`,
  rest: '',
  heldBy: 'Nothing: no limit holds a call. Each response says what limits would have done.',
  wrongNow: 'Nothing.',
  next: [],
});

function calmAnswer(apis: readonly UpstreamState[]): Answer {
  const known = apis.filter(({ growth }) => growth !== null);
  const longest = Math.max(0, ...apis.map(({ lastHour }) => lastHour.longestWaitMs));
  const called = apis.some(({ lastHour }) => lastHour.calls > 0);
  if (!called)
    return {
      tone: 'grey',
      sentence: 'Not known yet: no calls so far.',
      rest: '',
      heldBy: 'Nothing. Limits show with the first answers.',
      wrongNow: `Nothing. Sluice is ready for ${listed(apis.map(({ upstream }) => upstream))}.`,
      next: [{ text: 'Check the configuration', command: 'sluice check' }],
    };
  const wrongNow = `Nothing. No call was refused in the last hour; longest wait ${duration(longest)}.`;
  const nearest = known.toSorted((a, b) => (a.growth ?? 0) - (b.growth ?? 0))[0];
  if (nearest === undefined)
    return {
      tone: 'grey',
      sentence: 'Not known: no limit is known of the APIs that were called.',
      rest: '',
      heldBy: 'Nothing. Write their limits into the configuration to see how much more fits.',
      wrongNow,
      next: [],
    };
  const silent = apis.filter(({ growth, lastHour: { calls: n } }) => growth === null && n > 0).length;
  const fits = `${roomText(nearest.growth ?? 0) ?? 'nothing more'} fits`;
  return {
    tone: 'green',
    sentence:
      silent === 0
        ? 'Yes: every API can take more.'
        : 'Yes: every API of which a limit is known can take more.',
    rest: '',
    heldBy: `Nothing now. Nearest to its limit is ${nearest.upstream}: ${fits}.`,
    wrongNow,
    next: [],
  };
}
