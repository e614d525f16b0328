/** The same arrivals twice on virtual time before the same upstream: held by limits, and only observed. */
import { QueuedCall } from '../../src/admission/queued-call.ts';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Feedback, Reckoned } from '../../src/call.ts';
import { resend, type ResendHistory } from '../../src/dispatch/resend.policy.ts';
import { Refusal } from '../../src/errors.ts';
import { bucketKey, ticketId } from '../../src/ids.ts';
import { callOf, embeddedQueue } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { Chance } from './chance.ts';
import { sentCallOf } from './driver.ts';
import { bucketPlan } from './plan-buckets.ts';
import { callPlans } from './plan-calls.ts';
import type { BucketPlan, CallPlan, WorkspacePlan } from './plan.ts';
import { bucketSettingOf } from './rules.ts';
import { Upstream } from './upstream.ts';

/** Calls to one bucket of an upstream that nobody else uses, and that does what it states. */
export interface Arrivals {
  readonly seed: number;
  readonly bucket: BucketPlan;
  readonly workspaces: readonly WorkspacePlan[];
  readonly calls: readonly CallPlan[];
}

export function arrivalsOf(seed: number): Arrivals {
  const chance = new Chance(seed ^ 0x0b5e);
  const bucket = bucketPlan(chance, 0, true);
  const spanMs = chance.pick([200, 3_000, 20_000, 70_000]);
  const workspaces = Array.from({ length: chance.whole(1, 3) }, (_, index) => ({
    name: `w${index}`,
    perMinute: chance.pick([null, null, null, 8, 20, 60]),
    perDay: null,
    maxQueued: chance.pick([4, 1_000, 1_000]),
    revokedAt: Infinity,
  }));
  const cap = chance.pick([null, null, null, 1, 2]);
  const lanes = workspaces.map(({ name }) => ({
    key: `${name}-lane`,
    workspace: name,
    bucket: bucket.key,
    weight: chance.pick([1, 1, 2]),
    maxInFlight: cap,
  }));
  const calls = callPlans(chance, { lanes, buckets: [bucket], spanMs, calm: true, crowd: false });
  return {
    seed,
    bucket,
    workspaces,
    calls: calls.map((call) => ({ ...call, fate: 'answered', leavesAt: Infinity, chargedShare: 1 })),
  };
}

export type Fate = { readonly kind: 'sent'; readonly waitMs: number } | { readonly kind: 'refused' };

