/**
 * `Sluice-Ticket`: what the client of a refused call sends when it comes back. It names the reservation, and proves that Sluice gave it for
 * this workspace and bucket: whatever else is kept is in the state of the limiter.
 */
import { timingSafeEqual } from 'node:crypto';
import { digest } from '../identity.ts';
import { ticketId, type LaneKey, type TicketId } from '../ids.ts';

const form = /^([0-9a-f]{32})\.([0-9a-f]{32})$/;

/** @param lane stands for workspace and bucket */
export const writeTicket = (id: TicketId, lane: LaneKey, labelKey: string): string =>
  `${id}.${digest(labelKey, 'reservation', id, lane)}`;

/** `null`: the text is none of these, or was given for another workspace or bucket. */
export function readTicket(text: string | undefined, lane: LaneKey, labelKey: string): TicketId | null {
  if (text === undefined) return null;
  const [, id, proof] = form.exec(text) ?? [];
  if (id === undefined || proof === undefined) return null;
  const expected = digest(labelKey, 'reservation', id, lane);
  return timingSafeEqual(Buffer.from(proof), Buffer.from(expected)) ? ticketId(id) : null;
}
