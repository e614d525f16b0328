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
  /** Makes the state. Called a quarter of an hour before it is looked at; `move` lets time pass. */
  make(page: DrivenPage, move: (ms: number) => void): void;
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

/** Fifteen minutes of these flows, minute by minute; those in `late` only in the last three. */
function traffic(
  { play }: DrivenPage,
  move: (ms: number) => void,
  flows: readonly Flow[],
  late: readonly Flow[] = [],
): void {
  for (let minute = 0; minute < 15; minute++) {
    for (const { upstream, workspace = 'canary-1', perMinute, refused = 0, heldBy, waitedMs = 300 } of [
      ...flows,
      ...(minute >= 12 ? late : []),
    ]) {
      const count = Math.round(perMinute * (0.9 + 0.1 * Math.sin(minute)));
      for (let n = 0; n < count; n++) play({ workspace, upstream, waitedMs });
      for (let n = 0; n < refused; n++)
        play({ workspace, upstream, end: 'shed', ...(heldBy === undefined ? {} : { heldBy }) });
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
  const day = {
    meter: 'requests_day' as const,
    limit: 10_000,
    level: 3_104,
    windowMs: 86_400_000,
    isReported: true,
  };
  const tokens = {
    meter: 'tokens' as const,
    limit: 30_000,
    level: 18_600,
    windowMs: 60_000,
    isReported: true,
  };
  state.buckets.set('openai', [bucketOf('openai', { used: 0.62, more: [tokens, day], ...openai })]);
  state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.31, isReported: false })]);
  state.buckets.set('github', [bucketOf('github', { limit: 5_000, used: 0.01 })]);
  state.lanes.set('openai', [laneOf('canary-1', 'openai', { perMinute: 400, used: 0.78 })]);
  state.lanes.set('shop', [laneOf('canary-2', 'shop')]);
  state.lanes.set('github', [laneOf('canary-3', 'github')]);
}

const many = Array.from({ length: 40 }, (_, n) => `api-${String(n).padStart(2, '0')}`);

