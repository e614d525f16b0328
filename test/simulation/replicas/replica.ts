/** One replica of a history: the product's own stores and admission in a simulated process, its connection, and what happened to it. */
import { AdmissionQueue } from '../../../src/admission/admission.ts';
import type { Settings } from '../../../src/config/settings.ts';
import { replicaId } from '../../../src/ids.ts';
import type { LimiterListener } from '../../../src/limiter/limiter.ts';
import type { Limiter } from '../../../src/limiter/over-log/limiter.ts';
import { createStores, type Stores } from '../../../src/limiter/stores.ts';
import type { Telemetry } from '../../../src/telemetry/telemetry.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import type { FakeClock } from '../../support/fake-clock.ts';
import { plainRedis } from '../../support/plain-redis.ts';
import { withMethods } from '../../support/with-methods.ts';
import type { Chance } from '../chance.ts';
import type { ReplicaLedger } from './ledger.ts';
import { Connection } from './connection.ts';
import { ownStores } from './own-stores.ts';
import { Process } from './process.ts';
import type { Server } from './server.ts';

export class Replica {
  readonly name: string;
  readonly process: Process;
  readonly connection: Connection;
  readonly stores: Pick<Stores, 'limiter' | 'ceilings' | 'ready'>;
  readonly queue: AdmissionQueue;
  readonly id: string;
  isReady = false;
  /** `redis`, also of a process alone, or how it does without. */
  mode = 'none';
  modeSince = 0;
  readonly startedAt: number;
  readonly lastArrival = new Map<string, number>();
  readonly #pauses: { readonly at: number; readonly until: number }[] = [];
  readonly #clock: FakeClock;

  constructor(name: string, world: World) {
    const { clock, chance, ledger, server } = world;
    this.name = name;
    this.id = `r${name}`;
    this.#clock = clock;
    this.startedAt = clock.monotonic();
    const lateMs = (): number => (chance.happens(0.3) ? chance.between(0, 1.5) : 0);
    this.process = new Process(name, clock, { lateMs, uptimeMs: world.uptimeMs });
    const { network } = ledger.plan;
    this.connection = new Connection({ process: this.process, clock, chance, network, server });
    const bug = (failure: unknown): void => ledger.broken('10', `${name}: ${describe(failure)}`);
    const telemetry: Telemetry = {
      ...noTelemetry,
      limiterMode: (mode) => {
        this.mode = mode;
        this.modeSince = clock.monotonic();
        ledger.reach(`mode ${mode}`);
        ledger.note(`${name} mode ${mode}`);
      },
      count(_, labels) {
        if (labels?.['reason'] !== undefined) ledger.suspected(labels['reason']);
      },
      log: { ...noTelemetry.log, bug: (text, cause) => bug(`${text}: ${describe(cause)}`) },
    };
    const listener: LimiterListener = {
      onGrant: (grant) => this.queue.listener.onGrant(grant),
      onClosed: (bucket, closedMs) => this.queue.listener.onClosed(bucket, closedMs),
    };
    const { leaseMs, isAlone } = ledger.plan;
    if (isAlone === true) this.mode = 'redis';
    const settings = { redis: plainRedis({ whenDown: ledger.plan.whenDown }), privacy: { labelKey: '' } };
    const random = { next: () => chance.next(), hex: nameEach(name) };
    const own = { replica: replicaId(this.id), chance, ledger, server, onFailure: bug };
    const heard = { clock: this.process, listener };
    // Nothing else of the settings concerns the stores.
    const shared = { settings: settings as unknown as Settings, random, telemetry, leaseMs };
    this.stores =
      isAlone === true
        ? ownStores({ ...own, ...heard, onLeaseLost: (reason) => ledger.suspected(reason) })
        : createStores({ ...shared, ...heard }, () => this.connection.asProduct());
    const { limiter, ceilings } = this.stores;
    this.queue = new AdmissionQueue({
      clock: this.process,
      limiter: withMethods<Limiter>(limiter, {
        settle: (grant, ...how) => {
          ledger.ends(grant.lease);
          return limiter.settle(grant, ...how);
        },
      }),
      ceilings,
      leaseMs,
      onReckoned: ({ admission }, said) => void (ledger.call(admission.ticket).reckoned = said),
      onFailure: bug,
    });
    this.stores.ready().then(() => {
      this.isReady = true;
    }, bug);
  }

  pause(ms: number): void {
    const at = this.#clock.monotonic();
    this.process.pause(ms);
    this.#pauses.push({ at, until: at + ms });
  }

  /** When its event loop first turned after something happened outside. It may be stopped again before it has turned once. */
  turnedAt(at: number): number {
    const until = this.#pauses.map((one) => (one.at <= at && at <= one.until ? one.until : at));
    const turned = Math.max(at, ...until);
    return turned > at ? this.turnedAt(turned) : at;
  }

  /** When it was back, if it was stopped or had no way to Redis at this time; the time itself, if it was there. */
  backAfter(at: number): number {
    const gaps = [...this.#pauses, ...this.connection.gaps];
    const gap = gaps.find((one) => one.at <= at && at < one.until);
    return gap === undefined ? at : this.backAfter(gap.until);
  }

  get resumedAt(): number {
    return Math.max(-Infinity, ...this.#pauses.map(({ until }) => until));
  }

  /** Since when it has been running, connected and understood; `Infinity` = it is not. */
  undisturbedSince(now: number): number {
    if (!this.process.alive || now < this.process.pausedUntil || !this.connection.isWhole) return Infinity;
    if (this.mode !== 'redis') return Infinity;
    return Math.max(this.startedAt, this.resumedAt, this.connection.lastTroubleAt, this.modeSince);
  }

  get wasPaused(): boolean {
    return this.#pauses.length > 0;
  }

  kill(): void {
    this.isReady = false;
    this.process.kill();
    this.connection.break();
  }
}

export interface World {
  readonly clock: FakeClock;
  readonly chance: Chance;
  readonly ledger: ReplicaLedger;
  readonly server: Server;
  /** Of the process, at the beginning of the history. Milliseconds. */
  readonly uptimeMs: number;
}

/** Names itself first, and lives of logs that it begins afterwards. */
function nameEach(name: string): () => string {
  let names = 0;
  return () => ((names += 1) === 1 ? name : `${name}.${names}`);
}

const describe = (failure: unknown): string =>
  failure instanceof Error
    ? (failure.stack ?? failure.message).split('\n').slice(0, 4).join(' ')
    : String(failure);
