/**
 * Starts a server. Owns: turning its events into one promise. Refuses to own: what it serves.
 * Invariant: a failure to listen rejects; later errors are the server's own.
 */
import type { AddressInfo, ListenOptions, Server } from 'node:net';

/** @param address port 0 = any free one. @returns the address it listens on. */
export const listen = (
  server: Server,
  address: Pick<ListenOptions, 'port' | 'host' | 'reusePort'>,
): Promise<AddressInfo> =>
  new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(address, () => {
      server.off('error', reject);
      const bound = server.address();
      if (bound === null || typeof bound === 'string') reject(new Error('not listening on a port'));
      else resolve(bound);
    });
  });
