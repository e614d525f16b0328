/**
 * What the calls of a test's gateways leave in admission and in the stores, for the check after each test file (`leak-check.mjs`):
 * tickets that never leave their lane, leases that nobody settles, and what a store counts when all calls are over. Stores that a
 * test asks by itself are not watched, nor is anything outside Jest.
 */
import { AdmissionQueue } from '../../src/admission/admission.ts';
import type { Lease, Ticket } from '../../src/admission/ticket.ts';
import type { Gateway } from '../../src/gateway.ts';
import type { BucketKey } from '../../src/ids.ts';
import { withMethods } from './with-methods.ts';

const check = Reflect.get(globalThis, Symbol.for('sluice.leak-check')) as
  { readonly testName: () => string; readonly leftOpen: (() => readonly string[])[] } | undefined;

/** Open tickets and leases, by the words that name them. */
const tickets = new Map<Ticket, string>();
const leases = new Map<Lease, string>();
/** Leases whose calls are of unknown fate: by design only time ends them. */
const abandoned = new Map<BucketKey, number>();
let isWatching = false;

export function watchAdmission(): void {
  if (check === undefined || isWatching) return;
  isWatching = true;
  const { testName, leftOpen } = check;
  const { enter } = AdmissionQueue.prototype;
  AdmissionQueue.prototype.enter = async function enterWatched(request, clientGone): Promise<Ticket> {
    const ticket = await enter.call(this, request, clientGone);
    return watchedTicket(ticket, `of a call to "${request.subject.upstream}" in the test "${testName()}"`);
  };
  leftOpen.push(() => [
    ...[...tickets.values()].map((of) => `a ticket ${of}, which never leaves its lane`),
    ...[...leases.values()].map((of) => `a lease ${of}, which nobody settles`),
  ]);
}

/** Watches also what the stores of this gateway count. */
export function watchStores(gateway: Pick<Gateway, 'parts'>): void {
  check?.leftOpen.push(() =>
    gateway.parts.pressure.buckets().flatMap(({ upstream, snapshot: { bucket, inFlight } }) => {
      // What waits is taken out when a limiter closes.
      const held = inFlight - (abandoned.get(bucket) ?? 0);
      return held > 0
        ? [`${held} leases in a store, in a bucket of "${upstream}", although no call is under way`]
        : [];
    }),
  );
}

function watchedTicket(ticket: Ticket, of: string): Ticket {
  const watched = withMethods(ticket, {
    whenGranted: async () => watchedLease(await ticket.whenGranted(), of),
    leave() {
      tickets.delete(watched);
      ticket.leave();
    },
  });
  tickets.set(watched, of);
  return watched;
}

function watchedLease(lease: Lease, of: string): Lease {
  const watched = withMethods(lease, {
    settle(settlement, lesson) {
      const { bucket } = lease.grant;
      if (leases.delete(watched) && settlement.kind === 'unknown')
        abandoned.set(bucket, (abandoned.get(bucket) ?? 0) + 1);
      lease.settle(settlement, lesson);
    },
  });
  leases.set(watched, of);
  return watched;
}
