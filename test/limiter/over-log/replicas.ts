/** Replicas of the limiter over one log in memory, with one guard and one clock that the test moves. */
import { expect } from '@jest/globals';
import { setImmediate as turn } from 'node:timers/promises';
import { bucketKey, logKey, logOf, replicaId, type LogKey } from '../../../src/ids.ts';
import type {
  WhenDown,
  AdmissionReply,
  BucketSetting,
  Grant,
  Settlement,
} from '../../../src/limiter/limiter.ts';
import type { LaneGuard } from '../../../src/limiter/over-log/lane-guard.ts';
import { SharedLimiter } from '../../../src/limiter/over-log/limiter.ts';
import type { LogEvent } from '../../../src/limiter/over-log/fold.ts';
import type { LeaseLostReason } from '../../../src/telemetry/events.ts';
import { admission, type AdmissionOptions } from '../../support/admission.ts';
import { manualClock, type ManualClock } from '../../support/manual-clock.ts';
import { MemoryLaneGuard } from '../../support/memory-lane-guard.ts';
import { OrderedLog, type LogEnd } from '../../support/ordered-log.ts';

export const leaseMs = 15_000;
const stepMs = 5;

export type Replica = ReturnType<World['replica']>;

/** A refusal that closes the bucket for so long; with `requeue` the call waits again, at its position. */
export const throttled = (closeMs: number, requeue = true): Settlement => ({
  kind: 'throttled',
  closeMs,
  requeue,
  sleepMs: 0,
});

interface ReplicaOptions {
  readonly whenDown?: WhenDown | (() => WhenDown);
  readonly guard?: LaneGuard;
  readonly restoreSends?: () => Promise<unknown>;
  /** Replicas of another version have logs of their own. */
  readonly version?: string;
  /** How many it believes there are. */
  readonly replicas?: number;
}

export class World {
  readonly clock: ManualClock = manualClock(1_000_000);
  readonly #logs = new Map<LogKey, OrderedLog<LogEvent>>();
  readonly guard: LaneGuard = new MemoryLaneGuard(this.clock);
  readonly #opened: { readonly limiter: SharedLimiter; readonly failures: readonly unknown[] }[] = [];

  /** The log of the bucket that is named `bucket`. */
  get log(): OrderedLog<LogEvent> {
    return this.#logOf(logOf(bucketKey('bucket')));
  }

  replica(
    id: string,
    {
      whenDown = 'deny',
      guard = this.guard,
      restoreSends = async () => {},
      version = '',
      replicas = 2,
    }: ReplicaOptions = {},
  ) {
    const { clock } = this;
    const pass = (ms: number) => this.pass(ms);
    /** In the order in which the replica may use them, at once or reported. */
    const grants: Grant[] = [];
    const failures: unknown[] = [];
    /** Why leases of capped lanes were lost while their calls were under way. */
    const leasesLost: LeaseLostReason[] = [];
    const ends: LogEnd<LogEvent>[] = [];
    const end = (): LogEnd<LogEvent> => {
      const last = ends.at(-1);
      if (last === undefined) throw new Error('no log was opened');
      return last;
    };
    const limiter = new SharedLimiter({
      clock,
      replica: replicaId(id),
      listener: { onGrant: (grant) => void grants.push(grant), onClosed: () => {} },
      guard,
      restoreSends,
      whenDown: typeof whenDown === 'function' ? whenDown : () => whenDown,
      leaseMs,
      replicas: () => replicas,
      onFailure: (failure) => void failures.push(failure),
      onLeaseLost: (reason) => void leasesLost.push(reason),
      openLog: (key) => {
        ends.push(this.#logOf(logKey(`${version}${key}`)).open(id));
        return end();
      },
    });
    const grantOf = (ticket: string): Grant => {
      const grant = grants.findLast((one) => one.ticket === ticket);
      if (grant === undefined) throw new Error(`${ticket} was not granted`);
      return grant;
    };
    const admit = async (ticket: string, options?: AdmissionOptions): Promise<AdmissionReply> => {
      const reply = await limiter.admit(admission(ticket, { arrivedAt: clock.monotonic(), ...options }));
      if (reply.kind === 'granted') grants.push(reply.grant);
      return reply;
    };
    const replica = {
      limiter,
      /** Its end of the log that it opened last. */
      end,
      opened: () => ends.length,
      leasesLost,
      admit,
      /** As `admit`, for one call after the other; the kinds of their replies. */
      async ask(tickets: readonly string[], options?: AdmissionOptions): Promise<AdmissionReply['kind'][]> {
        const kinds: AdmissionReply['kind'][] = [];
        for (const ticket of tickets) kinds.push((await admit(ticket, options)).kind);
        return kinds;
      },
      /** Lanes keep their settings. */
      async reload(changed: Partial<BucketSetting>): Promise<void> {
        const setting = { meters: [], learn: true, probe: 0, ...changed };
        await limiter.reconfigure({ bucket: bucketKey('bucket'), setting, lanes: [] });
      },
      granted: (): string[] => grants.map(({ ticket }) => ticket),
      grantOf,
      /** The call ends, and all that follows from it happens. */
      async settle(
        ticket: string,
        settlement: Settlement = { kind: 'succeeded', spent: null },
      ): Promise<void> {
        await limiter.settle(grantOf(ticket), settlement, null);
        await pass(50);
      },
    };
    this.#opened.push({ limiter, failures });
    return replica;
  }

  #logOf(key: LogKey): OrderedLog<LogEvent> {
    let log = this.#logs.get(key);
    if (log === undefined) this.#logs.set(key, (log = new OrderedLog(this.clock)));
    return log;
  }

  /** Lets time pass, and everything happen that is due in it. */
  async pass(ms: number): Promise<void> {
    await turn();
    for (let passed = 0; passed < ms; passed += stepMs) {
      this.clock.advance(Math.min(stepMs, ms - passed));
      await turn();
    }
  }

  /** The log loses its entries behind the first ones; for so long a new term may hold grants back. */
  async lose(kept = this.log.entries.length, thenMs = 3_000): Promise<void> {
    this.log.keepOnly(kept);
    await this.pass(thenMs);
  }

  async close(): Promise<void> {
    for (const { limiter, failures } of this.#opened) {
      await limiter.close();
      expect(failures).toEqual([]);
    }
  }
}
