/**
 * READ FIRST of this folder. Recorded arrivals in virtual time, through the product's own admission, scheduler and ceilings, under
 * limits that may be others than those of the day: what each call would have met.
 *
 * Owns: the world around them: calls arrive as recorded, and their upstream answers each after the time that it took, and takes what it
 * was charged. Does not own: any decision (`admission/`, `limiter/`), the limits (`world.ts`).
 * An upstream that had closed a bucket closes it again at the same times (`closings.ts`).
 * Left out: what outsiders take of a quota, failures of the upstream, and that a client that was refused comes again, but for a
 * position that is kept for it.
 */
import { AdmissionQueue } from '../../src/admission/admission.ts';
import { backgroundCeiling } from '../../src/admission/buckets.policy.ts';
import type { AdmissionRequest, Ticket } from '../../src/admission/ticket.ts';
import type { Costs, MeterReport } from '../../src/call.ts';
import { Refusal } from '../../src/errors.ts';
import {
  backgroundLane,
  bucketKey,
  callerKey,
  ceilingKey,
  laneKey,
  ticketId,
  type CeilingKey,
  type TicketId,
} from '../../src/ids.ts';
import { CeilingStore } from '../../src/limiter/ceiling-store.ts';
import { createEmbeddedLimiter, type Limiter } from '../../src/limiter/over-log/limiter.ts';
import { backgroundUrgency } from '../../src/limiter/limiter.ts';
import { withDays } from '../../src/journey/prepare.ts';
import type { RecordedCall } from '../../src/recording/format.ts';
import { VirtualClock } from './virtual-clock.ts';
import { Closings } from './closings.ts';
import { Counters } from './counters.ts';
import type { Rules, UsedBefore, World } from './world.ts';

/** What a call met. Milliseconds since its arrival. */
export type Fate =
  | { readonly kind: 'sent'; readonly afterMs: number }
  | { readonly kind: 'refused'; readonly afterMs: number }
  /** Its client left while it waited, as it did when it was recorded. */
  | { readonly kind: 'left'; readonly afterMs: number };

export interface RehearsedCall {
  readonly call: RecordedCall;
  readonly fate: Fate;
}

export interface RehearsalOptions {
  readonly world: World;
  /** Wall-clock time at which the recording began: some windows are those of the clock. Milliseconds since the epoch. */
  readonly startsAt: number;
  /** Units that are used before the first call arrives. */
  readonly used?: readonly UsedBefore[];
  /** Every arrival comes so many times. */
  readonly times?: number;
  /** Replicas that take the calls in turn. */
  readonly replicas?: number;
  /** Called now and then with the share of calls that have arrived, 0 to 1. */
  readonly onProgress?: (share: number) => void;
}

/**
 * Calls that the rehearsal can place: those that were sent, and those that were refused for a limit or whose clients left. The others
 * were answered without being sent (by a breaker, or with the response to another call).
 */
export const isPlaced = ({ serviceMs, outcome }: RecordedCall): boolean =>
  serviceMs !== null || outcome === 'shed' || outcome === 'client_gone';

/** The calls that the rehearsal can place, in order of arrival. Attempts of a client for one position are one call, which came with the first. */
export const placedCalls = (calls: readonly RecordedCall[]): readonly RecordedCall[] =>
  clientsOf(calls).map(({ call }) => call);

interface Client {
  readonly call: RecordedCall;
  /** For the position that is kept when it is refused; false: it did not when it was recorded. */
  readonly comesBack: boolean;
}

function clientsOf(calls: readonly RecordedCall[]): readonly Client[] {
  const placed = calls.filter(isPlaced).toSorted((a, b) => a.at - b.at);
  const attempts = Map.groupBy(placed, ({ reservation }) => reservation);
  return placed.flatMap((first) => {
    if (first.reservation === undefined) return [{ call: first, comesBack: false }];
    const own = attempts.get(first.reservation) ?? [];
    const last = own.at(-1) ?? first;
    const { at, caller, maxWaitMs } = first;
    if (own[0] !== first) return [];
    return [
      { call: { ...last, at, caller, maxWaitMs }, comesBack: own.length > 1 || last.outcome !== 'shed' },
    ];
  });
}

