/** What a replica has instead of ioredis: a network that delays, loses, repeats and reorders, and connections that break. */
import type { RedisClient, RedisConnection, SubscriptionListener } from '../../../src/redis/connection.ts';
import type { FakeClock } from '../../support/fake-clock.ts';
import type { Chance } from '../chance.ts';
import type { NetworkPlan } from '../plan.ts';
import type { Process } from './process.ts';
import type { Server } from './server.ts';

const unavailable = "Stream isn't writeable and enableOfflineQueue options is false";
const broken = 'Connection is closed.';

interface Subscription {
  readonly channel: string;
  readonly onMessage: (text: string) => void;
  readonly onReady: () => void;
  open: boolean;
}

interface ConnectionParts {
  readonly process: Process;
  readonly clock: FakeClock;
  readonly chance: Chance;
  readonly network: NetworkPlan;
  readonly server: Server;
}

export class Connection {
  readonly #parts: ConnectionParts;
  readonly #listeners: { readonly event: string; readonly run: () => void }[] = [];
  readonly #pending = new Set<(failure: Error) => void>();
  readonly #subscriptions = new Set<Subscription>();
  #status: 'ready' | 'close' = 'ready';
  /** Packets neither come nor go, and neither side sees an error. */
  #mute = false;
  #closed = false;
  #requestAt = 0;
  #replyAt = 0;
  #messageAt = 0;
  /** When a command or message was last lost or late, so that later judgements know what was undisturbed. */
  lastTroubleAt = -Infinity;
  /** When there was no way to the server; the last one may last. */
  readonly gaps: { readonly at: number; until: number }[] = [];

  constructor(parts: ConnectionParts) {
    this.#parts = parts;
  }

  get isWhole(): boolean {
    return this.#status === 'ready' && !this.#mute;
  }

  asProduct(): RedisConnection {
    return {
      client: clientOf((command, words) => this.#ask(command, words), {
        status: () => this.#status,
        on: (event, run) => void this.#listeners.push({ event, run }),
      }),
      isReady: () => this.#status === 'ready',
      info: async () => String(await this.#ask('info', [])),
      reachAll: async () => {},
      primaries: () => '',
      subscribe: (channel, listener) => this.#follow(channel, listener),
      close: () => {
        this.#closed = true;
        this.#status = 'close';
      },
    };
  }

  hear(channel: string, text: string): void {
    for (const subscription of this.#subscriptions) {
      if (subscription.channel !== channel || !subscription.open) continue;
      if (this.#mute || this.#parts.chance.happens(this.#parts.network.lostMessages)) {
        this.trouble();
        continue;
      }
      const times = this.#parts.chance.happens(this.#parts.network.repeated) ? 2 : 1;
      for (let time = 0; time < times; time += 1) {
        this.#messageAt = this.#later(this.#messageAt);
        this.#parts.process.arrives(this.#messageAt, () => subscription.onMessage(text));
      }
    }
  }

