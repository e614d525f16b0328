/**
 * The policy's side of the parity property: runs a history through `scheduler.policy.ts` (`script-model.ts` adds what a
 * store adds) and says what every script call must answer, publish and leave behind.
 */
import { bucketKey, laneKey, leaseToken, replicaId, ticketId, type LeaseToken } from '../../src/ids.ts';
import { closedMs } from '../../src/limiter/policy/bucket-state.policy.ts';
import { memoryMs } from '../../src/limiter/policy/retention.policy.ts';
import { timed } from '../../src/limiter/policy/lessons.policy.ts';
import type { BucketEvent, StoredAdmission } from '../../src/limiter/policy/bucket-events.ts';
import { applyCall, leasesPerTick, type ApplyCall } from '../../src/limiter/redis/protocol/event-codec.ts';
import type { BatchReply } from '../../src/limiter/redis/protocol/reply-codec.ts';
import type { ReplicaMessage } from '../../src/limiter/redis/protocol/message-codec.ts';
import { originOf } from '../support/origins.ts';
import type { AdmitStep, Step } from './parity-history.ts';
import { stateOfPolicy, type Normal } from './parity-state.ts';
import { ScriptModel } from './script-model.ts';

export interface Planned {
  readonly what: string;
  readonly events: readonly BucketEvent[];
  /** `null`: everything is lost. */
  readonly call: ApplyCall | null;
  readonly reply: BatchReply | null;
  /** `undefined`: not looked at after this call. */
  readonly state: Normal | undefined;
  /** Milliseconds that what is left behind has to live; 0 = there is nothing. */
  readonly lifeMs: number;
}

export interface Plan {
  readonly planned: readonly Planned[];
  /** Messages of the bucket in order, as `replica` and content. */
  readonly messages: readonly (ReplicaMessage & { readonly replica: string })[];
}

type Entering = Extract<Step, { kind: 'admit' }>;

const maxClosedMs = 30 * 24 * 3_600_000;
export function planOf(history: readonly Step[], bucket: string, start: number): Plan {
  return new Model(bucket, start).run(history);
}

/**
 * Where the time of a history begins: at 0 or soon after it, up to thirty days later, or in 1970. The smaller the numbers,
 * the more bits their fractions have.
 */
export function startOf(seed: number): number {
  const { ms } = originOf(seed, ((seed * 7) % 1_000) / 1_000);
  return ms === 0 && seed % 2 === 0 ? 0 : ms + 1_000.1 + seed / 7;
}

class Model {
  readonly #key: string;
  readonly #planned: Planned[] = [];
  readonly #messages: (ReplicaMessage & { replica: string })[] = [];
  readonly #orders = new Map<string, number>();
  /** Newest first. */
  readonly #leases: LeaseToken[] = [];
  readonly #store: ScriptModel;
  /** What the caller's clock says; may step back, though never below 0. */
  #clock: number;

  constructor(key: string, start: number) {
    this.#key = key;
    this.#clock = start;
    this.#store = new ScriptModel(key, (message) => this.#messages.push(message));
  }

