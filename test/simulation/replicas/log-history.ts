/** One history of a log alone: what `log.test.ts` judges. */
import type { StampedEntry } from '../../../src/log/entry.ts';
import type { Follower, Log } from '../../../src/log/log.ts';
import { logKey, replicaId } from '../../../src/ids.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import type { Telemetry } from '../../../src/telemetry/telemetry.ts';
import { noTelemetry } from '../../support/no-telemetry.ts';
import { Chance } from '../chance.ts';
import { Connection } from './connection.ts';
import { healthOf, openLog } from './own-log.ts';
import { steadyPlanOf, type Fault } from './plan.ts';
import { Process } from './process.ts';
import { Server } from './server.ts';

const quietFrom = 20_000;
const endMs = 45_000;

/** What is wrong about the history of this seed. */
export async function livedLog(seed: number): Promise<string[]> {
  const wrong: string[] = [];
  const chance = new Chance(seed ^ 0x106);
  const clock = new FakeClock();
  const plan = steadyPlanOf(seed);
  const writers: Writer[] = [];
  const states = new Map<string, string>();
  const watch = {
    applied() {},
    slotTaken() {},
    slotReturned() {},
    lost() {},
    reach() {},
  };
  const channels = {
    publish: (channel: string, text: string) =>
      writers.forEach(({ connection }) => connection.hear(channel, text)),
    subscribers: (channel: string) => writers.filter(({ connection }) => connection.isOn(channel)).length,
  };
  const server = new Server(watch, channels, {
    monotonic: () => clock.monotonic(),
    originMs: plan.origin.ms,
  });
  const compare = (entry: StampedEntry<string>, state: string): void => {
    const at = `${entry.sequence} ${entry.mark}`;
    const known = states.get(at);
    if (known === undefined) states.set(at, state);
    else if (known !== state) wrong.push(`${at}: ${state} is not ${known}`);
  };
  const bug = (text: string, cause: unknown): void => void wrong.push(`${text}: ${String(cause)}`);
  const telemetry: Telemetry = { ...noTelemetry, log: { ...noTelemetry.log, bug } };
  const start = (): void => {
    const name = `w${writers.length}`;
    const process = new Process(name, clock, { lateMs: () => 0, uptimeMs: 0 });
    const { network } = plan;
    const connection = new Connection({ process, clock, chance, network, quietFrom, server });
    writers.push(
      new Writer(name, {
        process,
        connection,
        compare,
        chance,
        telemetry,
        commandTimeoutMs: network.commandTimeoutMs,
      }),
    );
    if (server.isDown) connection.break();
  };
  for (let slot = 0; slot < plan.replicas; slot += 1) start();
  for (const fault of plan.faults) {
    clock.outside(fault.at, () => befall(fault, { clock, server, writers, start }));
  }
  for (let number = 0; number < 200; number += 1) {
    const at = chance.between(0, quietFrom / 2);
    const slot = chance.whole(0, plan.replicas - 1);
    clock.outside(at, () =>
      writers[slot]?.process.arrives(clock.monotonic(), () => writers[slot]?.append(number)),
    );
  }
  await clock.run(endMs);
  const [first, ...others] = writers.filter(({ process }) => process.alive);
  for (const each of others) {
    if (each.text() !== first?.text())
      wrong.push(`${each.name} has ${each.text()}, and ${first?.name} ${first?.text()}`);
  }
  for (const { name, own, list, process } of writers) {
    if (!process.alive) continue;
    const entered = list.filter((event) => event.startsWith(`${name} `));
    if (entered.toSorted().join() !== [...own].toSorted().join())
      wrong.push(`of ${[...own].join()} there are ${entered.join()}`);
  }
  return wrong.map((text) => `seed ${seed}: ${text}`);
}

interface Parts {
  readonly process: Process;
  readonly connection: Connection;
  readonly compare: (entry: StampedEntry<string>, state: string) => void;
  readonly chance: Chance;
  readonly commandTimeoutMs: number;
  readonly telemetry: Telemetry;
}

class Writer implements Follower<string> {
  readonly name: string;
  readonly process: Process;
  readonly connection: Connection;
  readonly own = new Set<string>();
  list: string[] = [];
  readonly #compare: Parts['compare'];
  readonly #log: Log<string>;
  #isJoined = false;

  constructor(name: string, { process, connection, compare, chance, commandTimeoutMs, telemetry }: Parts) {
    this.name = name;
    this.process = process;
    this.connection = connection;
    this.#compare = compare;
    const product = connection.asProduct();
    this.#log = openLog(logKey('log'), {
      process,
      connection: product,
      chance,
      replica: replicaId(name),
      redis: healthOf(product, process, commandTimeoutMs),
      telemetry,
    });
    this.#log.follow(this);
    this.#beat();
  }

  text(): string {
    return this.list.join();
  }

  append(number: number): void {
    const event = `${this.name} ${number}`;
    this.own.add(event);
    if (this.#isJoined) this.#log.append(event);
  }

  onEntry(entry: StampedEntry<string>): void {
    this.list.push(...entry.events.filter((event) => event !== 'beat'));
    this.#compare(entry, this.text());
  }

  onRestore(parts: readonly string[]): void {
    this.list = parts.length === 0 ? [] : parts.join('').split(',').filter(Boolean);
  }

  onJoined(): void {
    this.#isJoined = true;
    for (const event of this.own) if (!this.list.includes(event)) this.#log.append(event);
  }

  awaitsOthers(): boolean {
    return false;
  }

  onAway(): void {
    this.#isJoined = false;
  }

  snapshot(): Iterable<string> {
    return [this.text()];
  }

  #beat(): void {
    this.process.after(1_000, () => {
      if (this.#isJoined) this.#log.append('beat');
      this.#beat();
    });
  }
}

interface World {
  readonly clock: FakeClock;
  readonly server: Server;
  readonly writers: readonly Writer[];
  readonly start: () => void;
}

function befall(fault: Fault, { clock, server, writers, start }: World): void {
  const writer = 'slot' in fault ? writers[fault.slot] : undefined;
  const downFor = (ms: number, back: () => void): void => {
    server.isDown = true;
    for (const { connection } of writers) connection.break();
    clock.outside(clock.monotonic() + ms, () => {
      back();
      server.isDown = false;
      for (const { connection } of writers) connection.mend();
    });
  };
  switch (fault.kind) {
    case 'pause':
      return writer?.process.pause(fault.ms);
    case 'kill':
      writer?.process.kill();
      writer?.connection.break();
      return start();
    case 'step':
      return writer?.process.step(fault.ms);
    case 'cut':
      if (fault.mute) writer?.connection.mute();
      else writer?.connection.break();
      return void clock.outside(clock.monotonic() + fault.ms, () => writer?.connection.mend());
    case 'start':
      return start();
    case 'flush':
      return server.flush();
    case 'replicate':
      return server.replicate();
    case 'hang':
      server.hangsUntil = clock.monotonic() + fault.ms;
      return;
    case 'promote':
      return downFor(fault.ms, () => server.promote(fault.skewMs));
    case 'down':
      return downFor(fault.ms, () => fault.back === 'empty' && server.restartEmpty());
    case 'failover':
      return downFor(fault.ms, () => server.failOver(fault.lostMs, fault.skewMs));
  }
}