/** @param askAfterMs when the scheduler is asked what it expects of a call that still waits then, milliseconds after it came */
export async function courseOf(
  arrivals: Arrivals,
  mode: AdmissionRequest['mode'],
  askAfterMs: ReadonlyMap<string, number> = new Map(),
) {
  const { bucket, workspaces, calls } = arrivals;
  const clock = new FakeClock();
  const upstream = new Upstream(bucket);
  const fates = new Map<string, Fate>();
  /** What is reckoned of calls in the end, where that differs from what the response said. */
  const reckoned = new Map<string, Fate>();
  /** When each call got its response, milliseconds after it came. */
  const tookMs = new Map<string, number>();
  /** What the scheduler expected of calls that limits held, as long after they had come as was asked for. */
  const expected = new Map<string, Fate>();
  /** Calls that the upstream refused, and that were passed on. */
  let throttled = 0;
  const { queue, limiter } = embeddedQueue({
    clock,
    onReckoned: ({ admission }, said) => void reckoned.set(admission.ticket, fateOf(said)),
  });
  const enter = ({ id, lane, urgency, callClass, costs, maxWaitMs }: CallPlan): Promise<Ticket> => {
    const { perMinute = null, maxQueued = 1_000 } =
      workspaces.find(({ name }) => name === lane.workspace) ?? {};
    const { workspace, weight, maxInFlight } = lane;
    const asked = { urgency, callClass, costs, maxWaitMs, maxQueued, maxWaitIfAskedMs: Infinity, mode };
    const ofLane = { bucket: lane.bucket, lane: lane.key, workspace, weight, maxInFlight, perMinute };
    return queue.enter(...callOf(clock, id, { ...asked, ...ofLane, setting: bucketSettingOf(bucket) }));
  };
  const send = (plan: CallPlan): Promise<Feedback> =>
    new Promise((resolve) => {
      clock.outside(clock.monotonic() + 1, () => {
        const verdict = upstream.arrive(plan, clock.monotonic());
        const inMs = verdict.kind === 'refused' ? 1 : plan.serviceMs;
        clock.arrives(clock.monotonic() + inMs, () => {
          if (verdict.kind === 'refused') return resolve(verdict.feedback);
          const points = (plan.costs.cost ?? 0) > 0;
          resolve(points ? upstream.finish(plan, clock.monotonic()) : verdict.feedback());
        });
      });
    });
  const ask = async (plan: CallPlan, ticket: Ticket, cameAt: number): Promise<void> => {
    const now = clock.monotonic();
    const usualMs = plan.serviceMs;
    const forecast = await limiter.forecast(bucketKey(plan.lane.bucket), ticketId(plan.id), usualMs);
    if (forecast === null || fates.has(plan.id)) return;
    const ofCeiling = ticket instanceof QueuedCall ? (ticket.slotExpectedAt ?? now) - now : 0;
    expected.set(plan.id, { kind: 'sent', waitMs: now - cameAt + Math.max(forecast.waitMs, ofCeiling) });
  };
  const drive = async (plan: CallPlan): Promise<void> => {
    const cameAt = clock.monotonic();
    const ticket = await enter(plan);
    const askMs = askAfterMs.get(plan.id);
    if (askMs !== undefined) clock.arrives(cameAt + askMs, () => void ask(plan, ticket, cameAt));
    let history: ResendHistory = {};
    let waitedMs: number | null = null;
    try {
      for (;;) {
        const lease: Lease = await ticket.whenGranted();
        const sentAt = clock.monotonic();
        waitedMs ??= sentAt - cameAt;
        const feedback = await send(plan);
        const { throttle } = feedback;
        const headAt = clock.monotonic();
        const lesson = { feedback, sentAgoMs: headAt - sentAt, headAgoMs: 0 };
        const status = throttle === null ? 200 : 429;
        const decision = resend({
          kind: 'generic',
          call: { ...sentCallOf(plan), idempotent: false },
          outcome: { kind: 'answered', status, throttle, isCredentialRenewed: false },
          history,
          passesThrottles: mode === 'observe',
          remainingMs: ticket.remainingMs(),
        });
        if (decision.kind === 'resend') {
          ({ history } = decision);
          const { closeMs, notBeforeMs } = decision;
          const sleepMs = closeMs >= notBeforeMs ? 0 : notBeforeMs;
          lease.settle({ kind: 'throttled', closeMs, requeue: true, sleepMs }, lesson);
          continue;
        }
        if (throttle !== null) throttled += 1;
        const would = await ticket.would();
        fates.set(plan.id, would === null ? { kind: 'sent', waitMs: waitedMs } : fateOf(would));
        tookMs.set(plan.id, headAt - cameAt);
        const spent = feedback.actualCost === undefined ? null : { cost: feedback.actualCost };
        const isCapped = plan.lane.maxInFlight !== null && plan.bodyMs > 0 && throttle === null;
        if (isCapped) {
          lease.learn(lesson);
          clock.arrives(headAt + plan.bodyMs, () => lease.settle({ kind: 'succeeded', spent }, null));
        } else if (decision.closeMs > 0) {
          lease.settle({ kind: 'throttled', closeMs: decision.closeMs, requeue: false, sleepMs: 0 }, lesson);
        } else lease.settle({ kind: 'succeeded', spent }, lesson);
        return;
      }
    } finally {
      ticket.leave();
    }
  };
  for (const plan of calls)
    clock.arrives(plan.at, () => {
      drive(plan).catch((failure: unknown) => {
        if (!(failure instanceof Refusal)) throw failure;
        fates.set(plan.id, { kind: 'refused' });
      });
    });
  await clock.run(3_600_000);
  await limiter.close();
  return { fates, reckoned, tookMs, expected, throttled };
}

const fateOf = (said: Reckoned): Fate =>
  said.kind === 'refuse' ? { kind: 'refused' } : { kind: 'sent', waitMs: said.waitMs };

/** Whether what was said of a call is what became of it: within a tenth, or 150 ms. */
export function isTrue(said: Fate | undefined, became: Fate): boolean {
  if (said === undefined || said.kind !== became.kind) return false;
  if (said.kind === 'refused' || became.kind === 'refused') return true;
  return Math.abs(said.waitMs - became.waitMs) <= Math.max(150, became.waitMs / 10);
}
