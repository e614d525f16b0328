/** The queue over the embedded stores on virtual time, and what becomes of the calls that a test enters. */
import type { CallSettings } from '../../src/admission/buckets.policy.ts';
import type { AdmissionRequest, Lease, Ticket } from '../../src/admission/ticket.ts';
import { Refusal } from '../../src/errors.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { BucketSetting } from '../../src/limiter/limiter.ts';
import {
  callOf,
  embeddedQueue,
  settingsOf,
  type CallOptions,
  type QueueParts,
} from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { shiftedClock } from '../support/shifted-clock.ts';
import { withMethods } from '../support/with-methods.ts';

export const succeeded = { kind: 'succeeded', spent: null } as const;
export const dropped = { kind: 'dropped' } as const;
/** A refusal of the upstream that closes the bucket, and lets its lane rest. */
export const throttled = ({ closeMs = 0, requeue = false, sleepMs = 0 }) =>
  ({ kind: 'throttled', closeMs, requeue, sleepMs }) as const;
export const metered = (limit: number, windowMs: number, counts?: 'rolling'): BucketSetting => ({
  meters: [{ meter: 'requests', limit, windowMs, ...(counts && { counts }) }],
  learn: true,
  probe: 0,
});
export const names = (count: number): string[] => Array.from({ length: count }, (_, at) => `c${at}`);

interface WorldOptions extends Pick<QueueParts, 'onReckoned'> {
  /** What the clock of the process shows at the beginning. */
  readonly originMs?: number;
  /** Of each call, where it says nothing else. */
  readonly defaults?: CallOptions;
  /** What is entered in the place of each call. */
  readonly watched?: (made: AdmissionRequest) => AdmissionRequest;
  /** How long the n-th reply of the ceilings takes to arrive; left out, no time. */
  readonly replyMs?: (n: number) => number;
}

export function world({ originMs = 0, defaults = {}, watched, replyMs, ...parts }: WorldOptions = {}) {
  const clock = new FakeClock();
  const own = shiftedClock(clock, originMs);
  /** The outcome of each call, in the order of the decisions: its name, and behind it the code of its refusal. */
  const story: string[] = [];
  const refusals = new Map<string, Refusal['details']>();
  const leases = new Map<string, Lease>();
  /** When each call got its lease, since the beginning. */
  const sentAt = new Map<string, number>();
  const gone = new Map<string, AbortController>();
  const onFailure = (failure: unknown): void => void story.push(`bug ${String(failure)}`);
  const ceilings = new CeilingStore(own);
  let asked = 0;
  const slow = withMethods<Ceilings>(ceilings, {
    async take(...words) {
      const replies = await ceilings.take(...words);
      await new Promise<void>((resolve) => void clock.after(replyMs?.(asked++) ?? 0, resolve));
      return replies;
    },
  });
  const { queue, limiter } = embeddedQueue({
    clock: own,
    ceilings: replyMs ? slow : ceilings,
    onFailure,
    ...parts,
  });
  const ticketOf = (id: string, options: CallOptions = {}): Promise<Ticket> => {
    const leaves = new AbortController();
    gone.set(id, leaves);
    const [made, signal] = callOf(own, id, { clientGone: leaves.signal, ...defaults, ...options });
    return queue.enter(watched?.(made) ?? made, signal);
  };
  const follow = async (id: string, options: CallOptions): Promise<void> => {
    try {
      const ticket = await ticketOf(id, options);
      leases.set(id, await ticket.whenGranted());
      sentAt.set(id, clock.monotonic());
      story.push(id);
    } catch (failure) {
      if (failure instanceof Refusal) refusals.set(id, failure.details);
      story.push(`${id} ${failure instanceof Refusal ? failure.code : String(failure)}`);
    }
  };
  return {
    clock,
    queue,
    limiter,
    ceilings,
    story,
    refusals,
    leases,
    sentAt,
    gone,
    /** Enters a call; `story` says what becomes of it. */
    enter: (id: string, options: CallOptions = {}): void => void follow(id, options),
    /** A call whose ticket the test itself holds. */
    ticketOf,
    settle: (
      id: string,
      ...[how, lesson = null]: [Parameters<Lease['settle']>[0], Parameters<Lease['settle']>[1]?]
    ) => leases.get(id)?.settle(how, lesson),
    /** Every call goes on under these settings. */
    reload: (changes: Partial<CallSettings>, where: (of: AdmissionRequest) => boolean = () => true): void =>
      queue.reload((of) => (where(of) ? settingsOf(of, changes) : null)),
    /** Lets this many milliseconds pass; 0: what needs no time. */
    async pass(ms: number): Promise<void> {
      const until = clock.monotonic() + ms;
      clock.outside(until, () => {});
      await clock.run(until);
    },
  };
}