/** Resolves with every call that it can place and what it met, in order of arrival. */
export async function rehearse(
  calls: readonly RecordedCall[],
  options: RehearsalOptions,
): Promise<readonly RehearsedCall[]> {
  return new Rehearsal(clientsOf(calls), options).run();
}

class Rehearsal {
  /** In order of arrival. */
  readonly #clients: readonly Client[];
  readonly #options: RehearsalOptions;
  readonly #clock: VirtualClock;
  readonly #limiter: Limiter;
  readonly #replicas: readonly AdmissionQueue[];
  /** At which replica a call waits. */
  readonly #homes = new Map<TicketId, AdmissionQueue>();
  readonly #usualServiceMs: (call: RecordedCall) => number;
  readonly #counters = new Counters();
  readonly #closings: Closings;
  readonly #fates: Fate[] = [];
  #arrived = 0;
  #ended = 0;
  #failure: unknown = null;

  constructor(clients: readonly Client[], options: RehearsalOptions) {
    const { startsAt, times = 1, replicas = 1 } = options;
    const clock = new VirtualClock(startsAt);
    const calls = clients.map(({ call }) => call);
    this.#clients =
      times === 1 ? clients : clients.flatMap((each) => Array.from({ length: times }, () => each));
    this.#options = options;
    this.#clock = clock;
    this.#usualServiceMs = usualServiceMs(calls);
    this.#closings = new Closings(calls);
    const limiter = createEmbeddedLimiter(clock, {
      onGrant: (grant) => this.#homes.get(grant.ticket)?.listener.onGrant(grant),
      onClosed: (bucket, closedMs) =>
        this.#replicas.forEach(({ listener }) => listener.onClosed(bucket, closedMs)),
    });
    const ceilings = new CeilingsOfAll(clock);
    const onFailure = (failure: unknown): void => void (this.#failure ??= failure);
    this.#limiter = limiter;
    this.#replicas = Array.from(
      { length: replicas },
      () => new AdmissionQueue({ clock, limiter, ceilings, onFailure }),
    );
  }

  async run(): Promise<readonly RehearsedCall[]> {
    const { stackTraceLimit } = Error;
    // Refusals are values here: nobody reads where they were made, and to note it takes time.
    Error.stackTraceLimit = 0;
    for (const used of this.#options.used ?? []) await this.#use(used);
    this.#awaitArrival();
    await this.#clock.run(() => this.#ended === this.#clients.length || this.#failure !== null);
    Error.stackTraceLimit = stackTraceLimit;
    await this.#limiter.close();
    if (this.#failure !== null) throw this.#failure;
    return this.#clients.map(({ call }, index) => ({ call, fate: this.#fates[index] ?? neverEnded() }));
  }

  /** Takes what was used before, with a call that has ended when the first one arrives. */
  async #use({ bucket, costs }: UsedBefore): Promise<void> {
    const one = this.#clients.find(({ call }) => call.bucket === bucket);
    if (one === undefined) return;
    const first = { ...one.call, workspace: '', lane: 'before', caller: null, urgency: 0 };
    const { setting, meters } = this.#options.world(first);
    const { admission } = requestOf(
      first,
      { ...unlimited, setting, meters },
      { id: ticketId('before'), kept: null },
    );
    const position = { kind: 'arrival', at: 0 } as const;
    const reply = await this.#limiter.admit({ ...admission, costs, maxWaitMs: 0, position });
    if (reply.kind !== 'granted') return;
    const stated = this.#counters.count(first, { charged: costs, meters }, 0);
    const lesson = { feedback: { meters: stated, throttle: null }, sentAgoMs: 0, headAgoMs: 0 };
    await this.#limiter.settle(
      reply.grant,
      { kind: 'succeeded', spent: withoutStated(costs, stated) },
      lesson,
    );
  }

