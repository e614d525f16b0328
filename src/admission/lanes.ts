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
import type { AdmissionRequest } from './ticket.ts';

/** Lanes unused for this long are forgotten when there are more than `maxLanes`. Milliseconds. */
const retentionMs = 120_000;
const maxLanes = 10_000;

/** Milliseconds by cause; absent = 0. */
export type MsByCause = Readonly<Partial<Record<WaitCause, number>>>;

/** What has held the first call of a lane while calls waited in it. */
export interface CauseTimeline {
  /** What holds it since then (monotonic milliseconds); `null` = no call waits, or it is not known yet. */
  readonly present: { readonly cause: WaitCause; readonly since: number } | null;
  readonly past: MsByCause;
}

/** What holds a lane. */
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

/** Of calls that entered a lane half count after half an hour, so that their number tells of about the last hour. Milliseconds. */
const halfLifeMs = 1_800_000;

export class LaneView {
  readonly bucket: BucketKey;
  readonly key: LaneKey;
  readonly ceiling: CeilingKey;
  /** Its latest call, under the settings that this process stated last for the lane. */
  latest: AdmissionRequest;
  /** Calls of this process that are in admission with it, and those of them whose callers wait. */
  calls = 0;
  waiting = 0;
  usedAt: number;
  /** Calls that entered it, as they counted when the last one did (monotonic milliseconds). */
  entered: { readonly calls: number; readonly at: number };
  /** The charging of its grants: in order, and none behind a refused one. `tail` resolves when the latest grant has its slot, or went back. */
  readonly gate = { tail: Promise.resolve(), /** Grants that went back, so far. */ returned: 0 };
  /** When a call of the lane last got a slot, monotonic milliseconds; `null` = never. */
  servedAt: number | null = null;
  readonly causes: CausesState = { timeline: { present: null, past: {} }, calls: 0, outside: null };
  /**
   * Until then an arriving call asks for its slot of the ceiling before it is granted: the latest call was granted at once and found many
   * slots left. Monotonic milliseconds.
   */
  asksAheadUntil = -Infinity;
  /** `null` = it never asked. */
  ceilingUse: CeilingUse | null = null;

  constructor(call: AdmissionRequest, now: number) {
    this.bucket = call.admission.bucket;
    this.key = call.admission.lane;
    this.ceiling = call.ceiling.key;
    this.latest = call;
    this.usedAt = now;
    this.entered = { calls: 0, at: now };
  }

  /** By name. */
  get upstream(): string {
    return this.latest.subject.upstream;
  }

  /** Calls that entered the lane, as they count now. */
  enteredUntil(now: number): number {
    return this.entered.calls * 2 ** ((this.entered.at - now) / halfLifeMs);
  }
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
    const key = `${call.admission.bucket}/${call.admission.lane}`;
    const now = this.#clock.monotonic();
    let lane = this.#lanes.get(key);
    if (lane === undefined) {
      if (this.#lanes.size >= maxLanes) this.#forgetUnused(now);
      lane = new LaneView(call, now);
      this.#lanes.set(key, lane);
    }
    lane.usedAt = now;
    lane.latest = call;
    return lane;
  }

  #forgetUnused(now: number): void {
    for (const [key, { calls, usedAt }] of this.#lanes)
      if (calls === 0 && usedAt + retentionMs < now) this.#lanes.delete(key);
  }
}

/** How full a ceiling is by its reply. */
export function useOf({ perDay }: CeilingRef, reply: TakeReply, at: number): CeilingUse {
  if (reply.kind === 'refused')
    return reply.isDaily ? { minute: null, day: 1, at } : { minute: 1, day: null, at };
  const { state, dayLeft } = reply;
  const minute = state === null ? null : 1 - state.remaining / state.limit;
  return { minute, day: perDay === null || dayLeft === null ? null : 1 - dayLeft / perDay, at };
}
