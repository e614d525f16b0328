/** What a replica has instead of ioredis: a network that delays, loses, repeats and reorders, and connections that break. */
import type { RedisClient, RedisConnection } from '../../../src/redis/connection.ts';
import type { SubscriptionListener } from '../../../src/redis/subscriber.ts';
import type { FakeClock } from '../../support/fake-clock.ts';
import type { Chance } from '../chance.ts';
import type { NetworkPlan } from '../plan.ts';
import { quiet } from './plan.ts';
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

export class Connection {
  readonly #process: Process;
  readonly #clock: FakeClock;
  readonly #chance: Chance;
  readonly #lossy: NetworkPlan;
  readonly #quietFrom: number | null;
  readonly #server: Server;
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

  constructor(parts: {
    readonly process: Process;
    readonly clock: FakeClock;
    readonly chance: Chance;
    readonly network: NetworkPlan;
    /** From then on nothing gets lost; `null` = it goes on. */
    readonly quietFrom: number | null;
    readonly server: Server;
  }) {
    this.#process = parts.process;
    this.#clock = parts.clock;
    this.#chance = parts.chance;
    this.#lossy = parts.network;
    this.#quietFrom = parts.quietFrom;
    this.#server = parts.server;
  }

  get #network(): NetworkPlan {
    const isQuiet = this.#quietFrom !== null && this.#now() >= this.#quietFrom;
    return isQuiet ? { ...quiet, meanMs: this.#lossy.meanMs } : this.#lossy;
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

  /** Something was published. */
  hear(channel: string, text: string): void {
    for (const subscription of this.#subscriptions) {
      if (subscription.channel !== channel || !subscription.open) continue;
      if (this.#mute || this.#chance.happens(this.#network.lostMessages)) {
        this.trouble();
        continue;
      }
      const times = this.#chance.happens(this.#network.repeated) ? 2 : 1;
      for (let time = 0; time < times; time += 1) {
        this.#messageAt = this.#later(this.#messageAt);
        this.#process.arrives(this.#messageAt, () => subscription.onMessage(text));
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
    this.trouble();
    this.#status = 'close';
    this.#noteGap();
    for (const subscription of this.#subscriptions) subscription.open = false;
    for (const fail of this.#pending) this.#process.arrives(this.#now(), () => fail(new Error(broken)));
    this.#pending.clear();
    this.#process.arrives(this.#now(), () => this.#emit('close'));
  }

  #emit(event: string): void {
    for (const listener of this.#listeners) if (listener.event === event) listener.run();
  }

  mend(): void {
    this.#mute = false;
    this.trouble();
    this.#noteGap();
    if (this.#status === 'ready' || this.#closed) return;
    this.#process.arrives(this.#now() + this.#chance.between(5, 400), () => {
      if (this.#status === 'ready' || this.#closed) return;
      this.#status = 'ready';
      this.trouble();
      this.#noteGap();
      this.#emit('ready');
      for (const subscription of this.#subscriptions) this.#resubscribe(subscription);
    });
  }

  /** Packets vanish from now on. */
  mute(): void {
    this.#mute = true;
    this.trouble();
    this.#noteGap();
  }

  #noteGap(): void {
    const gap = this.gaps.at(-1);
    const isOpen = gap?.until === Infinity;
    if (this.isWhole && isOpen) gap.until = this.#now();
    else if (!this.isWhole && !isOpen) this.gaps.push({ at: this.#now(), until: Infinity });
  }

  #now(): number {
    return this.#clock.monotonic();
  }

  /** Something went astray. */
  trouble(): void {
    this.lastTroubleAt = this.#now();
  }

  #resubscribe(subscription: Subscription): void {
    this.#process.arrives(this.#now() + 3 * this.#delay(), () => {
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
      const cancel = this.#process.after(this.#network.commandTimeoutMs, () => {
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
    const at = this.#chance;
    const network = this.#network;
    if (this.#mute || at.happens(network.lostRequests)) return;
    const isLate = at.happens(network.late);
    const arrivesAt = (this.#requestAt = this.#later(this.#requestAt));
    const runsAt = isLate ? arrivesAt + at.between(0, 3 * network.commandTimeoutMs) : arrivesAt;
    if (isLate) this.trouble();
    const isRepeated = at.happens(network.repeated);
    const replyIsLost = at.happens(network.lostReplies);
    const run = (): void => {
      if (this.#server.isDown) return;
      const { hangsUntil } = this.#server;
      if (this.#now() < hangsUntil) return void this.#clock.outside(hangsUntil, run);
      let value: unknown;
      try {
        value = this.#server.execute(command, words);
      } catch (failure) {
        const text = failure instanceof Error ? failure.message : 'unknown';
        const reply = Object.assign(new Error(`ERR ${text}`), { name: 'ReplyError' });
        return this.#process.arrives(this.#now() + this.#delay(), () => reject(reply));
      }
      if (replyIsLost || this.#mute || this.#status !== 'ready') {
        this.trouble();
        return;
      }
      this.#replyAt = this.#later(this.#replyAt);
      this.#process.arrives(this.#replyAt, () => resolve(value));
    };
    this.#clock.outside(runsAt, run);
    if (isRepeated) {
      this.#clock.outside(runsAt + at.between(0, 300), () => {
        if (!this.#server.isDown) this.#server.execute(command, words);
      });
    }
  }

  #delay(): number {
    return this.#network.meanMs * this.#chance.between(0.5, 1.5);
  }

  /** In order on one connection, unless the plan says otherwise. */
  #later(last: number): number {
    const at = this.#now() + this.#delay();
    return this.#network.disorder ? at : Math.max(last, at);
  }
}

/** What the product uses of a client of Redis that has hundreds of commands: a handful. */
export function clientOf(
  ask: (command: string, words: readonly string[]) => Promise<unknown>,
  { status, on }: { status: () => string; on: (event: string, run: () => void) => void },
): RedisClient {
  const commands = /^(?:sluice_\w+|get|pttl|publish)$/;
  const client: unknown = new Proxy(
    { on },
    {
      get: (target, name): unknown => {
        if (name === 'status') return status();
        if (Reflect.has(target, name)) return Reflect.get(target, name);
        if (typeof name !== 'string' || !commands.test(name)) return undefined;
        return (...words: readonly (string | number)[]) => ask(name, words.map(String));
      },
    },
  );
  return client as RedisClient;
}