  #awaitArrival(): void {
    const index = this.#arrived;
    const client = this.#clients[index];
    if (client === undefined) return;
    this.#clock.at(client.call.at, () => {
      this.#arrived += 1;
      this.#awaitArrival();
      if (index % callsPerReport === 0) this.#options.onProgress?.(index / this.#clients.length);
      this.#play(client, index)
        .then((fate) => {
          this.#fates[index] = fate;
          this.#ended += 1;
        })
        .catch((failure: unknown) => (this.#failure ??= failure));
    });
  }

  /** One call, as often as its client comes back for its position, at the times that it is told. */
  async #play({ call, comesBack }: Client, index: number): Promise<Fate> {
    const since = this.#clock.monotonic();
    let kept: TicketId | null = null;
    for (let attempt = 0; ; attempt += 1) {
      const id = ticketId(attempt === 0 ? String(index) : `${index}.${attempt}`);
      const met: Met = await this.#drive(call, { index, id, kept, since });
      if (met.kept === null || !comesBack) return met.fate;
      const { toldMs } = met.kept;
      kept = met.kept.id;
      await new Promise<void>((resolve) => {
        this.#clock.at(this.#clock.monotonic() + toldMs, resolve);
      });
    }
  }

  /** Plays the gateway for one attempt. */
  async #drive(call: RecordedCall, { index, id, kept, since }: Attempt): Promise<Met> {
    const arrivedAt = this.#clock.monotonic();
    const gone = new AbortController();
    const rules = this.#options.world(call);
    const request = { ...requestOf(call, rules, { id, kept }), arrivedAt };
    const replica = this.#replicas[index % this.#replicas.length] ?? neverEnded();
    const cancelLeaving =
      call.outcome === 'client_gone' && call.serviceMs === null
        ? this.#clock.at(arrivedAt + call.waitedMs, () => gone.abort())
        : null;
    const passedMs = (): number => this.#clock.monotonic() - since;
    let ticket: Ticket | null = null;
    this.#homes.set(id, replica);
    try {
      ticket = await replica.enter(request, gone.signal);
      let lease = await ticket.whenGranted();
      for (;;) {
        const closedMs = this.#closings.leftMs(call.bucket, this.#clock.monotonic());
        if (closedMs === 0) break;
        const requeue = closedMs <= ticket.remainingMs();
        const throttle = { kind: 'rate', waitMs: closedMs, meter: null } as const;
        const refusal = { feedback: { meters: [], throttle }, sentAgoMs: 0, headAgoMs: 0 };
        lease.settle({ kind: 'throttled', closeMs: closedMs, requeue, sleepMs: 0 }, refusal);
        if (!requeue) return { fate: { kind: 'refused', afterMs: passedMs() }, kept: null };
        lease = await ticket.whenGranted();
      }
      const afterMs = passedMs();
      cancelLeaving?.();
      const serviceMs = call.serviceMs ?? this.#usualServiceMs(call);
      const charged = withDays(call.charged);
      const meters = this.#counters.count(call, { charged, meters: rules.meters }, this.#clock.monotonic());
      await new Promise<void>((resolve) => {
        this.#clock.at(this.#clock.monotonic() + serviceMs, resolve);
      });
      const lesson = { feedback: { meters, throttle: null }, sentAgoMs: serviceMs, headAgoMs: 0 };
      lease.settle({ kind: 'succeeded', spent: withoutStated(charged, meters) }, lesson);
      return { fate: { kind: 'sent', afterMs }, kept: null };
    } catch (failure) {
      if (gone.signal.aborted) return { fate: { kind: 'left', afterMs: passedMs() }, kept: null };
      const refusal = await replica.reserve(request, failure);
      if (!(refusal instanceof Refusal)) throw refusal;
      cancelLeaving?.();
      const { ticket: position, retryInMs = 0 } = refusal.details;
      return {
        fate: { kind: 'refused', afterMs: passedMs() },
        kept: position === undefined ? null : { id: ticketId(position), toldMs: retryInMs },
      };
    } finally {
      this.#homes.delete(id);
      ticket?.leave();
    }
  }
}

interface Met {
  readonly fate: Fate;
  /** The position that is kept, and when its client may come back for it; `null` = none is. */
  readonly kept: { readonly id: TicketId; readonly toldMs: number } | null;
}

interface Attempt {
  /** Of its call. */
  readonly index: number;
  readonly id: TicketId;
  /** What it comes back for; `null` = it is new. */
  readonly kept: TicketId | null;
  /** When the call came first. */
  readonly since: number;
}

