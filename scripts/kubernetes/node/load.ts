/**
 * Steady calls through the gateway while something happens to it, and what became of each: lost is what was not answered
 * 200, doubled is what reached the upstream more than once. Half of the calls open a connection of their own, half reuse
 * kept ones, as load balancers do. Whoever keeps connections has to expect that a server closes one at the moment of a
 * request (RFC 9112, 9.3.1): such a call is sent once more, and counted.
 */
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Load } from '../report.ts';

export interface LoadTarget {
  /** `http://ADDRESS:PORT`, without a slash at the end. */
  readonly gateway: string;
  readonly upstream: string;
  readonly key: string;
}

export interface LoadOptions extends LoadTarget {
  readonly name: string;
  /** Calls in a second. */
  readonly rate: number;
  /** Time of the upstream for each call. */
  readonly upstreamMs: number;
  /** Further fields of each request. */
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Outcome {
  readonly load: Load;
  /** The lost and doubled calls, a line each. */
  readonly examples: readonly string[];
  /** Longest time from sending a call to the end of its response. */
  readonly maxMs: number;
}

let runs = 0;

export class SteadyLoad {
  readonly #options: LoadOptions;
  readonly #run = `${Date.now()}-${(runs += 1)}`;
  readonly #kept = new http.Agent({ keepAlive: true, maxSockets: 64 });
  readonly #calls: Promise<void>[] = [];
  readonly #problems: string[] = [];
  readonly #startedMs = Date.now();
  #rate: number;
  #lost = 0;
  #resent = 0;
  #maxMs = 0;
  #ending = false;
  readonly #sending: Promise<void>;

  constructor(options: LoadOptions) {
    this.#options = options;
    this.#rate = options.rate;
    this.#sending = this.#send();
  }

  /** Changes the calls in a second, from the next call on. */
  set rate(rate: number) {
    this.#rate = rate;
  }

  async #send(): Promise<void> {
    while (!this.#ending) {
      const index = this.#calls.length;
      this.#calls.push(this.#call(`${this.#run}-${index}`, index % 2 === 0));
      await sleep(1000 / this.#rate);
    }
  }

  #call(id: string, reuse: boolean): Promise<void> {
    const { gateway, key, upstreamMs, headers = {} } = this.#options;
    const begunMs = Date.now();
    return new Promise((resolve) => {
      let hasBegun = false;
      const done = (what: string): void => {
        this.#maxMs = Math.max(this.#maxMs, Date.now() - begunMs);
        if (what !== '200') {
          this.#lost += 1;
          const at = ((begunMs - this.#startedMs) / 1000).toFixed(1);
          const kind = reuse ? 'kept' : 'own';
          this.#problems.push(
            `call at ${at} s, ${kind} connection: ${what} after ${Date.now() - begunMs} ms`,
          );
        }
        resolve();
      };
      const request = http.request(
        `${gateway}/via/api/after/${upstreamMs}/${id}`,
        {
          method: 'POST',
          agent: reuse ? this.#kept : false,
          headers: { ...headers, authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        },
        (response) => {
          hasBegun = true;
          response.resume();
          const code = String(response.headers['sluice-error'] ?? '');
          response.on('end', () => done(`${response.statusCode ?? ''}${code === '' ? '' : ` ${code}`}`));
          response.on('error', (error) => done(`cut: ${error.message}`));
        },
      );
      request.on('error', (error) => {
        if (!request.reusedSocket || hasBegun) return done(error.message);
        this.#resent += 1;
        void this.#call(id, false).then(resolve);
      });
      request.end('{}');
    });
  }

  /** Sends no more, waits for every response, and asks the upstream what arrived. */
  async end(): Promise<Outcome> {
    this.#ending = true;
    await this.#sending;
    await Promise.all(this.#calls);
    this.#kept.destroy();
    const response = await fetch(`${this.#options.upstream}/seen`);
    const seen = new Map<string, number>((await response.json()) as [string, number][]);
    let doubled = 0;
    for (let index = 0; index < this.#calls.length; index += 1) {
      const times = seen.get(`${this.#run}-${index}`) ?? 0;
      if (times <= 1) continue;
      doubled += 1;
      this.#problems.push(`call ${index} reached the upstream ${times} times`);
    }
    const load = {
      name: this.#options.name,
      sent: this.#calls.length,
      lost: this.#lost,
      doubled,
      resent: this.#resent,
    };
    return { load, examples: this.#problems, maxMs: this.#maxMs };
  }
}
