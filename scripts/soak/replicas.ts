/**
 * The replicas of the soak, which come and go: clients are sent to those that take calls, as a load balancer would. The first one is
 * never replaced, so that what it holds can be followed from the beginning to the end.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Random } from '../../src/clock.ts';
import { startGateway, type Gateway } from '../cluster/fleet.ts';
import { startOneAtATime, newFolder } from '../cluster/processes.ts';

export interface Replica {
  /** `replica 3`: the third one that was started. */
  readonly name: string;
  readonly gateway: Gateway;
  /** The balancer still sends calls to it. */
  isTaking: boolean;
  wasKilled: boolean;
}

/** A balancer learns so late that a replica ends; within `drainDelaySeconds`. Milliseconds. */
const learnsLateMs = 500;

export class Replicas {
  readonly #path: string;
  #all: Replica[] = [];
  #started = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /** The one that is never replaced. */
  get first(): Gateway {
    const [first] = this.#all;
    if (first === undefined) throw new Error('no replica has been started');
    return first.gateway;
  }

  get taking(): readonly Replica[] {
    return this.#all.filter(({ isTaking }) => isTaking);
  }

  /** One of those that take calls. */
  pick(random: Random): Replica {
    const { taking } = this;
    const picked = taking[Math.floor(random.next() * taking.length)];
    if (picked === undefined) throw new Error('no replica takes calls');
    return picked;
  }

  async add(): Promise<void> {
    const gateway = await startOneAtATime(() => startGateway(this.#path));
    this.#started += 1;
    this.#all.push({ name: `replica ${this.#started}`, gateway, isTaking: true, wasKilled: false });
  }

  /** One that may be replaced. */
  pickReplaceable(random: Random): Replica | null {
    const replaceable = this.taking.slice(1);
    return replaceable[Math.floor(random.next() * replaceable.length)] ?? null;
  }

  /** Another one is started, this one gets SIGTERM, and ends when its calls have. */
  async replace(old: Replica): Promise<void> {
    await this.add();
    old.gateway.signal('SIGTERM');
    setTimeout(() => (old.isTaking = false), learnsLateMs);
    await old.gateway.ended();
    this.#forget(old);
  }

  /** Killed at once, and another one is started. */
  async kill(old: Replica): Promise<void> {
    old.wasKilled = true;
    old.isTaking = false;
    old.gateway.signal('SIGKILL');
    await old.gateway.ended();
    this.#forget(old);
    await this.add();
  }

  async stop(): Promise<void> {
    for (const { gateway } of this.#all) gateway.signal('SIGKILL');
    await Promise.all(this.#all.map(({ gateway }) => gateway.ended()));
  }

  #forget(old: Replica): void {
    this.#all = this.#all.filter((replica) => replica !== old);
  }
}

/** So many replicas of one configuration. */
export async function startReplicas(count: number, yaml: string): Promise<Replicas> {
  const path = join(await newFolder(), 'sluice.yaml');
  await writeFile(path, yaml);
  const replicas = new Replicas(path);
  for (let n = 0; n < count; n += 1) await replicas.add();
  return replicas;
}
