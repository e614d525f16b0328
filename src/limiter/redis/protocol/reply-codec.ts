/**
 * What comes back from Redis: the reply of `apply`, from text to types (`message-codec.ts`: what is published). Anything that is
 * not as `lua/apply.lua` says is a `MalformedReply`: it never means "granted".
 *
 * Times (`now`, `expiresAt`, `createdAt`) are on the store's clock; a replica turns them into its own with `sentAt + (expiresAt -
 * now)`, where `sentAt` is when it SENT the command whose reply carried that `now`: earlier than the truth, never later. Any
 * reply's pair will do for a grant that came by message.
 */
import type { MeterName } from '../../../call.ts';
import { heldByReasons, type HeldBy } from '../../../errors.ts';
import type { AdmitReply, BucketEvent, EventKind, EventReply, ReplyOf } from '../../policy/bucket-events.ts';
import { meterNames } from '../../policy/meter-names.policy.ts';
import { leaseToken } from '../../../ids.ts';
import type { MeterSnapshot } from '../../limiter.ts';
import {
  amountOf,
  listOf,
  malformed,
  numberOf,
  textOf,
  waitOf,
  wordOf,
} from '../../../redis/malformed-reply.ts';
import { grantOf, type GrantReply } from './message-codec.ts';

/** What the store reports of the bucket with every reply. */
export interface BucketReply {
  /** Store's clock when the events were applied, milliseconds. */
  readonly now: number;
  /** Time until another pump may grant (send a `tick` then); `null` = only another event can. */
  readonly nextInMs: number | null;
  /** Time for which nobody may send; 0 = the bucket is open. */
  readonly closedMs: number;
  /**
   * Creation time of the bucket's data on the store's clock; `null` = the store does not know the bucket. Another time than
   * before means that everything was lost in between: enter waiting tickets again, with their order.
   */
  readonly createdAt: number | null;
  /** This replica is the one that pumps after `nextInMs`; the others check later, in case it died. */
  readonly isPumpLeader: boolean;
  /** Grants of this replica that no reply to an admission reports (after a `tick` also earlier ones it has not named yet). */
  readonly grants: readonly GrantReply[];
  /**
   * Grants of this replica whose lease it has not named in any event yet. Tickets are lost when the tick's `waitingHere`
   * and this are less than the tickets known queued before the tick was sent and not granted since.
   */
  readonly unnamed: number;
}

export interface BatchReply {
  readonly bucket: BucketReply;
  /** Replies to the first events, at least one. The other events were not applied and must be sent again. */
  readonly replies: readonly EventReply[];
}

/** The reply to these events. */
export function readBatch(reply: unknown, events: readonly BucketEvent[]): BatchReply {
  const [now, nextInMs, closedMs, createdAt, isPumpLeader, grants, unnamed, replies] = listOf(
    parsed(textOf(reply)),
  );
  const own = listOf(replies);
  if (own.length === 0 || own.length > events.length) return malformed();
  return {
    bucket: {
      now: amountOf(now),
      nextInMs: nextInMs === null ? null : numberOf(nextInMs),
      closedMs: amountOf(closedMs),
      createdAt: createdAt === null ? null : numberOf(createdAt),
      isPumpLeader: flagOf(isPumpLeader),
      grants: listOf(grants).map(grantOf),
      unnamed: amountOf(unnamed),
    },
    replies: own.map((words, at) => {
      const kind = events[at]?.kind ?? malformed();
      return readers[kind](listOf(words));
    }),
  };
}

type Words = readonly unknown[];

const readers: { readonly [K in EventKind]: (words: Words) => ReplyOf[K] } = {
  admit,
  settle: lease('settled'),
  learn: lease('learned'),
  charge: lease('noted'),
  cancel: ([code]) => {
    either(code, 'cancelled', 'unknown_bucket');
    return { kind: 'cancel' };
  },
  forecast: ([code, waitMs, ahead, heldBy]) => ({
    kind: 'forecast',
    forecast: either(code, 'waiting', 'not_waiting')
      ? { waitMs: waitOf(waitMs), ahead: amountOf(ahead), heldBy: holdOf(heldBy) }
      : null,
  }),
  tick: ([code, waitingHere, meters, missing]) =>
    either(code, 'ticked', 'unknown_bucket')
      ? {
          kind: 'tick',
          waitingHere: amountOf(waitingHere),
          meters: listOf(meters).map(meter),
          missing: listOf(missing).map((token) => leaseToken(wordOf(token))),
        }
      : { kind: 'tick', waitingHere: 0, meters: [], missing: [] },
  reconfigure: ([code]) => {
    either(code, 'reconfigured', 'unknown_bucket');
    return { kind: 'reconfigure' };
  },
  wake: ([code]) => {
    either(code, 'woken', 'unknown_bucket');
    return { kind: 'wake' };
  },
  open: ([code]) => {
    either(code, 'opened', 'unknown_bucket');
    return { kind: 'open' };
  },
};

function admit([code, ...words]: Words): AdmitReply {
  switch (code) {
    case 'granted': {
      const [order, token, expiresAt] = words;
      return {
        kind: 'granted',
        order: amountOf(order),
        lease: leaseToken(wordOf(token)),
        expiresAt: numberOf(expiresAt),
      };
    }
    case 'queued': {
      const [forecastMs, ahead, order, heldBy] = words;
      return {
        kind: 'queued',
        forecastMs: waitOf(forecastMs),
        ahead: amountOf(ahead),
        order: amountOf(order),
        heldBy: holdOf(heldBy),
      };
    }
    case 'queue_full':
    case 'wait_too_long': {
      const [retryInMs, heldBy, ahead] = words;
      return {
        kind: 'refused',
        reason: code,
        retryInMs: waitOf(retryInMs),
        heldBy: holdOf(heldBy),
        ahead: amountOf(ahead),
      };
    }
    default:
      return malformed();
  }
}

function lease(known: string): (words: Words) => ReplyOf['settle'] {
  return ([code]) => ({ kind: 'lease', known: either(code, known, 'unknown_lease') });
}

function meter(words: unknown): MeterSnapshot {
  const [name, limit, level, windowMs] = listOf(words);
  return {
    meter: meterNameOf(name),
    limit: amountOf(limit),
    level: amountOf(level),
    windowMs: amountOf(windowMs),
  };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return malformed();
  }
}

const flagOf = (value: unknown): boolean => (typeof value === 'boolean' ? value : malformed());

const holdOf = (value: unknown): HeldBy => heldByReasons.find((name) => name === value) ?? malformed();

const meterNameOf = (value: unknown): MeterName => meterNames.find((name) => name === value) ?? malformed();

function either(code: unknown, yes: string, no: string): boolean {
  if (code === yes) return true;
  return code === no ? false : malformed();
}
