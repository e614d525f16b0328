/**
 * Runs clients with calls of known use against a provider that counts tokens, on virtual time. They are paced by the embedded limiter,
 * or by the stores of several replicas that share a Redis, each of which learns what its own calls are charged. Owns: the provider, a
 * counter that drains, and the clients. Does not own what is a good outcome.
 */
import type { Feedback, MeterName, TokenUsage } from '../../src/call.ts';
import { spentOf } from '../../src/dispatch/feedback/usage.policy.ts';
import type { TokenGuess } from '../../src/dispatch/model-call.policy.ts';
import { TokenEstimates } from '../../src/dispatch/token-estimates.ts';
import { lateThrottle } from '../../src/journey/attempts.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import type { Grant, Lesson } from '../../src/limiter/limiter.ts';
import { admission } from '../support/admission.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { VirtualRedis } from '../support/virtual-redis.ts';

export interface Asked {
  readonly guess: TokenGuess;
  readonly agent?: number;
  /** What it really uses, if the provider's cache is as warm as the call expects. */
  readonly usage: TokenUsage;
}

export interface Scene {
  readonly meter: MeterName;
  readonly limit: number;
  /** Calls of each client, which sends one after the other. */
  readonly clients: readonly (readonly Asked[])[];
  /** Units that the provider counts when the call arrives, and when its response is over. */
  readonly counts: (asked: Asked, now: number) => { readonly first: number; readonly inAll: number };
  /** What the response says of that; the usage of the call where it is left out. */
  readonly reported?: (asked: Asked, inAll: number) => TokenUsage;
  readonly serviceMs: number;
  /** Refusals come inside a stream, so long after the call; left out, they come at once, as the whole response. */
  readonly refusesIn?: StreamRefusal;
  /** Every response states limit and level, as at the arrival of its call; or only refusals do, as of when they come. */
  readonly states?: 'always' | 'when refusing';
  /** What a response says of limit and level; left out, it says them to a unit. */
  readonly says?: (level: number, limit: number) => Feedback['meters'];
  /** The limit from these times on. */
  readonly changes?: readonly { readonly at: number; readonly limit: number }[];
  /** What somebody else takes of what the limit lets through, twice a second. */
  readonly outsiderShare?: number;
  /** How much later than it was written each message is read, as on a machine whose processors are taken. Milliseconds. */
  readonly lateMs?: () => number;
}

/** Before the content of a stream a refusal is absorbed; behind it the client gets it, and makes the call anew. */
export interface StreamRefusal {
  readonly part: 'before content' | 'behind content';
  readonly afterMs: number;
  /** Units that stay counted of a call that was refused behind content. */
  readonly keeps?: number;
}

export interface Outcome {
  /** Times at which the provider refused a call. */
  readonly refusedAt: readonly number[];
  /** Refusals that clients got. */
  readonly passedOn: number;
  readonly firstResponseAt: number;
  readonly refusedAtEntry: number;
  /** From the first call to the last that was let in, by what the quota allows. */
  readonly ratio: number;
}

const windowMs = 60_000;
const outsiderMs = 500;

/** The least time in which the limit lets so many units through: its whole, and then what it drains. */
function minMsOf({ limit, changes = [], outsiderShare = 0 }: Scene, units: number): number {
  let left = units - limit;
  let at = 0;
  let now = limit;
  for (const change of [...changes, { at: Infinity, limit: 0 }]) {
    const perMs = (now * (1 - outsiderShare)) / windowMs;
    if (left <= (change.at - at) * perMs) return at + left / perMs;
    // A larger limit has room at once; of a smaller one no more is used than it has.
    left -= (change.at - at) * perMs + Math.max(0, change.limit - now);
    ({ at, limit: now } = change);
  }
  return at;
}

/** Longer than any scene. */
const leaseMs = 1e9;
const quietMs = 10_000;

async function fleetOf(replicas: number, onGrant: (grant: Grant) => void) {
  const limiters: Limiter[] = [];
  if (replicas === 1) {
    const clock = new FakeClock();
    limiters.push(createEmbeddedLimiter(clock, { onGrant, onClosed: () => {} }, { leaseMs }));
    return { clock, limiters, redis: null };
  }
  const redis = new VirtualRedis();
  // No replica may pace on its own.
  for (let n = 0; n < replicas; n += 1)
    limiters.push((await redis.replica(`r${n}`, 'deny', onGrant)).limiter);
  return { clock: redis.clock, limiters, redis };
}

