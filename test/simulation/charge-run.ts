/** Clients with calls of known use against a provider that counts tokens: the policy of one bucket on virtual time, in one process or over replicas. */
import type { Feedback, MeterName, TokenUsage } from '../../src/call.ts';
import { spentOf } from '../../src/dispatch/feedback/usage.policy.ts';
import type { TokenGuess } from '../../src/dispatch/model-call.policy.ts';
import { TokenEstimates } from '../../src/dispatch/token-estimates.ts';
import { leaseToken } from '../../src/ids.ts';
import { lateThrottle } from '../../src/journey/attempts.ts';
import type { Settlement } from '../../src/limiter/limiter.ts';
import { SeededRandom } from '../../simulators/seeded-random.ts';
import { PacedBucket } from './metering/paced-run.ts';

export interface Asked {
  readonly guess: TokenGuess;
  readonly agent?: number;
  /** What it really uses, if the provider's cache is as warm as the call expects. */
  readonly usage: TokenUsage;
}

export interface Scene {
  readonly meter: MeterName;
  readonly limit: number;
  readonly clients: readonly (readonly Asked[])[];
  /** Units that the provider counts when the call arrives, and when its response is over. */
  readonly counts: (asked: Asked, now: number) => { readonly first: number; readonly inAll: number };
  /** What the response says of that; the usage of the call where it is left out. */
  readonly reported?: (asked: Asked, inAll: number) => TokenUsage;
  readonly serviceMs: number;
  /** Refusals come inside a stream, so long after the call: absorbed before content; behind it the client makes the call anew, and `keeps` units stay counted. */
  readonly refusesIn?: {
    readonly part: 'before content' | 'behind content';
    readonly afterMs: number;
    readonly keeps?: number;
  };
  /** Every response states limit and level, as at the arrival of its call; or only refusals do, as of when they come. */
  readonly states?: 'always' | 'when refusing';
  /** What a response says of limit and level; left out, it says them to a unit. */
  readonly says?: (level: number, limit: number) => Feedback['meters'];
  readonly changes?: readonly { readonly at: number; readonly limit: number }[];
  /** What somebody else takes of what the limit lets through, twice a second. */
  readonly outsiderShare?: number;
  /** How much later than it was written each message is read, as on a machine whose processors are taken. Milliseconds. */
  readonly lateMs?: () => number;
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

export function run(scene: Scene, replicas = 1) {
  const { meter, changes = [], outsiderShare = 0, lateMs = () => 0 } = scene;
  const calm = {
    wayMs: [1, 1],
    stallsAfterMs: [Infinity, Infinity],
    stallMs: [0, 0],
    jobMs: [0, 0],
  } as const;
  const fleet = replicas === 1 ? {} : { fleet: { replicas, ...calm } };
  const bucket = new PacedBucket(fleet, new SeededRandom(1), 0);
  const estimates = Array.from({ length: replicas }, () => new TokenEstimates());
  let { limit } = scene;
  const stateOf = (level: number): Feedback['meters'] => {
    const bounds = { lowest: Math.max(0, Math.floor(level) - 1), highest: Math.ceil(level) };
    return scene.says?.(level, limit) ?? [{ meter, limit, windowMs, level: bounds }];
  };
  const stated = (level: number): Feedback['meters'] => (scene.states === 'always' ? stateOf(level) : []);
  const upstream = { level: 0, at: 0, taken: 0, lastIn: 0 };
  const refusedAt: number[] = [];
  /** `passedOn`: refusals that clients got. */
  let [passedOn, sendings, refusedAtEntry, firstResponseAt] = [0, 0, 0, Infinity];
  let left = scene.clients.flat().length;
  const drain = (): number => {
    upstream.level = Math.max(0, upstream.level - ((bucket.now - upstream.at) * limit) / windowMs);
    upstream.at = bucket.now;
    return upstream.at;
  };
  const later = (ms: number, act: () => void): void => bucket.at(bucket.now + ms, act);
  const waitMsOf = (units: number): number =>
    Math.ceil(((upstream.level + units - limit) * windowMs) / limit);
  const refusalOf = (units: number, waitMs: number): Feedback => ({
    meters: scene.states === undefined ? [] : stateOf(upstream.level),
    throttle: { kind: 'rate', waitMs, meter },
    requestedTokens: units,
  });
  const send = (asked: Asked, client: number, at: number): void => {
    const replica = client % replicas;
    const known = estimates[replica] ?? new TokenEstimates();
    const named = { guess: asked.guess, lane: 'lane' };
    const granted = (token: string): void => {
      const lease = leaseToken(token);
      const sentAt = bucket.now;
      const lessonOf = (feedback: Feedback) => ({ feedback, sentAt, headAt: bucket.now });
      const settle = (settlement: Settlement, feedback: Feedback): void =>
        bucket.tell(replica, { kind: 'settle', lease, settlement, lesson: lessonOf(feedback) });
      const answered = (feedback: Feedback, closeMs: number): void => {
        known.learn(named, feedback, null);
        if (closeMs > 0) return settle({ kind: 'throttled', closeMs, requeue: true, sleepMs: 0 }, feedback);
        firstResponseAt = Math.min(firstResponseAt, bucket.now);
        settle({ kind: 'succeeded', spent: spentOf(200, feedback, null) }, feedback);
        enter(client, at + 1);
      };
      later(2 + lateMs(), () => {
        const now = drain();
        const { first, inAll } = scene.counts(asked, now);
        const waitMs = waitMsOf(first);
        if (waitMs > 0) {
          refusedAt.push(now);
          const { part = 'before content', afterMs = 1, keeps = 0 } = scene.refusesIn ?? {};
          if (part === 'before content') {
            const refusal = refusalOf(first, waitMs);
            return later(afterMs + lateMs(), () => answered(refusal, waitMs));
          }
          upstream.taken += keeps;
          upstream.level += keeps;
          const head: Feedback = { meters: stated(upstream.level), throttle: null };
          later(1, () => bucket.tell(replica, { kind: 'learn', lease, lesson: lessonOf(head) }));
          return later(afterMs, () => {
            drain();
            const refusal = refusalOf(first, Math.max(1, waitMsOf(first)));
            passedOn += 1;
            known.learn(named, head, refusal);
            const [settlement] = lateThrottle(refusal, { feedback: head, sentAgoMs: 0, headAgoMs: 0 });
            settle(settlement, refusal);
            send(asked, client, at);
          });
        }
        upstream.level += first;
        const meters = stated(upstream.level);
        left -= 1;
        upstream.taken += inAll;
        upstream.lastIn = now;
        later(scene.serviceMs + lateMs(), () => {
          drain();
          upstream.level = Math.max(0, upstream.level + inAll - first);
          answered({ meters, throttle: null, usage: scene.reported?.(asked, inAll) ?? asked.usage }, 0);
        });
      });
    };
    // As it was configured once, whatever the limit is by now.
    const setting = { meters: [{ meter, limit: scene.limit, windowMs }], learn: true, probe: 1 };
    const costs = { requests: 1, ...known.expected(named) };
    const asking = { costs, setting, maxWaitMs: 75_000 };
    const refused = (retryInMs: number): void => {
      refusedAtEntry += 1;
      later(retryInMs, () => send(asked, client, at));
    };
    bucket.enter(`c${(sendings += 1)}`, replica, asking, { granted, refused });
  };
  const enter = (client: number, at: number): void => {
    const asked = scene.clients[client]?.[at];
    if (asked !== undefined) send(asked, client, at);
  };
  for (const change of changes) {
    bucket.at(change.at, () => {
      drain();
      ({ limit } = change);
      upstream.level = Math.min(upstream.level, limit);
    });
  }
  const outsider = (): void => {
    drain();
    upstream.level = Math.min(limit, upstream.level + (outsiderShare * limit * outsiderMs) / windowMs);
    later(outsiderMs, outsider);
  };
  if (outsiderShare > 0) outsider();
  scene.clients.forEach((_calls, client) => bucket.at(client, () => enter(client, 0)));
  bucket.begin();
  bucket.runWhile(() => left > 0);
  /** From the first call to the last that was let in, by what the quota allows. */
  const ratio = upstream.lastIn / minMsOf(scene, upstream.taken);
  return { refusedAt, passedOn, firstResponseAt, refusedAtEntry, ratio };
}
