/** The states of the live page, each made on purpose, and the sentence that the page says in it. */
import type { HeldBy } from '../../src/errors.ts';
import { bucketOf, laneOf, type DrivenPage } from './driven-page.ts';

export interface PageStateCase {
  readonly upstreams?: readonly string[];
  /** Upstreams whose limits hold no call. */
  readonly observed?: readonly string[];
  /** What the first line begins with, and what the line about what is wrong contains. */
  readonly says: RegExp;
  readonly wrongNow: RegExp;
  /** What the line about what holds it contains; left out: it is not looked at. */
  readonly heldBy?: RegExp;
  readonly tone: 'red' | 'amber' | 'green' | 'grey' | 'blue';
  /** What the bucket of `openai` has of its own; `null`: no limit is known. */
  readonly limits?: Parameters<typeof bucketOf>[1] | null;
  /** Flows of fifteen minutes, and those of the last three minutes besides. */
  readonly flows?: readonly Flow[];
  readonly late?: readonly Flow[];
  /** What there is before these flows, and after them. */
  first?(page: DrivenPage): void;
  last?(page: DrivenPage): void;
}

/** Makes a state, in a quarter of an hour; `move` lets time pass. */
export function makeState(state: PageStateCase, page: DrivenPage, move: (ms: number) => void): void {
  if (state.limits !== null) limits(page, state.limits);
  state.first?.(page);
  traffic(page, move, state.flows ?? calm, state.late);
  state.last?.(page);
}

/** 17:20 UTC of some day. */
const since = Date.UTC(2026, 5, 1, 17, 20);

interface Flow {
  readonly upstream: string;
  readonly workspace?: string;
  readonly perMinute: number;
  readonly refused?: number;
  readonly heldBy?: HeldBy;
  readonly waitedMs?: number;
}

function traffic(
  { play }: DrivenPage,
  move: (ms: number) => void,
  flows: readonly Flow[],
  late: readonly Flow[] = [],
): void {
  for (let minute = 0; minute < 15; minute++) {
    for (const flow of [...flows, ...(minute >= 12 ? late : [])]) {
      const { upstream, workspace = 'canary-1', perMinute, refused = 0, heldBy, waitedMs = 300 } = flow;
      play({ workspace, upstream, waitedMs, times: Math.round(perMinute * (0.9 + 0.1 * Math.sin(minute))) });
      play({ workspace, upstream, end: 'shed', heldBy, times: refused });
    }
    if (minute < 14) move(60_000);
  }
}

function waiting({ play }: DrivenPage, upstream: string, calls: number, oldestMs: number): void {
  for (let n = 0; n < calls; n++)
    play({ workspace: 'canary-1', upstream, end: 'wait', waitedMs: (oldestMs * (n + 1)) / calls });
}

const calm: readonly Flow[] = [
  { upstream: 'openai', perMinute: 310 },
  { upstream: 'shop', perMinute: 38, workspace: 'canary-2', waitedMs: 1_200 },
  { upstream: 'github', perMinute: 60, workspace: 'canary-3' },
];

function limits({ state }: DrivenPage, openai: Parameters<typeof bucketOf>[1] = {}): void {
  const stated = (meter: 'requests_day' | 'tokens', limit: number, level: number, windowMs: number) => ({
    meter,
    limit,
    level,
    windowMs,
    isReported: true,
  });
  const more = [stated('tokens', 30_000, 18_600, 60_000), stated('requests_day', 10_000, 3_104, 86_400_000)];
  state.buckets.set('openai', [bucketOf('openai', { used: 0.62, more, ...openai })]);
  state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.31, isReported: false })]);
  state.buckets.set('github', [bucketOf('github', { limit: 5_000, used: 0.01 })]);
  state.lanes.set('openai', [laneOf('canary-1', 'openai', { perMinute: 400, used: 0.78 })]);
  state.lanes.set('shop', [laneOf('canary-2', 'shop')]);
  state.lanes.set('github', [laneOf('canary-3', 'github')]);
}

const many = Array.from({ length: 40 }, (_, n) => `api-${String(n).padStart(2, '0')}`);
const called = many.slice(0, 36);

const refused = (upstream: string, times: number, heldBy?: HeldBy) => {
  const workspace = upstream === 'shop' ? 'canary-2' : 'canary-1';
  return ({ play }: DrivenPage): void => play({ workspace, upstream, end: 'shed', heldBy, times });
};
const throttled = ({ play }: DrivenPage): void =>
  play({ workspace: 'canary-2', upstream: 'shop', end: 'throttled' });
