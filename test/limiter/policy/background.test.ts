/** Background calls: they leave when no other call can, and once a minute beside calls that never stop. */
import { expect, test } from '@jest/globals';
import { backgroundLane, laneKey, type LaneKey } from '../../../src/ids.ts';
import type { Settlement } from '../../../src/limiter/limiter.ts';
import type { Granted } from '../../../src/limiter/policy/scheduler.policy.ts';
import type { AdmissionOptions } from '../../support/admission.ts';
import { atOrigins, type Instant } from '../../support/at-origins.ts';
import { names, returned, TestBucket, throttled } from './scheduling.ts';

/** A place comes free every hundred milliseconds. */
const paced = { limit: 10, windowMs: 1_000 } as const;
const serviceMs = 100;

/** Points come back slowly, requests fast. */
const twoMeters = (windowMs: number): AdmissionOptions => ({
  meters: [
    { meter: 'cost', limit: 100, windowMs },
    { meter: 'requests', limit: 10, windowMs: 1_000 },
  ],
});
const tokensOnly: AdmissionOptions = {
  meters: [{ meter: 'tokens', limit: 1_000, windowMs: 10_000 }],
  costs: { tokens: 100 },
};
const points = (cost: number, more = {}): AdmissionOptions => ({
  callClass: 'points',
  costs: { cost, ...more },
});

const background = (workspace: string): LaneKey => backgroundLane(laneKey(workspace));
const [bgA, bgB, bgC] = ['a', 'b', 'c'].map(background) as [LaneKey, LaneKey, LaneKey];

/** A bucket whose calls are answered as soon as they are sent, and what left it. */
class Scene extends TestBucket {
  readonly left: (Granted & { readonly ms: number })[] = [];
  /** Those in flight; `null` where all are answered at once. */
  readonly #held: string[] | null;
  /** The ticket of the call that came last. */
  last = '';
  #calls = 0;

  constructor(instant: Instant, options: AdmissionOptions = paced, answers: 'at once' | 'later' = 'at once') {
    super(instant, options);
    this.#held = answers === 'later' ? [] : null;
  }

  /** One call, or so many. */
  ask(lane: string, options: AdmissionOptions = {}, calls = 1): ReturnType<TestBucket['admit']> {
    this.last = `t${(this.#calls += 1)}`;
    const reply = this.admit(this.last, { lane, ...options });
    this.#serve();
    return calls > 1 ? this.ask(lane, options, calls - 1) : reply;
  }

  /** Until then `lane` has so many calls waiting, each as soon as one has left. */
  pass(ms: number, keep: Readonly<Record<string, number>> = {}): void {
    for (const until = this.ms + ms; this.ms < until; this.ms += 25) {
      for (const [lane, count] of Object.entries(keep))
        while ((this.bucket.lanes.get(laneKey(lane))?.line.size ?? 0) < count) this.ask(lane);
      this.tick();
      this.#serve();
    }
  }

  /** The call ends, or the one that has been in flight for longest. */
  end(settlement?: Settlement, ticket = this.#held?.shift() ?? ''): void {
    this.settle(ticket, settlement);
    this.#serve();
  }

  lanes(): string[] {
    return this.left.map(({ lane }) => lane);
  }

  /** When calls of these lanes left. */
  timesOf(...lanes: string[]): number[] {
    return this.left.filter(({ lane }) => lanes.includes(lane)).map(({ ms }) => ms);
  }

  #serve(): void {
    for (const granted of this.granted) {
      this.left.push({ ...granted, ms: this.ms });
      if (this.#held === null) this.end(undefined, granted.ticket);
      else this.#held.push(granted.ticket);
    }
  }
}

/** With nothing left in its meter. */
function full(instant: Instant): Scene {
  const scene = new Scene(instant);
  scene.ask('before', {}, 10);
  scene.pass(1_500, { before: 1 });
  for (const { id, lease } of scene.bucket.tickets.values()) if (lease === null) scene.cancel(id);
  scene.left.length = 0;
  return scene;
}

