/**
 * What comes out of the scripts of the bucket scheduler: replies and published messages, from text to types. Anything
 * that is not as the script's header says is a `MalformedReply`: it never means "granted".
 *
 * Times (`now`, `expiresAt`, `born`) are on the store's clock; a replica turns them into its own with
 * `sentAt + (expiresAt - now)`, where `sentAt` is when it SENT the command whose reply carried that `now`: earlier than
 * the truth, never later. Any reply's pair will do for a grant that came by message.
 */
import type { MeterName } from '../call.ts';
import { holds, type HeldBy } from '../errors.ts';
import type { BucketKey, LaneKey, MeterSnapshot, Standing } from './limiter.ts';
import { amountOf, listOf, malformed, numberOf, textOf, waitOf, wordOf } from './malformed-reply.ts';

/** A grant as the store tells it. */
export interface ToldGrant {
  readonly ticket: string;
  readonly lane: LaneKey;
  readonly lease: string;
  /** Store's clock, milliseconds. */
  readonly expiresAt: number;
}

/** What every reply carries. */
export interface BucketReply {
  /** Store's clock when the script ran, milliseconds. */
  readonly now: number;
  /** Time until another pump may grant (send a `tick` then); `null` = only another operation can. */
  readonly nextInMs: number | null;
  /** Time for which nobody may send; 0 = the bucket is open. */
  readonly closedMs: number;
  /**
   * Birth of the bucket's data on the store's clock; `null` = the store does not know the bucket. Another birth than
   * before means that everything was lost in between: enter waiting tickets again, with their order.
   */
  readonly born: number | null;
  /** Grants of the calling replica made by this pump (after `tick` also earlier ones it has not named yet). */
  readonly grants: readonly ToldGrant[];
  /** This replica is the one that pumps after `nextInMs`; the others look later, in case it died. */
  readonly leads: boolean;
}

export type AdmitReply = BucketReply &
  (
    | { readonly code: 'granted'; readonly order: number; readonly grant: ToldGrant }
    | {
        readonly code: 'queued';
        readonly order: number;
        readonly forecastMs: number;
        readonly ahead: number;
        readonly heldBy: HeldBy;
      }
    | {
        readonly code: 'queue_full' | 'wait_too_long';
        readonly retryInMs: number;
        readonly heldBy: HeldBy;
        readonly ahead: number;
      }
  );

/** `reconfigure`. */
export type ReconfigureReply = BucketReply;

/** `settle`, `learn`, `charged`. False: the lease had ended or was lost; a call to be sent again is entered anew, with its order. */
export type LeaseReply = BucketReply & { readonly leaseKnown: boolean };

/** False: the ticket did not wait (unknown, or granted in the meantime: its grant is on its way). */
export type CancelReply = BucketReply & { readonly cancelled: boolean };

/** `null`: the ticket does not wait. */
export type ForecastReply = BucketReply & {
  readonly standing: Standing | null;
};

export type TickReply = BucketReply & {
  /** Tickets of this replica that wait in the bucket. */
  readonly waitingHere: number;
  /**
   * Grants of this replica whose lease it has not named in any call yet. Tickets are lost when
   * `waitingHere + unnamed` is less than the tickets known queued before the tick was sent and not granted since.
   */
  readonly unnamed: number;
  readonly waiting: number;
  readonly inFlight: number;
  readonly meters: readonly MeterSnapshot[];
};

/** What another replica's script did for this one. */
export type ReplicaMessage =
  | {
      readonly kind: 'grants';
      readonly bucket: BucketKey;
      readonly born: number;
      readonly grants: readonly ToldGrant[];
    }
  | { readonly kind: 'closed'; readonly bucket: BucketKey; readonly closedMs: number };

export function readAdmit(
  reply: unknown,
  admission: { readonly ticket: string; readonly lane: string },
): AdmitReply {
  const { code, own, common } = split(reply);
  switch (code) {
    case 'granted': {
      const { ticket, lane } = admission;
      const grant = { ticket, lane, lease: wordOf(own[1]), expiresAt: numberOf(own[2]) };
      return { ...common, code, order: amountOf(own[0]), grant };
    }
    case 'queued':
      return {
        ...common,
        code,
        forecastMs: waitOf(own[0]),
        ahead: amountOf(own[1]),
        order: amountOf(own[2]),
        heldBy: heldBy(own[3]),
      };
    case 'queue_full':
    case 'wait_too_long':
      return { ...common, code, retryInMs: waitOf(own[0]), heldBy: heldBy(own[1]), ahead: amountOf(own[2]) };
    default:
      return malformed();
  }
}

