/**
 * Random traffic to one upstream in virtual time, through real admission, limiter, ceilings and recorder: what the headroom says of it,
 * and what happens when the same traffic comes several times as densely.
 *
 * Owns: patterns of arrivals and of limits, and how a pattern is multiplied. Does not own: any decision about a call.
 */
import { createHeadrooms } from '../../src/activity/headrooms.ts';
import { embeddedActivity, createActivityRecorder } from '../../src/activity/recorder.ts';
import { Refusal } from '../../src/errors.ts';
import type { Lesson, MeterSetting } from '../../src/limiter/limiter.ts';
import { createPressure } from '../../src/observation/pressure.ts';
import { Bucket } from '../../simulators/bucket.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';

/** Where the limits in force come from. */
const sources = ['configured', 'stated', 'learned', 'described', 'ceilings', 'tokens', 'serialized'] as const;

type Pattern = ReturnType<typeof patternOf>;
const minuteMs = 60_000;

export function patternOf(seed: number) {
  const random = new SeededRandom(seed);
  const between = (from: number, until: number): number => from + random.next() * (until - from);
  const whole = (from: number, until: number): number => Math.floor(between(from, until + 1));
  const source = sources[seed % sources.length] ?? 'configured';
  const perMinute = whole(20, 120);
  const truth = whole(20, 120);
  const workspaces = source === 'ceilings' ? whole(1, 4) : whole(1, 3);
  const aMinute = (limit: number): MeterSetting => ({ meter: 'requests', limit, windowMs: minuteMs });
  // What is drawn for one source is not drawn for another.
  const metersOf: Record<typeof source, () => readonly MeterSetting[]> = {
    configured: () => [aMinute(perMinute)],
    stated: () => [],
    learned: () => [aMinute(perMinute)],
    described: () => [
      { ...aMinute(perMinute), counts: 'rolling' },
      { meter: 'requests_burst', limit: whole(2, 6), windowMs: 1_000, counts: 'rolling' },
    ],
    ceilings: () => [aMinute(2_000)],
    tokens: () => [aMinute(1_000), { meter: 'tokens', limit: perMinute * 500, windowMs: minuteMs }],
    serialized: () => [{ meter: 'requests', limit: 40, windowMs: 20_000 }],
  };
  const isTruth = source === 'learned' || source === 'stated';
  const capacity = { ceilings: perMinute * workspaces, serialized: 60 }[source as string];
  return {
    seed,
    /** What the configuration says of the bucket. */
    meters: metersOf[source](),
    /** What the upstream enforces and states in its answers; `null` = it states nothing. */
    stated: isTruth ? { limit: truth, windowMs: minuteMs } : null,
    /** Of each workspace; `null` = none. */
    ceilings: Array.from({ length: workspaces }, () => (source === 'ceilings' ? whole(20, 120) : null)),
    weights: Array.from({ length: workspaces }, () => whole(1, 3)),
    maxInFlight: source === 'serialized' ? 1 : null,
    maxWaitMs: random.next() < 0.7 ? 75_000 : whole(15, 60) * 1_000,
    serviceMs: source === 'serialized' ? ([400, 900] as const) : ([50, 500] as const),
    arrivals: arrivalsOf(
      random,
      workspaces,
      (capacity ?? (isTruth ? truth : perMinute)) * between(0.08, 0.8),
    ).map((arrival) => ({
      ...arrival,
      /** 0 = they are not counted. */
      tokens: source === 'tokens' ? whole(100, 900) : 0,
    })),
  };
}

/** Steady traffic, waves or bursts over eight to twelve minutes, of about this many calls a minute in all. */
function arrivalsOf(random: SeededRandom, workspaces: number, perMinute: number) {
  const lengthMs = (8 + 4 * random.next()) * minuteMs;
  const shape = Math.floor(random.next() * 3);
  const phase = random.next() * 6;
  const arrivals: { readonly at: number; readonly workspace: number }[] = [];
  const workspaceOf = (): number => Math.floor(random.next() ** 1.5 * workspaces);
  const meanMs = minuteMs / perMinute;
  if (shape === 2) {
    const size = 2 + Math.floor(random.next() * perMinute * 0.7);
    for (let at = 0; at < lengthMs; at += size * meanMs * (0.5 + random.next())) {
      const workspace = workspaceOf();
      for (let n = 0; n < size; n++) arrivals.push({ at: at + random.next() * 2_000, workspace });
    }
  } else {
    for (let at = 0; at < lengthMs;) {
      const swing = shape === 0 ? 1 : 1 + 0.8 * Math.sin(phase + at / 50_000);
      at += (-Math.log(1 - random.next()) * meanMs) / Math.max(0.1, swing);
      arrivals.push({ at, workspace: workspaceOf() });
    }
  }
  // Whole milliseconds: on a clock that stands still between events nothing waits for a part of one.
  return arrivals
    .map(({ at, workspace }) => ({ at: Math.round(at), workspace }))
    .toSorted((a, b) => a.at - b.at);
}

