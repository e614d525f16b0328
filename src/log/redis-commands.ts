/**
 * What is asked of Redis for a log: its keys, its scripts (`lua/`), and their replies as values. Keys of one log have one hash tag, so
 * that they are on one node of a Cluster. Every key lives an hour from the last entry on, or for as long as that entry says.
 */
import { Cluster } from 'ioredis';
import type { ReplicaId } from '../ids.ts';
import { firstMark } from './entry.ts';
import type { RedisClient } from '../redis/connection.ts';
import { amountOf, listOf, malformed, numberOf, textOf } from '../redis/malformed-reply.ts';
import { runScript, type ScriptWords } from '../redis/scripts.ts';

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
  /** Keys in the order in which every script takes them; the last one is the beginning of the names of snapshots. */
  readonly keys: readonly [head: string, log: string, saved: string];
  readonly channel: string;
}

export function namesOf({ digest, version, database, keyPrefix }: LogName): Names {
  const stem = `sluice:{${digest}}:${version}`;
  return {
    keys: [`${stem}:head`, `${stem}:log`, `${stem}:saved:`],
    channel: `${stem}:${database}:${keyPrefix}`,
  };
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

export type AppendReply =
  | {
      /** `more`: nothing was appended, since more entries are missed than these. */
      readonly kind: 'whole' | 'more';
      readonly life: string;
      /** Entries that the copy lacks, as text. */
      readonly entries: readonly string[];
      /** Life of the copy from which this life began; empty = from none. */
      readonly previous: string;
      readonly term: number;
      /** Sequence of the last entry before the term began. */
      readonly termBegan: number;
      /** The log's time at which this attempt appended the batch; `null` = it did not, or an earlier one had. */
      readonly appendedAt: number | null;
      /** Where the snapshot is due that the caller is to make: bytes of the log. */
      readonly dueBytes: number | null;
    }
  | {
      /**
       * Why there is nothing to append to: `none` there is no log; `short` it has fewer entries than the copy, and may begin again from it;
       * `far` the entries that the copy lacks are gone; `fork` the copy has another history; `damaged` the log cannot be read.
       */
      readonly kind: 'none' | 'short' | 'far' | 'fork' | 'damaged';
      /** Life of the log; empty = there is none, or it cannot be read. */
      readonly life: string;
    };

const problems = ['none', 'short', 'far', 'fork', 'damaged'] as const;

export async function append(
  client: RedisClient,
  { keys, channel }: Names,
  { end, batch }: { readonly end: CopyEnd; readonly batch: Batch },
): Promise<AppendReply> {
  const { replica, number, maxMs, maxBytes } = batch;
  const kept = batch.keptMs === null ? '' : Math.ceil(batch.keptMs);
  const events = batch.events ?? '';
  const copy = [end.life, end.sequence, end.mark];
  const words = [...copy, replica, number, events, channel, maxMs, batch.returns ? '1' : '', maxBytes, kept];
  const [kind, life, entries, previous, term, termBegan, stamped, dueBytes] = listOf(
    await run(client, 'append', { keys, argv: words }),
  );
  const problem = problems.find((each) => each === kind);
  if (problem !== undefined) return { kind: problem, life: textOf(life) };
  if (kind !== 'whole' && kind !== 'more') malformed();
  const isAppended = textOf(stamped) !== '';
  return {
    kind,
    life: textOf(life),
    entries: [...listOf(entries).map(textOf), ...(isAppended ? [`${textOf(stamped)} ${events}`] : [])],
    previous: textOf(previous),
    term: amountOf(term),
    termBegan: amountOf(termBegan),
    appendedAt: isAppended ? amountOf(textOf(stamped).split(' ')[3]) : null,
    dueBytes: dueBytes === '' ? null : amountOf(dueBytes),
  };
}

export interface Beginning {
  /** Life that is replaced; empty = there was none. */
  readonly over: string;
  readonly life: string;
  /** End of the copy from which it begins; `null` = it begins with nothing. */
  readonly end: CopyEnd | null;
  /** Parts of the snapshot. */
  readonly parts: number;
  /** What is replaced cannot be read: it does not matter how long it is. */
  readonly isForced: boolean;
}

/** True when the life began, false when another one had begun before or the log has as many entries. */
export async function begin(
  client: RedisClient,
  { keys }: Names,
  { over, life, end, parts, isForced }: Beginning,
): Promise<boolean> {
  const { sequence, mark, at, term, life: previous } = end ?? nothing;
  const words = [over, life, sequence, mark, at, term, previous, parts, isForced ? '1' : ''];
  return isDone(await run(client, 'begin', { keys, argv: words }), 'begun');
}

const nothing = { life: '', sequence: 0, mark: firstMark, at: '', term: 0 } as const;

export interface Snapshot {
  /** Where it was made. */
  readonly end: CopyEnd;
  readonly parts: number;
  readonly bytes: number;
  /** Bytes of the log when it was made. */
  readonly logBytes: number;
}

/** True when new copies begin from this snapshot now; false when there is a later one, or another life. */
export async function saved(
  client: RedisClient,
  { keys }: Names,
  { end, parts, bytes, logBytes }: Snapshot,
): Promise<boolean> {
  const words = [end.life, end.sequence, end.mark, end.at, end.term, parts, bytes, logBytes];
  return isDone(await run(client, 'saved', { keys, argv: words }), 'saved');
}

/** Name of the snapshot that was made at this end of a copy. */
export const snapshotKey = (
  { keys }: Names,
  { life, sequence }: Pick<CopyEnd, 'life' | 'sequence'>,
): string => `${keys[2]}${life}.${sequence}`;

const hourMs = 3_600_000;

/** Writes some parts of a snapshot, numbered from `from` on. Resolves with true. */
export async function writeParts(
  client: RedisClient,
  key: string,
  { from, parts }: { readonly from: number; readonly parts: readonly string[] },
): Promise<true> {
  const fields = parts.flatMap((part, at) => [from + at, part]);
  const replies = await client.multi().hset(key, fields).pexpire(key, hourMs).exec();
  for (const [failure] of replies ?? malformed()) if (failure !== null) throw failure;
  return true;
}

/** Where a new copy begins. */
export interface Head {
  readonly end: CopyEnd;
  readonly parts: number;
}

/** `none`: there is no log. `damaged`: what is there was not written by the scripts; it has this life, if any. */
export async function readHead(
  client: RedisClient,
  { keys }: Names,
): Promise<Head | { readonly kind: 'none' } | { readonly kind: 'damaged'; readonly life: string }> {
  const fields = ['life', 'saved', 'savedMark', 'savedTerm', 'savedAt', 'parts'] as const;
  let values: (string | null)[];
  try {
    values = await client.hmget(keys[0], ...fields);
  } catch (failure) {
    if (failure instanceof Error && failure.message.startsWith('WRONGTYPE'))
      return { kind: 'damaged', life: '' };
    throw failure;
  }
  const [life, sequence, mark, term, at, parts] = values;
  if (life === null || life === undefined) return { kind: 'none' };
  try {
    const end = { sequence: amountOf(sequence), mark: textOf(mark), term: amountOf(term), at: numberOf(at) };
    return { end: { life, ...end }, parts: amountOf(parts) };
  } catch {
    return { kind: 'damaged', life };
  }
}

/** These parts of a snapshot; `gone` = not all of them are there. */
export async function readParts(
  client: RedisClient,
  key: string,
  { from, to }: { readonly from: number; readonly to: number },
): Promise<readonly string[] | 'gone'> {
  const numbers = Array.from({ length: to - from }, (_, at) => String(from + at));
  const parts = await client.hmget(key, ...numbers);
  return parts.every((part) => part !== null) ? parts : 'gone';
}

/**
 * How many subscribers a channel has, over all nodes of a Cluster. A node that does not answer, or does not let this user ask, counts
 * none.
 */
export async function subscribers(client: RedisClient, { channel }: Names): Promise<number> {
  const nodes = client instanceof Cluster ? client.nodes('all') : [client];
  const counts = await Promise.all(
    nodes.map((node) =>
      node.call('PUBSUB', 'NUMSUB', channel).then(
        (reply) => amountOf(listOf(reply)[1]),
        () => 0,
      ),
    ),
  );
  return counts.reduce((sum, count) => sum + count, 0);
}

type Script = 'append' | 'begin' | 'saved';

const isDone = (reply: unknown, word: string): boolean =>
  reply === word || (reply === 'other' ? false : malformed());

const folder = new URL('lua/', import.meta.url);

const run = (client: RedisClient, name: Script, words: ScriptWords): Promise<unknown> =>
  runScript(client, { folder, name }, words);
