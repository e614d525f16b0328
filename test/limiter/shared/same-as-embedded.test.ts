/**
 * The same calls at the same times get the same grants, at the same times, from the embedded limiter and from the fold over a log in
 * memory: random histories of one bucket and one replica. The log is written to as a limiter does it: an entry for each event, one when
 * a grant may be due, and one a second while the bucket is in use.
 *
 * `SLUICE_LOG_HISTORIES` (100, at each origin of time) asks for more.
 */
import { describe, expect, test } from '@jest/globals';
import { bucketKey, laneKey, replicaId, ticketId, type LeaseToken } from '../../../src/ids.ts';
import type { CancelTimer } from '../../../src/clock.ts';
import { MemoryLog } from '../../../src/log/memory-log.ts';
import { createEmbeddedLimiter } from '../../../src/limiter/embedded/limiter.ts';
import type { Admission, Grant, Limiter } from '../../../src/limiter/limiter.ts';
import { timed } from '../../../src/limiter/policy/lessons.policy.ts';
import { isIdle } from '../../../src/limiter/policy/scheduler.policy.ts';
import { createState, fold } from '../../../src/limiter/shared/fold.ts';
import type { Effects, LogEvent, SharedState } from '../../../src/limiter/shared/state.ts';
import { manualClock, type ManualClock } from '../../support/manual-clock.ts';
import { origins } from '../../support/origins.ts';
import { historyOf, type AdmitStep, type Step } from '../parity-history.ts';

const histories = Number(process.env['SLUICE_LOG_HISTORIES'] ?? 100);
const leaseMs = 15_000;
const bucket = bucketKey('bucket');
const beatMs = 1_000;
/** Timers ring on whole milliseconds: when the last bit of a time differs, a grant may come so much later. */
const grainMs = 1;

/** Grants in order by name, as "n-th grant of this ticket": when each was made, and what its store calls it. */
class Grants<Named> {
  readonly byName = new Map<string, { readonly at: number; readonly named: Named }>();
  readonly #counts = new Map<string, number>();

  note(ticket: string, at: number, named: Named): void {
    const count = (this.#counts.get(ticket) ?? 0) + 1;
    this.#counts.set(ticket, count);
    this.byName.set(`${ticket}#${count}`, { at, named });
  }

  get times(): Record<string, number> {
    return Object.fromEntries([...this.byName].map(([name, { at }]) => [name, at]));
  }
}

/** The embedded limiter, and what it grants. */
class Embedded {
  readonly grants = new Grants<Grant>();
  readonly limiter: Limiter;
  readonly #clock: ManualClock;

  constructor(clock: ManualClock) {
    this.#clock = clock;
    const onGrant = (grant: Grant): void => this.grants.note(grant.ticket, clock.monotonic(), grant);
    this.limiter = createEmbeddedLimiter(clock, { onGrant, onClosed: () => {} }, leaseMs);
  }

  async admit(admission: Admission): Promise<void> {
    const reply = await this.limiter.admit(admission);
    if (reply.kind === 'granted') this.grants.note(admission.ticket, this.#clock.monotonic(), reply.grant);
  }
}

/** The fold over a log in memory, and what it grants. */
class Folded {
  readonly grants = new Grants<LeaseToken>();
  state: SharedState = createState(leaseMs);
  readonly #clock: ManualClock;
  readonly #log: MemoryLog<LogEvent>;
  #dueAt: number | null = null;
  #cancelDue: CancelTimer | null = null;
  #cancelBeat: CancelTimer | null = null;

  constructor(clock: ManualClock) {
    const replica = replicaId('r');
    this.#clock = clock;
    this.#log = new MemoryLog({ clock, replica });
    this.#log.follow({
      onEntry: (entry) => this.#take(fold(this.state, entry, replica)),
      onRestore: () => (this.state = createState(leaseMs)),
      onJoined: () => {},
      onAway: () => {},
      awaitsOthers: () => false,
      snapshot: () => [],
    });
  }

  append(event: LogEvent): void {
    this.#log.append(event);
  }

  close(): void {
    this.#cancelDue?.();
    this.#cancelBeat?.();
  }

  #take({ grants, nextAt }: Effects): void {
    for (const { ticket, lease, at } of grants) this.grants.note(ticket, at, lease);
    this.#cancelBeat ??= this.#clock.after(beatMs, () => {
      this.#cancelBeat = null;
      const known = this.state.buckets.get(bucket);
      if (known !== undefined && !isIdle(known, this.#log.now())) this.append({ kind: 'tick' });
    });
    if (nextAt === this.#dueAt) return;
    this.#cancelDue?.();
    this.#dueAt = nextAt;
    if (nextAt === null) return;
    this.#cancelDue = this.#clock.after(nextAt - this.#log.now(), () => {
      this.#dueAt = null;
      this.append({ kind: 'tick' });
    });
  }
}

/** Both, side by side. */
class Pair {
  readonly clock: ManualClock;
  readonly embedded: Embedded;
  readonly folded: Folded;

  constructor(originMs: number) {
    this.clock = manualClock(originMs, originMs);
    this.embedded = new Embedded(this.clock);
    this.folded = new Folded(this.clock);
  }

