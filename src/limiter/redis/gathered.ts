/**
 * Group commit of one kind of command: at most one command per key is under way. Requests that arrive meanwhile go together in the
 * next command, in order; a request that finds no command under way is sent at once.
 */
interface Waiting<In, Out> {
  readonly asked: In;
  readonly resolve: (reply: Out) => void;
  readonly reject: (failure: unknown) => void;
}

export class Gathered<In, Out> {
  readonly #send: (key: string, asked: readonly In[]) => Promise<readonly Out[]>;
  readonly #max: number;
  readonly #waiting = new Map<string, Waiting<In, Out>[]>();

  /** `send` resolves with one reply per request, or rejects for all of them. `max`: requests of one command. */
  constructor(send: (key: string, asked: readonly In[]) => Promise<readonly Out[]>, max: number) {
    this.#send = send;
    this.#max = max;
  }

  ask(key: string, asked: In): Promise<Out> {
    return new Promise((resolve, reject) => {
      const one = { asked, resolve, reject };
      const line = this.#waiting.get(key);
      if (line !== undefined) {
        line.push(one);
        return;
      }
      this.#waiting.set(key, []);
      void this.#sendAll(key, [one]);
    });
  }

  async #sendAll(key: string, first: Waiting<In, Out>[]): Promise<void> {
    for (let batch = first; batch.length > 0; batch = this.#waiting.get(key)?.splice(0, this.#max) ?? []) {
      try {
        const asked = batch.map((one) => one.asked);
        const replies = await this.#send(key, asked);
        for (const [at, reply] of replies.entries()) batch[at]?.resolve(reply);
        // Rejecting changes only the requests that got no reply.
        for (const { reject } of batch) reject(new TypeError('a reply is missing'));
      } catch (failure) {
        for (const { reject } of batch) reject(failure);
      }
    }
    this.#waiting.delete(key);
  }
}
