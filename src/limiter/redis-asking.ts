/**
 * From an operation on a bucket to the reply of its script, and the work that goes on behind an answer that has been
 * given.
 *
 * Owns: Redis' clock against ours as of the latest reply, the list of what is under way. Refuses to own: repetition and
 * whether Redis is there (`redis-link.ts`), what a reply means (`redis-grants.ts`).
 */
import type { Clock } from '../clock.ts';
import type { Telemetry } from '../telemetry/events.ts';
import { orderUnit, sequencePerMs } from './bucket-state.policy.ts';
import type { BucketBook } from './redis-book.ts';
import { runScript } from './redis-commands.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import type { Asking, BucketReply, ScriptCall } from './scripts.ts';

export interface Asked<T> {
  readonly reply: T;
  /** Monotonic milliseconds at which the attempt that was answered was sent. */
  readonly sentAt: number;
  readonly attempts: number;
}

export interface Scripts {
  /** Who asks, and for which bucket. */
  asking(book: BucketBook): Asking;
  /** Runs the script until an attempt succeeds; `repeated` makes the call for attempts after the first. Rejects with `RedisAway`. */
  ask<T extends BucketReply>(
    book: BucketBook,
    call: ScriptCall,
    read: (reply: unknown) => T,
    repeated?: () => ScriptCall,
  ): Promise<Asked<T>>;
  /** Place of a call that arrived at this monotonic time, among those of all replicas. */
  placeAt(urgency: number, at: number): number;
  /** Redis' time in the latest reply, and when it was asked for (monotonic); zeros before the first one. */
  latest(): { readonly now: number; readonly sentAt: number };
  /** Goes on without being waited for; a failure that is not Redis' absence is logged as a bug. */
  background(work: Promise<unknown>): void;
  /** Resolves when nothing is under way, or Redis is away. */
  drained(): Promise<void>;
}

export function createScripts({
  link,
  clock,
  telemetry,
  replica,
}: {
  readonly link: RedisLink;
  readonly clock: Clock;
  readonly telemetry: Telemetry;
  readonly replica: { readonly id: string };
}): Scripts {
  const open = new Set<Promise<unknown>>();
  let latest = { now: 0, sentAt: 0 };

  return {
    asking: (book) => ({ bucket: book.key, replica: replica.id }),

    async ask(book, call, read, repeated = () => call) {
      let sentAt = 0;
      let attempts = 0;
      const reply = await link.run(
        call.script,
        async (client) => {
          sentAt = clock.monotonic();
          return read(await runScript(client, attempts > 1 ? repeated() : call));
        },
        { onAttempts: (count) => (attempts = count) },
      );
      latest = { now: reply.now, sentAt };
      book.usedAt = sentAt;
      return { reply, sentAt, attempts };
    },

    // Behind everything that Redis has placed before, before everything that arrives later.
    placeAt(urgency, at) {
      const { now, sentAt } = latest;
      const time = now === 0 ? clock.now() + at - clock.monotonic() : now + at - sentAt;
      return urgency * orderUnit + Math.floor(time * sequencePerMs);
    },

    latest: () => latest,

    background(work) {
      const tracked = work
        .catch((failure: unknown) => {
          if (!(failure instanceof RedisAway)) telemetry.log.bug('a limiter operation failed', failure);
        })
        .finally(() => open.delete(tracked));
      open.add(tracked);
    },

    async drained() {
      while (open.size > 0 && link.isUp) await Promise.all(open);
    },
  };
}
