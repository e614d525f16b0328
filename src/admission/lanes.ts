/**
 * What this process knows of each lane beside the limiter: plain data, of which each part is written by one owner (`ceiling-gate.ts`,
 * `wait-causes.ts`), and the registry that finds it by bucket and lane.
 *
 * Does not own: what is decided by it. Keeps: a lane that a call is in is not forgotten.
 */
import type { WaitCause } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { CeilingKey } from '../ids.ts';
import type { CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import type { TakeReply } from '../limiter/ceiling-store.ts';
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import type { AdmissionRequest, BucketLane } from './ticket.ts';

/** Lanes unused for this long are forgotten when there are more than `maxLanes`. Milliseconds. */
const retentionMs = 120_000;
const maxLanes = 10_000;

/** The charging of one lane's grants: in order, and none behind a refused one. */
interface GateState {
  /** Resolves when the latest grant has its slot, or went back. */
  tail: Promise<void>;
  /** Grants that went back, so far. */
  returned: number;
}

/** Milliseconds by cause; absent = 0. */
export type MsByCause = Readonly<Partial<Record<WaitCause, number>>>;

/** What has held the first call of a lane while calls waited in it. */
export interface CauseTimeline {
  /** What holds it since then (monotonic milliseconds); `null` = no call waits, or it is not known yet. */
  readonly present: { readonly cause: WaitCause; readonly since: number } | null;
  readonly past: MsByCause;
}

/** What holds the lane. */
interface CausesState {
  timeline: CauseTimeline;
  /** Calls that wait and have no grant under way from the start. */
  calls: number;
  /** What its last grant was given back for, and until about when that holds, monotonic milliseconds; `null` = nothing. */
  outside: { readonly cause: 'paused' | 'credential'; readonly until: number } | null;
}

/** How full the ceiling of a lane was when it last asked for a slot. */
export interface CeilingUse {
  /** Used shares, 0 to 1; `null` = there is no such ceiling. */
  readonly minute: number | null;
  readonly day: number | null;
  /** Monotonic milliseconds. */
  readonly at: number;
}

/** Calls that entered a lane: half of them count after half an hour, so that the number tells of about the last hour. */
export interface Entered {
  calls: number;
  /** When `calls` was last halved, monotonic milliseconds. */
  since: number;
}

const halfLifeMs = 1_800_000;

/** Calls that entered the lane, as they count now. */
export function enteredUntil({ entered }: LaneView, now: number): number {
  const halvings = Math.floor((now - entered.since) / halfLifeMs);
  if (halvings > 0) {
    entered.calls /= 2 ** halvings;
    entered.since += halvings * halfLifeMs;
  }
  return entered.calls;
}

export interface LaneView {
  readonly bucket: BucketKey;
  readonly key: LaneKey;
  /** Of its latest call: the upstream, by name, and the ceiling. */
  upstream: string;
  ceiling: CeilingKey;
  /** Its latest call, under the settings that this process stated last for the lane. */
  latest: AdmissionRequest;
  /** Calls of this process that are in admission with it, and those of them whose callers wait. */
  calls: number;
  waiting: number;
  usedAt: number;
  readonly entered: Entered;
  readonly gate: GateState;
  /** When a call of the lane last got a slot, monotonic milliseconds; `null` = never. */
  servedAt: number | null;
  readonly causes: CausesState;
  /**
   * Until then an arriving call asks for its slot of the ceiling before it is granted: the latest call was granted at once and found many
   * slots left. Monotonic milliseconds.
   */
  asksAheadUntil: number;
  /** `null` = it never asked. */
  ceilingUse: CeilingUse | null;
}

export class Lanes {
  readonly #clock: Clock;
  readonly #lanes = new Map<string, LaneView>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** All lanes that are known. */
  all(): Iterable<LaneView> {
    return this.#lanes.values();
  }

  /** The view of the lane of a call, which is used now. */
  of(call: AdmissionRequest): LaneView {
    const key = keyOf(call.admission);
    const usedAt = this.#clock.monotonic();
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      lane = newLane(call, usedAt);
      this.#lanes.set(key, lane);
      if (this.#lanes.size > maxLanes) this.#forgetUnused(usedAt);
    }
    lane.usedAt = usedAt;
    lane.upstream = call.subject.upstream;
    lane.ceiling = call.ceiling.key;
    lane.latest = call;
    return lane;
  }

  #forgetUnused(now: number): void {
    for (const [key, { calls, usedAt }] of this.#lanes)
      if (calls === 0 && usedAt + retentionMs < now) this.#lanes.delete(key);
  }
}

const keyOf = ({ bucket, lane }: BucketLane): string => `${bucket}/${lane}`;

const newLane = (call: AdmissionRequest, usedAt: number): LaneView => ({
  bucket: call.admission.bucket,
  key: call.admission.lane,
  upstream: call.subject.upstream,
  ceiling: call.ceiling.key,
  latest: call,
  calls: 0,
  waiting: 0,
  usedAt,
  entered: { calls: 0, since: usedAt },
  gate: { tail: Promise.resolve(), returned: 0 },
  servedAt: null,
  causes: { timeline: { present: null, past: {} }, calls: 0, outside: null },
  asksAheadUntil: -Infinity,
  ceilingUse: null,
});

/** How full a ceiling is by its reply. */
export function useOf({ perDay }: CeilingRef, reply: TakeReply, at: number): CeilingUse {
  const { state } = reply;
  const dayLeft = reply.kind === 'taken' ? reply.dayLeft : reply.isDaily ? 0 : null;
  return {
    minute: state === null ? null : 1 - state.remaining / state.limit,
    day: perDay === null || dayLeft === null ? null : 1 - dayLeft / perDay,
    at,
  };
}
