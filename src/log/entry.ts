/**
 * Entries as text, in Redis and in messages: `sequence mark term at replica batch events`. The first six have no blanks, the events
 * are a JSON array to the end. `append.lua` writes the same.
 */
import { hash } from 'node:crypto';
import { replicaId } from '../ids.ts';
import type { Entry } from './log.ts';

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
