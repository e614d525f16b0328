/**
 * More calls than the ceiling of their workspace lets through, on virtual time: what becomes of each, and when it is
 * refused. Over several replicas the product's own stores run against the Redis of the simulation.
 */
import type { AdmissionQueue } from '../../src/admission/admission.ts';
import { Refusal } from '../../src/errors.ts';
import { holdAt } from '../../src/limiter/policy/ceiling.policy.ts';
import { type Ceilings, CeilingStore } from '../../src/limiter/ceiling-store.ts';
import type { LogEvent } from '../../src/limiter/over-log/state.ts';
import { Chance } from '../simulation/chance.ts';
import { ReplicaLedger } from '../simulation/replicas/ledger.ts';
import type { ReplicasPlan } from '../simulation/replicas/plan.ts';
import { Replica } from '../simulation/replicas/replica.ts';
import { scriptCommand, Server } from '../simulation/replicas/server.ts';
import { callOf, embeddedQueue, type Entering } from '../support/admission-queue.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { origins } from '../support/origins.ts';
import { withMethods } from '../support/with-methods.ts';

export interface Load {
  /** 0 = the embedded stores. */
  readonly replicas: number;
  readonly perMinute: number;
  readonly calls: number;
  readonly everyMs: number;
  readonly maxWaitMs: number;
  /** Lane (each in a bucket of its own) and urgency of the n-th call. */
  readonly lane?: (n: number) => string;
  readonly urgency?: (n: number) => number;
  /** Refuse nobody before its wait is over: what is sent then is the most that can be. */
  readonly isBlind?: boolean;
}

export interface End {
  readonly n: number;
  /** `sent`, or the code of the refusal. */
  readonly how: string;
  readonly waitedMs: number;
}

export interface Overload {
  readonly ends: readonly End[];
  readonly sent: number;
  /** Refusals of calls that had been held for more than a moment. */
  readonly late: readonly End[];
  /** Sends in the busiest minute. */
  readonly busiest: number;
  /** Commands that Redis got, by name. */
  readonly commands: ReadonlyMap<string, number>;
}

/** Longer than the ways to Redis and back take. Milliseconds. */
const momentMs = 100;
const startMs = 3_000;

export async function overload(load: Load): Promise<Overload> {
  const clock = new FakeClock();
  const commands = new Map<string, number>();
  const queues = load.replicas === 0 ? [embedded(clock, load)] : await over(clock, load, commands);
  const ends: End[] = [];
  const sentAt: number[] = [];
  for (let n = 0; n < load.calls; n += 1) {
    const queue = queues[n % queues.length];
    if (queue === undefined) throw new Error('no queue');
    const at = startMs + n * load.everyMs;
    clock.outside(at, () => {
      void follow(queue, clock, entryOf(clock, n, load)).then((how) => {
        ends.push({ n, how, waitedMs: clock.monotonic() - at });
        if (how === 'sent') sentAt.push(clock.monotonic());
      });
    });
  }
  await clock.run(startMs + load.calls * load.everyMs + load.maxWaitMs + 1_000);
  const late = ends.filter(({ how, waitedMs }) => how !== 'sent' && waitedMs > momentMs);
  return { ends, sent: sentAt.length, late, busiest: busiestMinute(sentAt), commands };
}

async function follow(queue: AdmissionQueue, clock: FakeClock, entering: Entering): Promise<string> {
  try {
    const ticket = await queue.enter(...entering);
    const lease = await ticket.whenGranted();
    clock.outside(clock.monotonic() + 50, () => lease.settle({ kind: 'succeeded', spent: null }, null));
    return 'sent';
  } catch (failure) {
    return failure instanceof Refusal ? failure.code : String(failure);
  }
}