/** Every arrival `factor` times at its instant; of a fraction so many that the sum is right at every time. */
function multiplied({ arrivals }: Pattern, factor: number) {
  const owed = new Map<number, number>();
  return arrivals.flatMap((arrival) => {
    const due = (owed.get(arrival.workspace) ?? 0) + factor;
    const now = Math.floor(due + 1e-9);
    owed.set(arrival.workspace, due - now);
    return Array.from({ length: now }, () => arrival);
  });
}

/** The pattern `factor` times as densely, from beginning to end. */
export async function course(pattern: Pattern, factor: number) {
  const { stated, serviceMs, ceilings, weights, maxWaitMs } = pattern;
  const random = new SeededRandom(pattern.seed + 1_000_000);
  const between = ([from, until]: readonly [number, number]): number => from + random.next() * (until - from);
  const clock = new FakeClock();
  const { queue, limiter, ceilings: store } = embeddedQueue({ clock });
  const recorder = createActivityRecorder({ clock, shared: embeddedActivity, labelOf: (id) => id });
  const upstream = stated === null ? null : new Bucket(stated, 0);
  let refused = 0;
  let number = 0;
  const setting = { meters: pattern.meters, learn: true, probe: stated === null ? 0 : 1 };

  const lessonOf = (sentAt: number): Lesson | null => {
    if (upstream === null || stated === null) return null;
    const used = upstream.level(clock.monotonic());
    const level = { lowest: used, highest: used };
    const feedback = { meters: [{ meter: 'requests' as const, ...stated, level }], throttle: null };
    return { feedback, sentAgoMs: clock.monotonic() - sentAt, headAgoMs: 0 };
  };
  const play = async ({ workspace, tokens }: Pattern['arrivals'][number]): Promise<void> => {
    const id = `w${workspace}`;
    const arrivedAt = clock.monotonic();
    const costs = { requests: 1, ...(tokens === 0 ? {} : { tokens }) };
    recorder.arrived(id, 'u', costs);
    const entering = callOf(clock, `t${number++}`, {
      bucket: 'b',
      lane: id,
      workspace: id,
      arrivedAt,
      setting,
      costs,
      weight: weights[workspace] ?? 1,
      maxInFlight: pattern.maxInFlight,
      perMinute: ceilings[workspace] ?? null,
      maxQueued: 1_000,
      maxWaitMs,
    });
    const ended = { code: null, heldBy: null } as const;
    try {
      const ticket = await queue.enter(...entering);
      const lease = await ticket.whenGranted();
      const waitedMs = clock.monotonic() - arrivedAt;
      const sentAt = clock.monotonic();
      upstream?.take(1, sentAt);
      await new Promise<void>((resume) => clock.outside(sentAt + Math.round(between(serviceMs)), resume));
      lease.settle({ kind: 'succeeded', spent: null }, lessonOf(sentAt));
      ticket.leave();
      const durationMs = clock.monotonic() - arrivedAt;
      recorder.ended(id, 'u', { ...ended, outcome: 'ok', waitedMs, attempts: 1, durationMs });
    } catch (failure) {
      if (!(failure instanceof Refusal)) throw failure;
      refused += 1;
      const shed = { ...ended, outcome: 'shed', code: 'wait_too_long', attempts: 0 } as const;
      recorder.ended(id, 'u', { ...shed, waitedMs: 0, durationMs: 0 });
    }
  };
  const failures: unknown[] = [];
  const last = pattern.arrivals.at(-1)?.at ?? 0;
  for (const arrival of multiplied(pattern, factor))
    clock.arrives(arrival.at, () => void play(arrival).catch((failure) => failures.push(failure)));
  await clock.run(last + maxWaitMs + 10_000);
  if (failures.length > 0) throw failures[0];
  const pressure = createPressure({ clock, limiter, ceilings: store, admission: queue });
  const headrooms = createHeadrooms(
    recorder,
    () => ({ ...pressure.inForce('u'), stated: pattern.meters, maxWaitMs, maxQueued: 1_000 }),
    clock,
  );
  const headroom = await headrooms.ofUpstream('u');
  await limiter.close();
  return { refused, headroom };
}