const laneOfOpenai = (given?: Parameters<typeof laneOf>[2]) => {
  return ({ state }: DrivenPage): void =>
    void state.lanes.set('openai', [laneOf('canary-1', 'openai', given)]);
};
/** `shop` has asked us to stop. */
function closedShop({ state }: DrivenPage): void {
  state.lanes.set('shop', [laneOf('canary-2', 'shop', { perMinute: 300 })]);
  state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.1, closedMs: 120_000 })]);
}

export const pageStates: Readonly<Record<string, PageStateCase>> = {
  idle: {
    says: /^Not known yet: no calls so far\./,
    wrongNow: /ready for openai, shop and github/,
    tone: 'grey',
    limits: null,
    flows: [],
  },
  calm: {
    says: /^Yes: every API can take more\./,
    wrongNow: /^Nothing\. No call was refused in the last hour; longest wait 1\.2.s\./,
    tone: 'green',
  },
  'out of credit': {
    says: /^No for openai: it is out of credit\. Yes for 2 of 3\./,
    wrongNow: /207.calls were refused for it in the last hour\. Sluice asks again with one call in 52.s\./,
    heldBy: /^The provider refuses every call since 17:20.UTC \(insufficient_quota\)\./,
    tone: 'red',
    last({ play, state }) {
      play({ workspace: 'canary-1', upstream: 'openai', end: 'refused for good', times: 207 });
      state.breakers.set('openai', { status: 429, since, retryInMs: 52_000, said: 'insufficient_quota' });
    },
  },
  'out of credit, nobody calls': {
    says: /^No for openai: it is out of credit\./,
    wrongNow: /^Sluice asks again with the next call\.$/,
    tone: 'red',
    last: ({ state }) =>
      void state.breakers.set('openai', { status: 429, since, retryInMs: 0, said: 'insufficient_quota' }),
  },
  'credential ended': {
    says: /^No for openai: its credential has ended\./,
    wrongNow: /None wait/,
    heldBy: /^It could not be renewed, and ended at \d\d:\d\d.UTC\.$/,
    tone: 'red',
    last: ({ state }) => void state.credentials.push({ upstream: 'openai', expiresInMs: -120_000 }),
  },
  overloaded: {
    says: /^No: Sluice has too much to do\./,
    wrongNow: /run more replicas/,
    tone: 'red',
    last: ({ state }) => void (state.process = { ...state.process, sheddingShare: 0.12 }),
  },
  refusing: {
    says: /^No for openai: it is full, and calls are refused\./,
    wrongNow: /[\d,]+.calls were refused since \d\d:\d\d.UTC\. 72.calls wait, the longest for \d+.s/,
    tone: 'red',
    limits: { limit: 60, used: 1 },
    first: laneOfOpenai({ perMinute: 300, used: 0.6 }),
    flows: [{ upstream: 'openai', perMinute: 50 }, ...calm.slice(1)],
    late: [{ upstream: 'openai', perMinute: 9, refused: 129 }],
    last: (page) => waiting(page, 'openai', 72, 61_000),
  },
  failing: {
    says: /^No for shop: it cannot be reached, or breaks calls off\. Yes for 2 of 3\./,
    wrongNow: /40.calls failed since \d\d:\d\d.UTC\. None wait\. None are refused\./,
    tone: 'red',
    last: ({ play }) => play({ workspace: 'canary-2', upstream: 'shop', end: 'failed', times: 40 }),
  },
  'Redis away': {
    says: /^Not now: Redis is away\./,
    wrongNow: /Calls pass/,
    tone: 'amber',
    last: ({ telemetry }) => telemetry.limiterMode('local'),
  },
  closed: {
    says: /^Not now for shop: it asked us to stop until \d\d:\d\d:\d\d.UTC\. Yes for 2 of 3\./,
    wrongNow: /18.calls wait, the longest for \d+.s of 75.s\. None are refused\./,
    heldBy: /^shop’s own “too many requests” of \d\d:\d\d.UTC; \d+.s are left\.$/,
    tone: 'amber',
    first: ({ state }) =>
      void state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.9, closedMs: 42_000 })]),
    last(page) {
      throttled(page);
      waiting(page, 'shop', 17, 18_000);
    },
  },
  full: {
    says: /^No for openai: it is full, and calls wait\. Yes for 2 of 3\./,
    wrongNow: /45.calls wait, the longest for \d+.s of 75.s\. None are refused\./,
    tone: 'amber',
    limits: { used: 1 },
    first: laneOfOpenai(),
    flows: [{ upstream: 'openai', perMinute: 560, waitedMs: 30_000 }, ...calm.slice(1)],
    last: (page) => waiting(page, 'openai', 45, 38_000),
  },
  'ceilings full': {
    says: /^No for openai: a workspace is at your ceiling, and calls wait\./,
    wrongNow: /31.calls wait/,
    tone: 'amber',
    first: ({ state }) =>
      void state.lanes.set('openai', [
        laneOf('canary-1', 'openai', { perMinute: 60, used: 1 }),
        laneOf('canary-4', 'openai', { perMinute: 300, used: 0.4 }),
      ]),
    flows: [
      { upstream: 'openai', perMinute: 61, waitedMs: 20_000 },
      { upstream: 'openai', perMinute: 120, workspace: 'canary-4' },
      ...calm.slice(1),
    ],
    last: (page) => waiting(page, 'openai', 31, 41_000),
  },
  'full earlier': {
    says: /^No for openai: it was full at \d\d:\d\d.UTC\./,
    wrongNow: /^Nothing now\. 129.calls were refused in the last hour\./,
    tone: 'amber',
    first: refused('openai', 129),
  },
  'at a ceiling earlier': {
    says: /^No for openai: a workspace was at your ceiling at \d\d:\d\d.UTC\./,
    wrongNow: /^Nothing now\. 129.calls were refused in the last hour\./,
    heldBy: /^Your ceiling of 400 requests a minute to openai for w_/,
    tone: 'amber',
    limits: { used: 0.9 },
    first: refused('openai', 129, 'ceiling_minute'),
  },
  'closed, at a ceiling earlier': {
    says: /^No for shop: it says “too many requests”\./,
    wrongNow: /^2.calls were refused since/,
    heldBy: /^shop’s own “too many requests” of \d\d:\d\d.UTC; \d.min are left\.$/,
    tone: 'red',
    first(page) {
      closedShop(page);
      refused('shop', 44, 'ceiling_minute')(page);
    },
    last(page) {
      throttled(page);
      refused('shop', 2, 'closed')(page);
    },
  },
  'at a ceiling of a minute, with a day more used': {
    says: /^No for openai: calls are refused at your ceilings\./,
    wrongNow: /^3.calls were refused since/,
    heldBy: /^Your ceiling of 400 requests a minute to openai for w_/,
    tone: 'red',
    first: laneOfOpenai({ perMinute: 400, perDay: 10_000, used: 0.2, usedOfDay: 0.9 }),
    last: refused('openai', 3, 'ceiling_minute'),
  },
  'observing, with room': {
    observed: ['openai', 'shop', 'github'],
    says: /^Not known: Sluice only observes openai, shop and github\./,
    wrongNow: /^Nothing\./,
    tone: 'blue',
  },
  'no limit known': {
    // Two are called as parts of the page are.
    upstreams: ['openai', 'shop', 'github', 'workspaces', 'answer'],
    says: /^Not known: no limit is known/,
    wrongNow: /No call was refused/,
    tone: 'grey',
    limits: null,
  },
  'forty APIs': {
    upstreams: many,
    says: /^No for api-03, api-07 and api-11\. Yes for 33 of 40\./,
    wrongNow: /^api-03: 88.calls were refused/,
    tone: 'red',
    limits: null,
    flows: called.map((upstream, n) => ({ upstream, perMinute: 32, workspace: `canary-${n % 23}` })),
    first({ state }) {
      for (const [n, upstream] of called.entries()) {
        const isFull = ['api-07', 'api-11'].includes(upstream);
        const bucket = bucketOf(
          upstream,
          isFull ? { limit: 30, used: 1 } : { limit: 60 + 10 * n, used: 0.3 },
        );
        state.buckets.set(upstream, [bucket]);
        state.lanes.set(upstream, [laneOf(`canary-${n % 23}`, upstream)]);
      }
    },
    last(page) {
      page.play({ workspace: 'canary-3', upstream: 'api-03', end: 'refused for good', times: 88 });
      const breaker = { status: 402, since, retryInMs: 40_000, said: 'payment_required' } as const;
      page.state.breakers.set('api-03', breaker);
      waiting(page, 'api-07', 48, 2_400);
      waiting(page, 'api-11', 13, 44_000);
    },
  },
};
