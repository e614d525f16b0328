/**
 * The replicas of the soak, which come and go: clients are sent to those that take calls, as a load balancer would. The first one is
 * never replaced, so that what it holds can be followed from the beginning to the end.
 */
import type { Random } from '../../src/clock.ts';
import type { Fleet, Gateway } from '../fleet/gateways.ts';

/** A balancer learns so late that a replica ends; within `drainDelaySeconds`. Milliseconds. */
const learnsLateMs = 500;

export class Replicas {
  readonly #fleet: Fleet;
  readonly #random: Random;
  readonly #gone = new Set<Gateway>();

  constructor(fleet: Fleet, random: Random) {
    this.#fleet = fleet;
    this.#random = random;
  }

  get #taking(): readonly Gateway[] {
    return this.#fleet.gateways.filter((gateway) => !this.#gone.has(gateway));
  }

  pick(of = this.#taking): Gateway {
    const picked = of[Math.floor(this.#random.next() * of.length)];
    if (picked === undefined) throw new Error('no replica takes calls');
    return picked;
  }

  /** One is killed at once, and another one is started. */
  async kill(): Promise<void> {
    const victim = this.pick(this.#taking.slice(1));
    this.#gone.add(victim);
    victim.signal('SIGKILL');
    await victim.ended;
    await this.#fleet.add();
  }

  /** For each but the first another one is started; it gets SIGTERM, and ends when its calls have. */
  async replaceAll(): Promise<void> {
    for (const old of this.#taking.slice(1)) {
      await this.#fleet.add();
      old.signal('SIGTERM');
      setTimeout(() => this.#gone.add(old), learnsLateMs);
      await old.ended;
    }
  }
}
