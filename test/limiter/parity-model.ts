/**
 * The policy's side of the parity property: runs a history through `scheduler.policy.ts` (`script-model.ts` adds what a
 * store adds) and says what every script call must answer, publish and leave behind.
 */
import { closedMs } from '../../src/limiter/bucket-state.policy.ts';
import type { Admission } from '../../src/limiter/limiter.ts';
import { memoryMs } from '../../src/limiter/memory.policy.ts';
import {
  admitCall,
  cancelCall,
  chargedCall,
  forecastCall,
  learnCall,
  leasesPerTick,
  reconfigureCall,
  settleCall,
  tickCall,
  type Asking,
  type ScriptCall,
  type StoredAdmission,
} from '../../src/limiter/script-calls.ts';
import type { ReplicaMessage } from '../../src/limiter/script-replies.ts';
import { originOf } from '../support/origins.ts';
import type { AdmitStep, Step } from './parity-history.ts';
import { stateOfPolicy, type Normal } from './parity-state.ts';
import { ScriptModel, type Asked } from './script-model.ts';

export interface Planned {
  readonly step: Step;
  /** `null`: everything is lost. */
  readonly call: ScriptCall | null;
  readonly admission: Admission | null;
  readonly reply: object | null;
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

const longestClosedMs = 30 * 24 * 3_600_000;
export function planOf(history: readonly Step[], bucket: string, start: number): Plan {
  return new Model(bucket, start).run(history);
}

/**
 * Where the time of a history begins: at 0 or soon after it, up to thirty days later, or in 1970. The smaller the numbers,
 * the more bits their fractions have.
 */
export const startOf = (seed: number): number => {
  const { ms } = originOf(seed, ((seed * 7) % 1_000) / 1_000);
  return ms === 0 && seed % 2 === 0 ? 0 : ms + 1_000.1 + seed / 7;
};

class Model {
  readonly #key: string;
  readonly #planned: Planned[] = [];
  readonly #messages: (ReplicaMessage & { replica: string })[] = [];
  readonly #orders = new Map<string, number>();
  /** Newest first. */
  readonly #leases: string[] = [];
  readonly #store: ScriptModel;
  /** What the caller's clock says; may step back, though never below 0. */
  #clock: number;

  constructor(key: string, start: number) {
    this.#key = key;
    this.#clock = start;
    this.#store = new ScriptModel(key, (message) => this.#messages.push(message));
  }

  run(history: readonly Step[]): Plan {
    for (const step of history) {
      this.#clock = Math.max(0, this.#clock + step.afterMs);
      const named = this.#nameOf(step);
      for (let time = 0; time < (step.twice ? 2 : 1); time += 1) this.#step(step, named);
    }
    return { planned: this.#planned, messages: this.#messages };
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

  #step(step: Step, named: string): void {
    const store = this.#store;
    const asking: Asking = { bucket: this.#key, replica: step.replica, now: this.#clock };
    const asked: Asked = { replica: step.replica, clock: this.#clock };
    switch (step.kind) {
      case 'admit':
        for (let n = 0; n < step.count; n += 1) this.#admit(step, n, asking, asked);
        return;
      case 'settle': {
        const { settlement, lesson } = step;
        const call = settleCall(asking, named, settlement, lesson);
        return this.#plan(step, call, () => store.settle(named, settlement, lesson, asked));
      }
      case 'learn': {
        const call = learnCall(asking, named, step.lesson);
        return this.#plan(step, call, () => store.learn(named, step.lesson, asked));
      }
      case 'charged': {
        const { edge } = step;
        const call = chargedCall(asking, named, edge);
        return this.#plan(step, call, () => store.charged(named, edge, asked));
      }
      case 'reconfigure': {
        const lanes = step.lanes.map((lane) => ({ ...lane, lane: `l${lane.lane}` }));
        const change = { setting: step.setting, lanes };
        return this.#plan(step, reconfigureCall(asking, change), () => store.reconfigure(change, asked));
      }
      case 'cancel':
        return this.#plan(step, cancelCall(asking, named), () => store.cancel(named, asked));
      case 'forecast':
        return this.#plan(step, forecastCall(asking, named), () => store.forecast(named, asked));
      case 'tick': {
        const own = this.#leases.filter((_lease, at) => step.renew > 0 && at % step.renew === 0);
        const renewed = own.slice(0, leasesPerTick);
        return this.#plan(step, tickCall(asking, renewed), () => store.tick(renewed, asked));
      }
      case 'loss':
        store.lose();
        this.#planned.push({ step, call: null, admission: null, reply: null, state: null, lifeMs: 0 });
    }
  }

  #admit(step: Entering, n: number, asking: Asking, asked: Asked): void {
    const ticket = `t${step.ticket + n}`;
    const position = this.#positionOf(step, ticket);
    const lane = step.spread ? `m${step.lane}-${n}` : `l${step.lane}`;
    const admission: Admission = {
      ...step,
      ticket,
      bucket: this.#key,
      lane,
      // What the replica cannot tell is the time of the script, which is never before what the store has seen.
      position: position.kind === 'kept' ? position : { ...position, at: position.at ?? this.#now() },
    };
    const last = n === step.count - 1;
    const run = (): object => {
      const reply = this.#store.admit(admission, asked);
      if ('order' in reply) this.#orders.set(ticket, reply.order);
      return reply;
    };
    this.#plan(step, admitCall(asking, { ...admission, position }), run, last, admission);
  }

  /** Time as the store sees it, which never steps back. */
  #now(): number {
    return this.#store.bucket === null ? this.#clock : Math.max(this.#clock, this.#store.seen);
  }

  #positionOf(step: Entering, ticket: string): StoredAdmission['position'] {
    if (step.again) {
      return { kind: 'kept', order: this.#orders.get(ticket) ?? madeUpOrder(step, this.#clock) };
    }
    const { arrivedAgoMs } = step;
    return { kind: 'arrival', at: arrivedAgoMs === null ? null : this.#clock - arrivedAgoMs };
  }

  #plan(
    step: Step,
    call: ScriptCall,
    run: () => object,
    look = true,
    admission: Admission | null = null,
  ): void {
    const store = this.#store;
    const isKnown = store.bucket !== null || admission !== null;
    const reply = run();
    if (isKnown && step.kind !== 'forecast') {
      for (const { lease } of store.effects.grants) this.#leases.unshift(lease);
    }
    const { bucket, born, seen, unnamed } = store;
    const known = bucket === null ? null : stateOfPolicy(bucket, { born, seen, unnamed });
    const state = bucket !== null && !look ? undefined : known;
    const shutMs = bucket === null ? 0 : closedMs(bucket, seen);
    const lifeMs = bucket === null ? 0 : memoryMs(bucket, seen) + Math.min(longestClosedMs, shutMs);
    this.#planned.push({ step, call, admission, reply, state, lifeMs });
  }
}

/** Of a store that began earlier, or of one that was further ahead. */
const madeUpOrder = (step: AdmitStep, now: number): number =>
  step.urgency * 2 ** 48 + (step.count % 2 === 0 ? 12_345 : Math.floor(now) * 64 + 1_000_000) + step.ticket;
