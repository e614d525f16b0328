/**
 * The Redis side of the parity property: sends the calls of a plan to the scripts in one pipeline, reads the four keys
 * after each step, and names the first difference in replies, messages or state.
 */
import type { Redis } from 'ioredis';
import { bucketKey } from '../../src/ids.ts';
import { bucketKeys } from '../../src/limiter/redis/protocol/keys.ts';
import { readBatch } from '../../src/limiter/redis/protocol/reply-codec.ts';
import { readMessage } from '../../src/limiter/redis/protocol/message-codec.ts';
import type { LoadedScripts } from '../support/loaded-scripts.ts';
import type { Step } from './parity-history.ts';
import { planOf, startOf, type Plan, type Planned } from './parity-model.ts';
import { dueDifference, stateOfRedis, type Dump } from './parity-state.ts';

/** Hears what scripts publish, by bucket. */
export class Messages {
  readonly #byBucket = new Map<string, { replica: string; text: string }[]>();
  readonly #subscriber: Redis;
  #marked: (() => void) | null = null;

  private constructor(subscriber: Redis) {
    this.#subscriber = subscriber;
  }

  static async on(subscriber: Redis): Promise<Messages> {
    const messages = new Messages(subscriber);
    await subscriber.psubscribe('sluice:r:*');
    subscriber.on('pmessage', (_pattern: string, channel: string, text: string) => {
      if (channel === 'sluice:r:mark') return messages.#marked?.();
      const bucket = text.split(/[ \n]/)[1] ?? '';
      const heard = messages.#byBucket.get(bucket) ?? [];
      heard.push({ replica: channel.slice('sluice:r:'.length), text });
      messages.#byBucket.set(bucket, heard);
    });
    return messages;
  }

