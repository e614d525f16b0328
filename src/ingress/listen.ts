/**
 * Starts a server. Owns: turning its events into one promise. Does not own: what it serves.
 * Invariant: a failure to listen rejects; later errors are the server's own.
 */
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/** @param port 0 = any free one. @returns the address it listens on. */
export const listen = (server: Server, port: number, host: string): Promise<AddressInfo> =>
  new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      const address = server.address();
      if (address === null || typeof address === 'string') reject(new Error('not listening on a port'));
      else resolve(address);
    });
  });
