/**
 * What GraphQL documents cost, as far as responses stated it: the first call of a document goes ahead, the others wait for what
 * its response states (docs/adr/0003). Kept with the bucket, so that all replicas know what one of them learned. Part of the
 * specification in `scheduler.policy.ts`.
 */
import type { Costs } from '../../call.ts';
import { type Bucket, type DocumentCost, type Lane, type Lease, type Ticket } from './bucket-state.policy.ts';
import { requestWindows } from './meter.policy.ts';
import { sleep, wake } from './lanes.policy.ts';
import { addCosts, cappedCosts, subtractCosts } from './waiting-costs.policy.ts';

/** Calls wait this long at most for the response that states what they cost; then they go with the estimate. Milliseconds. */
export const maxProbeMs = 5_000;
/** Documents remembered per bucket; the one of which nothing was learned for longest is forgotten first. */
export const maxDocuments = 1_000;

type Probing = Extract<DocumentCost, { kind: 'probing' }>;

/** What a call that asks for the document costs, as far as known, of every window that the bucket has. */
export function knownCosts(bucket: Bucket, costs: Costs, document: string | null): Costs {
  const known = document === null ? undefined : bucket.documents.get(document);
  const learned = known?.kind === 'reported' ? { ...costs, cost: known.points } : costs;
  const { requests } = learned;
  if (requests === undefined || !requestWindows.some((name) => bucket.meters.has(name))) return learned;
  const windows = requestWindows.filter((name) => bucket.meters.has(name));
  return { ...learned, ...Object.fromEntries(windows.map((name) => [name, requests])) };
}

/** A lane and the ticket that is next in it. */
export interface Head {
  readonly lane: Lane;
  readonly ticket: Ticket;
}

/** True when the lane's next ticket has to wait for another call's response: its lane sleeps until then. */
export function waitsForResponse(bucket: Bucket, { lane, ticket }: Head, now: number): boolean {
  const { document } = ticket;
  const known = document === null ? undefined : bucket.documents.get(document);
  if (document === null || known?.kind !== 'probing' || known.until <= now) return false;
  if (!known.lanes.includes(lane.key)) {
    bucket.documents.set(document, { ...known, lanes: [...known.lanes, lane.key] });
  }
  sleep(bucket, lane, { because: 'document', until: known.until });
  return true;
}

/** A call was granted: the first of its document finds out for the others. */
export function beginProbe(bucket: Bucket, { token, ticket: { document } }: Lease, now: number): void {
  if (document === null || bucket.documents.has(document)) return;
  const cost = { kind: 'probing', lease: token, until: now + maxProbeMs, lanes: [] } as const;
  remember(bucket, { document, cost }, now);
}

/** The lease ends: if its call went ahead, the others wait no longer. If it never reached the upstream, another one may find out. */
export function endProbe(bucket: Bucket, { token, ticket: { document } }: Lease, wasSent: boolean): void {
  const known = document === null ? undefined : bucket.documents.get(document);
  if (document === null || known?.kind !== 'probing' || known.lease !== token) return;
  if (!wasSent) return forgetDocument(bucket, document);
  bucket.documents.set(document, { kind: 'unreported' });
  wakeWaiting(bucket, known);
}

/** A response stated what a document costs. */
export function learnDocument(
  bucket: Bucket,
  { document, points }: { readonly document: string; readonly points: number },
  now: number,
): void {
  const before = bucket.documents.get(document);
  remember(bucket, { document, cost: { kind: 'reported', points } }, now);
  if (before?.kind === 'reported') return;
  correctWaiting(bucket, document, points);
  if (before?.kind === 'probing') wakeWaiting(bucket, before);
}

/** Waiting tickets count with what is known from now on. */
function correctWaiting(bucket: Bucket, document: string, points: number): void {
  for (const ticket of bucket.tickets.values()) {
    const lane = bucket.lanes.get(ticket.lane);
    if (ticket.document !== document || ticket.lease !== null || lane === undefined) continue;
    subtractCosts(bucket, lane, ticket.costs);
    ticket.costs = cappedCosts(bucket, { ...ticket.costs, cost: points });
    addCosts(bucket, lane, ticket.costs);
  }
}

function wakeWaiting(bucket: Bucket, { lanes }: Probing): void {
  for (const key of lanes) {
    const lane = bucket.lanes.get(key);
    if (lane !== undefined) wake(bucket, lane, ['document']);
  }
}

function remember(
  bucket: Bucket,
  { document, cost }: { readonly document: string; readonly cost: DocumentCost },
  now: number,
): void {
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