export const pageStates: Readonly<Record<string, PageStateCase>> = {
  idle: {
    says: /^Not known yet: no calls so far\./,
    wrongNow: /ready for openai, shop and github/,
    tone: 'grey',
    make: () => {},
  },
  calm: {
    says: /^Yes: every API can take more\./,
    wrongNow: /^Nothing\. No call was refused in the last hour; longest wait 1\.2.s\./,
    tone: 'green',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
    },
  },
  'out of credit': {
    says: /^No for openai: it is out of credit\. Yes for the other 2\./,
    wrongNow: /207.calls were refused for it in the last hour\. Sluice asks again with one call in 52.s\./,
    heldBy: /^The provider refuses every call since 17:20.UTC \(insufficient_quota\)\./,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      for (let n = 0; n < 207; n++)
        page.play({ workspace: 'canary-1', upstream: 'openai', end: 'refused for good' });
      page.state.breakers.set('openai', {
        status: 429,
        since,
        retryInMs: 52_000,
        said: 'insufficient_quota',
      });
    },
  },
  'credential ended': {
    says: /^No for openai: its credential has ended\./,
    wrongNow: /None wait/,
    heldBy: /^It could not be renewed, and ended at \d\d:\d\d.UTC\.$/,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      page.state.credentials.push({ upstream: 'openai', expiresInMs: -120_000 });
    },
  },
  paused: {
    says: /^No for openai: an operator paused it\./,
    wrongNow: /9.calls wait, the longest for 1.min \d+.s of 1.min 15.s\. 4.calls were refused/,
    heldBy: /^The pause since 17:20.UTC\. It ends by itself at \d\d:\d\d:\d\d.UTC\.$/,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      waiting(page, 'openai', 9, 62_000);
      for (let n = 0; n < 4; n++)
        page.play({ workspace: 'canary-1', upstream: 'openai', end: 'shed', heldBy: 'closed' });
      page.state.pauses.set('openai', { ms: 600_000, since });
    },
  },
  overloaded: {
    says: /^No: Sluice has too much to do\./,
    wrongNow: /run more replicas/,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      page.state.process = { ...page.state.process, sheddingShare: 0.12 };
    },
  },
  refusing: {
    says: /^No for openai: it is full, and calls are refused\./,
    wrongNow: /[\d,]+.calls were refused since \d\d:\d\d.UTC\. 72.calls wait, the longest for 1.min/,
    tone: 'red',
    make(page, move) {
      limits(page, { limit: 60, used: 1 });
      page.state.lanes.set('openai', [laneOf('canary-1', 'openai', { perMinute: 300, used: 0.6 })]);
      traffic(
        page,
        move,
        [{ upstream: 'openai', perMinute: 50 }, ...calm.slice(1)],
        [{ upstream: 'openai', perMinute: 9, refused: 129 }],
      );
      waiting(page, 'openai', 72, 61_000);
    },
  },
  failing: {
    says: /^No for shop: it cannot be reached, or breaks calls off\. Yes for the other 2\./,
    wrongNow: /40.calls failed since \d\d:\d\d.UTC\. None are refused\. None wait\./,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      for (let n = 0; n < 40; n++) page.play({ workspace: 'canary-2', upstream: 'shop', end: 'failed' });
    },
  },
  'ceiling refuses': {
    says: /^No for openai: calls are refused at your ceilings\./,
    wrongNow: /refused since/,
    tone: 'red',
    make(page, move) {
      limits(page);
      page.state.lanes.set('openai', [laneOf('canary-1', 'openai', { perMinute: 30, used: 1 })]);
      traffic(
        page,
        move,
        [{ upstream: 'openai', perMinute: 28 }, ...calm.slice(1)],
        [{ upstream: 'openai', perMinute: 2, refused: 24, heldBy: 'ceiling_minute' }],
      );
    },
  },
  'reload refused': {
    says: /^Yes, but your last change is not in force\./,
    wrongNow: /^Your configuration was refused at \d\d:\d\d.UTC, line 41\. The/,
    tone: 'amber',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      page.telemetry.configurationRead('refused', [41, 41]);
    },
  },
  'Redis away': {
    says: /^Not now: Redis is away\./,
    wrongNow: /Calls pass/,
    tone: 'amber',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      page.telemetry.limiterMode('local');
    },
  },
  'Redis away, refusing': {
    says: /^No: Redis is away and Sluice refuses all calls\./,
    wrongNow: /refused since/,
    tone: 'red',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
      page.telemetry.limiterMode('deny');
    },
  },
  closed: {
    says: /^Not now for shop: it asked us to stop until \d\d:\d\d:\d\d.UTC\. Yes for the other 2\./,
    wrongNow: /18.calls wait, the longest for \d+.s of 1.min 15.s\. None are refused\./,
    heldBy: /^shop’s own “too many requests” of \d\d:\d\d.UTC; \d+.s are left\.$/,
    tone: 'amber',
    make(page, move) {
      limits(page);
      page.state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.9, closedMs: 42_000 })]);
      traffic(page, move, calm);
      page.play({ workspace: 'canary-2', upstream: 'shop', end: 'throttled' });
      waiting(page, 'shop', 17, 18_000);
    },
  },
  full: {
    says: /^No for openai: it is full, and calls wait\. Yes for the other 2\./,
    wrongNow: /45.calls wait, the longest for .* of 1.min 15.s\. None are refused\./,
    tone: 'amber',
    make(page, move) {
      limits(page, { used: 1 });
      page.state.lanes.set('openai', [laneOf('canary-1', 'openai')]);
      traffic(page, move, [{ upstream: 'openai', perMinute: 560, waitedMs: 30_000 }, ...calm.slice(1)]);
      waiting(page, 'openai', 45, 38_000);
    },
  },
  'ceilings full': {
    says: /^No for openai: a workspace is at your ceiling, and calls wait\./,
    wrongNow: /31.calls wait/,
    tone: 'amber',
    make(page, move) {
      limits(page);
      page.state.lanes.set('openai', [
        laneOf('canary-1', 'openai', { perMinute: 60, used: 1 }),
        laneOf('canary-4', 'openai', { perMinute: 300, used: 0.4 }),
      ]);
      traffic(page, move, [
        { upstream: 'openai', perMinute: 61, waitedMs: 20_000 },
        { upstream: 'openai', perMinute: 120, workspace: 'canary-4' },
        ...calm.slice(1),
      ]);
      waiting(page, 'openai', 31, 41_000);
    },
  },
  'full earlier': {
    says: /^No for openai: it was full at \d\d:\d\d.UTC\./,
    wrongNow: /^Nothing now\. 129.calls were refused in the last hour\./,
    tone: 'amber',
    make(page, move) {
      limits(page);
      for (let n = 0; n < 129; n++) page.play({ workspace: 'canary-1', upstream: 'openai', end: 'shed' });
      traffic(page, move, calm);
    },
  },
  'at a ceiling earlier': {
    says: /^No for openai: a workspace was at your ceiling at \d\d:\d\d.UTC\./,
    wrongNow: /^Nothing now\. 129.calls were refused in the last hour\./,
    heldBy: /^Your ceiling of 400 requests a minute to openai for w_/,
    tone: 'amber',
    make(page, move) {
      limits(page, { used: 0.9 });
      for (let n = 0; n < 129; n++)
        page.play({ workspace: 'canary-1', upstream: 'openai', end: 'shed', heldBy: 'ceiling_minute' });
      traffic(page, move, calm);
    },
  },
  'closed, at a ceiling earlier': {
    says: /^No for shop: it says “too many requests”, and no known limit was used up\./,
    wrongNow: /^2.calls were refused since/,
    heldBy: /^shop’s own “too many requests” of \d\d:\d\d.UTC; 2.min are left\.$/,
    tone: 'red',
    make(page, move) {
      limits(page);
      page.state.lanes.set('shop', [laneOf('canary-2', 'shop', { perMinute: 300 })]);
      page.state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.1, closedMs: 120_000 })]);
      for (let n = 0; n < 44; n++)
        page.play({ workspace: 'canary-2', upstream: 'shop', end: 'shed', heldBy: 'ceiling_minute' });
      traffic(page, move, calm);
      page.play({ workspace: 'canary-2', upstream: 'shop', end: 'throttled' });
      for (let n = 0; n < 2; n++)
        page.play({ workspace: 'canary-2', upstream: 'shop', end: 'shed', heldBy: 'closed' });
    },
  },
  'closed, at a ceiling a moment ago': {
    says: /^No for shop: it says “too many requests”\./,
    wrongNow: /^15.calls were refused since/,
    heldBy: /^shop’s own “too many requests” of \d\d:\d\d.UTC; 2.min are left\.$/,
    tone: 'red',
    make(page, move) {
      limits(page);
      page.state.lanes.set('shop', [laneOf('canary-2', 'shop', { perMinute: 300 })]);
      page.state.buckets.set('shop', [bucketOf('shop', { limit: 120, used: 0.1, closedMs: 120_000 })]);
      traffic(page, move, calm);
      page.play({ workspace: 'canary-2', upstream: 'shop', end: 'throttled' });
      for (let n = 0; n < 15; n++) {
        const heldBy = n < 6 ? 'ceiling_minute' : 'closed';
        page.play({ workspace: 'canary-2', upstream: 'shop', end: 'shed', heldBy });
      }
    },
  },
  'full earlier, with a day more used': {
    says: /^No for openai: it was full at \d\d:\d\d.UTC\./,
    wrongNow: /^Nothing now\. 9.calls were refused in the last hour\./,
    heldBy: /^The provider’s limit of 30,000 tokens a minute\./,
    tone: 'amber',
    make(page, move) {
      limits(page, { used: 0.1 });
      const [bucket] = page.state.buckets.get('openai') ?? [];
      if (bucket === undefined) throw new Error('no bucket');
      const meters = bucket.meters.map((meter) =>
        meter.meter === 'requests_day' ? { ...meter, level: 9_000 } : { ...meter, level: 0 },
      );
      page.state.buckets.set('openai', [{ ...bucket, meters }]);
      for (let n = 0; n < 9; n++)
        page.play({ workspace: 'canary-1', upstream: 'openai', end: 'shed', heldBy: 'tokens' });
      traffic(page, move, calm);
    },
  },
  'at a ceiling of a minute, with a day more used': {
    says: /^No for openai: calls are refused at your ceilings\./,
    wrongNow: /^3.calls were refused since/,
    heldBy: /^Your ceiling of 400 requests a minute to openai for w_/,
    tone: 'red',
    make(page, move) {
      limits(page);
      page.state.lanes.set('openai', [
        laneOf('canary-1', 'openai', { perMinute: 400, perDay: 10_000, used: 0.2, usedOfDay: 0.9 }),
      ]);
      traffic(page, move, calm);
      for (let n = 0; n < 3; n++)
        page.play({ workspace: 'canary-1', upstream: 'openai', end: 'shed', heldBy: 'ceiling_minute' });
    },
  },
  'observing, would be full': {
    observed: ['openai'],
    says: /^No for openai: with its limits enforced it would be full\. Yes for the other 2\./,
    wrongNow: /^Nothing\. No limit of ours refuses a call to it\./,
    tone: 'blue',
    make(page, move) {
      limits(page, { used: 1 });
      page.state.lanes.set('openai', [laneOf('canary-1', 'openai')]);
      traffic(page, move, [{ upstream: 'openai', perMinute: 900, waitedMs: 0 }, ...calm.slice(1)]);
    },
  },
  'observing, with room': {
    observed: ['openai', 'shop', 'github'],
    says: /^Not known: Sluice only observes openai, shop and github\./,
    wrongNow: /^Nothing\./,
    tone: 'blue',
    make(page, move) {
      limits(page);
      traffic(page, move, calm);
    },
  },
  'no limit known': {
    // Two are called as parts of the page are.
    upstreams: ['openai', 'shop', 'github', 'workspaces', 'answer'],
    says: /^Not known: no limit is known/,
    wrongNow: /No call was refused/,
    tone: 'grey',
    make(page, move) {
      traffic(page, move, calm);
    },
  },
  'forty APIs': {
    upstreams: many,
    says: /^No for api-03, api-07 and api-11\. Yes for 33 of 40\./,
    wrongNow: /^api-03: 88.calls were refused/,
    tone: 'red',
    make(page, move) {
      const called = many.slice(0, 36);
      for (const [n, upstream] of called.entries()) {
        page.state.buckets.set(upstream, [bucketOf(upstream, { limit: 60 + 10 * n, used: 0.3 })]);
        page.state.lanes.set(upstream, [laneOf(`canary-${n % 23}`, upstream)]);
      }
      for (const upstream of ['api-07', 'api-11'])
        page.state.buckets.set(upstream, [bucketOf(upstream, { limit: 30, used: 1 })]);
      traffic(
        page,
        move,
        called.map((upstream, n) => ({ upstream, perMinute: 32, workspace: `canary-${n % 23}` })),
      );
      for (let n = 0; n < 88; n++)
        page.play({ workspace: 'canary-3', upstream: 'api-03', end: 'refused for good' });
      page.state.breakers.set('api-03', {
        status: 402,
        since,
        retryInMs: 40_000,
        said: 'payment_required',
      });
      waiting(page, 'api-07', 48, 2_400);
      waiting(page, 'api-11', 13, 44_000);
    },
  },
};
