import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';

/** From here on the system gives ports to whoever asks for any: a port of those is soon somebody else's. */
const givenOut = 32_768;

/** A port of the loopback address, below this one, on which nobody listens and which the system gives to nobody by itself. */
export async function freePort(below = givenOut): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, Math.min(below, givenOut));
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once('error', () => resolve(false));
    probe.listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
  });
}
