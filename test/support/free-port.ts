/** Ports that nobody uses. */
import { createServer } from 'node:net';

/** A port of the loopback address below this one that was free a moment ago. */
export async function freePort(below = 65_536): Promise<number> {
  for (;;) {
    const port = await new Promise<number>((resolve, reject) => {
      const probe = createServer();
      probe.once('error', reject);
      probe.listen(0, '127.0.0.1', () => {
        const address = probe.address();
        probe.close(() => resolve(typeof address === 'object' && address !== null ? address.port : 0));
      });
    });
    if (port < below) return port;
  }
}