export function readLease(reply: unknown): LeaseReply {
  const { code, common } = split(reply);
  return { ...common, leaseKnown: either(code, ['settled', 'learned', 'noted'], ['unknown_lease']) };
}

export function readReconfigure(reply: unknown): ReconfigureReply {
  const { code, common } = split(reply);
  either(code, ['reconfigured'], ['unknown_bucket']);
  return common;
}

export function readCancel(reply: unknown): CancelReply {
  const { code, common } = split(reply);
  return { ...common, cancelled: either(code, ['cancelled'], ['not_waiting']) };
}

export function readForecast(reply: unknown): ForecastReply {
  const { code, own, common } = split(reply);
  const waits = either(code, ['waiting'], ['not_waiting']);
  if (!waits) return { ...common, standing: null };
  return {
    ...common,
    standing: { waitMs: waitOf(own[0]), ahead: amountOf(own[1]), heldBy: heldBy(own[2]) },
  };
}

export function readTick(reply: unknown): TickReply {
  const { code, own, common } = split(reply);
  if (!either(code, ['ticked'], ['unknown_bucket'])) {
    return { ...common, waitingHere: 0, unnamed: 0, waiting: 0, inFlight: 0, meters: [] };
  }
  const [waitingHere, unnamed, waiting, inFlight] = own.slice(0, 4).map(amountOf);
  return {
    ...common,
    waitingHere: waitingHere ?? malformed(),
    unnamed: unnamed ?? malformed(),
    waiting: waiting ?? malformed(),
    inFlight: inFlight ?? malformed(),
    meters: own.slice(4).map(meter),
  };
}

/** A message on `replicaChannel(replica)`. */
export function readMessage(message: string): ReplicaMessage {
  const [head = '', ...lines] = message.split('\n');
  const [kind, bucket, value] = head.split(' ');
  if (kind === 'g')
    return { kind: 'grants', bucket: wordOf(bucket), born: numberOf(value), grants: lines.map(grant) };
  if (kind === 'c') return { kind: 'closed', bucket: wordOf(bucket), closedMs: amountOf(value) };
  return malformed();
}

interface Split {
  readonly code: string;
  readonly own: readonly unknown[];
  readonly common: BucketReply;
}

function split(reply: unknown): Split {
  const [code, own, now, nextInMs, closedMs, born, grants, leads] = listOf(reply);
  return {
    code: textOf(code),
    own: listOf(own),
    common: {
      now: amountOf(now),
      nextInMs: nextInMs === '' ? null : numberOf(nextInMs),
      closedMs: amountOf(closedMs),
      born: born === '' ? null : numberOf(born),
      grants: listOf(grants).map(grant),
      leads: textOf(leads) === '1',
    },
  };
}

function grant(text: unknown): ToldGrant {
  const [ticket, lane, lease, expiresAt] = textOf(text).split(' ');
  return {
    ticket: wordOf(ticket),
    lane: wordOf(lane),
    lease: wordOf(lease),
    expiresAt: numberOf(expiresAt),
  };
}

function meter(text: unknown): MeterSnapshot {
  const [name, limit, level, windowMs] = textOf(text).split(' ');
  return {
    meter: meterName(name),
    limit: amountOf(limit),
    level: amountOf(level),
    windowMs: amountOf(windowMs),
  };
}

const meterNames: readonly MeterName[] = [
  'requests',
  'tokens',
  'requests_day',
  'tokens_day',
  'cost',
  'images',
  'requests_burst',
  'requests_hour',
];

const heldBy = (value: unknown): HeldBy => holds.find((name) => name === value) ?? malformed();

const meterName = (value: unknown): MeterName => meterNames.find((name) => name === value) ?? malformed();

function either(code: string, yes: readonly string[], no: readonly string[]): boolean {
  if (yes.includes(code)) return true;
  return no.includes(code) ? false : malformed();
}
