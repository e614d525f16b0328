/** What both ports have in common: listening, ending, and the document of what they offer. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/** Starts a server. @param port 0 = any free one. @returns the address it listens on. @throws when it cannot listen */
export async function listen(server: Server, port: number, host: string): Promise<AddressInfo> {
  await once(server.listen(port, host), 'listening');
  // Only a server on a pipe has another one.
  return server.address() as AddressInfo;
}

/** Closes the listener and all connections at once. */
export const end = (server: Server): Promise<void> =>
  new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });

/** The OpenAPI 3.1 document of a port, as JSON, as `npm run openapi` writes it. Read when it is asked for, because few ask. */
export const openapiOf = (port: 'data' | 'admin'): Buffer =>
  readFileSync(new URL(`../../schema/openapi-${port}.json`, import.meta.url));
