/**
 * Windows that an operator describes (`speaks.windows`), as the simulated upstream counts them. A reload describes another upstream, which
 * goes on with what its former windows had counted: a window of the same length counts every call that was sent, and one that gets another
 * length is found by its name (`buildWindows`). Two bounds of what a window holds: where what is counted for sure is full, the call is refused;
 * where what may be held against it at most has room, a call can go.
 */
import { buildWindows } from '../../src/config/speaks.ts';
import type { MeterSetting } from '../../src/limiter/limiter.ts';

export interface WindowPlan {
  readonly requests: number;
  readonly windowMs: number;
  readonly kind: 'rolling' | 'fixed' | 'leaky';
}

export interface Described {
  readonly windows: readonly WindowPlan[];
  /** From `from` to `at` the gateway goes over to these windows, some processes later than others (`isMixed`), and may send what either allows. */
  readonly changes: readonly {
    readonly from: number;
    readonly at: number;
    readonly isMixed: boolean;
    readonly windows: readonly WindowPlan[];
  }[];
  /** What the wall clock shows when the history begins, milliseconds: fixed windows begin by it. */
  readonly wallMs: number;
  /** How long after its arrival a call may be taken to have been counted. Milliseconds. */
  readonly lateMs: number;
}

/** A gateway may let a window last longer than it does: by a sixtieth within these bounds, and by a fortieth. Milliseconds. */
const maxMarginMs = 1_000;
const minMarginMs = 25;
/** Calls of a time in which configuration changes arrive within this time. Milliseconds. */
export const wayMs = 60;

const built = (windows: readonly WindowPlan[]) =>
  buildWindows(
    windows.map(({ requests, windowMs, kind }) => ({ requests, seconds: windowMs / 1_000, kind })),
  );

export const metersOf = (windows: readonly WindowPlan[]): MeterSetting[] =>
  built(windows).map(({ meter, requests: limit, windowMs, kind }) =>
    kind === 'leaky' ? { meter, limit, windowMs } : { meter, limit, windowMs, counts: kind },
  );

export const slowestOf = (windows: readonly WindowPlan[]): { limit: number; windowMs: number } =>
  windows
    .map(({ requests: limit, windowMs }) => ({ limit, windowMs }))
    .toSorted((one, other) => other.windowMs / other.limit - one.windowMs / one.limit)[0] ?? {
    limit: 1_000,
    windowMs: 1_000,
  };

const isSame = (one: WindowPlan, other: WindowPlan): boolean =>
  one.requests === other.requests && one.windowMs === other.windowMs && one.kind === other.kind;

export class DescribedCounts {
  readonly #described: Described;
  readonly #arrived: number[] = [];
  #counts: ReadonlyMap<string, Count>;
  #changed = 0;

  constructor(described: Described) {
    this.#described = described;
    this.#counts = this.#following(new Map(), described.windows, { from: 0, now: 0, isMixed: false });
  }

  isChanging(now: number): boolean {
    return this.#described.changes.some(({ from, at }) => from <= now && now <= at + wayMs);
  }

  /** A window that has no room now is described alike before, during and after whatever changes now. */
  refusesThroughout(now: number): boolean {
    const { windows, changes } = this.#described;
    const descriptions = [windows, ...changes.map((change) => change.windows)];
    const concerned = changes.flatMap(({ from, at }, index) =>
      from <= now && now <= at + wayMs ? [descriptions[index] ?? [], descriptions[index + 1] ?? []] : [],
    );
    return [...this.#counts.values()].some(
      (count) =>
        count.roomInMs(now) > 0 && concerned.every((each) => each.some((one) => isSame(one, count.plan))),
    );
  }

  get changesAt(): readonly number[] {
    return this.#described.changes.map(({ at }) => at);
  }

