/** Keyed digests under which buckets, lanes, ceilings and callers are known: nobody reads a name back without the label key. */
import { timingSafeEqual } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { atMost } from '../bounded.ts';
import { digest } from '../identity.ts';
import { ceilingKey, laneKey, ticketId } from '../ids.ts';
import type { BucketKey, CeilingKey, LaneKey, TicketId } from '../ids.ts';

/** A cache of names, because most calls are of a few workspaces and buckets. */
const names = new LRUCache<string, string>(atMost(20_000));
/** A part may be a member of a body, as long as the body. */
const maxCachedName = 1_024;

/** The digest of these parts. `purpose`: digests of the same parts for another purpose are different. */
export function nameOf(labelKey: string, purpose: string, ...parts: readonly string[]): string {
  let known = `${labelKey}\n${purpose}`;
  for (const part of parts) known += `\n${part.length}:${part}`;
  if (known.length > maxCachedName) return digest(labelKey, purpose, ...parts);
  let name = names.get(known);
  if (name === undefined) names.set(known, (name = digest(labelKey, purpose, ...parts)));
  return name;
}

/** The lane of a workspace in a bucket. */
export const laneOf = (bucket: BucketKey, workspaceId: string, labelKey: string): LaneKey =>
  laneKey(nameOf(labelKey, 'lane', bucket, workspaceId));

/** The ceiling of a workspace on an upstream. */
export const ceilingOf = (workspaceId: string, upstream: string, labelKey: string): CeilingKey =>
  ceilingKey(nameOf(labelKey, 'ceiling', upstream, workspaceId));

// `Sluice-Ticket`: what the client of a refused call sends when it comes back. It names the reservation, and proves that Sluice gave it for
// this workspace and bucket: whatever else is kept is in the state of the limiter.

const ticketForm = /^([0-9a-f]{32})\.([0-9a-f]{32})$/;

/** @param lane stands for workspace and bucket */
export const writeTicket = (id: TicketId, lane: LaneKey, labelKey: string): string =>
  `${id}.${digest(labelKey, 'reservation', id, lane)}`;

/** `null`: the text is none of these, or was given for another workspace or bucket. */
export function readTicket(text: string | undefined, lane: LaneKey, labelKey: string): TicketId | null {
  const [given, id] = ticketForm.exec(text ?? '') ?? [];
  if (given === undefined || id === undefined) return null;
  const own = writeTicket(ticketId(id), lane, labelKey);
  return timingSafeEqual(Buffer.from(given), Buffer.from(own)) ? ticketId(id) : null;
}
