import { expect, test } from '@jest/globals';
import {
  backgroundLane,
  callerKey,
  laneKey,
  leaseToken,
  ticketId,
  type LeaseToken,
} from '../../../src/ids.ts';
import type { Bucket } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { StoredAdmission } from '../../../src/limiter/policy/bucket-events.ts';
import { cancel } from '../../../src/limiter/policy/scheduler.policy.ts';
import { forecast } from '../../../src/limiter/policy/forecast.policy.ts';
import { settle } from '../../../src/limiter/policy/settle.policy.ts';
import type { Effects, Granted } from '../../../src/limiter/policy/pump.policy.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { jainOf } from '../../support/jain.ts';
import { admit, call, newBucket, replica, tick } from './scheduling.ts';

/** A place comes free every hundred milliseconds. */
const paced = { limit: 10, windowMs: 1_000 } as const;
const serviceMs = 100;

/** Points come back slowly, requests fast. */
const twoMeters = {
  meters: [
    { meter: 'cost', limit: 100, windowMs: 100_000 },
    { meter: 'requests', limit: 10, windowMs: 1_000 },
  ],
  learn: true,
  probe: 0,
} as const;

const done = { kind: 'succeeded', spent: null } as const;

const background = (workspace: string): string => backgroundLane(laneKey(workspace));
const isOf = (lane: string) => (granted: { readonly lane: string }) => granted.lane === lane;

/** A bucket whose calls are answered as soon as they are sent, and what left it. */
class Scene {
  readonly bucket: Bucket;
  readonly left: (Granted & { readonly at: number })[] = [];
  readonly held: LeaseToken[] = [];
  now: number;
  #calls = 0;
  readonly #options: AdmissionOptions;
  /** False: calls stay in flight. */
  readonly #answers: boolean;

  constructor(instant: Instant, options: AdmissionOptions = paced, answers = true) {
    this.bucket = newBucket(instant);
    this.now = instant(1_000);
    this.#options = options;
    this.#answers = answers;
  }

  /** The ticket of the call that entered last. */
  get last(): string {
    return `t${this.#calls}`;
  }