  /** The server counts it among the subscribers of a channel: also while packets vanish. */
  isOn(channel: string): boolean {
    const isOpen = [...this.#subscriptions].some((one) => one.open && one.channel === channel);
    return this.#status === 'ready' && isOpen;
  }

  /** The connection breaks: whatever is on its way back is lost, and there is none until `mend`. */
  break(): void {
    this.#status = 'close';
    this.#changed();
    for (const subscription of this.#subscriptions) subscription.open = false;
    for (const fail of this.#pending) this.#parts.process.arrives(this.#now(), () => fail(new Error(broken)));
    this.#pending.clear();
    this.#parts.process.arrives(this.#now(), () => this.#emit('close'));
  }

  #emit(event: string): void {
    for (const listener of this.#listeners) if (listener.event === event) listener.run();
  }

  mend(): void {
    this.#mute = false;
    this.#changed();
    if (this.#status === 'ready' || this.#closed) return;
    this.#parts.process.arrives(this.#now() + this.#parts.chance.between(5, 400), () => {
      if (this.#status === 'ready' || this.#closed) return;
      this.#status = 'ready';
      this.#changed();
      this.#emit('ready');
      for (const subscription of this.#subscriptions) this.#resubscribe(subscription);
    });
  }

  mute(): void {
    this.#mute = true;
    this.#changed();
  }

  #changed(): void {
    this.trouble();
    const gap = this.gaps.at(-1);
    const isOpen = gap?.until === Infinity;
    if (this.isWhole && isOpen) gap.until = this.#now();
    else if (!this.isWhole && !isOpen) this.gaps.push({ at: this.#now(), until: Infinity });
  }

  #now(): number {
    return this.#parts.clock.monotonic();
  }

  trouble(): void {
    this.lastTroubleAt = this.#now();
  }

  #resubscribe(subscription: Subscription): void {
    this.#parts.process.arrives(this.#now() + 3 * this.#delay(), () => {
      if (this.#status !== 'ready' || this.#mute || subscription.open) return;
      subscription.open = true;
      subscription.onReady();
    });
  }

  #follow(channel: string, { onMessage, onReady }: SubscriptionListener): () => void {
    const subscription = { channel, onMessage, onReady, open: false };
    this.#subscriptions.add(subscription);
    this.#resubscribe(subscription);
    return () => this.#subscriptions.delete(subscription);
  }

  #ask(command: string, words: readonly string[]): Promise<unknown> {
    if (this.#status !== 'ready') return Promise.reject(new Error(this.#closed ? broken : unavailable));
    return new Promise((resolve, reject) => {
      let settled = false;
      const end = (run: () => void): void => {
        if (settled) return;
        settled = true;
        this.#pending.delete(fail);
        cancel();
        run();
      };
      const fail = (failure: Error): void => end(() => reject(failure));
      this.#pending.add(fail);
      const cancel = this.#parts.process.after(this.#parts.network.commandTimeoutMs, () => {
        this.trouble();
        fail(new Error('Command timed out'));
      });
      this.#deliver(command, words, (value) => end(() => resolve(value)), fail);
    });
  }

  #deliver(
    command: string,
    words: readonly string[],
    resolve: (value: unknown) => void,
    reject: (failure: Error) => void,
  ): void {
    const { chance: at, network, server, clock, process } = this.#parts;
    if (this.#mute || at.happens(network.lostRequests)) return;
    const isLate = at.happens(network.late);
    const arrivesAt = (this.#requestAt = this.#later(this.#requestAt));
    const runsAt = isLate ? arrivesAt + at.between(0, 3 * network.commandTimeoutMs) : arrivesAt;
    if (isLate) this.trouble();
    const isRepeated = at.happens(network.repeated);
    const replyIsLost = at.happens(network.lostReplies);
    const run = (): void => {
      if (server.isDown) return;
      if (this.#now() < server.hangsUntil) return void clock.outside(server.hangsUntil, run);
      let value: unknown;
      try {
        value = server.execute(command, words);
      } catch (failure) {
        const text = failure instanceof Error ? failure.message : 'unknown';
        const reply = Object.assign(new Error(`ERR ${text}`), { name: 'ReplyError' });
        return process.arrives(this.#now() + this.#delay(), () => reject(reply));
      }
      if (replyIsLost || this.#mute || this.#status !== 'ready') return this.trouble();
      this.#replyAt = this.#later(this.#replyAt);
      process.arrives(this.#replyAt, () => resolve(value));
    };
    clock.outside(runsAt, run);
    if (!isRepeated) return;
    clock.outside(runsAt + at.between(0, 300), () => {
      if (!server.isDown) server.execute(command, words);
    });
  }

  #delay(): number {
    return this.#parts.network.meanMs * this.#parts.chance.between(0.5, 1.5);
  }

  /** In order on one connection, unless the plan says otherwise. */
  #later(last: number): number {
    const at = this.#now() + this.#delay();
    return this.#parts.network.disorder ? at : Math.max(last, at);
  }
}

/** What the product uses of a client of Redis that has hundreds of commands: a handful. */
export function clientOf(
  ask: (command: string, words: readonly string[]) => Promise<unknown>,
  { status, on }: { status: () => string; on: (event: string, run: () => void) => void },
): RedisClient {
  const commands = /^(?:sluice_\w+|get|pttl|publish)$/;
  const get = (target: object, name: string | symbol): unknown => {
    if (name === 'status') return status();
    if (Reflect.has(target, name)) return Reflect.get(target, name);
    if (typeof name !== 'string' || !commands.test(name)) return undefined;
    return (...words: readonly (string | number)[]) => ask(name, words.map(String));
  };
  const client: unknown = new Proxy({ on }, { get });
  return client as RedisClient;
}