export async function run(scene: Scene, replicas = 1): Promise<Outcome> {
  const onGrantOf = new Map<string, (grant: Grant) => void>();
  const { clock, limiters, redis } = await fleetOf(replicas, (grant) => onGrantOf.get(grant.ticket)?.(grant));
  const startMs = clock.monotonic();
  const fleet = limiters.map((limiter) => ({ limiter, estimates: new TokenEstimates() }));
  const { meter, changes = [], outsiderShare = 0, lateMs = () => 0 } = scene;
  let { limit } = scene;
  const stateOf = (level: number): Feedback['meters'] =>
    scene.says?.(level, limit) ?? [
      {
        meter,
        limit,
        windowMs,
        level: { lowest: Math.max(0, Math.floor(level) - 1), highest: Math.ceil(level) },
      },
    ];
  const stated = (level: number): Feedback['meters'] => (scene.states === 'always' ? stateOf(level) : []);
  const upstream = { level: 0, at: 0, taken: 0, lastIn: 0 };
  const refusedAt: number[] = [];
  let passedOn = 0;
  let sendings = 0;
  let firstResponseAt = Infinity;
  let refusedAtEntry = 0;
  let left = scene.clients.flat().length;
  const drain = (now: number): void => {
    upstream.level = Math.max(0, upstream.level - ((now - upstream.at) * limit) / windowMs);
    upstream.at = now;
  };
  const waitMsOf = (units: number): number =>
    Math.ceil(((upstream.level + units - limit) * windowMs) / limit);
  const refusalOf = (units: number, waitMs: number): Feedback => ({
    meters: scene.states === undefined ? [] : stateOf(upstream.level),
    throttle: { kind: 'rate', waitMs, meter },
    requestedTokens: units,
  });
  const send = (asked: Asked, client: number, at: number): void => {
    const of = fleet[client % replicas];
    if (of === undefined) throw new Error('no such replica');
    const { limiter, estimates } = of;
    const named = { guess: asked.guess, lane: 'lane' };
    const next = (): void => enter(client, at + 1);
    const lessonOf = (feedback: Feedback, sentAt: number): Lesson => ({
      feedback,
      sentAgoMs: clock.monotonic() - sentAt,
      headAgoMs: 0,
    });
    const answered = (grant: Grant, feedback: Feedback, sentAt: number, closeMs: number): void => {
      const now = clock.monotonic();
      const lesson = lessonOf(feedback, sentAt);
      estimates.learn(named, feedback, null);
      if (closeMs > 0) {
        void limiter.settle(grant, { kind: 'throttled', closeMs, requeue: true, sleepMs: 0 }, lesson);
        return;
      }
      firstResponseAt = Math.min(firstResponseAt, now);
      // Replicas over Redis tick for ever.
      if (left === 0 && redis !== null) clock.outside(clock.monotonic() + quietMs, () => clock.halt());
      void limiter.settle(grant, { kind: 'succeeded', spent: spentOf(200, feedback, null) }, lesson);
      next();
    };
    const onGrant = (grant: Grant): void => {
      const sentAt = clock.monotonic();
      clock.outside(sentAt + 2 + lateMs(), () => {
        const now = clock.monotonic();
        drain(now);
        const { first, inAll } = scene.counts(asked, now);
        const waitMs = waitMsOf(first);
        if (waitMs > 0) {
          refusedAt.push(now);
          const { part = 'before content', afterMs = 1, keeps = 0 } = scene.refusesIn ?? {};
          if (part === 'before content') {
            const refusal = refusalOf(first, waitMs);
            clock.arrives(now + afterMs + lateMs(), () => answered(grant, refusal, sentAt, waitMs));
            return;
          }
          upstream.taken += keeps;
          upstream.level += keeps;
          const head: Feedback = { meters: stated(upstream.level), throttle: null };
          clock.arrives(now + 1, () => void limiter.learn(grant, lessonOf(head, sentAt)));
          clock.arrives(now + afterMs, () => {
            drain(now + afterMs);
            const refusal = refusalOf(first, Math.max(1, waitMsOf(first)));
            passedOn += 1;
            estimates.learn(named, head, refusal);
            void limiter.settle(grant, ...lateThrottle(refusal, lessonOf(head, sentAt)));
            send(asked, client, at);
          });
          return;
        }
        upstream.level += first;
        const meters = stated(upstream.level);
        left -= 1;
        upstream.taken += inAll;
        upstream.lastIn = now;
        clock.outside(now + scene.serviceMs + lateMs(), () => {
          drain(clock.monotonic());
          upstream.level = Math.max(0, upstream.level + inAll - first);
          const usage = scene.reported?.(asked, inAll) ?? asked.usage;
          clock.arrives(clock.monotonic(), () =>
            answered(grant, { meters, throttle: null, usage }, sentAt, 0),
          );
        });
      });
    };
    const ticket = `c${client}.${at}.${(sendings += 1)}`;
    onGrantOf.set(ticket, onGrant);
    const costs = { requests: 1, ...estimates.expected(named) };
    // As it was configured once, whatever the limit is by now.
    const setting = { meters: [{ meter, limit: scene.limit, windowMs }], learn: true, probe: 1 };
    const options = { costs, setting, arrivedAt: clock.monotonic(), maxWaitMs: 75_000 };
    void limiter.admit(admission(ticket, options)).then((reply) => {
      if (reply.kind === 'granted') onGrant(reply.grant);
      if (reply.kind !== 'refused') return;
      refusedAtEntry += 1;
      clock.outside(clock.monotonic() + reply.retryInMs, () => send(asked, client, at));
    });
  };
  const enter = (client: number, at: number): void => {
    const asked = scene.clients[client]?.[at];
    if (asked !== undefined) send(asked, client, at);
  };
  for (const change of changes) {
    clock.outside(startMs + change.at, () => {
      drain(startMs + change.at);
      ({ limit } = change);
      upstream.level = Math.min(upstream.level, limit);
    });
  }
  const outsider = (): void => {
    const now = clock.monotonic();
    drain(now);
    upstream.level = Math.min(limit, upstream.level + (outsiderShare * limit * outsiderMs) / windowMs);
    if (left > 0) clock.outside(now + outsiderMs, outsider);
  };
  if (outsiderShare > 0) clock.outside(startMs, outsider);
  scene.clients.forEach((_calls, client) => clock.outside(startMs + client, () => enter(client, 0)));
  await clock.run(7_200_000);
  if (redis?.server.bucketCommands === 0) throw new Error('no call came to the shared bucket');
  return {
    refusedAt,
    passedOn,
    firstResponseAt,
    refusedAtEntry,
    ratio: (upstream.lastIn - startMs) / minMsOf(scene, upstream.taken),
  };
}
