/**
 * Random histories of a log, entry by entry: calls and answers in up to three buckets at once, by several replicas, and what only a log
 * has: entries at the time that an entry named, replicas that fall silent, lost entries, and terms in which the replicas say what they
 * have under way.
 */
import type { Feedback, MeterName, MeterReport, Throttle } from '../../src/call.ts';
import {
  backgroundLane,
  bucketKey,
  callerKey,
  ceilingKey,
  laneKey,
  leaseToken,
  replicaId,
  ticketId,
  type BucketKey,
} from '../../src/ids.ts';
import type { BucketSetting, LaneSetting, MeterSetting, Settlement } from '../../src/limiter/limiter.ts';
import {
  createState,
  fold,
  type LogEvent,
  type SentCall,
  type SharedGrant,
  type SharedState,
} from '../../src/limiter/over-log/fold.ts';
import type { StoredAdmission, TimedLesson } from '../../src/limiter/policy/bucket-state.policy.ts';
import type { Entry } from '../../src/log/log.ts';
import { Chance } from '../simulation/chance.ts';
import { metersOf } from '../simulation/described.ts';
import { admission } from '../support/admission.ts';

export const leaseMs = 15_000;

/** The same seed and origin give the same entries, as long as the fold does the same. */
export const entriesOf = (seed: number, originMs: number): readonly Entry<LogEvent>[] =>
  new History(seed, originMs).run();

/** Uniform numbers, the same ones for a seed. */
export function randomFrom(seed: number): () => number {
  const chance = new Chance(seed);
  return () => chance.next();
}

/**
 * What a bucket's history is about, mostly anything. `calm`: calls come one by one. `contested`: somebody else drinks from the nearly full
 * meter, so that calls that had room are refused for a moment. `silent`: round by round the bucket closes for long while many come to wait.
 * `rolling`, `fixed`, `windows`: the operator describes the window of requests, or several of them.
 */
type About = 'anything' | 'calm' | 'contested' | 'silent' | 'rolling' | 'fixed' | 'windows';
// prettier-ignore
const abouts: readonly About[] = [
  'anything', 'rolling', 'anything', 'contested', 'windows', 'calm', 'anything', 'silent',
  'anything', 'fixed', 'anything', 'rolling', 'windows', 'fixed', 'anything', 'silent',
];

/** Of the n-th bucket of a history. */
const natureOf = (chance: Chance, seed: number, n: number) => ({
  bucket: bucketKey(`b${n + 1}`),
  about: abouts[(seed + 5 * n) % 16] ?? 'anything',
  replicas: chance.pick([1, 2, 3]),
  lanes: chance.pick([1, 2, 5]),
  isTight: chance.happens(0.7),
  cap: chance.pick([null, null, 1, 2]),
  probe: chance.pick([0, 0, 1, 2]),
  isStated: chance.happens(0.75),
  isCrowded: chance.happens(0.12),
  /** How often a step goes in one entry with the step before. */
  joins: chance.pick([0, 0, 0.3, 0.9]),
  step: 0,
  steps: chance.whole(8, 36),
});
type Nature = ReturnType<typeof natureOf>;

type Asks = Pick<StoredAdmission, 'callClass' | 'costs' | 'document'>;
type InBucket = Extract<LogEvent, { kind: 'in' }>['event'];
const succeeded = { kind: 'succeeded', spent: null } as const;
const contestedLimit = 40;

class History {
  readonly #chance: Chance;
  readonly #natures: readonly Nature[];
  readonly #entries: Entry<LogEvent>[] = [];
  readonly #admissions = new Map<string, StoredAdmission>();
  /** Newest first, also of lost entries. */
  readonly #grants: SharedGrant[] = [];
  readonly #batches = new Map<string, number>();
  #state: SharedState = createState(leaseMs);
  #at: number;
  #term = 1;
  #nextAt: number | null = null;

  constructor(seed: number, originMs: number) {
    const chance = new Chance(seed);
    const buckets = chance.whole(1, 3);
    this.#chance = chance;
    this.#at = originMs;
    this.#natures = Array.from({ length: buckets }, (_, n) => natureOf(chance, seed, n));
  }

