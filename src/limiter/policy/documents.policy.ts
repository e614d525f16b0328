/**
 * What GraphQL documents cost, as far as answers told: the first call of a document goes ahead, the others wait for what
 * its answer tells (docs/adr/0007). Kept with the bucket, so that all replicas know what one of them learned. Part of the
 * specification in `scheduler.policy.ts`.
 */
import type { Costs } from '../../call.ts';
import {
  requestWindows,
  type Bucket,
  type DocumentCost,
  type Lane,
  type Lease,
  type Ticket,
} from './bucket-state.policy.ts';
import { forgetEstimate, sleep, sumCosts, takeable, wake } from './lanes.policy.ts';

/** Calls wait this long at most for the answer that tells what they cost; then they go with the estimate. Milliseconds. */
export const maxProbeMs = 5_000;
/** Documents remembered per bucket; the one of which nothing was learned for longest is forgotten first. */
export const maxDocuments = 1_000;
/** Waiting tickets whose cost is corrected when their document's becomes known; others keep their estimate in the sums. */
export const maxCorrected = 500;

/** What a call that asks for the document costs, as far as known, of every window that the bucket has. */
export function knownCosts(bucket: Bucket, costs: Costs, document: string | null): Costs {
  const known = document === null ? undefined : bucket.documents.get(document);
  const told = known?.kind === 'told' ? { ...costs, cost: known.points } : costs;
  const { requests } = told;
  if (requests === undefined) return told;
  const windows = requestWindows.filter((name) => bucket.meters.has(name));
  if (windows.length === 0) return told;
  return { ...told, ...Object.fromEntries(windows.map((name) => [name, requests])) };
}

/** True when the lane's next ticket has to wait for another call's answer: its lane sleeps until then. */
export function waitsForAnswer(bucket: Bucket, lane: Lane, { document }: Ticket, now: number): boolean {
  const known = document === null ? undefined : bucket.documents.get(document);
  if (document === null || known?.kind !== 'probing' || known.until <= now) return false;
  if (!known.lanes.includes(lane.key)) {
    bucket.documents.set(document, { ...known, lanes: [...known.lanes, lane.key] });
  }
  sleep(bucket, lane, 'document', known.until);
  return true;
}

/** A call was granted: the first of its document finds out for the others. */
export function beginProbe(bucket: Bucket, { token, ticket: { document } }: Lease, now: number): void {
  if (document === null || bucket.documents.has(document)) return;
  remember(bucket, document, { kind: 'probing', lease: token, until: now + maxProbeMs, lanes: [] }, now);
}

/** The lease ends. `sent` false: its call never reached the upstream, another one may find out. */
export function endProbe(
  bucket: Bucket,
  { token, ticket: { document } }: Lease,
  sent: boolean,
  now: number,
): void {
  const known = document === null ? undefined : bucket.documents.get(document);
  if (document === null || known?.kind !== 'probing' || known.lease !== token) return;
  if (!sent) return forgetDocument(bucket, document);
  remember(bucket, document, { kind: 'untold' }, now);
  wakeWaiting(bucket, known);
}

/** An answer told what the lease's document costs. */
export function learnDocument(
  bucket: Bucket,
  { ticket: { document } }: Lease,
  points: number,
  now: number,
): void {
  if (document === null) return;
  const before = bucket.documents.get(document);
  remember(bucket, document, { kind: 'told', points }, now);
  if (before?.kind === 'told') return;
  correctWaiting(bucket, document, points);
  if (before?.kind === 'probing') wakeWaiting(bucket, before);
}

function correctWaiting(bucket: Bucket, document: string, points: number): void {
  const waiting = bucket.estimated.get(document);
  for (const id of waiting?.names().slice(0, maxCorrected) ?? []) {
    const ticket = bucket.tickets.get(id);
    const lane = ticket === undefined ? undefined : bucket.lanes.get(ticket.lane);
    if (ticket === undefined || lane === undefined) continue;
    sumCosts(bucket, lane, ticket, -1);
    ticket.costs = takeable(bucket, { ...ticket.costs, cost: points });
    sumCosts(bucket, lane, ticket, 1);
    forgetEstimate(bucket, ticket);
  }
}

function wakeWaiting(bucket: Bucket, { lanes }: Extract<DocumentCost, { kind: 'probing' }>): void {
  for (const key of lanes) {
    const lane = bucket.lanes.get(key);
    if (lane !== undefined) wake(bucket, lane, ['document']);
  }
}

function remember(bucket: Bucket, document: string, cost: DocumentCost, now: number): void {
  bucket.documents.set(document, cost);
  bucket.documentAges.set(document, now);
  const oldest = bucket.documentAges.first();
  if (bucket.documentAges.size > maxDocuments && oldest !== undefined) forgetDocument(bucket, oldest.name);
}

function forgetDocument(bucket: Bucket, document: string): void {
  const known = bucket.documents.get(document);
  bucket.documents.delete(document);
  bucket.documentAges.delete(document);
  if (known?.kind === 'probing') wakeWaiting(bucket, known);
}