  enter(lane: string, options: AdmissionOptions = {}): ReturnType<typeof admit> {
    const asked: StoredAdmission = call(`t${(this.#calls += 1)}`, { lane, ...this.#options, ...options });
    const reply = admit(this.bucket, asked, replica, this.now);
    this.#take(reply.effects);
    return reply;
  }

  /** Until then `lane` has so many calls waiting, each as soon as one has left. */
  run(ms: number, keep: Readonly<Record<string, number>> = {}): void {
    for (const until = this.now + ms; this.now < until; this.now += 25) {
      for (const [lane, count] of Object.entries(keep))
        while ((this.bucket.lanes.get(laneKey(lane))?.line.size ?? 0) < count) this.enter(lane);
      this.#take(tick(this.bucket, { replica, leases: this.held }, this.now));
    }
  }

  /** The call that has been in flight for longest ends. */
  answer(): void {
    const lease = this.held.shift();
    if (lease === undefined) throw new Error('nothing is in flight');
    this.#take(settle(this.bucket, { lease, settlement: done, lesson: null }, this.now));
  }

  #take({ grants }: Effects): void {
    for (const granted of grants) {
      this.left.push({ ...granted, at: this.now });
      const { lease } = granted;
      if (!this.#answers) this.held.push(lease);
      else this.#take(settle(this.bucket, { lease, settlement: done, lesson: null }, this.now));
    }
  }
}

/** With nothing left in its meter. */
function full(instant: Instant): Scene {
  const scene = new Scene(instant);
  for (let at = 0; at < 10; at += 1) scene.enter('before');
  scene.run(1_500, { before: 1 });
  cancelAll(scene);
  scene.left.length = 0;
  return scene;
}

function cancelAll({ bucket, now }: Scene): void {
  for (const { id, lease } of bucket.tickets.values()) if (lease === null) cancel(bucket, id, now);
}

atOrigins('background calls', (instant) => {
  test('leave when no other call of the bucket can, of whatever workspace', () => {
    const scene = full(instant);
    for (let at = 0; at < 4; at += 1) scene.enter(background('a'));
    for (let at = 0; at < 4; at += 1) scene.enter('b');
    scene.run(5_000);
    expect(scene.left.map(({ lane }) => lane)).toEqual([
      ...Array.from({ length: 4 }, () => 'b'),
      ...Array.from({ length: 4 }, () => background('a')),
    ]);
  });

  test('take all that nobody else asks for', () => {
    const scene = full(instant);
    scene.run(60_000, { [background('a')]: 5 });
    expect(scene.left.length).toBeGreaterThanOrEqual(0.98 * 600);
  });

  test('leave once a minute beside calls that never stop, and no more often', () => {
    const scene = full(instant);
    scene.run(600_000, { b: 5, [background('a')]: 20, [background('c')]: 20 });
    const times = scene.left.filter(({ lane }) => lane !== 'b').map(({ at }) => at);
    expect(times.length).toBe(9);
    for (const [at, time] of times.slice(1).entries())
      expect(time - (times[at] ?? 0)).toBeLessThanOrEqual(60_000 + 2 * serviceMs);
    expect(scene.left.length).toBeGreaterThanOrEqual(0.98 * 6_000);
  });

  test('delay another call by one service time at most', () => {
    const scene = full(instant);
    for (let turn = 0; turn < 40; turn += 1) {
      scene.run(700, { [background('a')]: 10 });
      scene.enter('b');
      const at = scene.now;
      scene.run(1_000, { [background('a')]: 10 });
      const left = scene.left.findLast(isOf('b'));
      expect((left?.at ?? Infinity) - at).toBeLessThanOrEqual(serviceMs + 25);
    }
  });

  test('take nothing for which another call waits, however much there is for them', () => {
    const tokens = { meter: 'tokens', limit: 1_000, windowMs: 10_000 } as const;
    const setting = { meters: [tokens], learn: true, probe: 0 };
    const scene = new Scene(instant, { setting, costs: { tokens: 100 } });
    for (let at = 0; at < 10; at += 1) scene.enter('before');
    // Room for 100 tokens comes every second, and the large call needs it for nine.
    scene.enter('b', { costs: { tokens: 900 } });
    const asked = scene.now;
    for (let at = 0; at < 5; at += 1) scene.enter(background('a'));
    scene.run(30_000);
    const [large, ...small] = scene.left.slice(10);
    expect(large?.lane).toBe('b');
    expect((large?.at ?? Infinity) - asked).toBeLessThanOrEqual(9_000 + 1_100);
    expect(small).toHaveLength(5);
  });

  test.each([
    ['calls of another workspace', 'b', { cost: 100 }],
    ['calls of their own workspace', 'a', { cost: 100 }],
    ['background calls that take from their meter, too,', background('b'), { cost: 100, requests: 1 }],
  ])('leave beside %s that wait for another meter', (_whose, lane, costs) => {
    const scene = new Scene(instant, { setting: twoMeters });
    scene.enter('d', { callClass: 'points', costs: { cost: 100 } });
    scene.enter(lane, { callClass: 'points', costs });
    for (let at = 0; at < 3; at += 1) scene.enter(background('a'));
    scene.run(2_000);
    expect(scene.left.filter(isOf(background('a')))).toHaveLength(3);
  });

  test('change nothing for others that leave beside calls that wait for another meter', () => {
    const scene = new Scene(instant, { setting: twoMeters });
    const both = { callClass: 'points', costs: { cost: 100, requests: 1 } };
    for (const lane of ['d', 'b', background('c')]) scene.enter(lane, both);
    for (let at = 0; at < 3; at += 1) scene.enter('a');
    expect(scene.left.map(({ lane }) => lane)).toEqual(['d', 'a', 'a', 'a']);
  });

  test('get the room that they need once they are due, however little the calls of others need', () => {
    const tokens = { meter: 'tokens', limit: 1_000, windowMs: 10_000 } as const;
    const setting = { meters: [tokens], learn: true, probe: 0 };
    const scene = new Scene(instant, { setting, costs: { tokens: 100 } });
    scene.enter(background('a'), { costs: { tokens: 1_000 } });
    scene.enter(background('a'), { costs: { tokens: 900 } });
    scene.left.length = 0;
    const asked = scene.now;
    scene.run(75_000, { b: 5 });
    const left = scene.left.find(isOf(background('a')));
    expect((left?.at ?? Infinity) - asked).toBeLessThanOrEqual(60_000 + 9_000 + 1_100);
  });

  test('let others go that need another meter, while the one that is due has no room', () => {
    const meters = [
      { meter: 'cost', limit: 100, windowMs: 1_000_000 },
      { meter: 'requests', limit: 10, windowMs: 1_000 },
    ] as const;
    const scene = new Scene(instant, { setting: { meters, learn: true, probe: 0 } });
    for (let at = 0; at < 2; at += 1)
      scene.enter(background('a'), { callClass: 'points', costs: { cost: 100 } });
    scene.run(61_000);
    scene.enter('b');
    expect(scene.left.filter(isOf('b'))).toHaveLength(1);
  });

  test.each([
    ['before they came', false],
    ['while they waited', true],
  ])('do not leave during a pause of their workspace that began %s', (_when, isWaiting) => {
    const scene = new Scene(instant, paced, false);
    for (let at = 0; at < (isWaiting ? paced.limit : 1); at += 1) scene.enter('a');
    if (isWaiting) scene.enter(background('a'));
    const [lease] = scene.held;
    const paused = { kind: 'throttled', closeMs: 0, requeue: false, sleepMs: 5_000 } as const;
    settle(scene.bucket, { lease: lease ?? leaseToken(''), settlement: paused, lesson: null }, scene.now);
    const from = scene.now;
    if (!isWaiting) scene.enter(background('a'));
    scene.run(6_000);
    const first = scene.left.find(isOf(background('a')));
    expect((first?.at ?? 0) - from).toBeGreaterThanOrEqual(5_000);
  });

  test('of several workspaces share fairly, and so do their callers', () => {
    const scene = full(instant);
    const lanes = [background('a'), background('b')];
    for (let at = 0; at < 100; at += 1) scene.enter(background('a'), { caller: callerKey('loop') });
    scene.enter(background('a'), { caller: callerKey('ann') });
    const ann = scene.last;
    scene.run(10_000, { [background('b')]: 5 });
    const shares = lanes.map((lane) => scene.left.filter(isOf(lane)).length);
    expect(jainOf(shares)).toBeGreaterThan(0.99);
    expect(scene.left.findIndex(({ ticket }) => ticket === ann)).toBeLessThan(5);
  });

  test('cost their workspace none of its turns', () => {
    const scene = full(instant);
    scene.run(20_000, { [background('a')]: 10 });
    for (let at = 0; at < 5; at += 1) {
      scene.enter('a');
      scene.enter('b');
    }
    scene.left.length = 0;
    scene.run(1_100);
    expect(scene.left.filter(isOf('a')).length).toBeGreaterThanOrEqual(4);
    expect(scene.left.filter(isOf('b')).length).toBeGreaterThanOrEqual(4);
  });

  test('share the places in flight of their workspace', () => {
    const scene = new Scene(instant, { ...paced, maxInFlight: 1 }, false);
    for (let at = 0; at < 2; at += 1) scene.enter(background('a'));
    scene.enter('a');
    scene.run(1_000);
    expect(scene.left.map(({ lane }) => lane)).toEqual([background('a')]);
    for (const want of ['a', background('a')]) {
      scene.answer();
      scene.run(1_000);
      expect(scene.left.at(-1)?.lane).toBe(want);
    }
  });

  test('are due again at once when the one that was due could not be sent', () => {
    const held = new Scene(instant, { limit: 10, windowMs: 10_000 }, false);
    for (let at = 0; at < 10; at += 1) held.enter('b');
    held.enter(background('a'));
    for (let at = 0; at < 70; at += 1) held.enter('b');
    held.run(61_500);
    const granted = held.left.find(isOf(background('a')));
    expect(granted?.isDue).toBe(true);
    const returned = { kind: 'returned', sleepMs: 500, because: 'ceiling_minute' } as const;
    const lease = granted?.lease ?? ('none' as LeaseToken);
    settle(held.bucket, { lease, settlement: returned, lesson: null }, held.now);
    held.run(1_500);
    expect(held.left.filter(isOf(background('a')))).toHaveLength(2);
  });

  test('leave in time although their ceiling has none of their places for longer', () => {
    const held = new Scene(instant, paced, false);
    held.enter(background('a'));
    const first = held.held.shift();
    const returned = { kind: 'returned', sleepMs: 3_600_000, because: 'ceiling_minute' } as const;
    if (first === undefined) throw new Error('nothing was granted');
    settle(held.bucket, { lease: first, settlement: returned, lesson: null }, held.now);
    held.run(61_000);
    expect(held.left.filter(isOf(background('a')))).toHaveLength(2);
    expect(held.left.at(-1)?.isDue).toBe(true);
  });

  test('leave the next place under their ceiling to the others of their workspace', () => {
    const held = new Scene(instant, paced, false);
    held.enter('a');
    const first = held.held.shift();
    const returned = { kind: 'returned', sleepMs: 10_000, because: 'ceiling_minute' } as const;
    if (first === undefined) throw new Error('nothing was granted');
    settle(held.bucket, { lease: first, settlement: returned, lesson: null }, held.now);
    held.enter(background('a'));
    held.enter(background('b'));
    held.run(9_000);
    expect(held.left.map(({ lane }) => lane)).toEqual(['a', background('b')]);
    held.run(2_000);
    expect(held.left.slice(2).map(({ lane }) => lane)).toEqual(['a', background('a')]);
  });

  test('wait where one of them is due within their wait, however many others wait, and are refused otherwise', () => {
    const scene = new Scene(instant, { limit: 1, windowMs: 5_000 });
    for (let at = 0; at < 41; at += 1) scene.enter('b');
    // They are due after one minute, after two, and after two, as the second one is refused.
    const waits = [75_000, 75_000, 130_000];
    const [first, second, third] = waits.map((maxWaitMs) => scene.enter(background('a'), { maxWaitMs }));
    expect(scene.enter(background('c'), { maxWaitMs: 30_000 }).kind).toBe('refused');
    expect([first?.kind, second?.kind, third?.kind]).toEqual(['queued', 'refused', 'queued']);
    expect(second?.kind === 'refused' ? second.retryInMs : 0).toBeGreaterThan(190_000);
    const asked = scene.now;
    scene.run(131_000, { b: 40 });
    const [early = Infinity, late = Infinity] = scene.left
      .filter(isOf(background('a')))
      .map(({ at }) => at - asked);
    expect(early).toBeLessThanOrEqual(75_000);
    expect(late).toBeLessThanOrEqual(130_000);
  });

  test('are told how long others of their workspace take the places in flight before them', () => {
    const scene = new Scene(instant, { ...paced, maxInFlight: 1 }, false);
    const serve = (calls: number): void => {
      for (let at = 0; at < calls; at += 1) {
        scene.run(1_000);
        scene.answer();
      }
    };
    for (let at = 0; at < 24; at += 1) scene.enter('a');
    // It is known by now that each takes a second.
    serve(20);
    const own = scene.enter(background('a'));
    const asked = scene.now;
    serve(4);
    const left = scene.left.find(isOf(background('a')));
    const told = own.kind === 'queued' ? own.forecastMs : 0;
    expect(Math.abs((left?.at ?? Infinity) - asked - told)).toBeLessThanOrEqual(600);
  });

  test('are told a time as if nobody else came, and that of others does not count them', () => {
    const scene = full(instant);
    for (let at = 0; at < 10; at += 1) scene.enter('b');
    for (let at = 0; at < 10; at += 1) scene.enter(background('a'));
    const own = scene.enter(background('a'));
    const other = scene.enter('c');
    const asked = scene.now;
    expect(own.kind === 'queued' && other.kind === 'queued').toBe(true);
    const told = own.kind === 'queued' ? own.forecastMs : 0;
    scene.run(10_000);
    const left = scene.left.filter(isOf(background('a'))).at(-1);
    // The call of `c` came later.
    expect(Math.abs((left?.at ?? 0) - asked - told)).toBeLessThanOrEqual(2 * serviceMs);
    expect(other.kind === 'queued' ? other.forecastMs : Infinity).toBeLessThanOrEqual(3 * serviceMs);
    expect(forecast(scene.bucket, ticketId('none'), scene.now)).toBeNull();
  });
});