  run(): readonly Entry<LogEvent>[] {
    const chance = this.#chance;
    for (;;) {
      const [first, ...others] = this.#natures.filter(({ step, steps }) => step < steps);
      if (first === undefined) return this.#entries;
      const nature = chance.pick([first, ...others]);
      const replica = nature.about === 'silent' ? 'r1' : `r${chance.whole(1, nature.replicas)}`;
      this.#pass(this.#gapMs(nature), replica);
      const events: LogEvent[] = [];
      do {
        const said = this.#step(nature);
        // Its reply was lost now and then.
        events.push(...said, ...(chance.happens(0.08) ? said : []));
        nature.step += 1;
      } while (nature.step < nature.steps && chance.happens(nature.joins));
      this.#append(replica, events);
    }
  }

  /** Often to the very millisecond at which something ends. */
  #gapMs({ about, step }: Nature): number {
    const chance = this.#chance;
    if (about === 'silent') {
      const openMs = chance.pick([9_000, 12_000, 13_000]);
      return [5, 5, 5, openMs, chance.pick([0, 20, 60, 100]), 20][step % 6] ?? 0;
    }
    if (about === 'contested') return chance.pick([0, 20, 35, chance.between(0, 150)]);
    if (chance.happens(0.05)) return chance.pick([2_000, 6_000, 15_000, 40_000, chance.between(0, 90_000)]);
    if (about === 'calm') return chance.pick([20, 20, 35, 60, chance.between(20, 150)]);
    const [little, much] = [chance.between(0, 30), chance.between(100, 1_500)];
    return chance.pick([0, 0, 0, 1, little, 20, 250, 300, 500, 700.5, much]);
  }

  /** Time goes on; somebody mostly writes when something is due. */
  #pass(ms: number, replica: string): void {
    const until = this.#at + ms;
    for (let ticks = 0; ticks < 20 && this.#nextAt !== null && this.#nextAt <= until; ticks += 1) {
      if (this.#chance.happens(0.2)) break;
      this.#at = Math.max(this.#at + (this.#nextAt <= this.#at ? 0.5 : 0), this.#nextAt);
      this.#append(this.#chance.happens(0.7) ? replica : 'r1', [{ kind: 'tick' }]);
    }
    this.#at = Math.max(this.#at, until);
  }

  #append(replica: string, events: readonly LogEvent[]): void {
    const batch = (this.#batches.get(replica) ?? 0) + 1;
    this.#batches.set(replica, batch);
    const sequence = this.#entries.length + 1;
    const entry = { sequence, term: this.#term, at: this.#at, replica: replicaId(replica), batch, events };
    this.#entries.push(entry);
    const { grants, nextAt } = fold(this.#state, entry);
    this.#grants.unshift(...grants);
    this.#nextAt = nextAt;
  }

  #step(nature: Nature): LogEvent[] {
    const { about, bucket, step } = nature;
    const chance = this.#chance;
    if (about === 'silent') return this.#silentStep(nature);
    if (about === 'contested') return this.#contestedStep(nature);
    const into = (event: InBucket): LogEvent[] => [{ kind: 'in', bucket, event }];
    const kind = step < 2 ? 'admit' : chance.pick(kinds);
    const lease = this.#lease(chance.happens(0.8) ? chance.whole(0, 1) : chance.whole(0, 30), bucket);
    switch (kind) {
      case 'admit':
        return this.#calls(nature);
      case 'settle':
        return into({ kind, lease, ...this.#ending() });
      case 'learn':
        return into({ kind, lease, lesson: this.#lesson(null) });
      case 'slot_taken': {
        const tag = chance.happens(0.3) ? { ceilingTag: this.#ceiling().ceilingTag } : {};
        const edge = { slots: chance.whole(0, 3), nextSlotMs: chance.between(0, 900), ...tag };
        return into({ kind, lease, edge: chance.happens(0.15) ? null : edge });
      }
      case 'reconfigure': {
        const setting = this.#setting(nature);
        const meters = chance.happens(0.3)
          ? setting.meters.filter(() => chance.happens(0.6))
          : setting.meters;
        const lanes = Array.from({ length: chance.whole(0, 3) }, () => this.#lane(nature));
        return into({ kind, setting: { ...setting, meters }, lanes });
      }
      case 'cancel':
        return into({ kind, ticket: this.#waiting(chance.whole(0, 2), bucket) });
      case 'wake':
        return into({ kind, lane: laneKey(`l${chance.whole(0, 3)}`) });
      case 'open':
        return into({ kind, agoMs: chance.pick([0, 0, 300, 5_000]) });
      case 'loss':
        if (chance.happens(0.3)) this.#lose();
        return [];
      case 'tick':
        return [{ kind }];
    }
  }

  /** Without these a history hardly ever reaches what is kept free for others. */
  #contestedStep({ bucket, step }: Nature): LogEvent[] {
    const chance = this.#chance;
    const plain = { limit: contestedLimit, windowMs: 4_000 };
    if (step < 2 || chance.happens(0.4))
      return this.#plainCalls(bucket, step, chance.pick([1, 2, 12, 30]), plain);
    if (chance.happens(0.3)) return [{ kind: 'tick' }];
    const closeMs = chance.happens(0.5) ? null : chance.pick([1, 20, 100.5]);
    const lowest = closeMs === null ? chance.between(contestedLimit * 0.7, contestedLimit) : contestedLimit;
    const level = { lowest, highest: lowest };
    const meters = [{ meter: 'requests', limit: contestedLimit, windowMs: 4_000, level }] as const;
    const waitMs = chance.happens(0.8) ? closeMs : null;
    const throttle = closeMs === null ? null : ({ kind: 'rate', waitMs, meter: 'requests' } as const);
    const settlement = closeMs === null ? succeeded : this.#throttled(closeMs);
    const lesson = this.#taught({ meters, throttle }, 0, chance.between(0, 30));
    const lease = this.#lease(chance.whole(0, 1), bucket);
    return [{ kind: 'in', bucket, event: { kind: 'settle', lease, settlement, lesson } }];
  }

  /** A crowd waits while a bucket is closed for longer than a silence, and something becomes of the call that goes ahead of it. */
  #silentStep({ bucket, step }: Nature): LogEvent[] {
    const chance = this.#chance;
    const plain = { limit: 200, windowMs: 60_000 };
    const of = (lease: SentCall['lease'], settlement: Settlement): LogEvent[] => [
      { kind: 'in', bucket, event: { kind: 'settle', lease, settlement, lesson: null } },
    ];
    if (step % 6 === 0) return this.#plainCalls(bucket, step, chance.whole(1, 3), plain);
    if (step % 6 === 1) return of(this.#lease(chance.whole(0, 1), bucket), this.#throttled(12_000));
    if (step % 6 === 2) return this.#plainCalls(bucket, step, chance.pick([4, 7, 8, 9, 20]), plain);
    if (step % 6 !== 4) return [{ kind: 'tick' }];
    const pilot = this.#lease(chance.whole(0, 1), bucket);
    const lesson = this.#taught({ meters: [], throttle: null }, 0, 10);
    return chance.pick<LogEvent[]>([
      of(pilot, succeeded),
      of(pilot, { kind: 'returned', sleepMs: 30, because: 'ceiling_minute' }),
      of(pilot, { kind: 'dropped' }),
      [{ kind: 'in', bucket, event: { kind: 'learn', lease: pilot, lesson } }],
      [{ kind: 'tick' }],
    ]);
  }

  #plainCalls(bucket: BucketKey, step: number, count: number, limits: object): LogEvent[] {
    const waits = { maxQueued: 1_000, maxWaitMs: 1e6, leaseMs: 30_000, arrivedAt: this.#at };
    const options = { ...limits, ...waits, lane: 'l1' };
    return Array.from({ length: count }, (_, n) => {
      const { bucket: _bucket, ...asked } = admission(`t${100 * step + n}`, options);
      this.#admissions.set(`${bucket} ${asked.ticket}`, asked);
      return { kind: 'admit', bucket, admission: asked };
    });
  }

  /** One call or several that ask for the same; the n-th of them has the n-th lane where they are spread. */
  #calls(nature: Nature): LogEvent[] {
    const { bucket, about, isCrowded, step, cap } = nature;
    const chance = this.#chance;
    const isCrowd = isCrowded && chance.happens(0.3);
    const count = isCrowd ? chance.whole(20, 90) : about === 'calm' ? 1 : chance.pick([1, 1, 1, 2, 4]);
    const first = 100 * (chance.happens(0.75) ? step : chance.whole(0, Math.min(step, 3)));
    const isSpread = chance.happens(isCrowd ? 0.5 : 0.2);
    const isBackground = chance.happens(0.2);
    const { lane: own, ...ownLimits } = this.#lane(nature);
    const maxInFlight = chance.happens(0.9) ? cap : ownLimits.maxInFlight;
    const caller = chance.pick([null, null, null, 'c_1', 'c_2', 'c_3']);
    const common = {
      ...ownLimits,
      ...this.#asks(),
      maxInFlight,
      maxQueued: chance.pick([1_000, 1_000, 1_000, 3, 1, 0]),
      urgency: chance.pick([3, 3, 3, 0, 7, 1]),
      // An event has no `Infinity`.
      maxWaitMs: chance.pick([1e6, 1e6, 45_000, 1_000, 0, 1e9]),
      leaseMs: chance.pick([30_000, 5_000, 700.5]),
      setting: this.#setting(nature),
      ...(caller === null ? {} : { caller: callerKey(caller) }),
    };
    const at = this.#at - chance.pick([0, 0, 0, chance.between(0, 600), 700_000, -5, -2_000]);
    // With the order that it had before or a made-up one, as after a loss.
    const isAgain = chance.happens(0.15);
    return Array.from({ length: count }, (_, n): LogEvent => {
      const ticket = ticketId(`t${first + n}`);
      const named = isSpread ? laneKey(`${own}-${n}`) : own;
      const lane = isBackground ? backgroundLane(named) : named;
      const order =
        this.#state.buckets.get(bucket)?.tickets.get(ticket)?.order ?? this.#order(common.urgency);
      const position = isAgain ? ({ kind: 'kept', order } as const) : ({ kind: 'arrival', at } as const);
      // Mostly one of the lane, seldom that of another one.
      const kept = [...(this.#state.buckets.get(bucket)?.reservations.values() ?? [])];
      const isOwn = chance.happens(0.9);
      const reserved = kept.find((each) => !isOwn || (each.lane === lane && each.ticket === null));
      const reservation = reserved !== undefined && chance.happens(0.3) ? { reservation: reserved.id } : {};
      const asked: StoredAdmission = { ...common, ticket, lane, position, ...reservation };
      if (chance.happens(0.15)) return { kind: 'in', bucket, event: this.#reserve(asked) };
      this.#admissions.set(`${bucket} ${ticket}`, asked);
      return { kind: 'admit', bucket, admission: asked };
    });
  }

  #asks(): Asks {
    const chance = this.#chance;
    const tokens = chance.whole(1, 60);
    const document = chance.pick(['d1', 'd2']);
    const asks = (callClass: string, costs: Asks['costs'], of: Asks['document'] = null): Asks => ({
      callClass,
      costs,
      document: of,
    });
    return chance.pick([
      asks('plain', { requests: 1 }),
      asks('plain', { requests: 1 }),
      // Now and then more than any limit.
      asks('worded', { requests: 1, tokens: tokens > 54 ? tokens * 40 : tokens }),
      asks('points', { cost: chance.between(0.5, 30) }),
      asks('points', { cost: 3 }, document),
      asks('points', { cost: 3 }, document),
      asks('daily', { requests_day: 1, requests: 1 }),
      asks('free', {}),
    ]);
  }

  /** Instead of entering, the call is refused and keeps its position. */
  #reserve(asked: StoredAdmission): InBucket {
    const chance = this.#chance;
    const reserving = {
      ceiling: ceilingKey(chance.pick(['c1', 'c2'])),
      waitMs: chance.pick([0, 0, 700, 20_000]),
      lastsMs: chance.pick([500, 10_000]),
      maxReserved: chance.pick([3, 1_000, 1_000]),
      begins: chance.happens(0.9),
    };
    return { kind: 'reserve', admission: asked, reserving };
  }

  #lane({ lanes, cap }: Nature): LaneSetting & { readonly lane: ReturnType<typeof laneKey> } {
    const chance = this.#chance;
    const lane = laneKey(`l${chance.whole(1, lanes)}`);
    const weight = chance.pick([1, 1, 1, 2, 0.5, 3]);
    return { lane, weight, maxInFlight: chance.pick([null, cap, 1, 3]), ...this.#ceiling() };
  }

  #ceiling(): Pick<LaneSetting, 'perMinute' | 'ceilingTag'> {
    const perMinute = this.#chance.pick([4, 4, 4, 1, null]);
    return { perMinute, ceilingTag: `${perMinute ?? 'none'}.none` };
  }

  /** Mostly the same; configuration is loaded again now and then. */
  #setting(nature: Nature): BucketSetting {
    const chance = this.#chance;
    const { probe, isStated, about } = nature;
    const stated = !isStated ? [] : about === 'windows' ? this.#windows(nature) : this.#meters(nature);
    return {
      learn: chance.happens(0.7),
      probe,
      meters: chance.happens(0.9) ? stated : stated.filter(() => chance.happens(0.5)),
      ...(chance.happens(0.2) ? { maxInFlightTotal: chance.pick([1, 2, 5]) } : {}),
    };
  }

  #meters({ isTight, about }: Nature): MeterSetting[] {
    const chance = this.#chance;
    const limit = isTight ? chance.pick([3, 3, 3, 4]) : 200;
    const windowMs = isTight ? 1_500 : 60_000;
    const other = chance.pick<'rolling' | 'fixed'>(['rolling', 'fixed']);
    const another = { counts: other, windowMs: chance.pick([1_000, 1_500, 9_000.25]) };
    const isDescribed = about === 'rolling' || about === 'fixed';
    const described = !isDescribed ? {} : chance.happens(0.2) ? another : { counts: about };
    return [
      { meter: 'requests', limit, windowMs, ...described },
      { meter: 'tokens', limit: 100, windowMs: 7_000 },
      { meter: 'cost', limit: 50, windowMs: 1_000 },
      { meter: 'requests_day', limit: 12, windowMs: 86_400_000 },
    ];
  }

  /** As configuration names them. */
  #windows({ isTight }: Nature): MeterSetting[] {
    const chance = this.#chance;
    const all = [
      [1_500],
      [60_000],
      [1_500, 9_000.25, 60_000],
      [60_000, 3_600_000],
      [9_000.25, 20_000, 60_000],
    ];
    const lengths = chance.happens(0.6) ? [1_500, 60_000] : all[chance.whole(0, 4)];
    return metersOf(
      (lengths ?? []).map((windowMs) => ({
        requests: isTight ? Math.ceil(windowMs / 1_000) : 200,
        windowMs,
        kind: chance.happens(0.8) ? 'rolling' : chance.pick(['fixed', 'leaky']),
      })),
    );
  }

  #throttled(closeMs: number, more: object = {}): Settlement {
    return { kind: 'throttled', closeMs, requeue: this.#chance.happens(0.75), sleepMs: 0, ...more };
  }

  #ending(): { settlement: Settlement; lesson: TimedLesson | null } {
    const chance = this.#chance;
    const closeMs = chance.pick([0, 0, 300, chance.between(1, 3_000), 60_000]);
    const sleepMs = chance.pick([0, chance.between(1, 800), 40_000]);
    const spent = { tokens: chance.whole(0, 250), images: 2, cost: chance.between(0, 20) };
    const tag = chance.happens(0.5) ? { ceilingTag: this.#ceiling().ceilingTag } : {};
    const settlement = chance.pick<Settlement>([
      succeeded,
      succeeded,
      { kind: 'succeeded', spent },
      this.#throttled(closeMs, { sleepMs: chance.pick([0, 0, 0, 500]) }),
      this.#throttled(closeMs),
      this.#throttled(closeMs, { closesCredential: true }),
      { kind: 'dropped' },
      { kind: 'returned', sleepMs, because: chance.pick(['ceiling_minute', 'ceiling_day']), ...tag },
      { kind: 'returned', sleepMs: Math.min(sleepMs, 800), because: 'backoff' },
      { kind: 'unknown' },
    ]);
    const throttle = chance.pick<Throttle>([
      { kind: 'rate', waitMs: 500, meter: 'requests' },
      { kind: 'rate', waitMs: null, meter: chance.pick(['tokens', 'cost', 'requests_day']) },
      { kind: 'rate', waitMs: null, meter: null },
      { kind: 'overload', waitMs: 100 },
    ]);
    const lesson = this.#lesson(settlement.kind === 'throttled' ? throttle : null);
    return { settlement, lesson: chance.happens(0.6) ? lesson : null };
  }

  #lesson(throttle: Throttle | null): TimedLesson {
    const chance = this.#chance;
    const meters = Array.from({ length: chance.whole(0, 3) }, () => this.#report());
    const requestedCost = chance.pick([0, 5, chance.between(0, 60)]);
    const asked = chance.happens(0.5) ? { requestedCost, requestedTokens: chance.whole(0, 200) } : {};
    // The replica's idea of the store's clock may be ahead of it.
    const headAgoMs = chance.pick([0, chance.between(-2, 40)]);
    return this.#taught({ meters, throttle, ...asked }, headAgoMs, headAgoMs + chance.between(0, 400));
  }

  #taught(feedback: Feedback, headAgoMs: number, sentAgoMs: number): TimedLesson {
    return { feedback, sentAt: this.#at - sentAgoMs, headAt: this.#at - headAgoMs };
  }

  #report(): MeterReport {
    const chance = this.#chance;
    const limit = chance.pick([3, 3, 5, 100, 0, chance.between(1, 60)]);
    const lowest = chance.between(0, limit * 1.2);
    const level = { lowest, highest: lowest + chance.pick([0, 1, chance.between(0, 5)]) };
    const resetMs = chance.pick([0, 1_000, 700.5, 12_400, 61_000, 9_999_999]);
    return {
      meter: chance.pick(reported),
      limit,
      windowMs: chance.pick([null, null, 1_500, 9_000.25, 0]),
      ...(chance.happens(0.5) ? { resetMs } : {}),
      level: chance.happens(0.8) ? level : null,
    };
  }

  /** The last entries are lost, or nothing; then most replicas say what they have under way. */
  #lose(): void {
    const lost = this.#chance.pick([0, 0, 1, 3, 8]);
    this.#entries.splice(Math.max(0, this.#entries.length - lost), lost);
    this.#state = createState(leaseMs);
    for (const entry of this.#entries) this.#nextAt = fold(this.#state, entry).nextAt;
    this.#term += 1;
    for (const replica of ['r1', 'r2', 'r3']) {
      if (this.#chance.happens(0.3)) continue;
      this.#pass(this.#chance.pick([0, 5, 400, 1_400]), replica);
      this.#append(replica, [this.#reportOf(replica), { kind: 'here', term: this.#term }]);
    }
  }

  #reportOf(replica: string): LogEvent {
    const gone = this.#grants.filter(
      ({ bucket, lease, ...grant }) =>
        grant.replica === replica && this.#state.buckets.get(bucket)?.leases.has(lease) !== true,
    );
    const held = gone.slice(0, this.#chance.whole(0, 4)).flatMap(({ bucket, ticket, lease }): SentCall[] => {
      const known = this.#admissions.get(`${bucket} ${ticket}`);
      if (known === undefined) return [];
      const position = { kind: 'kept', order: this.#order(known.urgency) } as const;
      return [{ bucket, lease, admission: { ...known, position } }];
    });
    const closeMs = this.#chance.pick([0, 0, 900]);
    const used = held
      .slice(2)
      .map(({ bucket, admission: { setting, costs } }) => ({ bucket, setting, costs, closeMs }));
    return { kind: 'report', sent: held.slice(0, 2), used };
  }

  #order(urgency: number): number {
    return urgency * 2 ** 48 + Math.floor(Math.max(0, this.#at - 100) * 64);
  }

  /** Of the live leases, the newest first, then of those that were. */
  #lease(n: number, bucket: BucketKey): SentCall['lease'] {
    const live = [...(this.#state.buckets.get(bucket)?.leases.keys() ?? [])].toReversed();
    const past = this.#grants.filter((grant) => grant.bucket === bucket).map(({ lease }) => lease);
    return [...live, ...past][n] ?? leaseToken('none');
  }

  #waiting(n: number, bucket: BucketKey): StoredAdmission['ticket'] {
    const tickets = [...(this.#state.buckets.get(bucket)?.tickets.values() ?? [])];
    return tickets.filter(({ lease }) => lease === null)[n]?.id ?? ticketId('none');
  }
}

// prettier-ignore
const kinds = [
  'admit', 'admit', 'admit', 'admit', 'settle', 'settle', 'settle', 'settle', 'tick', 'tick',
  'learn', 'slot_taken', 'slot_taken', 'cancel', 'loss', 'reconfigure', 'open', 'wake',
] as const;
// prettier-ignore
const reported: [MeterName, ...MeterName[]] = [
  'requests', 'requests', 'tokens', 'cost', 'requests_day', 'images', 'requests_burst', 'requests_hour',
];
