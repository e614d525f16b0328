/**
 * Refuses an arriving call that cannot be sent within its wait: a call that the limiter has just queued or refused. The bucket
 * forecasts how long the call waits for a grant, the ceiling how long for a slot, and the longer of the two counts.
 *
 * Owns: asking the ceiling for an arriving call. Does not own: calls that wait already (`late-refusals.ts`), granted calls
 * (`ceiling-gate.ts`).
 * Keeps: an arriving call that cannot be sent within its wait is refused at once with the true time (13).
 */
import type { Refusal } from '../errors.ts';
import type { CeilingHold } from '../limiter/ceilings.ts';
import { returnGraceMs, type AdmissionReply } from '../limiter/limiter.ts';
import type { LateRefusals } from './late-refusals.ts';
import type { LaneRotation } from './lane-rotation.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { refusedBy, waitTooLong } from './refusals.ts';

type Ungranted = Exclude<AdmissionReply, { kind: 'granted' }>;
type Refused = Extract<AdmissionReply, { kind: 'refused' }>;

const notHeld: CeilingHold = { waitMs: 0, heldBy: 'ceiling_minute' };

export class ArrivingCallCheck {
  readonly #parts: AdmissionParts;
  readonly #rotation: LaneRotation;
  readonly #lateRefusals: LateRefusals;

  constructor(parts: AdmissionParts, rotation: LaneRotation, lateRefusals: LateRefusals) {
    this.#parts = parts;
    this.#rotation = rotation;
    this.#lateRefusals = lateRefusals;
  }

  /**
   * The refusal of an arriving call; `null` = it may wait.
   * @param askedAt when the limiter was asked, monotonic milliseconds.
   */
  async refusalOf(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<Refusal | null> {
    const byCeiling = await this.#ceilingHold(call, reply, askedAt);
    if (reply.kind === 'refused') return laterOf(call, reply, byCeiling);
    if (byCeiling.waitMs > this.#withinMs(call)) return waitTooLong(byCeiling, call.request);
    if (call.lane.waiting > reply.ahead) this.#lateRefusals.onOvertaken(call);
    return null;
  }

  /** How long the ceiling holds an arriving call that waits, or would have waited. */
  async #ceilingHold(call: QueuedCall, reply: Ungranted, askedAt: number): Promise<CeilingHold> {
    const { ceiling } = call.request;
    if (!('ahead' in reply) || (ceiling.perMinute === null && ceiling.perDay === null)) return notHeld;
    if (reply.kind === 'queued') this.#rotation.onPosition(call, reply.ahead);
    const position = this.#rotation.positionOf(call, reply.ahead);
    const { clock, ceilings } = this.#parts;
    const [hold = notHeld] = await ceilings.forecast(ceiling, [position], clock.monotonic() - askedAt);
    call.slotExpectedAt = clock.monotonic() + hold.waitMs;
    // A call that ended meanwhile must not start sweeps of its ceiling.
    if (!call.isGone) this.#lateRefusals.onForecastRead(ceiling.key);
    return hold;
  }

  /** How long the call may be held: what is left of its own wait, without the time that its deadline adds for stores' replies. */
  #withinMs({ request, deadline }: QueuedCall): number {
    const graceMs = request.admission.reservation === undefined ? 0 : returnGraceMs;
    return Math.min(Math.max(request.maxWaitMs, graceMs), deadline - this.#parts.clock.monotonic());
  }
}

/** The refusal with the later time: the limiter's, or that of the ceiling's slot. */
function laterOf({ request }: QueuedCall, reply: Refused, byCeiling: CeilingHold): Refusal {
  if (byCeiling.waitMs <= reply.retryInMs) return refusedBy(reply, request);
  return reply.reason === 'wait_too_long'
    ? waitTooLong(byCeiling, request)
    : refusedBy({ ...reply, retryInMs: byCeiling.waitMs }, request);
}
