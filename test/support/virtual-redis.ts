/** Replicas of the product's own stores over the simulated Redis, on virtual time: Redis is absent when a test says so. */
import type { Settings } from '../../src/config/settings.ts';
import { defaultLeaseMs, type Grant } from '../../src/limiter/limiter.ts';
import type { RedisConnection, SubscriptionListener } from '../../src/redis/connection.ts';
import { createStores } from '../../src/limiter/stores.ts';
import { noTelemetry } from './no-telemetry.ts';
import { clientOf } from '../simulation/replicas/connection.ts';
import { Server } from '../simulation/replicas/server.ts';
import { FakeClock } from './fake-clock.ts';
import { plainRedis } from './plain-redis.ts';

export type VirtualReplica = Awaited<ReturnType<VirtualRedis['replica']>>;

export class VirtualRedis {
  readonly clock = new FakeClock();
  /** Ways to the server and back, milliseconds. */
  toMs = 1;
  fromMs = 1;
  isUnavailable = false;
  /** Replicas that have no way to Redis yet. */
  readonly cut = new Set<string>();
  restoreMs = 0;
  readonly server: Server;
  readonly #channels = new Map<string, Set<(text: string) => void>>();
  /** Replicas by the channels that they joined. */
  readonly #joined = new Map<string, Set<string>>();

  constructor() {
    const ignore = (): void => {};
    const watch = { applied: ignore, slotTaken: ignore, slotReturned: ignore, lost: ignore, reach: ignore };
    const publish = (channel: string, text: string): void => {
      for (const hear of this.#channels.get(channel) ?? []) hear(text);
    };
    const subscribers = (channel: string): number =>
      [...(this.#joined.get(channel) ?? [])].filter((name) => !this.isUnavailable && !this.cut.has(name))
        .length;
    const onDifference = (text: string): never => {
      throw new Error(text);
    };
    const copies = { leaseMs: defaultLeaseMs, onDifference };
    const parts = { monotonic: () => this.clock.monotonic(), originMs: 0, copies };
    this.server = new Server(watch, { publish, subscribers }, parts);
  }

  async replica(
    name: string,
    whenDown: 'local' | 'deny' = 'local',
    onGrant: (grant: Grant) => void = () => {},
  ) {
    const grants: Grant[] = [];
    const modes: string[] = [];
    const stores = createStores(
      {
        settings: { redis: plainRedis({ whenDown }), privacy: { labelKey: '' } } as unknown as Settings,
        clock: this.clock,
        random: { next: () => 0.5, hex: () => name },
        telemetry: { ...noTelemetry, limiterMode: (mode) => void modes.push(mode) },
        listener: {
          onGrant: (grant) => {
            grants.push(grant);
            onGrant(grant);
          },
          onClosed: () => {},
        },
      },
      () => this.#connection(name),
    );
    const ready = stores.ready();
    await this.pass(100);
    await ready;
    return Object.assign(stores, { grants, modes });
  }

  async pass(ms: number): Promise<void> {
    const until = this.clock.monotonic() + ms;
    this.clock.outside(until, () => {});
    await this.clock.run(until);
  }

  #connection(name: string): RedisConnection {
    return {
      client: clientOf((command, words) => this.#ask(name, command, words), {
        status: () => 'ready',
        on: () => {},
      }),
      isReady: () => true,
      info: async () => String(await this.#ask(name, 'info', [])),
      reachAll: async () => {},
      primaries: () => '',
      subscribe: (channel, listener) => {
        this.#joined.set(channel, (this.#joined.get(channel) ?? new Set()).add(name));
        const leave = this.#hear(name, channel, listener);
        return () => {
          leave();
          this.#joined.get(channel)?.delete(name);
        };
      },
      close: () => {
        for (const names of this.#joined.values()) names.delete(name);
      },
    };
  }

  #hear(name: string, channel: string, { onMessage, onReady }: SubscriptionListener): () => void {
    const hear = (text: string): void => {
      if (!this.isUnavailable && !this.cut.has(name)) queueMicrotask(() => onMessage(text));
    };
    this.#channels.set(channel, (this.#channels.get(channel) ?? new Set()).add(hear));
    onReady();
    return () => this.#channels.get(channel)?.delete(hear);
  }

  async #ask(replica: string, command: string, words: readonly string[]): Promise<unknown> {
    await this.#after(this.toMs);
    if (this.isUnavailable || this.cut.has(replica)) throw new Error('Connection is closed.');
    const reply = this.server.execute(command, words);
    await this.#after(command === 'sluice_restore' ? this.restoreMs : this.fromMs);
    return reply;
  }

  #after(ms: number): Promise<void> {
    return new Promise((resolve) => this.clock.arrives(this.clock.monotonic() + ms, resolve));
  }
}
