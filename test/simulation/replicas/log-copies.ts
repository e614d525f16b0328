/** What the logs say, for whoever judges: a copy of the state of each log that has every entry as soon as it is appended. */
import { hash } from 'node:crypto';
import { bucketKey, logOf, type BucketKey } from '../../../src/ids.ts';
import type { Entry } from '../../../src/log/log.ts';
import type { Bucket, BucketEvent, EventReply } from '../../../src/limiter/policy/bucket-state.policy.ts';
import type { Effects, Granted } from '../../../src/limiter/policy/scheduler.policy.ts';
import {
  createState,
  fold,
  type LogEvent,
  restore,
  type SharedState,
  snapshot,
} from '../../../src/limiter/over-log/fold.ts';
import type { Snapshot } from './log-store.ts';

export interface Asked {
  readonly replica: string;
  readonly clock: number;
}

export interface Done {
  /** `null` = time has gone on. */
  readonly event: BucketEvent | null;
  readonly reply: EventReply | null;
  readonly grants: readonly Granted[];
}

export interface StoredBucket {
  readonly key: string;
  /** `null`: nobody knows the bucket. */
  readonly bucket: Bucket | null;
  /** The latest time of the store's clock at which something happened to it. Milliseconds. */
  readonly seen: number;
  /** Of the last event. */
  readonly effects: Effects;
}

export interface LogCopiesParts {
  readonly leaseMs: number;
  /** A replica has another state than the log says. `null`: nobody writes states down. */
  readonly onDifference: ((text: string) => void) | null;
}

export interface CopyWatch {
  applied(done: Done, bucket: StoredBucket, asked: Asked): void;
  /** The state of the bucket gives way to that of a longer copy of its log. */
  replaced?(bucket: string): void;
}

type Copied = { -readonly [Property in keyof StoredBucket]: StoredBucket[Property] };

export class LogCopies {
  readonly #parts: LogCopiesParts;
  readonly #watch: CopyWatch;
  readonly #states = new Map<string, SharedState>();
  readonly #buckets = new Map<string, Copied>();
  /** What the state was at each entry, also at those that were lost. */
  readonly #digests = new Map<string, string>();

  constructor(parts: LogCopiesParts, watch: CopyWatch) {
    this.#parts = parts;
    this.#watch = watch;
  }

  get buckets(): Iterable<StoredBucket> {
    return this.#buckets.values();
  }

  bucket(key: string): StoredBucket {
    return this.#copied(bucketKey(key));
  }

  lose(): void {
    this.#states.clear();
    for (const bucket of this.#buckets.values()) bucket.bucket = null;
  }

  begin(log: string, saved: Snapshot): void {
    this.compare(log, saved);
    for (const key of this.#states.get(log)?.buckets.keys() ?? []) this.#watch.replaced?.(key);
    const state = saved.text === '' ? createState(this.#parts.leaseMs) : restore(saved.text);
    this.#states.set(log, state);
    this.#keepDigest(log, saved, state);
    this.#refresh(log, state);
  }

  /** @param isJudged false: it was appended before, and is again after a loss of what came later. */
  append(log: string, entry: Entry<LogEvent> & { readonly mark: string }, isJudged: boolean): void {
    const state = this.#states.get(log) ?? createState(this.#parts.leaseMs);
    const { replies, grants, nextAt } = fold(state, entry);
    this.#keepDigest(log, entry, state);
    this.#refresh(log, state);
    const events = entry.events.flatMap((event, at) => judgedOf(event).map((each) => ({ ...each, at })));
    for (const key of state.buckets.keys()) {
      const copied = this.#copied(key);
      const own = grants.filter(({ bucket }) => bucket === key);
      const dueAt = state.grantsDue.scoreOf(key);
      const pumped = { grants: own, nextAt: dueAt === null ? null : Math.max(dueAt, nextAt ?? dueAt) };
      copied.seen = entry.at;
      copied.effects = { grants: [], nextAt: pumped.nextAt };
      if (!isJudged) continue;
      const asked: Asked = { replica: entry.replica, clock: entry.at };
      for (const { event, at, bucket } of events) {
        const reply = replies[at] ?? null;
        if (bucket === key && reply !== null)
          this.#watch.applied({ event, reply, grants: [] }, copied, asked);
      }
      // What the events of one entry grant in a bucket is judged together, as what a pump grants.
      copied.effects = pumped;
      this.#watch.applied({ event: null, reply: null, grants: own }, copied, asked);
    }
  }

  compare(log: string, { sequence, mark, text }: Snapshot): void {
    const { onDifference } = this.#parts;
    if (text === '' || onDifference === null) return;
    const known = this.#digests.get(`${log} ${sequence} ${mark}`);
    if (known === undefined) return onDifference(`nobody had ${log} ${sequence} ${mark}`);
    if (hash('sha256', text) !== known) onDifference(`another state at ${log} ${sequence} ${mark}`);
  }

  #keepDigest(log: string, { sequence, mark }: Omit<Snapshot, 'text'>, state: SharedState): void {
    if (this.#parts.onDifference === null) return;
    this.#digests.set(`${log} ${sequence} ${mark}`, hash('sha256', snapshot(state)));
  }

  #refresh(log: string, state: SharedState): void {
    for (const key of state.buckets.keys()) this.#copied(key);
    for (const [key, copied] of this.#buckets)
      if (logOf(bucketKey(key)) === log) copied.bucket = state.buckets.get(bucketKey(key)) ?? null;
  }

  #copied(key: BucketKey): Copied {
    let copied = this.#buckets.get(key);
    if (copied === undefined) {
      copied = { key, bucket: null, seen: 0, effects: { grants: [], nextAt: null } };
      this.#buckets.set(key, copied);
    }
    return copied;
  }
}

function judgedOf(event: LogEvent): { readonly bucket: BucketKey; readonly event: BucketEvent }[] {
  if (event.kind === 'in') return [{ bucket: event.bucket, event: event.event }];
  if (event.kind !== 'admit') return [];
  return [{ bucket: event.bucket, event: { kind: 'admit', admission: event.admission } }];
}
