/**
 * Since when the upstream itself would have taken a waiting call of a calm history: it has room for everybody who waits. What the gateway
 * believes of the bucket plays no part, so that a meter which believes too much is found as well as a forecast that tells too much.
 */
import type { Upstream } from '../upstream.ts';
import type { Call, ReplicaLedger } from './ledger.ts';

/** The share of a limit that the gateway may keep free for other users of the quota. */
const keptFree = 0.1;

export class Vacancy {
  readonly #ledger: ReplicaLedger;
  readonly #upstream: Upstream;
  since: number | null = null;

  constructor(ledger: ReplicaLedger, upstream: Upstream) {
    this.#ledger = ledger;
    this.#upstream = upstream;
  }

  check(call: Call, now: number): void {
    if (!this.#hasRoom(call, now)) this.since = null;
    else this.since ??= now;
  }

  #hasRoom({ workspace, state }: Call, now: number): boolean {
    const { plan, calls, leases } = this.#ledger;
    const isTold = plan.buckets.every(({ reports }) => reports !== 'nothing');
    if (state !== 'waiting' || !isTold || workspace.perMinute !== null) return false;
    const wanted = new Set([...calls.values()].filter((each) => /^(?:waiting|entering)$/.test(each.state)));
    for (const lease of leases.values()) if (lease.settlements === 0) wanted.add(lease.call);
    return this.#upstream.hasRoom(
      [...wanted].map((each) => each.plan),
      keptFree,
      now,
    );
  }
}
