/**
 * Where calls stand among those of all replicas: positions follow Redis' clock. Owns: the translation of this process'
 * times, admissions and lessons. Does not own: the estimate of Redis' clock (`store-clock.ts`).
 */
import type { Clock } from '../../clock.ts';
import type { StoredAdmission } from '../policy/bucket-events.ts';
import { orderUnit, sequencePerMs } from '../policy/bucket-state.policy.ts';
import type { TimedLesson } from '../policy/lessons.policy.ts';
import type { Admission, Lesson } from '../limiter.ts';
import type { Positioned, ReplicaTicket } from './replica-calls.ts';
import type { StoreClock } from './store-clock.ts';

export class ReplicaPositions {
  readonly #clock: Clock;
  readonly #storeClock: StoreClock;
  readonly #leaseMs: number;

  constructor(clock: Clock, storeClock: StoreClock, leaseMs: number) {
    this.#clock = clock;
    this.#storeClock = storeClock;
    this.#leaseMs = leaseMs;
  }

  /** Order of a call that arrived at this monotonic time. Before the first reply this process' own wall clock has to do. */
  orderAt(urgency: number, at: number): number {
    return urgency * orderUnit + Math.floor(this.#timeAt(at) * sequencePerMs);
  }

  /** What a response teaches, with its times on Redis' clock: a lesson that is sent late is as old as it was. */
  timed({ feedback, sentAgoMs, headAgoMs }: Lesson): TimedLesson {
    const now = this.#clock.monotonic();
    return { feedback, sentAt: this.#timeAt(now - sentAgoMs), headAt: this.#timeAt(now - headAgoMs) };
  }

  #timeAt(at: number): number {
    return this.#storeClock.at(at) ?? this.#clock.now() + at - this.#clock.monotonic();
  }

  /** The admission as Redis takes it: with its arrival on Redis' clock. */
  stored(admission: Admission): StoredAdmission {
    const { position } = admission;
    const leaseMs = this.#leaseMs;
    if (position.kind === 'kept') return { ...admission, leaseMs, position };
    return { ...admission, leaseMs, position: { kind: 'arrival', at: this.#storeClock.at(position.at) } };
  }

  /** The ticket's admission at the position that Redis assigned, or at that of its arrival. */
  positioned({ admission, order, arrivedAt }: ReplicaTicket): Positioned {
    return {
      ...admission,
      position: { kind: 'kept', order: order ?? this.orderAt(admission.urgency, arrivedAt) },
    };
  }

  /** The admission of a call that no replica has entered yet, with its position on Redis' clock. */
  withPosition(admission: Admission): Positioned {
    const { position, urgency } = admission;
    if (position.kind === 'kept') return { ...admission, position };
    return { ...admission, position: { kind: 'kept', order: this.orderAt(urgency, position.at) } };
  }
}
