/**
 * What is asked of Redis for a log: its keys, its scripts (`lua/`), and their replies as values. The two keys of a log have one hash
 * tag, so that they are on one node of a Cluster. They live an hour from the last entry on, or for as long as that entry says.
 */
import { hash } from 'node:crypto';
import { type ReplicaId, replicaId } from '../ids.ts';
import type { RedisClient } from '../redis/connection.ts';
import { amountOf, listOf, malformed, numberOf, textOf, runScript } from '../redis/scripts.ts';
import type { Entry } from './log.ts';

/** A log in Redis. */
export interface LogName {
  /** Keyed digest of what the log is about. */
  readonly digest: string;
  /** Version of the fold: other versions have logs of their own. */
  readonly version: string;
  /** Messages know neither databases nor key prefixes: these are part of the channel's name. */
  readonly database: number;
  readonly keyPrefix: string;
}

interface Names {
  readonly keys: readonly [head: string, log: string];
  readonly channel: string;
}

export function namesOf({ digest, version, database, keyPrefix }: LogName): Names {
  const stem = `sluice:{${digest}}:${version}`;
  return { keys: [`${stem}:head`, `${stem}:log`], channel: `${stem}:${database}:${keyPrefix}` };
}

/** The last entry of a copy of a log, and the life of the log in which it was read. */
export interface CopyEnd {
  readonly life: string;
  readonly sequence: number;
  readonly mark: string;
  readonly term: number;
  /** The log's time, milliseconds. */
  readonly at: number;
}

export interface Batch {
  readonly replica: ReplicaId;
  readonly number: number;
  /** A JSON array; `null` = it is only read. */
  readonly events: string | null;
  /** By how much the log's time may go on, milliseconds. */
  readonly maxMs: number;
  /** The replica was without Redis until now, and may have acted alone. */
  readonly returns: boolean;
  /** Bytes of a log that is due for a snapshot. */
  readonly maxBytes: number;
  /** How long the log is kept if nothing is appended any more, milliseconds; `null` = an hour. */
  readonly keptMs: number | null;
}

const problems = ['none', 'short', 'far', 'fork', 'damaged'] as const;
/**
 * Why there is nothing to append to: `none` there is no log; `short` it has fewer entries than the copy, and may begin again from it;
 * `far` the entries that the copy lacks are gone; `fork` the copy has another history; `damaged` the log cannot be read.
 */
export type Problem = (typeof problems)[number];

export type AppendReply =
  | {
      readonly kind: Problem;
      /** Life of the log; empty = there is none, or it cannot be read. */
      readonly life: string;
    }
  | {
      /** `more`: nothing was appended, since more entries are missed than these. */
      readonly kind: 'whole' | 'more';
      readonly life: string;
      /** Entries that the copy lacks, as text. */
      readonly entries: readonly string[];
      readonly term: number;
      /** The log's time at which this attempt appended the batch; `null` = it did not, or an earlier one had. */
      readonly appendedAt: number | null;
      /** Where the snapshot is due that the caller is to make: bytes of the log. */
      readonly dueBytes: number | null;
    };

export async function append(
  client: RedisClient,
  { keys, channel }: Names,
  end: CopyEnd,
  { replica, number, events, maxMs, returns, maxBytes, keptMs }: Batch,
): Promise<AppendReply> {
  const copy = [end.life, end.sequence, end.mark];
  const limits = [maxMs, returns ? '1' : '', maxBytes, keptMs === null ? '' : Math.ceil(keptMs)];
  const argv = [...copy, replica, number, events ?? '', channel, ...limits];
  const reply = listOf(await runScript(client, { folder, name: 'append' }, { keys, argv }));
  const [kind, life, texts, term, isAppended, dueBytes] = reply;
  const problem = problems.find((each) => each === kind);
  if (problem !== undefined) return { kind: problem, life: textOf(life) };
  if (kind !== 'whole' && kind !== 'more') malformed();
  const entries = listOf(texts).map(textOf);
  return {
    kind,
    life: textOf(life),
    entries,
    term: amountOf(term),
    appendedAt: isAppended === '1' ? amountOf(entries.at(-1)?.split(' ')[3]) : null,
    dueBytes: dueBytes === '' ? null : amountOf(dueBytes),
  };
}

/** The mark before the first entry of a log that began with nothing. */
export const firstMark = '0';

const nothing = { sequence: 0, mark: firstMark, at: '', term: 0 } as const;