  run(history: readonly Step[]): Plan {
    for (const steps of batchesOf(history)) {
      const [first] = steps;
      this.#clock = Math.max(0, this.#clock + first.afterMs);
      if (first.kind === 'loss') {
        this.#store.lose();
        this.#planned.push({ what: 'loss', events: [], call: null, reply: null, state: null, lifeMs: 0 });
        continue;
      }
      const events = steps.flatMap((step) => this.#eventsOf(step));
      for (let time = 0; time < (first.twice ? 2 : 1); time += 1) {
        if (steps.length > 1) this.#inBatches(first.replica, events);
        else
          for (const [at, event] of events.entries())
            this.#plan(first.replica, [event], at === events.length - 1);
      }
    }
    return { planned: this.#planned, messages: this.#messages };
  }

  /** What was left out goes in another batch, as a replica sends it. */
  #inBatches(replica: string, events: readonly BucketEvent[]): void {
    for (let from = 0; from < events.length;) from += this.#plan(replica, events.slice(from), true);
  }

  /** The lease or ticket a step is about: those that are live first, then those that were, newest first. */
  #nameOf(step: Step): string {
    const { bucket } = this.#store;
    if ('lease' in step) {
      const live = [...(bucket?.leases.keys() ?? [])].toReversed();
      return [...live, ...this.#leases][step.lease] ?? `none.${step.lease}`;
    }
    if (step.kind !== 'cancel' && step.kind !== 'forecast') return '';
    const waiting = [...(bucket?.tickets.values() ?? [])].filter((ticket) => ticket.lease === null);
    const names = [...waiting.map((ticket) => ticket.id), ...this.#orders.keys()];
    return names[step.ticket] ?? 'none';
  }

  #eventsOf(step: Step): BucketEvent[] {
    const named = this.#nameOf(step);
    switch (step.kind) {
      case 'admit':
        return Array.from({ length: step.count }, (_, n) => this.#admit(step, n));
      case 'settle':
        return [
          {
            kind: 'settle',
            lease: leaseToken(named),
            settlement: step.settlement,
            lesson: step.lesson === null ? null : timed(step.lesson, this.#clock),
          },
        ];
      case 'learn':
        return [{ kind: 'learn', lease: leaseToken(named), lesson: timed(step.lesson, this.#clock) }];
      case 'charge':
        return [{ kind: 'charge', lease: leaseToken(named), edge: step.edge }];
      case 'reconfigure': {
        const lanes = step.lanes.map((lane) => ({ ...lane, lane: laneKey(`l${lane.lane}`) }));
        return [{ kind: 'reconfigure', setting: step.setting, lanes }];
      }
      case 'wake':
        return [{ kind: 'wake', lane: laneKey(`l${step.lane}`) }];
      case 'open':
        return [{ kind: 'open', before: step.agoMs === null ? null : this.#clock - step.agoMs }];
      case 'cancel':
      case 'forecast':
        return [{ kind: step.kind, ticket: ticketId(named) }];
      case 'tick': {
        const own = this.#leases.filter((_lease, at) => step.renew > 0 && at % step.renew === 0);
        return [{ kind: 'tick', leases: own.slice(0, leasesPerTick) }];
      }
      case 'loss':
        return [];
    }
  }

  #admit(step: Entering, n: number): BucketEvent {
    const ticket = `t${step.ticket + n}`;
    const lane = step.spread ? `m${step.lane}-${n}` : `l${step.lane}`;
    return {
      kind: 'admit',
      admission: {
        ...step,
        ticket: ticketId(ticket),
        lane: laneKey(lane),
        position: this.#positionOf(step, ticket),
      },
    };
  }

  #positionOf(step: Entering, ticket: string): StoredAdmission['position'] {
    if (step.again) {
      return { kind: 'kept', order: this.#orders.get(ticket) ?? madeUpOrder(step, this.#clock) };
    }
    const { arrivedAgoMs } = step;
    return { kind: 'arrival', at: arrivedAgoMs === null ? null : this.#clock - arrivedAgoMs };
  }

  /** How many of the events were applied. */
  #plan(replica: string, events: readonly BucketEvent[], isCompared: boolean): number {
    const store = this.#store;
    const reply = store.apply(events, { replica, clock: this.#clock });
    for (const { event, reply: own, grants } of store.done) {
      if (event.kind === 'admit' && 'order' in own) this.#orders.set(event.admission.ticket, own.order);
      for (const { lease } of grants) this.#leases.unshift(lease);
    }
    const { bucket, createdAt, seen, unnamed } = store;
    const known = bucket === null ? null : stateOfPolicy(bucket, { createdAt, seen, unnamed });
    const state = bucket !== null && !isCompared ? undefined : known;
    const shutMs = bucket === null ? 0 : closedMs(bucket, seen);
    const lifeMs = bucket === null ? 0 : memoryMs(bucket, seen) + Math.min(maxClosedMs, shutMs);
    const call = applyCall(
      { bucket: bucketKey(this.#key), replica: replicaId(replica), now: this.#clock },
      events,
    );
    const what = events.map(({ kind }) => kind).join(', ');
    this.#planned.push({ what, events, call, reply, state, lifeMs });
    return reply.replies.length;
  }
}

type Steps = readonly [Step, ...Step[]];

/** Steps that join the one before go with it; a loss is no event. */
function batchesOf(history: readonly Step[]): Steps[] {
  const batches: [Step, ...Step[]][] = [];
  for (const step of history) {
    const batch = batches.at(-1);
    if (step.joins && batch !== undefined && batch[0].kind !== 'loss' && step.kind !== 'loss') {
      // A step before it may have been left out.
      batch.push(step);
    } else batches.push([step]);
  }
  return batches;
}

/** Of a store that began earlier, or of one that was further ahead. */
const madeUpOrder = (step: AdmitStep, now: number): number =>
  step.urgency * 2 ** 48 + (step.count % 2 === 0 ? 12_345 : Math.floor(now) * 64 + 1_000_000) + step.ticket;
