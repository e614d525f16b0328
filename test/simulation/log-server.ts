/**
 * Logs as Redis keeps them: for each name an array of entries with a head, and the four operations on it. What it guarantees is
 * what the functions in Redis guarantee; it decides nothing. No line of the product is in it but the marks of entries.
 *
 * Owns: the data. Does not own: its loss and the server's clock (`replicas/server.ts`), the way to it (`replicas/connection.ts`).
 */
import { createHash } from 'node:crypto';
import type { Entry } from '../../src/log/log.ts';
import { replicaId } from '../../src/ids.ts';

/** Where a copy of the log stands. */
export interface Place {
  readonly sequence: number;
  readonly mark: string;
}

/** A state and where it was taken. */
export interface Saved extends Place {
  readonly life: string;
  readonly parts: readonly string[];
}

export interface Append extends Place {
  readonly life: string;
  /** The run of the server, as the replica knows it: another one than before may lack what came last. */
  readonly run: string;
  readonly replica: string;
  readonly batch: number;
  /** None: the caller only reads. */
  readonly events: readonly unknown[];
}

export interface Begin extends Saved {
  /** The life that the caller found; `null` = none. */
  readonly over: string | null;
  readonly run: string;
  readonly term: number;
  /** The time of the copy's last entry; `null` = it has none. */
  readonly at: number | null;
}

/** `short`: the log lacks entries of the copy. `far`: the copy lacks entries that the log has not any more. `fork`: they differ. */
export type Appended =
  | { readonly kind: 'ok'; readonly entries: readonly Entry<unknown>[]; readonly termBegan: number }
  | { readonly kind: 'none' | 'other' | 'short' | 'far' | 'fork' };

export type Read =
  | { readonly kind: 'none' }
  | {
      readonly kind: 'joined';
      readonly life: string;
      readonly term: number;
      readonly termBegan: number;
      readonly saved: Saved;
      readonly entries: readonly Entry<unknown>[];
    };

interface Kept extends Place {
  readonly life: string;
  run: string;
  sequence: number;
  mark: string;
  term: number;
  termBegan: number;
  at: number;
  clock: number;
  /** The entries after `before`: as of the snapshot before the latest one, so that whoever is a little behind can still catch up. */
  entries: Entry<unknown>[];
  before: Place;
  saved: Saved;
  readonly batches: Map<string, number>;
}

/** The log's time goes on by no more than this at once, whatever the server's clock does. Milliseconds. */
const maxStepMs = 60_000;
/** The mark of a log without entries. */
export const firstMark = '0';

/** The mark of an entry, by that of the entry before it. */
export const markAfter = (mark: string, { at, replica, batch }: Omit<Entry<unknown>, 'mark'>): string =>
  createHash('sha1').update(`${mark} ${at} ${replica} ${batch}`).digest('hex').slice(0, 12);

export class LogServer {
  readonly #logs = new Map<string, Kept>();
  readonly #onEntry: (name: string, entry: Entry<unknown>) => void;

  /** @param onEntry hears each new entry, to publish it. */
  constructor(onEntry: (name: string, entry: Entry<unknown>) => void) {
    this.#onEntry = onEntry;
  }

  /** Everything is lost. */
  lose(): void {
    this.#logs.clear();
  }

  /** All or nothing, and once: a batch that is there already is not appended again. Returns what the caller lacks. */
  append(name: string, asked: Append, clock: number): Appended {
    const log = this.#logs.get(name);
    if (log === undefined) return { kind: 'none' };
    if (log.life !== asked.life) return { kind: 'other' };
    if (asked.sequence > log.sequence) return { kind: 'short' };
    const mark = markAt(log, asked.sequence);
    if (mark === null) return { kind: 'far' };
    if (mark !== asked.mark) return { kind: 'fork' };
    if (asked.events.length > 0 && asked.batch > (log.batches.get(asked.replica) ?? 0)) {
      this.#add(name, log, asked, clock);
    }
    const entries = log.entries.filter(({ sequence }) => sequence > asked.sequence);
    return { kind: 'ok', entries, termBegan: log.termBegan };
  }

  #add(name: string, log: Kept, { run, replica, batch, events }: Append, clock: number): void {
    if (run !== log.run) {
      log.run = run;
      log.term += 1;
      log.termBegan = log.sequence;
    }
    log.at += Math.min(maxStepMs, Math.max(0, clock - log.clock));
    log.clock = clock;
    log.sequence += 1;
    const { sequence, term, at } = log;
    const entry = { sequence, term, at, replica: replicaId(replica), batch, events };
    log.mark = markAfter(log.mark, entry);
    log.batches.set(replica, batch);
    log.entries.push({ ...entry, mark: log.mark });
    this.#onEntry(name, { ...entry, mark: log.mark });
  }

  /** Begins a life from a copy, unless the log has gone on since the caller looked or has as much. Returns the life of the log. */
  begin(name: string, asked: Begin, clock: number): string {
    const log = this.#logs.get(name);
    if (log !== undefined && (log.life !== asked.over || log.sequence >= asked.sequence)) return log.life;
    const { life, run, term, sequence, mark, parts } = asked;
    this.#logs.set(name, {
      life,
      run,
      term,
      sequence,
      mark,
      clock,
      termBegan: sequence,
      at: asked.at ?? clock,
      entries: [],
      before: { sequence, mark },
      saved: { life, sequence, mark, parts },
      batches: new Map(),
    });
    return life;
  }

  /** The log begins at the snapshot before this one from now on. */
  saved(name: string, saved: Saved): boolean {
    const log = this.#logs.get(name);
    if (log?.life !== saved.life || log.saved.sequence >= saved.sequence) return false;
    if (markAt(log, saved.sequence) !== saved.mark) return false;
    log.before = { sequence: log.saved.sequence, mark: log.saved.mark };
    log.entries = log.entries.filter(({ sequence }) => sequence > log.before.sequence);
    log.saved = saved;
    return true;
  }

  read(name: string): Read {
    const log = this.#logs.get(name);
    if (log === undefined) return { kind: 'none' };
    const { life, term, termBegan, saved } = log;
    const entries = log.entries.filter(({ sequence }) => sequence > saved.sequence);
    return { kind: 'joined', life, term, termBegan, saved, entries };
  }
}

/** `null`: the log does not reach back so far. */
function markAt({ before, entries, sequence: last, mark }: Kept, sequence: number): string | null {
  if (sequence === last) return mark;
  if (sequence === before.sequence) return before.mark;
  return entries[sequence - before.sequence - 1]?.mark ?? null;
}
