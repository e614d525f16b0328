/**
 * Entries as text, in Redis and in messages: `sequence mark term at replica batch events`. The first six have no blanks, the events
 * are a JSON array to the end. `append.lua` writes the same.
 */
import { hash } from 'node:crypto';
import { replicaId } from '../ids.ts';
import type { Entry } from './log.ts';

/** What stands where an entry should be is none: somebody else wrote there, or there is a bug. */
export class MalformedEntry extends TypeError {
  constructor(cause?: unknown) {
    super('malformed entry of a log', { cause });
    this.name = 'MalformedEntry';
  }
}

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

/** The mark before the first entry of a log that began with nothing. */
export const firstMark = '0';

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

export const stampOf = ({ at, replica, batch }: Pick<Entry<unknown>, 'at' | 'replica' | 'batch'>): string =>
  `${at} ${replica} ${batch}`;

/** Events as they stand in an entry, each written by `JSON.stringify` before. */
export const eventsText = (events: readonly string[]): string => `[${events.join(',')}]`;

/** A batch that a replica has sent: its entry has these events, and nobody need read them there. */
export type SentBatch<Event> = Pick<Entry<Event>, 'replica' | 'batch' | 'events'>;

/** All but the events. */
const form = /^(\d{1,15}) ([0-9a-f]{10}) (\d{1,15}) ((\d+(?:\.\d+)?) ([\w.-]+) (\d{1,15})) (?=\[)/;

/**
 * Reads an entry. `readEvent` turns a parsed value into an event, and throws for what is none. `sent`: the last batch of whoever reads.
 * @throws MalformedEntry
 */
export function readEntry<Event>(
  text: string,
  readEvent: (value: unknown) => Event,
  sent: SentBatch<Event> | null = null,
): StampedEntry<Event> {
  const [head, sequence, mark, term, stamp, at, replica, batch] = form.exec(text) ?? [];
  if (head === undefined || mark === undefined || stamp === undefined || replica === undefined)
    throw new MalformedEntry();
  const isSent = sent !== null && replica === sent.replica && Number(batch) === sent.batch;
  return {
    sequence: Number(sequence),
    mark,
    term: Number(term),
    at: Number(at),
    replica: replicaId(replica),
    batch: Number(batch),
    stamp,
    events: isSent ? sent.events : readEvents(text.slice(head.length), readEvent),
  };
}

function readEvents<Event>(text: string, readEvent: (value: unknown) => Event): readonly Event[] {
  try {
    const values: unknown = JSON.parse(text);
    if (!Array.isArray(values)) throw new MalformedEntry();
    return values.map(readEvent);
  } catch (cause) {
    throw cause instanceof MalformedEntry ? cause : new MalformedEntry(cause);
  }
}