  async run(step: Step): Promise<void> {
    switch (step.kind) {
      case 'admit':
        for (let n = 0; n < step.count; n += 1) await this.#admit(step, n);
        return;
      case 'settle':
      case 'learn':
      case 'charge':
        return this.#onLease(step);
      case 'reconfigure': {
        const lanes = step.lanes.map((lane) => ({ ...lane, lane: laneKey(`l${lane.lane}`) }));
        const { setting } = step;
        this.folded.append({ kind: 'in', bucket, event: { kind: 'reconfigure', setting, lanes } });
        return this.embedded.limiter.reconfigure({ bucket, setting, lanes });
      }
      case 'wake': {
        const lane = laneKey(`l${step.lane}`);
        this.folded.append({ kind: 'in', bucket, event: { kind: 'wake', lane } });
        return this.embedded.limiter.wake(bucket, lane);
      }
      case 'open': {
        const before = step.agoMs === null ? null : this.clock.monotonic() - step.agoMs;
        this.folded.append({ kind: 'in', bucket, event: { kind: 'open', before } });
        return this.embedded.limiter.open(bucket, before);
      }
      case 'cancel': {
        const tickets = [...(this.folded.state.buckets.get(bucket)?.tickets.values() ?? [])];
        const ticket = tickets.filter(({ lease }) => lease === null)[step.ticket]?.id ?? ticketId('none');
        this.folded.append({ kind: 'in', bucket, event: { kind: 'cancel', ticket } });
        return this.embedded.limiter.cancel(bucket, ticket);
      }
      // Each ticks by itself; a forecast changes nothing, and neither loses anything.
      case 'tick':
      case 'forecast':
      case 'loss':
    }
  }

  async #admit(step: AdmitStep, n: number): Promise<void> {
    const {
      weight,
      maxInFlight,
      perMinute,
      ceilingTag,
      maxQueued,
      urgency,
      callClass,
      costs,
      document,
      setting,
    } = step;
    const ticket = ticketId(`t${step.ticket + n}`);
    const order = this.folded.state.buckets.get(bucket)?.tickets.get(ticket)?.order;
    const arrivedAt = this.clock.monotonic() - (step.arrivedAgoMs ?? 0);
    const isKept = step.again && order !== undefined;
    const admission = {
      weight,
      maxInFlight,
      perMinute,
      ceilingTag,
      maxQueued,
      urgency,
      callClass,
      costs,
      document,
      setting,
      ticket,
      lane: laneKey(step.spread ? `m${step.lane}-${n}` : `l${step.lane}`),
      maxWaitMs: step.maxWaitMs,
      position: isKept ? ({ kind: 'kept', order } as const) : ({ kind: 'arrival', at: arrivedAt } as const),
    };
    this.folded.append({ kind: 'admit', bucket, admission: { ...admission, leaseMs } });
    await this.embedded.admit({ ...admission, bucket });
  }

  /** The live leases first, then those that were, the newest first. */
  async #onLease(step: Extract<Step, { kind: 'settle' | 'learn' | 'charge' }>): Promise<void> {
    const past = [...this.folded.grants.byName].toReversed();
    const leases = this.folded.state.buckets.get(bucket)?.leases;
    const live = past.filter(([, { named }]) => leases?.has(named) === true);
    const [name = '', { named: lease } = {}] = [...live, ...past][step.lease] ?? [];
    const grant = this.embedded.grants.byName.get(name)?.named;
    if (lease === undefined || grant === undefined) return;
    const now = this.clock.monotonic();
    switch (step.kind) {
      case 'settle': {
        const { settlement, lesson } = step;
        const known = lesson === null ? null : timed(lesson, now);
        this.folded.append({
          kind: 'in',
          bucket,
          event: { kind: 'settle', lease, settlement, lesson: known },
        });
        return this.embedded.limiter.settle(grant, settlement, lesson);
      }
      case 'learn':
        this.folded.append({
          kind: 'in',
          bucket,
          event: { kind: 'learn', lease, lesson: timed(step.lesson, now) },
        });
        return this.embedded.limiter.learn(grant, step.lesson);
      case 'charge':
        this.folded.append({ kind: 'in', bucket, event: { kind: 'charge', lease, edge: step.edge } });
        return this.embedded.limiter.charged(grant, step.edge);
    }
  }

  async close(): Promise<void> {
    this.folded.close();
    await this.embedded.limiter.close();
  }
}

describe.each(origins)('by $name:', ({ ms: originMs }) => {
  test(
    `the fold grants what the embedded limiter grants, in ${histories} random histories`,
    async () => {
      let granted = 0;
      for (let seed = 1; seed <= histories; seed += 1) {
        const pair = new Pair(originMs);
        for (const step of historyOf(seed)) {
          pair.clock.advance(Math.max(0, step.afterMs));
          for (let times = step.twice ? 2 : 1; times > 0; times -= 1) await pair.run(step);
        }
        pair.clock.advance(grainMs);
        const [folded, embedded] = [pair.folded.grants.times, pair.embedded.grants.times];
        expect({ seed, grants: Object.keys(folded).toSorted() }).toEqual({
          seed,
          grants: Object.keys(embedded).toSorted(),
        });
        const apart = Object.entries(folded).filter(
          ([name, at]) => Math.abs(at - (embedded[name] ?? 0)) > grainMs,
        );
        expect({ seed, apart }).toEqual({ seed, apart: [] });
        granted += Object.keys(folded).length;
        await pair.close();
      }
      expect(granted).toBeGreaterThan(10 * histories);
    },
    60_000 + histories * 1_000,
  );
});
