/** Whether the upstream itself would take a waiting call of a calm history, and all others, whatever the gateway believes of the bucket. */
import type { Upstream } from '../upstream.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** The share of a limit that the gateway may keep free for other users of the quota. */
const keptFree = 0.1;

export function isVacant(
  { plan, calls, leases }: ReplicaLedger,
  upstream: Upstream,
  { workspace, state }: Call,
  now: number,
): boolean {
  const isTold = plan.buckets.every(({ reports }) => reports !== 'nothing');
  if (state !== 'waiting' || !isTold || workspace.perMinute !== null) return false;
  const wanted = new Set([...calls.values()].filter((each) => /^(?:waiting|entering)$/.test(each.state)));
  for (const lease of leases.values()) if (lease.settlements === 0) wanted.add(lease.call);
  const plans = [...wanted].map((each) => each.plan);
  return upstream.hasRoom(plans, keptFree, now);
}
