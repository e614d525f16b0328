/**
 * A connection that writes the commands of one turn of the event loop together: one system call here and one wake-up of the server
 * for calls of many buckets. Owns when the socket writes. Does not own: the order of commands (they stay in order), time limits.
 */
import { Redis } from 'ioredis';

/** So many commands are written together at most: later ones of a long turn do not keep the first ones here. */
const maxTogether = 16;

export class GatheringRedis extends Redis {
  #corked: Redis['stream'] | null = null;
  #gathered = 0;

  override sendCommand(...[command, stream]: Parameters<Redis['sendCommand']>): unknown {
    this.#gather();
    return super.sendCommand(command, stream);
  }

  #gather(): void {
    if (this.#corked === this.stream) {
      this.#gathered += 1;
      if (this.#gathered > maxTogether) this.#write();
      return;
    }
    // While it is connecting there is no socket.
    if (this.status !== 'ready') return;
    this.#write();
    const corked = this.stream;
    corked.cork();
    this.#corked = corked;
    this.#gathered = 1;
    setImmediate(() => {
      if (this.#corked === corked) this.#write();
    });
  }

  #write(): void {
    this.#corked?.uncork();
    this.#corked = null;
  }
}
