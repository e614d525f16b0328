/** Calls of one process through the product's own admission, before an upstream that counts in its own way: virtual time, whose clock begins anywhere. */
import type { UpstreamKind } from '../../../src/call.ts';
import type { Clock } from '../../../src/clock.ts';
import type { Dialect as DescribedDialect } from '../../../src/config/settings.ts';
import { learnFrom } from '../../../src/dispatch/feedback/learn-from.policy.ts';
import { bucketKey, ticketId } from '../../../src/ids.ts';
import type { MeterSetting } from '../../../src/limiter/limiter.ts';
import type { SpokenWindow } from '../../../simulators/dialect/parts.ts';
import { Quota, type WindowState } from '../../../simulators/dialect/quota.ts';
import { goDuration } from '../../../simulators/go-duration.ts';
import { SeededRandom } from '../../../simulators/seeded-random.ts';
import { callOf, embeddedQueue, type CallOptions } from '../../support/admission-queue.ts';
import { FakeClock } from '../../support/fake-clock.ts';

export type Range = readonly [from: number, until: number];

/** A history that has not ended after this time does not end. Milliseconds. */
const maxMs = 1e8;

/** One process, whose clocks show this time at the beginning. */
export function processAt(originMs: number) {
  const virtual = new FakeClock();
  const now = (): number => virtual.monotonic();
  const time = (): number => originMs + now();
  const clock: Clock = { now: time, monotonic: time, after: (ms, run) => virtual.after(ms, run) };
  const { queue, limiter } = embeddedQueue({ clock });
  /** By default a call waits for as long as it takes. */
  const patient = { maxQueued: 100_000, maxWaitMs: maxMs, maxWaitIfAskedMs: Infinity };
  return {
    now,
    limiter,
    enter: (id: string, asked: CallOptions) => queue.enter(...callOf(clock, id, { ...patient, ...asked })),
    pass: (ms: number) => new Promise<void>((resolve) => virtual.arrives(now() + ms, resolve)),
    async toEnd(work: Promise<unknown>): Promise<void> {
      const over = work.finally(() => virtual.halt());
      over.catch(() => {});
      await virtual.run(maxMs);
      await limiter.close();
      await over;
    },
  };
}

export interface Scene {
  /** How the upstream counts, what it has counted at first, and from when to when it is closed for everybody. */
  readonly windows: readonly SpokenWindow[];
  readonly usedBefore?: number;
  readonly closed?: Range;
  /** What its clock shows at the beginning, milliseconds. */
  readonly clockMs?: number;
  readonly dialect: Dialect;
  /** How the configuration describes it (`speaks`); left out, it does not. */
  readonly described?: DescribedDialect;
  readonly stated?: readonly MeterSetting[];
  readonly probe?: number;
  readonly calls: readonly number[];
  readonly maxInFlight?: number | null;
  /** From sending to arriving, from arriving to the response's head; a refusal is answered at once. Milliseconds. */
  readonly wayMs: Range;
  readonly serviceMs: Range;
  /** Times in which the upstream neither reads nor responds. */
  readonly stalls?: readonly Range[];
  /** This share of calls leaves that much later than it was granted. */
  readonly delayed?: { readonly share: number; readonly ms: Range };
  /** The store hears so much later that a response has come. Milliseconds. */
  readonly toldLateMs?: Range;
}

export interface Outcome {
  readonly arrivals: readonly { readonly at: number; readonly admitted: boolean }[];
  /** Wait of the last call as it was forecast when it came, and what it was. Milliseconds. */
  readonly lastWait: { readonly forecastMs: number; readonly trueMs: number };
}

const hintlessMs = 500;
const succeeded = { kind: 'succeeded', spent: null } as const;

