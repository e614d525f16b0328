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
import type { Admission, LaneKey } from './limiter.ts';
import type { StoredAdmission } from './script-calls.ts';
import type { BucketBook, KeptTicket } from './redis-book.ts';
import { runScript } from './redis-commands.ts';
import { RedisAway, type RedisLink } from './redis-link.ts';
import type { Replica } from './replica.ts';
import type { Asking, BucketReply, ScriptCall } from './scripts.ts';

/** After a loss every replica has noticed within a tick and entered its tickets again. Milliseconds. */
export const settlingMs = 1_300;

export interface Asked<T> {
  readonly reply: T;
  /** Monotonic milliseconds at which the attempt that was answered was sent. */
  readonly sentAt: number;
  readonly attempts: number;
}

/** An admission of a ticket that has its position already. */
export type Positioned = Admission & { readonly position: { readonly kind: 'kept'; readonly order: number } };

export interface Scripts {
  /** Who asks, and for which bucket. */
  asking(book: BucketBook): Asking;
  /**
   * Runs the script until an attempt succeeds. Rejects with `RedisAway`. `newcomer`: the lane of a call that Redis has not
   * heard of; it waits while much is on its way to Redis, lanes in turn.
   */
  ask<T extends BucketReply>(
    book: BucketBook,
    call: ScriptCall,
    read: (reply: unknown) => T,
    newcomer?: LaneKey,
  ): Promise<Asked<T>>;
  /** Is the bucket new to this replica and young, was it there before? Done with every reply. */
  askForLosses(book: BucketBook, reply: BucketReply): Promise<void>;
  /** Order of a call that arrived at this monotonic time, among those of all replicas. */
  orderAt(urgency: number, at: number): number;
  /** With its arrival on Redis' clock. */
  stored(admission: Admission): StoredAdmission;
  /** With the position that Redis told, or that of its arrival. */
  positioned(ticket: KeptTicket): Positioned;
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
  readonly replica: Pick<Replica, 'id' | 'beat' | 'storeClock'>;
}): Scripts {
  const open = new Set<Promise<unknown>>();
  const { storeClock } = replica;
  let latest = { now: 0, sentAt: 0 };

  const askForLosses = async (book: BucketBook, { born, now }: BucketReply): Promise<void> => {
    if (book.born !== null || born === null || now - born >= settlingMs) return;
    try {
      await link.run('other', (client) => replica.beat(client));
    } catch (failure) {
      if (!(failure instanceof RedisAway)) throw failure;
    }
  };

  /** Before the first reply this process' own wall clock has to do. */
  const orderAt = (urgency: number, at: number): number => {
    const time = storeClock.at(at) ?? clock.now() + at - clock.monotonic();
    return urgency * orderUnit + Math.floor(time * sequencePerMs);
  };

  return {
    askForLosses,
    asking: (book) => ({ bucket: book.key, replica: replica.id }),

    async ask(book, call, read, newcomer) {
      let sentAt = 0;
      let attempts = 0;
      const reply = await link.run(
        call.script,
        async (client) => {
          sentAt = clock.monotonic();
          return read(await runScript(client, call));
        },
        {
          onAttempts: (count) => (attempts = count),
          ...(newcomer === undefined ? {} : { lane: newcomer }),
        },
      );
      storeClock.note(reply.now, sentAt, clock.monotonic());
      latest = { now: reply.now, sentAt };
      book.usedAt = sentAt;
      await askForLosses(book, reply);
      return { reply, sentAt, attempts };
    },

    orderAt,

    stored: (admission) => {
      const { position } = admission;
      if (position.kind === 'kept') return { ...admission, position };
      return { ...admission, position: { kind: 'arrival', at: storeClock.at(position.at) } };
    },

    positioned: ({ admission, order, arrivedAt }) => ({
      ...admission,
      position: { kind: 'kept', order: order ?? orderAt(admission.urgency, arrivedAt) },
    }),

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
