/**
 * Turns a call into its log entry and follows it to its end.
 *
 * Owns: the log, the in-flight counts, the running Retry-Afters. Does not own: the decision.
 * Invariant: everything counted on arrival is counted back when the exchange is over, however it ends.
 */
import type { Clock } from './clock.ts';
import { listOf, objectOf, textOf, type Json } from './json.ts';
import { bodyHash, DecisionLog, InFlight, RetryAfterWatch, type LogEntry } from './log.ts';
import type { Arrival, Exchange } from './exchange.ts';

/** What a simulator knows about a call when it decides. */
export type Facts = Pick<
  LogEntry,
  | 'bucket'
  | 'model'
  | 'store'
  | 'cost'
  | 'decision'
  | 'metric'
  | 'waitMs'
  | 'usedBefore'
  | 'usedAfter'
  | 'executed'
> & {
  /** Owner of the bucket, for the in-flight count. */
  readonly scope: string;
  readonly nonce: string;
};

export interface ArrivalNote {
  readonly key: string;
  readonly keyInFlight: number;
}

/** The facts of a call that met no limiter. */
export const noFacts: Facts = {
  bucket: '',
  model: '',
  store: '',
  cost: {},
  decision: 'invalid',
  metric: '',
  waitMs: 0,
  usedBefore: {},
  usedAfter: {},
  executed: false,
  scope: '',
  nonce: '',
};

export class Recorder {
  readonly log: DecisionLog;
  readonly retryAfters = new RetryAfterWatch();
  readonly failures: string[] = [];
  readonly #inFlight = new InFlight();
  readonly #clock: Clock;
  readonly #recordHeaders: boolean;

  constructor(clock: Clock, logLimit: number, recordHeaders: boolean) {
    this.#clock = clock;
    this.log = new DecisionLog(logLimit);
    this.#recordHeaders = recordHeaders;
  }

  arrive(arrival: Arrival, key: string): ArrivalNote {
    const name = `key ${key}`;
    const keyInFlight = this.#inFlight.enter(name);
    void arrival.over.then(() => this.#inFlight.leave(name));
    return { key, keyInFlight };
  }

  record(exchange: Exchange, note: ArrivalNote, facts: Facts): LogEntry {
    const { scope, nonce, ...rest } = facts;
    const scopeName = `scope ${scope}`;
    const running = this.retryAfters.since(facts.bucket, exchange.arrivedT);
    const hashed = facts.executed && exchange.method !== 'GET' && exchange.method !== 'HEAD';
    const entry: LogEntry = {
      ...rest,
      waitMs: Math.round(facts.waitMs * 1000) / 1000,
      seq: exchange.seq,
      t: this.#clock.monotonic(),
      at: this.#clock.now(),
      arrivedT: exchange.arrivedT,
      method: exchange.method,
      path: exchange.path,
      key: note.key,
      nonce: textOf(exchange.request.headers['x-nonce']) ?? nonce,
      inFlight: { key: note.keyInFlight, scope: this.#inFlight.enter(scopeName) },
      insideRetryAfter: running !== null,
      sinceRetryAfterMs: running,
      bodyHash: hashed ? bodyHash(exchange.body) : '',
      fault: '',
      status: 0,
      aborted: false,
      endedT: null,
      ...(this.#recordHeaders ? { headers: exchange.request.headers } : {}),
    };
    this.log.add(entry);
    void exchange.over.then(() => {
      this.#inFlight.leave(scopeName);
      entry.endedT = this.#clock.monotonic();
      entry.status = exchange.status();
      entry.aborted = !exchange.complete() && !exchange.wasCut();
    });
    return entry;
  }

  failed(error: unknown): void {
    this.failures.push(error instanceof Error ? (error.stack ?? error.message) : String(error));
  }

  clear(): void {
    this.log.clear();
    this.retryAfters.clear();
  }
}

/** An id that the caller put into the body, to find the call in the log again. */
export function nonceIn(body: Json): string {
  const metadata = objectOf(body['metadata']) ?? {};
  const variables = objectOf(body['variables']) ?? {};
  const candidates = [
    body['user'],
    metadata['nonce'],
    metadata['user_id'],
    variables['nonce'],
    body['nonce'],
  ];
  return listOf(candidates).map(textOf).find(Boolean) ?? '';
}
