/**
 * Group commit of one kind of command: per key at most one is under way; what is asked meanwhile goes together in the
 * next one, in order. What is asked alone is sent at once.
 */
interface Waiting<In, Out> {
  readonly asked: In;
  readonly resolve: (answer: Out) => void;
  readonly reject: (failure: unknown) => void;
}

export class Gathered<In, Out> {
  readonly #send: (key: string, asked: readonly In[]) => Promise<readonly Out[]>;
  readonly #max: number;
  readonly #waiting = new Map<string, Waiting<In, Out>[]>();

  /** `send` resolves with one answer per element; its failure is that of all. `max`: elements of one command. */
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
        const answers = await this.#send(key, asked);
        for (const [at, answer] of answers.entries()) batch[at]?.resolve(answer);
        // A promise that is settled already stays so.
        for (const { reject } of batch) reject(new TypeError('an answer is missing'));
      } catch (failure) {
        for (const { reject } of batch) reject(failure);
      }
    }
    this.#waiting.delete(key);
  }
}
