/**
 * Refuses waiting calls of a bucket, or a lane of it, that sends nothing until after their deadlines.
 *
 * Owns: which standstills have not been judged yet. Does not own: with which words a call is refused.
 * Keeps: one scan judges all standstills that became known since the last one, however many attempts end at once.
 */
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import type { AdmissionParts } from './parts.ts';
import type { QueuedCall } from './queued-call.ts';
import { ScanThrottle } from './scan-throttle.ts';
import type { WaitRegistry } from './wait-registry.ts';

/** Until when a bucket sends nothing (`null` = it sends), and until when single lanes of it do not. Monotonic milliseconds. */
interface Standstill {
  until: number | null;
  readonly lanes: Map<LaneKey, number>;
}

/** What becomes of a waiting call that is held for `waitMs`, which is too long for it. */
type OnLate = (call: QueuedCall, waitMs: number) => void;

export class StandstillScan {
  readonly #parts: AdmissionParts;
  readonly #registry: WaitRegistry;
  readonly #onLate: OnLate;
  #standstills = new Map<BucketKey, Standstill>();
  readonly #throttle: ScanThrottle;

  constructor(parts: AdmissionParts, registry: WaitRegistry, onLate: OnLate) {
    this.#parts = parts;
    this.#registry = registry;
    this.#onLate = onLate;
    this.#throttle = new ScanThrottle(parts.clock, () => this.#run());
  }

  /** A bucket (`lane` is `null`), or one lane of it, sends nothing for this long. */
  add(bucket: BucketKey, lane: LaneKey | null, stillMs: number): void {
    const until = this.#parts.clock.monotonic() + stillMs;
    let still = this.#standstills.get(bucket);
    if (still === undefined) this.#standstills.set(bucket, (still = { until: null, lanes: new Map() }));
    if (lane === null) still.until = later(still.until, until);
    else still.lanes.set(lane, later(still.lanes.get(lane) ?? null, until));
    this.#throttle.request();
  }

  #run(): number {
    const now = this.#parts.clock.monotonic();
    const standstills = this.#standstills;
    this.#standstills = new Map();
    let visits = 0;
    for (const call of this.#registry.all()) {
      visits += 1;
      if (!call.isWaiting) continue;
      const { bucket, lane } = call.request.admission;
      const still = standstills.get(bucket);
      if (still === undefined) continue;
      const ofLane = still.lanes.get(lane) ?? null;
      const until = ofLane === null ? still.until : later(still.until, ofLane);
      if (until !== null && until > call.deadline) this.#onLate(call, until - now);
    }
    return visits;
  }
}

/** The later of two times, where there is one already. */
const later = (known: number | null, time: number): number => (known === null ? time : Math.max(known, time));
