/**
 * Finds waiting calls whose bucket, or lane of it, sends nothing until after their deadlines, and reports each to `onLate`,
 * which refuses the call.
 *
 * Owns: the standstills that no scan has applied yet. Does not own: the refusal itself (`early-refusal.ts`).
 * Keeps: one scan applies all standstills that became known since the last scan, however many attempts end at once.
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

/** Called for a waiting call that is held for `waitMs`, which ends after its deadline. */
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
  add(bucket: BucketKey, lane: LaneKey | null, standstillMs: number): void {
    const until = this.#parts.clock.monotonic() + standstillMs;
    let standstill = this.#standstills.get(bucket);
    if (standstill === undefined) {
      standstill = { until: null, lanes: new Map() };
      this.#standstills.set(bucket, standstill);
    }
    if (lane === null) standstill.until = later(standstill.until, until);
    else standstill.lanes.set(lane, later(standstill.lanes.get(lane) ?? null, until));
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
      const standstill = standstills.get(bucket);
      if (standstill === undefined) continue;
      const laneUntil = standstill.lanes.get(lane) ?? null;
      const until = laneUntil === null ? standstill.until : later(standstill.until, laneUntil);
      if (until !== null && until > call.deadline) this.#onLate(call, until - now);
    }
    return visits;
  }
}

/** The later of the two times; `known` is `null` when there is none yet. */
const later = (known: number | null, time: number): number => (known === null ? time : Math.max(known, time));