  /** Milliseconds until one more call fits. */
  roomInMs(now: number): number {
    return Math.max(0, ...[...this.#counts.values()].map((count) => count.roomInMs(now)));
  }

  take(now: number): void {
    for (const count of this.#counts.values()) count.take(now);
    this.hold(now);
  }

  /** A call arrived and was not counted: the gateway may think that it was. */
  hold(now: number): void {
    this.#arrived.push(now);
    for (const count of this.#counts.values()) count.hold(now);
  }

  hasRoom(calls: number, now: number): boolean {
    return [...this.#counts.values()].every((count) => count.most(now) + calls <= count.plan.requests);
  }

  /** The gateway hears now of what is described by now: a bucket without calls goes by what was until a call comes. */
  hears(now: number): void {
    for (const { from, at, isMixed, windows } of this.#described.changes.slice(this.#changed)) {
      if (at > now) break;
      this.#changed += 1;
      this.#counts = this.#following(this.#counts, windows, { from, now, isMixed });
    }
  }

  #following(
    before: ReadonlyMap<string, Count>,
    windows: readonly WindowPlan[],
    change: Change,
  ): ReadonlyMap<string, Count> {
    const named = built(windows);
    // A window of the same length goes on, whatever it is called; of the others the one that has the name of a new window.
    const others = new Map(before);
    const going = new Map<string, Count>();
    for (const { meter, windowMs } of named) {
      const [name, known] = [...others].find(([, { plan }]) => plan.windowMs === windowMs) ?? [];
      if (name === undefined || known === undefined) continue;
      going.set(meter, known);
      others.delete(name);
    }
    return new Map(
      named.map(({ meter, ...plan }) => {
        const known = going.get(meter) ?? others.get(meter);
        return [
          meter,
          known?.as(plan, change, this.#arrived) ?? this.#fresh(plan, before, change.now),
        ] as const;
      }),
    );
  }

  /**
   * Nobody counted for it so far. The gateway may hold against it all that was really sent within its length: at the times of
   * sending where the longest former window was rolling, for others have no times, and up to a whole limit as if it was sent now.
   */
  #fresh(plan: WindowPlan, before: ReadonlyMap<string, Count>, at: number): Count {
    const [longest] = [...before.values()].toSorted((one, other) => other.plan.windowMs - one.plan.windowMs);
    const isTimed = longest?.plan.kind === 'rolling';
    const latest = this.#arrived.slice(-plan.requests).map(() => at);
    const earlier = this.#arrived
      .slice(0, -plan.requests)
      .filter((sentAt) => sentAt + plan.windowMs > at)
      .map((sentAt) => (isTimed ? sentAt : at));
    const held = [...earlier, ...latest];
    return new Count(plan, this.#described, { counted: [], held, level: 0, most: latest.length, at });
  }
}

interface Change {
  /** The gateway may have known of it from then on. */
  readonly from: number;
  readonly now: number;
  readonly isMixed: boolean;
}

interface Known {
  /** When calls were counted. */
  readonly counted: readonly number[];
  /** When calls may be thought to have been counted, at the latest but for `lateMs`. */
  readonly held: readonly number[];
  readonly level: number;
  readonly most: number;
  readonly at: number;
}

class Count {
  readonly plan: WindowPlan;
  readonly #clock: Pick<Described, 'wallMs' | 'lateMs'>;
  readonly #counted: number[];
  readonly #held: number[];
  #level: number;
  #most: number;
  #at: number;
  #restsUntil: number;
  readonly #describedAt: number;
  /** Since when a level above the limit may have been cut off. */
  #loweredFrom: number | null = null;
  #cutFrom: number | null = null;
  #cutUntil = 0;

  constructor(plan: WindowPlan, clock: Pick<Described, 'wallMs' | 'lateMs'>, known: Known) {
    this.plan = plan;
    this.#clock = clock;
    this.#counted = [...known.counted];
    this.#held = [...known.held];
    this.#level = known.level;
    this.#most = known.most;
    this.#at = known.at;
    this.#describedAt = known.at;
    this.#restsUntil = known.at + this.#marginMs;
  }

  get #marginMs(): number {
    return Math.min(maxMarginMs, Math.max(minMarginMs, this.plan.windowMs / 60));
  }

  as(plan: WindowPlan, { from, now, isMixed }: Change, arrived: readonly number[]): Count {
    const { requests, windowMs, kind } = this.plan;
    if (isSame(plan, this.plan)) return this;
    this.#drain(now);
    // Where the new description drains more slowly, it may have done so from `from` on.
    const most = kind === 'leaky' ? this.#most + ((now - from) * requests) / windowMs : this.most(now);
    const times = (units: number, at: number): number[] => Array.from({ length: units }, () => at);
    const counted = this.#counted.filter((at) => this.#untilOf(at) > now);
    const heldAt = (at: number): number => Math.max(at, Math.min(now, this.#lastOf(at)));
    const [countedAs, heldAs] =
      kind === 'leaky'
        ? [times(Math.floor(this.#level), from), times(Math.ceil(most) + 1, now)]
        : [counted, kind === 'rolling' ? this.#held : this.#held.map(heldAt)];
    // Between processes that differ the window changes with each call, and what it held is counted anew.
    const anew = isMixed ? arrived.slice(-plan.requests).map(() => now) : [];
    const next = new Count(plan, this.#clock, {
      counted: countedAs,
      held: [...heldAs, ...anew],
      level: this.#levelAs(plan, from, now),
      most: most + anew.length,
      at: now,
    });
    next.#loweredFrom = plan.requests < requests ? from : this.#loweredFrom;
    if (plan.kind === 'leaky') next.#cut(next.#loweredFrom ?? from, now);
    return next;
  }

  /** At least so much of what is counted has not drained, whichever of both drained it from `from` on. */
  #levelAs({ requests, windowMs }: WindowPlan, from: number, now: number): number {
    const perMs = requests / windowMs;
    if (this.plan.kind === 'leaky') return Math.max(0, this.#level - (now - from) * perMs);
    const fastest = Math.max(perMs, this.plan.requests / this.plan.windowMs);
    let [level, last] = [0, 0];
    for (const at of this.#counted.filter((each) => this.#untilOf(each) > now)) {
      level = Math.max(0, level - (at - last) * fastest) + 1;
      last = at;
    }
    return Math.max(0, level - (now - last) * fastest);
  }

  roomInMs(now: number): number {
    const { requests, windowMs, kind } = this.plan;
    if (kind === 'leaky') {
      this.#drain(now);
      const over = this.#level + 1 - requests;
      return over <= 1e-6 ? 0 : (over * windowMs) / requests;
    }
    const ends = this.#counted.map((at) => this.#untilOf(at)).filter((until) => until > now);
    return ends.length < requests ? 0 : (ends[ends.length - requests] ?? now) - now;
  }

  take(now: number): void {
    this.#drain(now);
    this.#counted.push(now);
    this.#level += 1;
    // What left before the window was described like this may drain from then on: its meter was not empty then, and did not rest.
    const sinceMs = now - this.#describedAt;
    if (sinceMs <= wayMs)
      this.#level = Math.max(0, this.#level - (sinceMs * this.plan.requests) / this.plan.windowMs);
    // What left before the level was cut off is cut off with it.
    if (this.#cutFrom !== null && now <= this.#cutUntil) this.#cut(this.#cutFrom, now);
  }

  /** A level above a lowered limit is cut off, from `from` on or later. */
  #cut(from: number, now: number): void {
    const { requests, windowMs } = this.plan;
    if (this.#level <= requests) return;
    if (this.#cutFrom === null) this.#cutUntil = now + this.#clock.lateMs;
    this.#cutFrom ??= from;
    this.#level = Math.max(0, requests - ((now - this.#cutFrom) * requests) / windowMs);
  }

  hold(now: number): void {
    this.#drain(now);
    this.#held.push(now);
    this.#most += 1;
    this.#restsUntil = Math.max(this.#restsUntil, now + Math.max(100, this.#marginMs));
  }

  /** Units that a careful gateway may take for used. */
  most(now: number): number {
    if (this.plan.kind === 'leaky') {
      this.#drain(now);
      return this.#most;
    }
    return this.#held.filter((at) => this.#lastOf(at) + this.#marginMs > now).length;
  }

  #untilOf(at: number): number {
    const { windowMs, kind } = this.plan;
    if (kind === 'rolling') return at + windowMs;
    const { wallMs } = this.#clock;
    return (Math.floor((at + wallMs) / windowMs) + 1) * windowMs - wallMs;
  }

  /** When it counts no more even if it was counted as late as can be. */
  #lastOf(at: number): number {
    const grainMs = this.plan.kind === 'rolling' ? this.plan.windowMs / 40 : this.#marginMs;
    return this.#untilOf(at + this.#clock.lateMs + grainMs);
  }

  #drain(now: number): void {
    if (now <= this.#at) return;
    const perMs = this.plan.requests / this.plan.windowMs;
    this.#level = Math.max(0, this.#level - (now - this.#at) * perMs);
    const restedMs = Math.max(0, Math.min(now - this.#at, now - this.#restsUntil));
    this.#most = Math.max(0, this.#most - restedMs * perMs);
    this.#at = now;
  }
}
