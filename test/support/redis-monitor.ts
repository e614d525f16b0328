/** Everything that is said to a Redis, as its `MONITOR` tells it, by a socket of its own: the driver may fail at the first line. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

interface BucketEvent {
  readonly kind: string;
  readonly ticket?: string;
  /** `<ticket>.<number of the grant in its bucket>` */
  readonly lease?: string;
}

interface LoggedEvent {
  readonly kind: string;
  readonly admission?: { readonly ticket: string };
  readonly event?: BucketEvent;
}

/** In the order in which Redis put them into its log. Of a batch that was sent again, twice. */
const eventsIn = (lines: readonly string[]): readonly BucketEvent[] =>
  lines.flatMap((line) => {
    const [, logged] = /\] "evalsha" .* ("\[\{\\"kind\\":.*\}\]") "sluice:/.exec(line) ?? [];
    if (logged === undefined) return [];
    return (JSON.parse(JSON.parse(logged) as string) as readonly LoggedEvent[]).map(
      ({ kind, admission, event }) => event ?? { kind, ...(admission && { ticket: admission.ticket }) },
    );
  });

/** Calls in the order in which Redis entered them. */
export const admittedIn = (lines: readonly string[]): readonly string[] => [
  ...new Set(
    eventsIn(lines).flatMap(({ kind, ticket }) =>
      kind === 'admit' && ticket !== undefined && !ticket.startsWith('seed.') ? [ticket] : [],
    ),
  ),
];

/** Calls in the order of their first grants, once their leases have ended. Redis numbers the grants of a bucket. */
export function grantedIn(lines: readonly string[]): readonly string[] {
  const leases = eventsIn(lines).flatMap(({ kind, lease }) =>
    kind === 'settle' && lease !== undefined ? [lease] : [],
  );
  const numberOf = (lease: string): number => Number(lease.slice(lease.lastIndexOf('.') + 1));
  const ordered = leases.toSorted((a, b) => numberOf(a) - numberOf(b));
  return [...new Set(ordered.map((lease) => lease.slice(0, lease.lastIndexOf('.'))))];
}

export async function monitorRedis(port: number) {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  /** `+<time> [<database> <address of the client, or lua>] "<command>" "<argument>"…` */
  const lines: string[] = [];
  const reader = createInterface({ input: socket });
  reader.on('line', (line) => lines.push(line));
  socket.write('MONITOR\r\n');
  await once(reader, 'line');
  const reply = lines.shift();
  if (reply !== '+OK') throw new Error(`MONITOR was answered with ${String(reply)}`);
  return { lines: lines as readonly string[], stop: () => void socket.destroy() };
}
