/**
 * What this process knows of each lane beside the limiter: plain data, of which each part is written by one owner (`ceiling-gate.ts`, or
 * `WaitCauses` here). Does not own: what is decided by it; how it is found and forgotten (`queued-call.ts`).
 */
import type { WaitCause, HeldTime } from '../call.ts';
import type { CancelTimer } from '../clock.ts';
import type { CeilingKey } from '../ids.ts';
import type { CeilingRef } from '../limiter/policy/ceiling.policy.ts';
import type { TakeReply } from '../limiter/ceiling-store.ts';
import type { BucketKey, LaneKey } from '../limiter/limiter.ts';
import type { AdmissionRequest, AdmissionParts } from './ticket.ts';
import { heldByReasons } from '../errors.ts';

/** Milliseconds by cause; absent = 0. */
type MsByCause = Readonly<Partial<Record<WaitCause, number>>>;

/** What has held the first call of a lane while calls waited in it. */
interface CauseTimeline {
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

/** How full a ceiling is by its reply. */
export function useOf({ perDay }: CeilingRef, reply: TakeReply, at: number): CeilingUse {
  if (reply.kind === 'refused')
    return reply.isDaily ? { minute: null, day: 1, at } : { minute: 1, day: null, at };
  const { state, dayLeft } = reply;
  const minute = state === null ? null : 1 - state.remaining / state.limit;
  return { minute, day: perDay === null || dayLeft === null ? null : 1 - dayLeft / perDay, at };
}

// What has held the lanes in which calls wait, as milliseconds by cause, so that each call can say what it waited for. A lane has one
// timeline for all its calls, because calls behind others are held by what holds the first of them. It is looked at when its first call
// begins to wait, when something happens to it (a grant, a refusal of the ceiling, its bucket closes), and `lookEveryMs` after the last look.
//
// Keeps: a call that is sent at once costs nothing here; a look at a lane costs the same however many calls wait in it.

/** Lanes in which calls wait are looked at this often, milliseconds: a change that no event shows is noted by then. */
const lookEveryMs = 250;
/** Causes that held a call for less are not told, milliseconds. */
const minToldMs = 1;

/** What has held one call, over all its waits. */
export interface CallHeld {
  /** Of the wait under way: the totals of the lane when it began. `null` = the call does not wait. */
  readonly from: MsByCause | null;
  /** In the waits that are over. */
  readonly past: MsByCause;
  /** What held it last. A call that nothing is known of is held by its bucket. */
  readonly cause: WaitCause;
}

/** One object for all calls, of which thousands wait. */
const nothing: MsByCause = {};

const plus = (some: MsByCause, cause: WaitCause, ms: number): MsByCause => ({
  ...some,
  [cause]: (some[cause] ?? 0) + ms,
});

const totalsAt = ({ present, past }: CauseTimeline, now: number): MsByCause =>
  present === null ? past : plus(past, present.cause, now - present.since);

const waitCauses = heldByReasons.filter((reason) => reason !== 'queue');

/**
 * What held a call whose waits are over, longest first. What of `waitedMs` no cause was known for goes to the last one, so that the sum
 * is `waitedMs` but for causes of less than a millisecond.
 */
export function heldTimes(held: CallHeld, waitedMs: number): readonly HeldTime[] {
  const known = waitCauses.reduce((sum, cause) => sum + (held.past[cause] ?? 0), 0);
  const whole = plus(held.past, held.cause, Math.max(0, waitedMs - known));
  return waitCauses
    .map((cause) => ({ cause, ms: whole[cause] ?? 0 }))
    .filter(({ ms }) => ms >= minToldMs)
    .toSorted((one, other) => other.ms - one.ms);
}

export class WaitCauses {
  readonly #parts: Pick<AdmissionParts, 'clock' | 'limiter'>;
  readonly #onLook: () => void;
  /** The lanes in which calls are held. */
  readonly #lanes = new Set<LaneView>();
  #cancelLook: CancelTimer = () => {};

  /** @param onLook called every `lookEveryMs` while calls are held */
  constructor(parts: Pick<AdmissionParts, 'clock' | 'limiter'>, onLook: () => void) {
    this.#parts = parts;
    this.#onLook = onLook;
  }

  /** What has held the call, from now on in its lane. A call that is in a wait already goes on with it. */
  begins(held: CallHeld | null, lane: LaneView): CallHeld {
    if (held !== null && held.from !== null) return held;
    lane.causes.calls += 1;
    if (this.#lanes.size === 0) this.#lookLater();
    this.#lanes.add(lane);
    if (lane.causes.calls === 1) this.#look(lane);
    return { past: nothing, cause: 'requests', ...held, from: totalsAt(lane.causes.timeline, this.#now()) };
  }

  /** What has held the call, which waits in the lane no longer. */
  ends(held: CallHeld, lane: LaneView): CallHeld {
    if (held.from === null) return held;
    const { timeline } = lane.causes;
    const totals = totalsAt(timeline, this.#now());
    let { past } = held;
    for (const cause of waitCauses) {
      const ms = (totals[cause] ?? 0) - (held.from[cause] ?? 0);
      if (ms > 0) past = plus(past, cause, ms);
    }
    lane.causes.calls -= 1;
    if (lane.causes.calls === 0) {
      this.#note(lane, null);
      this.#lanes.delete(lane);
      if (this.#lanes.size === 0) this.#cancelLook();
    }
    return { from: null, past, cause: timeline.present?.cause ?? held.cause };
  }

  /** Something happened to the lane. */
  onEvent(lane: LaneView): void {
    if (this.#lanes.has(lane)) this.#look(lane);
  }

  /** The bucket closed. */
  onClosed(bucket: BucketKey): void {
    for (const lane of this.#lanes) if (lane.bucket === bucket) this.#look(lane);
  }

  #lookLater(): void {
    this.#cancelLook = this.#parts.clock.after(lookEveryMs, () => {
      for (const lane of this.#lanes) this.#look(lane);
      this.#onLook();
      this.#lookLater();
    });
  }

  /** Notes what holds the first call of the lane for longest, unless it is not known now because its grant is on the way. */
  #look(lane: LaneView): void {
    const { outside } = lane.causes;
    if (outside !== null && this.#now() < outside.until) return this.#note(lane, outside.cause);
    const heldBy = this.#parts.limiter.forecastFirst(lane.bucket, lane.key)?.heldBy ?? null;
    // Where nothing but the line holds it, it is another lane's turn, or a first response is awaited.
    if (heldBy !== null) this.#note(lane, heldBy === 'queue' ? 'requests' : heldBy);
  }

  #note({ causes }: LaneView, cause: WaitCause | null): void {
    const { timeline } = causes;
    if (cause === (timeline.present?.cause ?? null)) return;
    const now = this.#now();
    causes.timeline = {
      present: cause === null ? null : { cause, since: now },
      past: totalsAt(timeline, now),
    };
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }
}