export async function run(scene: Scene, seed: number, originMs: number): Promise<Outcome> {
  const { windows, usedBefore = 0, closed, clockMs = 0, dialect, calls, stalls = [] } = scene;
  const { delayed = { share: 0, ms: [0, 0] }, toldLateMs = [0, 0], maxInFlight = null } = scene;
  const setting = { meters: scene.stated ?? [], learn: true, probe: scene.probe ?? 0 };
  const random = new SeededRandom(seed);
  const between = ([from, until]: Range): number => from + random.next() * (until - from);
  const { now, limiter, pass, enter, toEnd } = processAt(originMs);
  const passUntil = (at: number): Promise<void> => pass(at - now());
  const quota = new Quota({ windows });
  const ask = () => quota.ask(clockMs + now());
  const arrivals: { at: number; admitted: boolean }[] = [];
  const lastWait = { forecastMs: 0, trueMs: 0 };

  /** Until the upstream, which may stand still, has read or written. */
  const passOutside = (ms: number): Promise<void> => {
    const at = now() + ms;
    return passUntil(stalls.find(([from, until]) => at >= from && at < until)?.[1] ?? at);
  };
  /** One sending: what the response says. */
  const send = async () => {
    await passOutside(between(scene.wayMs));
    const asked = ask();
    const admitted = asked.kind === 'admitted';
    arrivals.push({ at: now(), admitted });
    const state = quota.windows(clockMs + now()) as unknown as Windows;
    const fields = new Map(dialect.fields(state, admitted ? 0 : asked.waitMs, clockMs + now()));
    await passOutside(admitted ? between(scene.serviceMs) : 1);
    const body = admitted ? null : (dialect.refusal ?? null);
    const of = { callClass: 'rest', method: 'GET', path: '/', nowMs: originMs + now() };
    return learnFrom(dialect.kind, { status: admitted ? 200 : 429, fields, body, ...of }, scene.described);
  };
  const call = async (at: number, n: number): Promise<void> => {
    await pass(at);
    const isLast = n === calls.length - 1;
    const ticket = await enter(`t${n}`, { setting, maxInFlight });
    if (isLast)
      lastWait.forecastMs = (await limiter.forecast(bucketKey('bucket'), ticketId(`t${n}`)))?.waitMs ?? 0;
    for (;;) {
      const lease = await ticket.whenGranted();
      if (isLast) lastWait.trueMs = now() - at;
      if (delayed.share > 0 && random.next() < delayed.share) await pass(between(delayed.ms));
      const sentAt = now();
      const feedback = await send();
      const headAt = now();
      await pass(between(toldLateMs));
      const lesson = { feedback, sentAgoMs: now() - sentAt, headAgoMs: now() - headAt };
      if (feedback.throttle === null) {
        lease.settle(succeeded, lesson);
        return ticket.leave();
      }
      const closeMs = feedback.throttle.waitMs ?? hintlessMs;
      lease.settle({ kind: 'throttled', closeMs, requeue: true, sleepMs: 0 }, lesson);
    }
  };

  for (let n = 0; n < usedBefore; n += 1) ask();
  if (closed !== undefined) void pass(closed[0]).then(() => quota.close(clockMs + closed[1]));
  await toEnd(Promise.all(calls.map(call)));
  return { arrivals, lastWait };
}

// What upstreams say of how they count

type Windows = readonly [shortest: WindowState, ...others: WindowState[]];

export interface Dialect {
  readonly kind: UpstreamKind;
  /** Fields of a response made at `at`, by the upstream's clock; `waitMs` > 0: of a refusal. */
  fields(windows: Windows, waitMs: number, at: number): (readonly [name: string, value: string])[];
  readonly refusal?: string;
}

export const remaining = ({ limit, used }: WindowState): string => String(limit - used);

/** Says nothing but when to come back, in whole seconds. */
export const silent: Dialect = {
  kind: 'generic',
  fields: (_, waitMs) => (waitMs > 0 ? [['retry-after', String(Math.ceil(waitMs / 1000))]] : []),
};

/** `x-ratelimit-*`, the reset in whole seconds, rounded up. */
export const wholeSeconds: Dialect = {
  kind: 'generic',
  fields: (windows, waitMs, at) => [
    ['x-ratelimit-limit', String(windows[0].limit)],
    ['x-ratelimit-remaining', remaining(windows[0])],
    ['x-ratelimit-reset', String(Math.ceil(windows[0].resetMs / 1000))],
    ...silent.fields(windows, waitMs, at),
  ],
};

/** As OpenAI writes it: the reset says when the bucket is full. */
export const model: Dialect = {
  kind: 'language-model',
  refusal: '{"error":{"type":"requests","code":"rate_limit_exceeded","message":""}}',
  fields: ([state], waitMs) => [
    ['x-ratelimit-limit-requests', String(state.limit)],
    ['x-ratelimit-remaining-requests', remaining(state)],
    ['x-ratelimit-reset-requests', goDuration(state.resetMs)],
    ...(waitMs > 0 ? [['retry-after-ms', String(Math.ceil(waitMs))] as const] : []),
  ],
};

/** `used/limit`, rounded up. */
export const commerce: Dialect = {
  kind: 'commerce',
  fields: (windows, waitMs, at) => [
    ['x-shopify-shop-api-call-limit', `${windows[0].used}/${windows[0].limit}`],
    ...silent.fields(windows, waitMs, at),
  ],
};
