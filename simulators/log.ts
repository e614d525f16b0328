/**
 * What the simulated upstream saw and decided: the record by which tests judge the gateway.
 *
 * Owns: the entries, who is in flight, which Retry-After is still running.
 * Does not own: any decision. Invariant: one entry per call, in order of decision; `seq` is the order of arrival.
 */
import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

/** Why a call was answered as it was. `fault` = injected before any limit was asked. */
export type DecisionKind =
  | 'admitted'
  | 'throttled'
  | 'too-large'
  | 'max-cost'
  | 'quota'
  | 'overloaded'
  | 'secondary-limit'
  | 'state'
  | 'unauthenticated'
  | 'not-found'
  | 'invalid'
  | 'fault'
  | 'failed';

export interface LogEntry {
  /** Order of arrival (header section complete), from 1. */
  readonly seq: number;
  /** When the limiter was asked, ms on the simulator's monotonic clock; only differences mean anything. */
  readonly t: number;
  /** The instant of `t` as ms since the Unix epoch. */
  readonly at: number;
  /** When the header section had arrived, monotonic ms. */
  readonly arrivedT: number;
  readonly method: string;
  readonly path: string;
  /** The credential as it was sent; empty when there was none. */
  readonly key: string;
  /** What shares the bucket: `org|family`, or `store|app|rest`, `store|app|graphql`. */
  readonly bucket: string;
  readonly model: string;
  readonly store: string;
  /** Units asked for, by dimension. */
  readonly cost: Readonly<Record<string, number>>;
  readonly decision: DecisionKind;
  /** Dimension that refused. */
  readonly metric: string;
  /** What the limiter says the caller must wait; 0 when admitted. */
  readonly waitMs: number;
  /** Levels around the decision, by dimension (`project:tpm` for a project's own). */
  readonly usedBefore: Readonly<Record<string, number>>;
  readonly usedAfter: Readonly<Record<string, number>>;
  /** `x-nonce`, or the body's `user`, `metadata.nonce`, `metadata.user_id`, `variables.nonce`. */
  readonly nonce: string;
  /** Calls in flight at arrival, this one included: of this credential, and of this bucket's owner (org|family, or store|app). */
  readonly inFlight: { readonly key: number; readonly scope: number };
  /** A Retry-After that was sent for this bucket was still running on arrival. */
  readonly insideRetryAfter: boolean;
  /** ms since that Retry-After was sent (a call already on the wire has a small one); null when none is running. */
  readonly sinceRetryAfterMs: number | null;
  /** SHA-256 of an executed body that is not a GET; empty otherwise. Repeats are the sign of unsafe resends. */
  readonly bodyHash: string;
  /** The work was done, whatever the client got to see. */
  executed: boolean;
  /** Name of the injected fault, empty without one. */
  fault: string;
  /** 0 until answered, and when the connection was cut instead. */
  status: number;
  /** The client went away before the end. */
  aborted: boolean;
  /** Monotonic ms of the end of the exchange; null while it runs. */
  endedT: number | null;
  /** The request's fields, only with `recordHeaders`. */
  readonly headers?: IncomingHttpHeaders;
}

/** Counts calls in flight by name. */
export class InFlight {
  readonly #counts = new Map<string, number>();

  enter(name: string): number {
    const count = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, count);
    return count;
  }

  leave(name: string): void {
    const count = (this.#counts.get(name) ?? 1) - 1;
    if (count > 0) this.#counts.set(name, count);
    else this.#counts.delete(name);
  }
}

/** Remembers, per bucket, the Retry-After that was sent and has not run out. */
export class RetryAfterWatch {
  readonly #running = new Map<string, { until: number; sentAt: number }>();

  sent(bucket: string, waitMs: number, now: number): void {
    const known = this.#running.get(bucket);
    if (known === undefined || known.until < now + waitMs) {
      this.#running.set(bucket, { until: now + waitMs, sentAt: now });
    }
  }

  /** ms since the running Retry-After was sent, or null. */
  since(bucket: string, now: number): number | null {
    const known = this.#running.get(bucket);
    if (known === undefined) return null;
    if (now < known.until - 1e-3) return now - known.sentAt;
    this.#running.delete(bucket);
    return null;
  }

  clear(): void {
    this.#running.clear();
  }
}

/** Keeps the newest entries; the oldest fall out beyond `limit`. */
export class DecisionLog {
  #entries: LogEntry[] = [];
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  add(entry: LogEntry): void {
    this.#entries.push(entry);
    if (this.#entries.length > this.#limit * 1.5) this.#entries = this.#entries.slice(-this.#limit);
  }

  get entries(): readonly LogEntry[] {
    return this.#entries;
  }

  clear(): void {
    this.#entries = [];
  }
}

/** Lower-case hex SHA-256. */
export function bodyHash(body: Buffer): string {
  return createHash('sha256').update(body).digest('hex');
}
