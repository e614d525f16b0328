/** Admission over the embedded stores on virtual time: single promises, one by one. The simulation mixes them all. */
import { describe, expect, test } from '@jest/globals';
import { ArrivalOrder } from '../../src/admission/admission.ts';
import { WaitRegistry } from '../../src/admission/queued-call.ts';
import { refusedBy, tooLate } from '../../src/admission/refusals.ts';
import { TransportError } from '../../src/dispatch/transport-error.ts';
import { type HeldBy, heldByReasons } from '../../src/errors.ts';
import { ceilingKey } from '../../src/ids.ts';
import { requeue } from '../../src/journey/attempts.ts';
import { CeilingStore } from '../../src/limiter/ceiling-store.ts';
import { defaultLeaseMs } from '../../src/limiter/limiter.ts';
import { createEmbeddedLimiter } from '../../src/limiter/over-log/limiter.ts';
import { sequencePerMs } from '../../src/limiter/policy/bucket-state.policy.ts';
import { callOf, type CallOptions } from '../support/admission-queue.ts';
import { atOrigins } from '../support/at-origins.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { names, succeeded, throttled, world as worldOf } from './world.ts';

const plenty = { limit: 1_000, windowMs: 1_000 };
const one = { ...plenty, maxInFlight: 1 };
const short = { maxWaitMs: 5_000 };
const oneAMinute = { limit: 1, windowMs: 60_000 };

atOrigins('the admission queue', (instant) => {
  const world = () =>
    worldOf({ originMs: instant(0), defaults: { maxQueued: 1_000_000, maxWaitMs: 100_000 } });

  test('lets no call leave under a lease that is over', async () => {
    const { ticketOf, pass } = world();
    const granted = (await ticketOf('a', plenty)).whenGranted();
    await pass(1);
    const lease = await granted;
    expect(lease.holds()).toBe(true);
    await pass(defaultLeaseMs);
    expect(lease.holds()).toBe(false);
  });

  test('no longer counts slots one by one once many are free: all of them are used at once', async () => {
    const { enter, pass, story } = world();
    for (const id of names(60)) enter(id, { ...plenty, perMinute: 30 });
    await pass(1);
    expect(story).toHaveLength(30);
    // One call goes ahead of a crowd after a silence; nobody answers it here, so the others follow 100 ms later.
    await pass(60_300);
    expect(story).toHaveLength(60);
  });

  test('sends no more calls than the ceiling in any 60 s, however slow the ceiling store is', async () => {
    // Replies get slower and faster again, so that a delayed call may meet a prompt one.
    const { enter, pass, sentAt } = worldOf({
      originMs: instant(0),
      defaults: { ...plenty, perMinute: 3, maxQueued: 1_000, maxWaitMs: 900_000 },
      replyMs: (n) => [0, 120, 450, 1_300, 300, 90, 0][n % 7] ?? 0,
    });
    for (const [at, id] of names(24).entries()) {
      enter(id);
      await pass(at % 4 === 0 ? 700 : 5);
    }
    await pass(600_000);
    const left = [...sentAt.values()].toSorted((a, b) => a - b);
    expect(left).toHaveLength(24);
    for (const [at, time] of left.entries())
      expect(time - (left[at - 3] ?? -Infinity)).toBeGreaterThanOrEqual(60_000);
  });

  test('sends calls that come together after as many replies of a far ceiling store as one call alone', async () => {
    const { enter, pass, sentAt } = worldOf({
      originMs: instant(0),
      defaults: { ...plenty, perMinute: 500, maxQueued: 1_000 },
      replyMs: () => 300,
    });
    for (const id of names(100)) enter(id);
    await pass(600);
    expect(sentAt.size).toBe(100);
  });

  test('refuses a waiting call as soon as a more urgent call takes the slot it could have waited for', async () => {
    const { enter, pass, story, refusals } = world();
    const options = { ...plenty, perMinute: 2, maxWaitMs: 65_000 };
    enter('a', options);
    await pass(10_000);
    enter('b', options);
    await pass(10_000);
    enter('late', { ...options, maxWaitMs: 45_000 });
    await pass(10);
    expect(story).toEqual(['a', 'b']);
    enter('urgent', { ...options, urgency: 1 });
    await pass(25);
    expect(story.slice(2)).toEqual(['late wait_too_long']);
    expect(refusals.get('late')?.retryInMs).toBe(50_119);
  });

  test('shares the slots of a ceiling between its lanes in rotation, and refuses a call that is too late by that', async () => {
    const { enter, pass, story, refusals } = world();
    const first = { ...plenty, perMinute: 2, bucket: 'one', lane: 'one', maxWaitMs: 65_000 };
    const second = { ...first, bucket: 'two', lane: 'two' };
    enter('a', first);
    await pass(10_000);
    enter('b', second);
    await pass(10_000);
    enter('b-later', { ...second, maxWaitMs: 45_000 });
    await pass(2_000);
    enter('a-too', first);
    await pass(25);
    // Lane `two` took the latest slot, so the next one belongs to lane `one`, although its call arrived later.
    expect(story).toEqual(['a', 'b', 'b-later wait_expired']);
    expect(refusals.get('b-later')?.retryInMs).toBe(48_129);
    await pass(60_000);
    expect(story.at(-1)).toBe('a-too');
  });

  test('refuses waiting calls at once when their bucket closes for longer than they can wait', async () => {
    const { enter, pass, story, settle, refusals } = world();
    enter('a', one);
    enter('b', { ...one, ...short });
    enter('c', one);
    await pass(1);
    settle('a', throttled({ closeMs: 9_000 }));
    await pass(25);
    enter('d', { ...one, ...short });
    await pass(0);
    expect(story).toEqual(['a', 'b wait_too_long', 'd wait_too_long']);
    expect(refusals.get('b')?.retryInMs).toBe(8_980);
    await pass(9_001);
    expect(story.slice(3)).toEqual(['c']);
  });

  test('gives calls positions in the order in which they came, also two thousand read after one gap', () => {
    const order = new ArrivalOrder();
    const next = (ms: number): number => Math.floor(order.next(instant(ms)) * sequencePerMs);
    const positions = [...Array.from({ length: 2_000 }, () => next(100)), next(100.5)];
    expect(positions).toEqual([...new Set(positions)].toSorted((a, b) => a - b));
    // The arrival of a call that came earlier is kept, and so is the order of those that follow.
    const another = new ArrivalOrder();
    const first = another.next(instant(100));
    expect(another.next(instant(20))).toBe(instant(20));
    expect(another.next(instant(100)) - first).toBeGreaterThanOrEqual(1 / sequencePerMs);
    expect(another.next(instant(500))).toBe(instant(500));
  });
});

