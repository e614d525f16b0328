/**
 * The refusals of admission and the times they name. Does not own: deciding that a call is refused. Keeps: no refusal
 * names a time before the call could leave, nor one within a second where nothing but the line holds the call (`minRetryMs`).
 */
import { Refusal, type HeldBy, type RefusalCode } from '../errors.ts';
import type { AdmissionReply, Hold } from '../limiter/limiter.ts';
import type { AdmissionRequest } from './ticket.ts';

/**
 * Where the time to try again is only expected (a line that does not move is expected to move at once), clients are not
 * invited sooner than this: `retry-after-ms: 1` would make SDKs ask a thousand times a second. Milliseconds.
 */
const minRetryMs = 1_000;

/** Holds that last until a day's quota is there again. */
const isOfDay = (heldBy: HeldBy): boolean => heldBy === 'ceiling_day' || heldBy === 'upstream_day';

/** The call cannot leave within its wait. `maxWaitIfAskedMs`: the longest wait that it could ask for. */
export const waitTooLong = (
  { waitMs, heldBy }: Hold,
  { maxWaitIfAskedMs }: Pick<AdmissionRequest, 'maxWaitIfAskedMs'>,
): Refusal =>
  new Refusal(isOfDay(heldBy) ? 'day_quota_exhausted' : 'wait_too_long', {
    retryInMs: waitMs,
    heldBy,
    detail: `${cause[heldBy]} ${advice(waitMs, maxWaitIfAskedMs)}`,
  });

/** As `waitTooLong`, for a call that has waited: a longer wait is nothing that its client can still ask for. */
export const tooLate = ({ waitMs, heldBy }: Hold): Refusal =>
  new Refusal(isOfDay(heldBy) ? 'day_quota_exhausted' : 'wait_expired', {
    retryInMs: waitMs,
    heldBy,
    detail: `${cause[heldBy]} The call has waited, and could leave in ${Math.ceil(waitMs / 1_000)} s, which is longer than it may wait yet.`,
  });

/** As `waitTooLong`, for a call whose position is kept until its client comes back with the ticket. */
export const reserved = (code: RefusalCode, { waitMs, heldBy }: Hold, ticket: string): Refusal =>
  new Refusal(code, {
    retryInMs: waitMs,
    heldBy,
    ticket,
    detail: `${cause[heldBy]} The call can leave in ${Math.ceil(waitMs / 1_000)} s: send it again then, with its Sluice-Ticket.`,
  });

/** What holds the call, as a sentence for its caller. */
const cause: Readonly<Record<HeldBy, string>> = {
  ceiling_minute: 'The workspace has used up its requests per minute on this upstream.',
  ceiling_day: 'The workspace has used up its requests per day on this upstream.',
  closed:
    'The upstream has named a time before which nothing may be sent; where it is wrong, the operator can lift it (`sluice open`).',
  requests: "The upstream's quota of requests is used up.",
  tokens: "The upstream's quota of tokens is used up.",
  cost: "The upstream's quota of cost points is used up.",
  upstream_day: "The upstream's quota of the day is used up.",
  serialized:
    'As many calls are in flight as may be: `maxInFlight` of this workspace (1 to a shop unless configured), or `maxInFlightTotal` of all.',
  queue: 'Other calls are waiting.',
  paused: 'An operator has paused this upstream.',
  credential: 'The credential for this upstream has ended, and the next one is awaited.',
};

/** States the wait that the call would need, and the `Prefer` field that asks for it or, where such a wait is not allowed, what forbids it. */
function advice(waitMs: number, maxWaitIfAskedMs: number): string {
  const seconds = Math.ceil(waitMs / 1_000);
  const known = `The call could leave in ${seconds} s, which is longer than it may wait.`;
  return seconds * 1_000 <= maxWaitIfAskedMs
    ? `${known} Prefer: wait=${seconds} lets it wait.`
    : `${known} It may wait for ${Math.round(maxWaitIfAskedMs / 1_000)} s at most (its client's timeout, or the operator's \`maxWaitCeilingSeconds\`).`;
}

/** The call's wait is over; `waitMs` is what it would have had to wait yet, as far as known. */
export const expired = (waitMs: number, heldBy: HeldBy): Refusal =>
  new Refusal('wait_expired', {
    retryInMs: Math.max(minRetryMs, waitMs),
    heldBy,
    detail: `The call waited as long as it may. ${cause[heldBy]}`,
  });

/** The process ends before the call would leave. */
export const draining = (): Refusal => new Refusal('draining', { retryInMs: minRetryMs });

const queueFull =
  'As many calls of the workspace wait for this upstream as may: send fewer at once, or ask the operator to raise `maxQueued`.';

/** The limiter's refusal of an arriving call. */
export function refusedBy(
  reply: Extract<AdmissionReply, { kind: 'refused' }>,
  request: Pick<AdmissionRequest, 'maxWaitIfAskedMs'>,
): Refusal {
  if (reply.reason === 'wait_too_long') {
    return waitTooLong({ waitMs: reply.retryInMs, heldBy: reply.heldBy }, request);
  }
  const retryInMs = Math.max(minRetryMs, reply.retryInMs);
  return reply.reason === 'queue_full'
    ? new Refusal('queue_full', { retryInMs, heldBy: reply.heldBy, detail: queueFull })
    : new Refusal('limiter_unavailable', { retryInMs });
}