function requestOf(
  call: RecordedCall,
  rules: Rules,
  { id, kept }: Pick<Attempt, 'id' | 'kept'>,
): Omit<AdmissionRequest, 'arrivedAt'> {
  const { upstream, bucket, workspace, lane: label, caller, urgency, costs } = call;
  const { setting, weight, maxInFlight, maxQueued } = rules;
  const isBackground = urgency === backgroundUrgency;
  const ceiling = isBackground
    ? backgroundCeiling(rules)
    : { perMinute: rules.perMinute, perDay: rules.perDay };
  const { perMinute, perDay } = ceiling;
  const lane = laneKey(label ?? `${bucket} ${workspace}`);
  const maxWaitMs = call.asked === true || rules.maxWaitMs === null ? call.maxWaitMs : rules.maxWaitMs;
  return {
    admission: {
      ticket: id,
      bucket: bucketKey(`${upstream}.${bucket}`),
      setting,
      lane: isBackground ? backgroundLane(lane) : lane,
      weight,
      maxInFlight,
      perMinute,
      ceilingTag: `${perMinute ?? 'none'}.${perDay ?? 'none'}`,
      maxQueued,
      urgency,
      callClass: Object.keys(costs).join(' '),
      costs: withDays(costs),
      document: null,
      ...(caller !== null && rules.tellsCallersApart ? { caller: callerKey(caller) } : {}),
      ...(kept === null ? {} : { reservation: kept }),
    },
    ...(call.reservation === undefined ? {} : { reserving: reservingOf(rules) }),
    ceiling: { key: ceilingKey(`${upstream} ${workspace}`), ...ceiling },
    mode: 'enforce',
    yielded: null,
    workspaceId: workspace,
    subject: {
      upstream,
      credential: '',
      host: '',
      model: null,
      operation: '',
      bucket: bucketKey(`${upstream}.${bucket}`),
    },
    maxWaitMs,
    maxWaitIfAskedMs: maxWaitMs,
    stillValid: () => true,
  };
}

const reservingOf = ({ reserveMs, maxReserved }: Rules): AdmissionRequest['reserving'] & {} => ({
  begins: true,
  lastsMs: reserveMs,
  maxReserved,
  ticketOf: (position) => position,
});

/** Whoever used a bucket before the recording, under whatever limits. */
const unlimited = {
  weight: 1,
  maxInFlight: null,
  perMinute: null,
  perDay: null,
  maxQueued: 1,
  reserveMs: 0,
  maxReserved: 0,
  tellsCallersApart: false,
  maxWaitMs: null,
};

/** The charge but for meters whose level the response states, as `spentOf` has it. */
const withoutStated = (charged: Costs, stated: readonly MeterReport[]): Costs => {
  const spent = { ...charged };
  for (const { meter } of stated) delete spent[meter];
  return spent;
};

/** Calls between two reports of the progress. */
const callsPerReport = 1_000;

function neverEnded(): never {
  throw new Error('a rehearsed call has no end');
}

/** Ceilings whose slots that come back all replicas hear of. */
class CeilingsOfAll extends CeilingStore {
  readonly #listeners: ((ceiling: CeilingKey) => void)[] = [];

  override listen(onSlotBack: (ceiling: CeilingKey) => void): void {
    this.#listeners.push(onSlotBack);
    super.listen((ceiling) => this.#listeners.forEach((hear) => hear(ceiling)));
  }
}

/** For a call that was refused when it was recorded: the median of those that were sent to its bucket, else to its upstream, else of all. */
function usualServiceMs(calls: readonly RecordedCall[]): (call: RecordedCall) => number {
  const medians = new Map<string, number | null>();
  const medianOf = (name: string, isOfScope: (call: RecordedCall) => boolean): number | null => {
    const known = medians.get(name);
    if (known !== undefined) return known;
    const times = calls.flatMap((call) => (isOfScope(call) ? (call.serviceMs ?? []) : []));
    const median = Float64Array.from(times).sort()[Math.floor(times.length / 2)] ?? null;
    medians.set(name, median);
    return median;
  };
  return ({ bucket, upstream }) =>
    medianOf(`bucket ${bucket}`, (call) => call.bucket === bucket) ??
    medianOf(`upstream ${upstream}`, (call) => call.upstream === upstream) ??
    medianOf('all', () => true) ??
    0;
}
