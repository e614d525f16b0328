/**
 * One subscription, and the proof that its messages arrive: the replica publishes an echo to its own channel over and over, and
 * expects to receive it.
 *
 * Neither silence nor the server's confirmation proves anything: a channel may simply have no messages, and a proxy may confirm the
 * subscription and then swallow the messages. Owns: the echo, over one connection. Does not own: making the next connection
 * (`connection.ts`).
 */
import type { Clock } from '../clock.ts';

/** Milliseconds between two rounds. Each round also sends a ping, whose missing reply shows a dead socket. */
const roundMs = 500;
/** So many echoes in a row may be overtaken by the reply to a later ping: in a Cluster an echo may take a longer way than the ping. */
const maxUnheard = 4;
/** Messages of others begin with another word . */
const echo = 'echo';

export interface SubscriptionListener {
  readonly onMessage: (text: string) => void;
  /** Messages come from here on; earlier ones may be missing. */
  readonly onReady: () => void;
  /** True while nobody here waits for a message, so that it may be read some milliseconds later. Left out: never. */
  readonly mayWait?: () => boolean;
}

/** What is needed of a connection of its own. */
interface Subscriber {
  readonly status: string;
  on(event: 'message', listener: (channel: string, text: string) => void): unknown;
  on(event: 'end', listener: () => void): unknown;
  off(event: 'end', listener: () => void): unknown;
  subscribe(channel: string): Promise<unknown>;
  ping(): Promise<unknown>;
}

/** Another way to the same Redis. */
interface Publisher {
  publish(channel: string, message: string): Promise<unknown>;
}

export interface ListenParts {
  readonly publisher: Publisher;
  readonly listener: SubscriptionListener;
  readonly clock: Clock;
}

/** Subscribes to `channel` on an open connection. Resolves when that has ended; rejects when it fails, or gets no messages. */
export async function listen(
  socket: Subscriber,
  channel: string,
  { publisher, listener, clock }: ListenParts,
): Promise<void> {
  const { onMessage, onReady } = listener;
  let unheard = 0;
  let isReady = false;
  const ready = (): void => {
    if (isReady) return;
    isReady = true;
    onReady();
  };
  socket.on('message', (from: string, text: string) => {
    if (from !== channel) return;
    if (text !== echo) return onMessage(text);
    unheard = 0;
    ready();
  });
  await socket.subscribe(channel);
  while (socket.status === 'ready') {
    try {
      await publisher.publish(channel, echo);
      unheard += 1;
    } catch {
      // No proof either way, and whoever needs the publisher notices by itself.
      ready();
    }
    await socket.ping();
    if (unheard >= maxUnheard) throw new Error('a subscription to Redis hears nothing');
    await roundOf(socket, clock);
  }
}

/** Resolves after a round, or as soon as the connection has ended. */
const roundOf = (socket: Subscriber, clock: Clock): Promise<void> =>
  new Promise((resolve) => {
    const end = (): void => {
      cancel();
      socket.off('end', end);
      resolve();
    };
    const cancel = clock.after(roundMs, end);
    socket.on('end', end);
  });