/** True when the life began, false when another one had begun before or the log has as many entries. */
export async function begin(client: RedisClient, { keys }: Names, beginning: Beginning): Promise<boolean> {
  const { over, life, end, snapshot, isForced } = beginning;
  const { sequence, mark, at, term } = end ?? nothing;
  const argv = [over, life, sequence, mark, at, term, snapshot, isForced ? '1' : ''];
  const reply = await runScript(client, { folder, name: 'begin' }, { keys, argv });
  return reply === 'begun' || (reply === 'other' ? false : malformed());
}

interface Beginning {
  /** Life that is replaced; empty = there was none. */
  readonly over: string;
  readonly life: string;
  /** End of the copy from which it begins; `null` = it begins with nothing. */
  readonly end: CopyEnd | null;
  /** Of that copy; empty = there is none. */
  readonly snapshot: string;
  /** What is replaced cannot be read: it does not matter how long it is. */
  readonly isForced: boolean;
}

/** New copies begin from this snapshot now, unless there is a later one, or another life. `logBytes`: of the log when it was made. */
export async function save(
  client: RedisClient,
  { keys }: Names,
  { life, sequence, mark, at, term }: CopyEnd,
  snapshot: string,
  logBytes: number,
): Promise<true> {
  const argv = [life, sequence, mark, at, term, snapshot, logBytes];
  await runScript(client, { folder, name: 'saved' }, { keys, argv });
  return true;
}

/** Where a new copy begins. `none`: there is no log. `damaged`: what is there was not written by the scripts; it has this life, if any. */
export async function read(
  client: RedisClient,
  { keys: [head] }: Names,
): Promise<
  | { readonly kind: 'saved'; readonly end: CopyEnd; readonly snapshot: string }
  | { readonly kind: 'none' | 'damaged'; readonly life: string }
> {
  const reply = listOf(await runScript(client, { folder, name: 'read' }, { keys: [head], argv: [] }));
  const [kind, life, sequence, mark, term, at, snapshot] = reply;
  if (kind === 'none' || kind === 'damaged') return { kind, life: textOf(life) };
  if (kind !== 'saved') malformed();
  const place = { sequence: amountOf(sequence), mark: textOf(mark), term: amountOf(term), at: numberOf(at) };
  return { kind, end: { life: textOf(life), ...place }, snapshot: textOf(snapshot) };
}

const folder = new URL('lua/', import.meta.url);

// Entries as text, in Redis and in messages: `sequence mark term at replica batch events`. The first six have no blanks, the events
// are a JSON array to the end. `append.lua` writes the same.

/** An entry as several replicas read it. */
export interface StampedEntry<Event> extends Entry<Event> {
  /**
   * Digest of the mark before it and of its stamp. Equal marks mean equal histories: two histories may have the same numbers after a
   * failover.
   */
  readonly mark: string;
  /** Time, replica and batch as the log wrote them. */
  readonly stamp: string;
}

/** Hex digits of a mark: two histories that have parted have equal marks at a sequence with odds of 1 to 10^12. */
const markLength = 10;

/** Mark of the entry with this stamp behind the one with that mark. */
export const markOf = (previous: string, stamp: string): string =>
  hash('sha1', `${previous}${stamp}`).slice(0, markLength);

/** True when this entry is the next one of a copy that ends with this sequence and mark. */
export const follows = (
  entry: StampedEntry<unknown>,
  last: { readonly sequence: number; readonly mark: string },
): boolean => entry.sequence === last.sequence + 1 && entry.mark === markOf(last.mark, entry.stamp);

/** All but the events. */
const form = /^(\d{1,15}) ([0-9a-f]{10}) (\d{1,15}) ((\d+(?:\.\d+)?) ([\w.-]+) (\d{1,15})) (?=\[)/;

/** `null` = somebody else wrote this. That its events are events is not checked: whoever follows the log may throw. */
export function readEntry<Event>(text: string): StampedEntry<Event> | null {
  const [head = '', sequence, mark = '', term, stamp = '', at, replica = '', batch] = form.exec(text) ?? [];
  const events = head === '' ? null : eventsIn(text.slice(head.length));
  if (events === null) return null;
  return {
    sequence: Number(sequence),
    mark,
    term: Number(term),
    at: Number(at),
    replica: replicaId(replica),
    batch: Number(batch),
    stamp,
    // The log's name carries the version of the fold: what is read was written by this very code.
    events: events as readonly Event[],
  };
}

function eventsIn(text: string): readonly unknown[] | null {
  try {
    return JSON.parse(text) as readonly unknown[];
  } catch {
    return null;
  }
}
