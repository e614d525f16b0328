/**
 * Twice the load of a workspace's ceiling, on virtual time: calls that can be sent are sent, and the others are refused at once. Over
 * several replicas the product's own stores run against the Redis of the simulation.
 */
import { expect, test } from '@jest/globals';
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { Refusal } from '../../src/errors.ts';
import type { LogEvent } from '../../src/limiter/over-log/state.ts';
import { callOf, embeddedQueue, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';
import { names, succeeded } from './world.ts';

/** 240 calls a minute come for 150 s where 120 may leave: three windows begin before the wait of the last call ends. */
const [perMinute, calls, everyMs, maxWaitMs] = [120, 600, 250, 20_000];
/** Longer than the ways to Redis and back take. Milliseconds. */
const momentMs = 100;

/** @param replicas 0 = the embedded stores */
async function overload(replicas: number) {
  const { clock, queues, commands } = await (replicas === 0 ? embedded() : overRedis(replicas));
  const startMs = clock.monotonic() + 3_000;
  /** `how`: `sent`, or the code of the refusal. */
  const ends: { readonly n: number; readonly how: string; readonly waitedMs: number }[] = [];
  const sentAt: number[] = [];
  const follow = async (n: number, entering: Entering): Promise<string> => {
    try {
      const ticket = await queues[n % queues.length]?.enter(...entering);
      const lease = await ticket?.whenGranted();
      sentAt.push(clock.monotonic());
      clock.outside(clock.monotonic() + 50, () => lease?.settle(succeeded, null));
      return 'sent';
    } catch (failure) {
      return failure instanceof Refusal ? failure.code : String(failure);
    }
  };
  for (let n = 0; n < calls; n += 1) {
    const at = startMs + n * everyMs;
    clock.outside(at, () => {
      const limits = { limit: 100_000, windowMs: 60_000, maxQueued: 1_000 };
      const entering = callOf(clock, `c${n}`, { ...limits, perMinute, maxWaitMs });
      void follow(n, entering).then((how) => ends.push({ n, how, waitedMs: clock.monotonic() - at }));
    });
  }
  await clock.run(startMs + calls * everyMs + maxWaitMs + 1_000);
  /** Refusals of calls that had been held for more than a moment. */
  const late = ends.filter(({ how, waitedMs }) => how !== 'sent' && waitedMs > momentMs);
  const busiest = Math.max(
    ...sentAt.map((from) => sentAt.filter((at) => at >= from && at < from + 60_000).length),
  );
  return { ends, sent: sentAt.length, late, busiest, commands };
}

function embedded() {
  const clock = new FakeClock();
  return { clock, queues: [embeddedQueue({ clock }).queue], commands: new Map<string, number>() };
}

/** Replicas that have found their Redis, and what they ask of it: scripts by the names of their files, appended events by kind. */
async function overRedis(replicas: number) {
  const redis = new VirtualRedis();
  redis.toMs = redis.fromMs = 0.4;
  const { clock, server } = redis;
  const queues: AdmissionQueue[] = [];
  for (const name of names(replicas)) {
    const { limiter, ceilings } = await redis.replica(name, 'local', (grant) =>
      queue.listener.onGrant(grant),
    );
    const onFailure = (failure: unknown): never => {
      throw failure;
    };
    const queue: AdmissionQueue = new AdmissionQueue({ clock, limiter, ceilings, onFailure });
    queues.push(queue);
  }
  const commands = new Map<string, number>();
  const count = (name: string): unknown => commands.set(name, (commands.get(name) ?? 0) + 1);
  const execute = server.execute.bind(server);
  server.execute = (command, words) => {
    const isAppend = command === 'sluice_append';
    // Three keys, and what the replica has of the log, come before the events; without any it only asks what is new.
    const events = isAppend ? (JSON.parse(words[7] || '[]') as LogEvent[]) : [];
    count(isAppend && events.length === 0 ? 'news' : command.replace(/^sluice_/, ''));
    for (const event of events) count(event.kind === 'in' ? event.event.kind : event.kind);
    return execute(command, words);
  };
  return { clock, queues, commands };
}

test.each([0, 1, 3])(
  'at twice the load of a ceiling, %d replicas on Redis send all calls that can be sent, and refuse the others at once',
  async (replicas) => {
    const { sent, late, busiest, ends } = await overload(replicas);
    expect({ sent, busiest, late }).toEqual({ sent: 360, busiest: perMinute, late: [] });
    expect(ends).toHaveLength(calls);
    expect(new Set(ends.map(({ how }) => how))).toEqual(new Set(['sent', 'wait_too_long']));
  },
);

test('admission over Redis uses no more commands for a call than the call takes steps', async () => {
  const { commands, sent } = await overload(3);
  const of = (...kinds: string[]): number => kinds.reduce((sum, kind) => sum + (commands.get(kind) ?? 0), 0);
  expect([of('consume'), of('settle')]).toEqual([sent, sent]);
  // A call that its replica's own copy refuses is not entered.
  expect(of('admit')).toBeLessThanOrEqual(calls);
  const events = of('admit', 'settle', 'slot_taken', 'tick', 'cancel', 'wake', 'here', 'learn');
  expect(of('append')).toBeLessThanOrEqual(events);
  // The first 120 calls take a slot as they come; each of the others asks at most once when a slot will be free, and each replica once a second.
  expect(of('slots')).toBeLessThanOrEqual(480 + 3 * 75);
});
