/**
 * Refuses a newcomer that cannot be sent within its wait: the limiter has just queued or refused the call. The bucket
 * forecasts its own wait, the ceiling the time of its slot, and the later of the two counts.
 *
 * Owns: asking the ceiling for a newcomer. Does not own: calls that wait already (`early-rejection.ts`).
 * Keeps: a newcomer that cannot make it is refused at once with the true time (13).
 */
import type { Refusal } from '../errors.ts';
import type { CeilingHold } from '../limiter/ceilings.ts';
import type { AdmissionReply } from '../limiter/limiter.ts';
import type { EarlyRejection } from './early-rejection.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { refusedBy, waitTooLong } from './refusals.ts';

type Ungranted = Exclude<AdmissionReply, { kind: 'granted' }>;
type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: CeilingHold = { waitMs: 0, heldBy: 'ceiling_minute' };

export class NewcomerCheck {
  readonly #parts: AdmissionParts;
  readonly #rotation: LaneRotation;
  readonly #rejection: EarlyRejection;

  constructor(parts: AdmissionParts, rotation: LaneRotation, rejection: EarlyRejection) {
    this.#parts = parts;
    this.#rotation = rotation;
    this.#rejection = rejection;
  }

  /**
   * The refusal of a newcomer; `null` = it may wait.
   * @param askedAt when the limiter was asked, monotonic milliseconds.
   */
  async newcomerRefusal(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Refusal | null> {
    const byCeiling = await this.#ceilingHold(call, reply, askedAt);
    if (reply.kind === 'refused') return laterOf(call, reply, byCeiling);
    if (byCeiling.waitMs > this.#withinMs(call)) return waitTooLong(byCeiling, call.request);
    if (call.lane.waiting > reply.ahead) this.#rejection.onOvertaken(call);
    return null;
  }

  /** How long the ceiling holds a newcomer that waits, or would have waited. */
  async #ceilingHold(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<CeilingHold> {
    const { ceiling } = call.request;
    if (!('ahead' in reply) || (ceiling.perMinute === null && ceiling.perDay === null)) return notHeld;
    if (reply.kind === 'queued') this.#rotation.onPosition(call, reply.ahead);
    const position = this.#rotation.positionOf(call, reply.ahead);
    const { clock, ceilings } = this.#parts;
    const question = { agoMs: clock.monotonic() - askedAt, withinMs: this.#withinMs(call) };
    const [hold = notHeld] = await ceilings.forecast(ceiling, [position], question);
    // A call that has ended meanwhile neither waits nor leaves any more, which would end the scans of its ceiling.
    if (!call.isGone) this.#rejection.onForecastRead(ceiling.key);
    return hold;
  }

  /** How long the call may be held: what is left of its own wait, without the time that its deadline adds for stores' replies. */
  #withinMs({ request, deadline }: QueuedCall): number {
    return Math.min(request.maxWaitMs, deadline - this.#parts.clock.monotonic());
  }
}

/** The refusal with the later time: the limiter's, or that of the ceiling's slot. */
function laterOf({ request }: QueuedCall, reply: Refused, byCeiling: CeilingHold): Refusal {
  if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, request);
  return reply.reason === 'wait_too_long'
    ? waitTooLong(byCeiling, request)
    : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, request);
}
