/**
 * Grants as Redis writes them, in replies and in messages, and the messages by which scripts say to a replica what another
 * one's events did for it. Anything that is not as `lua/reply.lua` says is a `MalformedReply`: it never means "granted".
 */
import {
  bucketKey,
  ceilingKey,
  laneKey,
  leaseToken,
  ticketId,
  type BucketKey,
  type CeilingKey,
  type LaneKey,
  type LeaseToken,
  type TicketId,
} from '../../../ids.ts';
import { amountOf, listOf, malformed, numberOf, wordOf } from '../../../redis/malformed-reply.ts';

/** A grant as the store reports it. */
export interface GrantReply {
  readonly ticket: TicketId;
  readonly lane: LaneKey;
  readonly lease: LeaseToken;
  /** Store's clock, milliseconds. */
  readonly expiresAt: number;
}

/** What another replica's events did for this one. */
export type ReplicaMessage =
  | {
      readonly kind: 'grants';
      readonly bucket: BucketKey;
      readonly createdAt: number;
      readonly grants: readonly GrantReply[];
    }
  | { readonly kind: 'closed'; readonly bucket: BucketKey; readonly closedMs: number };

/** A message on `replicaChannel(replica)`. */
export function readMessage(message: string): ReplicaMessage {
  const [head = '', ...lines] = message.split('\n');
  const [kind, bucket, value] = head.split(' ');
  if (kind === 'g') {
    const grants = lines.map((line) => grantOf(line.split(' ')));
    return { kind: 'grants', bucket: bucketKey(wordOf(bucket)), createdAt: numberOf(value), grants };
  }
  if (kind === 'c') return { kind: 'closed', bucket: bucketKey(wordOf(bucket)), closedMs: amountOf(value) };
  return malformed();
}

/** The message that a slot of the ceiling is back. */
export const slotMessage = (ceiling: CeilingKey): string => `s ${ceiling}`;

/** The ceiling of which the message says that a slot is back; `null` = it says something else. */
export function ceilingOf(text: string): CeilingKey | null {
  const [kind, key] = text.split(' ');
  return kind === 's' ? ceilingKey(wordOf(key)) : null;
}

/** A grant in a reply or a message. */
export function grantOf(words: unknown): GrantReply {
  const [ticket, lane, token, expiresAt] = listOf(words);
  return {
    ticket: ticketId(wordOf(ticket)),
    lane: laneKey(wordOf(lane)),
    lease: leaseToken(wordOf(token)),
    expiresAt: numberOf(expiresAt),
  };
}
