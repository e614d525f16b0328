/** Everything that is said to a Redis, as its `MONITOR` tells it, by a socket of its own: the driver may fail at the first line. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

interface LoggedEvent {
  readonly kind: string;
  readonly admission?: { readonly ticket: string };
  readonly event?: { readonly kind: string; readonly ticket?: string };
}

/** Calls in the order in which Redis entered them. */
export function admittedIn(lines: readonly string[]): readonly string[] {
  const tickets = lines.flatMap((line) => {
    const [, logged] = /\] "evalsha" .* ("\[\{\\"kind\\":.*\}\]") "sluice:/.exec(line) ?? [];
    if (logged === undefined) return [];
    return (JSON.parse(JSON.parse(logged) as string) as readonly LoggedEvent[])
      .map(({ kind, admission, event }) => event ?? { kind, ticket: admission?.ticket })
      .flatMap(({ kind, ticket = 'seed.' }) =>
        kind === 'admit' && !ticket.startsWith('seed.') ? [ticket] : [],
      );
  });
  // A batch that was sent again is there twice.
  return [...new Set(tickets)];
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