atOrigins('background calls', (instant) => {
  test('leave when no other call of the bucket can, of whatever workspace', () => {
    const scene = full(instant);
    scene.ask(bgA, {}, 4);
    scene.ask('b', {}, 4);
    scene.pass(5_000);
    expect(scene.lanes()).toEqual([...names(4).map(() => 'b'), ...names(4).map(() => bgA)]);
  });

  test('leave once a minute beside calls that never stop, and no more often', () => {
    const scene = full(instant);
    scene.pass(600_000, { b: 5, [bgA]: 20, [bgC]: 20 });
    const times = scene.timesOf(bgA, bgC);
    expect(times.length).toBe(9);
    for (const [at, time] of times.slice(1).entries())
      expect(time - (times[at] ?? 0)).toBeLessThanOrEqual(60_000 + 2 * serviceMs);
    expect(scene.left.length).toBeGreaterThanOrEqual(0.98 * 6_000);
  });

  test('take nothing for which another call waits, however much there is for them', () => {
    const scene = new Scene(instant, tokensOnly);
    scene.ask('before', {}, 10);
    // Room for 100 tokens comes every second, and the large call needs it for nine.
    scene.ask('b', { costs: { tokens: 900 } });
    scene.ask(bgA, {}, 5);
    const asked = scene.ms;
    scene.pass(30_000);
    expect(scene.lanes().slice(10)).toEqual(['b', ...names(5).map(() => bgA)]);
    expect((scene.timesOf('b')[0] ?? Infinity) - asked).toBeLessThanOrEqual(9_000 + 1_100);
  });

  test.each([
    ['calls of another workspace', 'b', points(100)],
    ['calls of their own workspace', 'a', points(100)],
    ['background calls that take from their meter, too,', bgB, points(100, { requests: 1 })],
  ])('leave beside %s that wait for another meter', (_whose, lane, asking) => {
    const scene = new Scene(instant, twoMeters(100_000));
    scene.ask('d', points(100));
    scene.ask(lane, asking);
    scene.ask(bgA, {}, 3);
    scene.pass(2_000);
    expect(scene.timesOf(bgA)).toHaveLength(3);
  });

  test('change nothing for others that leave beside calls that wait for another meter', () => {
    const scene = new Scene(instant, twoMeters(100_000));
    for (const lane of ['d', 'b', bgC]) scene.ask(lane, points(100, { requests: 1 }));
    scene.ask('a', {}, 3);
    expect(scene.lanes()).toEqual(['d', 'a', 'a', 'a']);
  });

  test('get the room that they need once they are due, however little the calls of others need', () => {
    const scene = new Scene(instant, tokensOnly);
    scene.ask(bgA, { costs: { tokens: 1_000 } });
    scene.ask(bgA, { costs: { tokens: 900 } });
    const asked = scene.ms;
    scene.pass(75_000, { b: 5 });
    expect((scene.timesOf(bgA)[1] ?? Infinity) - asked).toBeLessThanOrEqual(60_000 + 9_000 + 1_100);
  });

  test('let others go that need another meter, while the one that is due has no room', () => {
    const scene = new Scene(instant, twoMeters(1_000_000));
    scene.ask(bgA, points(100), 2);
    scene.pass(61_000);
    scene.ask('b');
    expect(scene.timesOf('b')).toHaveLength(1);
  });

  test.each([
    ['before they came', 1],
    ['while they waited', paced.limit],
  ])('do not leave during a pause of their workspace that began %s', (_when, calls) => {
    const scene = new Scene(instant, paced, 'later');
    scene.ask('a', {}, calls);
    if (calls > 1) scene.ask(bgA);
    scene.end(throttled(0, { sleepMs: 5_000 }));
    if (calls === 1) scene.ask(bgA);
    scene.pass(6_000);
    expect(scene.timesOf(bgA)[0]).toBeGreaterThanOrEqual(6_000);
  });

  test('share the places in flight of their workspace', () => {
    const scene = new Scene(instant, { ...paced, maxInFlight: 1 }, 'later');
    scene.ask(bgA, {}, 2);
    scene.ask('a');
    scene.pass(1_000);
    expect(scene.lanes()).toEqual([bgA]);
    for (const want of ['a', bgA]) {
      scene.end();
      scene.pass(1_000);
      expect(scene.lanes().at(-1)).toBe(want);
    }
  });

  test('are due again at once when the one that was due could not be sent', () => {
    const scene = new Scene(instant, { limit: 10, windowMs: 10_000 }, 'later');
    scene.ask('b', {}, 10);
    scene.ask(bgA);
    const own = scene.last;
    scene.ask('b', {}, 70);
    scene.pass(61_500);
    expect(scene.left.find(({ ticket }) => ticket === own)?.isDue).toBe(true);
    scene.end(returned('ceiling_minute', 500), own);
    scene.pass(1_500);
    expect(scene.timesOf(bgA)).toHaveLength(2);
  });

  test('leave in time although their ceiling has none of their places for longer', () => {
    const scene = new Scene(instant, paced, 'later');
    scene.ask(bgA);
    scene.end(returned('ceiling_minute', 3_600_000));
    scene.pass(61_000);
    expect(scene.lanes()).toEqual([bgA, bgA]);
    expect(scene.left.at(-1)?.isDue).toBe(true);
  });

  test('leave the next place under their ceiling to the others of their workspace', () => {
    const scene = new Scene(instant, paced, 'later');
    scene.ask('a');
    scene.end(returned('ceiling_minute', 10_000));
    for (const lane of [bgA, bgB]) scene.ask(lane);
    scene.pass(9_000);
    expect(scene.lanes()).toEqual(['a', bgB]);
    scene.pass(2_000);
    expect(scene.lanes().slice(2)).toEqual(['a', bgA]);
  });

  test('wait where one of them is due within their wait, however many others wait, and are refused otherwise', () => {
    const scene = new Scene(instant, { limit: 1, windowMs: 5_000 });
    scene.ask('b', {}, 41);
    // They are due after one minute, after two, and after two, as the second one is refused.
    const [first, second, third] = [75_000, 75_000, 130_000].map((maxWaitMs) =>
      scene.ask(bgA, { maxWaitMs }),
    );
    expect(scene.ask(bgC, { maxWaitMs: 30_000 }).kind).toBe('refused');
    expect([first?.kind, second?.kind, third?.kind]).toEqual(['queued', 'refused', 'queued']);
    expect(second?.kind === 'refused' ? second.retryInMs : 0).toBeGreaterThan(190_000);
    const asked = scene.ms;
    scene.pass(131_000, { b: 40 });
    const [early = Infinity, late = Infinity] = scene.timesOf(bgA).map((ms) => ms - asked);
    expect(early).toBeLessThanOrEqual(75_000);
    expect(late).toBeLessThanOrEqual(130_000);
  });

  const toldMs = (reply: ReturnType<Scene['ask']>): number =>
    reply.kind === 'queued' ? reply.forecastMs : NaN;

  test('are told how long others of their workspace take the places in flight before them', () => {
    const scene = new Scene(instant, { ...paced, maxInFlight: 1 }, 'later');
    const serve = (calls: number): void => {
      for (let at = 0; at < calls; at += 1) {
        scene.pass(1_000);
        scene.end();
      }
    };
    scene.ask('a', {}, 24);
    // It is known by now that each takes a second.
    serve(20);
    const leavesAt = scene.ms + toldMs(scene.ask(bgA));
    serve(4);
    expect(Math.abs((scene.timesOf(bgA)[0] ?? Infinity) - leavesAt)).toBeLessThanOrEqual(600);
  });

  test('are told a time as if nobody else came, and that of others does not count them', () => {
    const scene = full(instant);
    scene.ask('b', {}, 10);
    const leavesAt = scene.ms + toldMs(scene.ask(bgA, {}, 11));
    expect(toldMs(scene.ask('c'))).toBeLessThanOrEqual(3 * serviceMs);
    scene.pass(10_000);
    // The call of `c` came later.
    expect(Math.abs((scene.timesOf(bgA).at(-1) ?? 0) - leavesAt)).toBeLessThanOrEqual(2 * serviceMs);
    expect(scene.forecast('none')).toBeNull();
  });
});