describe('a call that cannot leave within its wait is refused at once', () => {
  test.each<[string, CallOptions[], string[]]>([
    ['when its bucket is full', [oneAMinute, oneAMinute], ['c0', 'c1 wait_too_long']],
    ['when its ceiling is full', [{ perMinute: 1 }, { perMinute: 1 }], ['c0', 'c1 wait_too_long']],
    ['when it will not wait', [{ perMinute: 1 }, { perMinute: 1, maxWaitMs: 0 }], ['c0', 'c1 wait_too_long']],
    [
      'when the last slot of its ceiling belongs to a waiting call',
      Array.from({ length: 3 }, () => ({ perMinute: 2, maxInFlight: 1 })),
      ['c0', 'c2 wait_too_long'],
    ],
    ['when its day is used up', [{ perDay: 1 }, { perDay: 1 }], ['c0', 'c1 day_quota_exhausted']],
    [
      'when its lane has as many waiting calls as it may',
      Array.from({ length: 3 }, () => ({ maxInFlight: 1, maxQueued: 1 })),
      ['c0', 'c2 queue_full'],
    ],
  ])('%s', async (_, calls, expected) => {
    const { enter, pass, story } = worldOf();
    for (const [at, options] of calls.entries()) {
      enter(`c${at}`, options);
      await pass(25);
    }
    expect(story).toEqual(expected);
  });
});

test('a call whose upstream was not reached keeps its position and takes one slot, not two', async () => {
  const limits = { perMinute: 40, perDay: 100 };
  const stated = { ...limits, limit: 60, windowMs: 60_000_000 };
  const { ticketOf, pass, ceilings, limiter, story } = worldOf({ defaults: stated });
  const why = { phase: 'connect', neverSent: true, stale: false } as const;
  const error = new TransportError({ kind: 'unreachable', code: 'ECONNREFUSED', ...why });
  const after100 = { kind: 'resend', notBeforeMs: 100, closes: 'none', closeMs: 0, history: {} } as const;
  const ceiling = { key: ceilingKey('w'), ...limits };
  /** Slots of the minute and of the day, units of the bucket. */
  const taken = async () => [
    40 - ((await ceilings.state(ceiling))?.remaining ?? 0),
    100 - ((await ceilings.dayState(ceiling))?.remaining ?? 0),
    Math.round(limiter.snapshot()[0]?.meters[0]?.level ?? 0),
  ];
  const ticket = await ticketOf('t');
  for (let tries = 0; tries < 3; tries += 1) {
    const granted = ticket.whenGranted();
    await pass(1_000);
    const lease = await granted;
    expect(await taken()).toEqual([1, 1, 1]);
    if (tries < 2) requeue(lease, { kind: 'failed', error }, { ...after100, cause: 'never_sent' });
    else lease.settle(succeeded, null);
  }
  ticket.leave();
  await pass(1_000);
  expect(await taken()).toEqual([1, 1, 1]);
  expect(story).toEqual([]);
});