  /** Waits until everything published so far has been heard. */
  async settled(redis: Redis): Promise<void> {
    const marked = new Promise<void>((resolve) => (this.#marked = resolve));
    await redis.publish('sluice:r:mark', '');
    await marked;
  }

  take(bucket: string): { replica: string; text: string }[] {
    const heard = this.#byBucket.get(bucket) ?? [];
    this.#byBucket.delete(bucket);
    return heard;
  }

  async close(): Promise<void> {
    await this.#subscriber.punsubscribe();
  }
}

export interface Bench {
  readonly redis: Redis;
  readonly messages: Messages;
  readonly loaded: LoadedScripts;
}

let runs = 0;

/** A history with everything that the policy says of it, for a bucket of its own. */
export interface Prepared {
  readonly bucket: string;
  readonly plan: Plan;
}

export function prepare(seed: number, steps: readonly Step[]): Prepared {
  runs += 1;
  const bucket = `b${runs}`;
  return { bucket, plan: planOf(steps, bucket, startOf(seed)) };
}

/** The first difference of each history, `null` where both stores agree. The histories run side by side. */
export async function differences(bench: Bench, histories: readonly Prepared[]): Promise<(string | null)[]> {
  const results = await Promise.all(histories.map(({ bucket, plan }) => replies(bench, bucket, plan)));
  await bench.messages.settled(bench.redis);
  return histories.map(
    ({ bucket, plan }, at) =>
      stepDifference(plan, results[at] ?? []) ?? messageDifference(plan, bench.messages.take(bucket)),
  );
}

interface Seen {
  readonly reply: unknown;
  readonly dump: Dump | null;
}

async function replies(bench: Bench, bucket: string, plan: Plan): Promise<Seen[]> {
  const keys = bucketKeys(bucketKey(bucket));
  const [state, records, order, replicas] = keys;
  const pipeline = bench.redis.pipeline();
  for (const { call, state: expected } of plan.planned) {
    if (call === null) pipeline.del(...keys);
    else bench.loaded.queue(pipeline, call);
    if (expected === undefined) continue;
    pipeline.getBuffer(state);
    pipeline.hgetallBuffer(records);
    pipeline.zrange(order, '0', '-1');
    pipeline.zrange(replicas, '0', '-1', 'WITHSCORES');
    for (const key of keys) pipeline.pttl(key);
  }
  pipeline.del(...keys);
  const results = (await pipeline.exec()) ?? [];
  let at = 0;
  const next = (): unknown => {
    const [failure, value] = results[at++] ?? [new Error('no result'), null];
    return failure === null ? value : failure;
  };
  return plan.planned.map(({ state: expected }) => {
    const reply = next();
    if (expected === undefined) return { reply, dump: null };
    const dump = {
      state: next() as Dump['state'],
      records: next() as Dump['records'],
      order: next() as string[],
      replicas: (next() as (string | string[])[]).flat(),
      lives: keys.map(() => next() as number).filter((life) => life !== -2),
    };
    return { reply, dump };
  });
}

function stepDifference(plan: Plan, seen: readonly Seen[]): string | null {
  for (const [at, planned] of plan.planned.entries()) {
    const { reply, dump } = seen[at] ?? { reply: undefined, dump: null };
    const found = replyDifference(planned, reply) ?? (dump === null ? null : dumpDifference(planned, dump));
    if (found !== null) return `call ${at} (${planned.what}): ${found}`;
  }
  return null;
}

function replyDifference(planned: Planned, reply: unknown): string | null {
  if (planned.call === null) return null;
  if (reply instanceof Error) return `failed: ${reply.message}`;
  return difference('reply', planned.reply, readBatch(reply, planned.events));
}

function dumpDifference(planned: Planned, dump: Dump): string | null {
  if (dump.lives.some((life) => life <= 0)) return 'a key without an expiry';
  // Read a moment later, on whatever machine.
  const wrong = dump.lives.find((life) => life > planned.lifeMs + 2 || life < planned.lifeMs - 3_000);
  if (wrong !== undefined) return `lives ${wrong} ms instead of ${planned.lifeMs}`;
  return difference('state', planned.state, stateOfRedis(dump)) ?? dueDifference(dump);
}

function messageDifference(plan: Plan, heard: readonly { replica: string; text: string }[]): string | null {
  // Which replica hears first within one call does not matter, so they are compared replica by replica.
  const byReplica = <T extends { replica: string }>(messages: readonly T[]): T[] =>
    messages.toSorted((a, b) => (a.replica < b.replica ? -1 : a.replica > b.replica ? 1 : 0));
  const read = heard.map(({ replica, text }) => ({ replica, ...readMessage(text) }));
  return difference('messages', byReplica(plan.messages), byReplica(read));
}

/** Path and values of the first difference; numbers must be the same double. */
export function difference(path: string, expected: unknown, actual: unknown): string | null {
  const found = differenceBelow(expected, actual);
  return found === null ? null : `${path}${found}`;
}

/** The path is put together on the way back only: nearly every comparison finds nothing. */
function differenceBelow(expected: unknown, actual: unknown): string | null {
  if (expected === actual) return null;
  if (typeof expected !== 'object' || expected === null || typeof actual !== 'object' || actual === null) {
    return `: policy ${show(expected)}, Redis ${show(actual)}`;
  }
  if (Array.isArray(expected) && Array.isArray(actual)) {
    for (let at = 0; at < Math.max(expected.length, actual.length); at += 1) {
      const found = differenceBelow(expected[at], actual[at]);
      if (found !== null) return `.${at}${found}`;
    }
    return null;
  }
  const left = expected as Readonly<Record<string, unknown>>;
  const right = actual as Readonly<Record<string, unknown>>;
  for (const name in left) {
    const found = differenceBelow(left[name], right[name]);
    if (found !== null) return `.${name}${found}`;
  }
  for (const name in right) {
    if (name in left) continue;
    const found = differenceBelow(undefined, right[name]);
    if (found !== null) return `.${name}${found}`;
  }
  return null;
}

const show = (value: unknown): string => JSON.stringify(value) ?? String(value);

/** The shortest history found that still differs, by leaving out runs of steps and making counts one. */
export async function shrink(
  bench: Bench,
  seed: number,
  steps: readonly Step[],
): Promise<{ steps: readonly Step[]; found: string }> {
  let best = steps;
  let found = (await differences(bench, [prepare(seed, steps)]))[0] ?? '';
  for (let size = Math.ceil(best.length / 2); size >= 1;) {
    const starts = Array.from({ length: Math.ceil(best.length / size) }, (_, n) => n * size);
    const tries = starts.map((from) => best.filter((_step, at) => at < from || at >= from + size));
    const results = await differences(
      bench,
      tries.map((shorter) => prepare(seed, shorter)),
    );
    const hit = results.findIndex((result) => result !== null);
    if (hit >= 0) {
      best = tries[hit] ?? best;
      found = results[hit] ?? found;
      size = Math.min(size, Math.max(1, best.length));
    } else size = size === 1 ? 0 : Math.ceil(size / 2);
  }
  return { steps: best, found };
}