function entryOf(
  clock: FakeClock,
  n: number,
  { perMinute, maxWaitMs, lane = () => 'l', urgency = () => 3 }: Load,
): Entering {
  return callOf(clock, `c${n}`, {
    bucket: `b-${lane(n)}`,
    limit: 100_000,
    windowMs: 60_000,
    lane: lane(n),
    maxQueued: 1_000,
    urgency: urgency(n),
    perMinute,
    maxWaitMs,
  });
}

/** Sees a place for everybody. */
const forecast: Ceilings['forecast'] = async (_ceiling, positions) =>
  positions.map((k) => holdAt(0, k, null));

function embedded(clock: FakeClock, { isBlind = false }: Load): AdmissionQueue {
  const ceilings = withMethods<Ceilings>(new CeilingStore(clock), isBlind ? { forecast } : {});
  return embeddedQueue({ clock, ceilings }).queue;
}

/** Replicas that have found their Redis. */
async function over(clock: FakeClock, load: Load, commands: Map<string, number>): Promise<AdmissionQueue[]> {
  const plan: ReplicasPlan = {
    seed: 1,
    origin: origins[2],
    uptimesMs: [],
    replicas: load.replicas,
    whenDown: 'local',
    leaseMs: 15_000,
    network: {
      meanMs: 0.4,
      commandTimeoutMs: 250,
      lostRequests: 0,
      lostReplies: 0,
      late: 0,
      repeated: 0,
      lostMessages: 0,
      disorder: false,
    },
    faults: [],
    frozenWrites: 0,
    buckets: [],
    lanes: [],
    workspaces: [],
    calls: [],
    reloads: [],
    quietFrom: null,
  };
  const nothing = (): void => {};
  const onDifference = (text: string): never => {
    throw new Error(text);
  };
  const watch = {
    applied: nothing,
    slotTaken: nothing,
    slotReturned: nothing,
    lost: nothing,
    epochBegan: nothing,
    reach: nothing,
  };
  const replicas: Replica[] = [];
  const server = new CountingServer(
    watch,
    {
      publish: (channel, text) => {
        for (const { connection } of replicas) connection.hear(channel, text);
      },
      subscribers: (channel) => replicas.filter(({ connection }) => connection.isOn(channel)).length,
    },
    {
      monotonic: () => clock.monotonic(),
      originMs: plan.origin.ms,
      copies: { leaseMs: plan.leaseMs, onDifference },
    },
  );
  const ledger = new ReplicaLedger(plan, () => clock.monotonic(), false);
  const chance = new Chance(1);
  for (let slot = 0; slot < load.replicas; slot += 1) {
    replicas.push(new Replica(`s${slot}`, { clock, chance, ledger, server, uptimeMs: 0 }));
  }
  await clock.run(startMs - 1);
  server.commands = commands;
  if (load.isBlind === true) for (const { stores } of replicas) Object.assign(stores.ceilings, { forecast });
  return replicas.map(({ queue }) => queue);
}

class CountingServer extends Server {
  /** Scripts by the names of their files, and what was appended by kind. */
  commands = new Map<string, number>();

  override execute(command: string, words: readonly string[]): unknown {
    // Without events it only asks what is new.
    const asks = command === scriptCommand('append') && ['', '[]'].includes(words[8] ?? '');
    this.#count(asks ? 'news' : command.replace(/^sluice_/, ''));
    if (command === scriptCommand('append')) {
      // Three keys, and what the replica has of the log, come before the events.
      for (const event of JSON.parse(words[8] || '[]') as LogEvent[]) {
        this.#count(event.kind === 'in' ? event.event.kind : event.kind);
      }
    }
    return super.execute(command, words);
  }

  #count(name: string): void {
    this.commands.set(name, (this.commands.get(name) ?? 0) + 1);
  }
}

function busiestMinute(times: readonly number[]): number {
  const ordered = times.toSorted((one, other) => one - other);
  let most = 0;
  let from = 0;
  for (const [at, time] of ordered.entries()) {
    while ((ordered[from] ?? time) <= time - 60_000) from += 1;
    most = Math.max(most, at - from + 1);
  }
  return most;
}