test.each([
  ['within two seconds, when it is taken at once', 0, 2_000],
  ['before its wait has doubled, when it is taken later', 9_000, 11_000],
])(
  'a call whose slot another replica takes is refused although no other arrives, %s',
  async (_, ms, thenMs) => {
    const options: CallOptions = { perMinute: 2, maxInFlight: 1 };
    const { enter, pass, ceilings, clock, story, refusals } = worldOf({ defaults: options });
    enter('first');
    enter('second');
    await pass(1 + ms);
    await ceilings.take(callOf(clock, 'other', options)[0].ceiling);
    await pass(thenMs);
    expect(story).toEqual(['first', expect.stringMatching(/^second wait_(too_long|expired)$/)]);
    expect(refusals.get('second')).toMatchObject({ heldBy: 'ceiling_minute' });
  },
);

test('what a replica knows of lanes is forgotten when there are very many, and not of lanes with calls', async () => {
  const clock = new FakeClock();
  const nothing = { joinedBucketOf: () => null, onReckoned: () => {}, detached: () => {} };
  const limiter = createEmbeddedLimiter(clock, { onGrant: () => {}, onClosed: () => {} });
  const ceilings = new CeilingStore(clock);
  const parts = { clock, limiter, ceilings, leaseMs: defaultLeaseMs, ...nothing };
  const lanes = new WaitRegistry(parts, () => {});
  const inB = (lane: string) => callOf(clock, 'call', { bucket: 'b', lane })[0];
  const [busy, unused] = [lanes.laneOf(inB('busy')), lanes.laneOf(inB('unused'))];
  Object.assign(busy, { calls: 1 });
  for (let at = 0; at < 10_000; at += 1) lanes.laneOf(inB(`l${at}`));
  clock.outside(121_000, () => {});
  await clock.run(121_000);
  lanes.laneOf(inB('new'));
  expect(lanes.laneOf(inB('unused'))).not.toBe(unused);
  expect(lanes.laneOf(inB('busy'))).toBe(busy);
});

const words: Readonly<Record<HeldBy, RegExp>> = {
  ceiling_minute: /^The workspace has used up its requests per minute /,
  ceiling_day: /^The workspace has used up its requests per day /,
  closed: /named a time before which nothing may be sent; .* can lift it \(`sluice open`\)/,
  requests: /upstream's quota of requests is used up/,
  tokens: /upstream's quota of tokens is used up/,
  cost: /upstream's quota of cost points is used up/,
  upstream_day: /upstream's quota of the day is used up/,
  serialized: /`maxInFlight`/,
  queue: /Other calls are waiting/,
  paused: /An operator has paused this upstream/,
  credential: /credential for this upstream has ended/,
};

describe('the detail of a refusal', () => {
  test.each(heldByReasons)(
    'says that %s holds the call, when it arrives and when it has waited',
    (heldBy) => {
      const reply = { kind: 'refused', reason: 'wait_too_long', retryInMs: 2_500, ahead: 0, heldBy } as const;
      const code = heldBy.endsWith('_day') ? 'day_quota_exhausted' : null;
      const arrived = refusedBy(reply, { maxWaitIfAskedMs: 3_000 });
      const waited = tooLate({ waitMs: 2_500, heldBy });
      expect([arrived.code, waited.code]).toEqual([code ?? 'wait_too_long', code ?? 'wait_expired']);
      for (const { details } of [arrived, waited])
        expect(details).toMatchObject({
          heldBy,
          retryInMs: 2_500,
          detail: expect.stringMatching(words[heldBy]),
        });
      expect(arrived.details.detail).toMatch(/ Prefer: wait=3 lets it wait\.$/);
    },
  );

  test('of a full queue says how to have room', () => {
    const reply = { kind: 'refused', reason: 'queue_full', retryInMs: 1, ahead: 0, heldBy: 'queue' } as const;
    const { code, details } = refusedBy(reply, { maxWaitIfAskedMs: 3_000 });
    expect([code, details.heldBy, details.detail]).toEqual([
      'queue_full',
      'queue',
      expect.stringContaining('send fewer at once'),
    ]);
  });
});
