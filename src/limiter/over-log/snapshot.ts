/**
 * A state of the shared limiter as text, and back: a restored state does at every later entry what the state itself does. So the
 * order of maps is kept, every number is kept to the last bit, and a lease and the tickets of its bucket have the same ticket.
 *
 * One line of JSON for what belongs to no bucket, one for each bucket, and the digest of all these lines. The text is ASCII and is
 * cut into parts wherever a part is full.
 */
import { createHash } from 'node:crypto';
import type { BucketKey, TicketId } from '../../ids.ts';
import type { Bucket, Callers, Lane, Lease, Ticket, Turns } from '../policy/bucket-state.policy.ts';
import { SortedNames } from '../policy/sorted.policy.ts';
import type { SharedState } from './state.ts';

/** Size of a part at most, bytes. */
export const maxPartBytes = 65_536;

/** Parts that are not a whole snapshot. */
export class SnapshotError extends Error {
  override readonly name = 'SnapshotError';
}

/**
 * The state as it is now, whatever happens to it before all parts are read. Each part costs about a millisecond when it is read, so that
 * the snapshot of a crowd need not hold up whatever else the process does.
 */
export function snapshot(state: SharedState): Iterable<string> {
  return partsOf(duplicate(state));
}

function* partsOf(state: SharedState): Generator<string> {
  const hash = createHash('sha256');
  let text = '';
  for (const piece of textOf(state)) {
    hash.update(piece);
    text += piece;
    for (; text.length > maxPartBytes; text = text.slice(maxPartBytes)) yield text.slice(0, maxPartBytes);
  }
  text += hash.digest('hex');
  for (; text.length > 0; text = text.slice(maxPartBytes)) yield text.slice(0, maxPartBytes);
}

/** Equal for equal states, whether they were restored or not. */
export function digest(state: SharedState): string {
  const hash = createHash('sha256');
  for (const piece of textOf(state)) hash.update(piece);
  return hash.digest('hex');
}

/** @throws SnapshotError for parts that `snapshot` did not write, or that are not all or not in order */
export function restore(parts: readonly string[]): SharedState {
  const text = parts.join('');
  const end = text.lastIndexOf('\n') + 1;
  if (text.slice(end) !== createHash('sha256').update(text.slice(0, end)).digest('hex')) {
    throw new SnapshotError(`the digest of a snapshot of ${parts.length} parts is wrong`);
  }
  const [head, ...lines] = text
    .slice(0, end - 1)
    .split('\n')
    .map(parsed);
  const buckets = new Map(lines.map(bucketOf));
  // What has the right digest was written by `snapshot`.
  return { ...(head as Omit<SharedState, 'buckets'>), buckets };
}

/** Entries of a map that are written together. */
const entriesAtOnce = 100;

/** In pieces: the calls of a crowd are written some at a time. */
function* textOf({ buckets, ...head }: SharedState): Generator<string> {
  yield `${jsonOf(head)}\n`;
  for (const [key, bucket] of buckets) {
    const written = { ...bucket, leases: leasesOf(bucket) };
    const { lanes, tickets, leases } = bucket;
    if (lanes.size + tickets.size + leases.size <= entriesAtOnce) yield `${jsonOf([key, written])}\n`;
    else yield* crowdText(key, written);
  }
}

function* crowdText(key: BucketKey, written: object): Generator<string> {
  let before = `[${jsonOf(key)},{`;
  for (const [name, member] of Object.entries(written)) {
    yield `${before}${jsonOf(name)}:`;
    before = ',';
    if (member instanceof Map && member.size > entriesAtOnce) yield* entriesText([...member]);
    else yield jsonOf(member);
  }
  yield '}]\n';
}

function* entriesText(entries: readonly unknown[]): Generator<string> {
  for (let from = 0; from < entries.length; from += entriesAtOnce) {
    const some = jsonOf(entries.slice(from, from + entriesAtOnce));
    yield `${from === 0 ? '{"$map":[' : ','}${some.slice(1, -1)}`;
  }
  yield ']}';
}

/** A lease as it is written: with the name of its ticket, unless the bucket has that no more (the fate of its call is unknown). */
type WrittenLease = Omit<Lease, 'ticket'> & { readonly ticket: Ticket | TicketId };

const leasesOf = ({ leases, tickets }: Bucket): Map<string, WrittenLease> =>
  new Map(
    [...leases].map(([token, lease]) => {
      const { ticket } = lease;
      return [token, { ...lease, ticket: tickets.get(ticket.id) === ticket ? ticket.id : ticket }];
    }),
  );

type WrittenBucket = Omit<Bucket, 'leases'> & { readonly leases: Map<Lease['token'], WrittenLease> };

function bucketOf(line: unknown): [BucketKey, Bucket] {
  const [key, written] = line as [BucketKey, WrittenBucket];
  const leases: Bucket['leases'] = new Map();
  for (const [token, lease] of written.leases) {
    const { ticket: named } = lease;
    const ticket = typeof named === 'string' ? written.tickets.get(named) : named;
    if (ticket === undefined) throw new SnapshotError(`a lease without its ticket`);
    leases.set(token, { ...lease, ticket });
  }
  return [key, { ...written, leases }];
}

const jsonOf = (value: unknown): string =>
  JSON.stringify(plain(value)).replaceAll(/[\u0080-\uffff]/g, escaped);

const escaped = (unit: string): string => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;

const parsed = (line: string): unknown => revived(JSON.parse(line));

/** As JSON has it: what it has no form for becomes an object of one member, which no state has. */
function plain(value: unknown): unknown {
  if (typeof value === 'number')
    return Number.isFinite(value) && !Object.is(value, -0) ? value : special(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(plain);
  if (value instanceof Set) return { $set: [...value].map(plain) };
  if (value instanceof Map) return { $map: [...value].map(plain) };
  if (value instanceof SortedNames)
    return { $sorted: value.names().map((name) => [name, plain(value.scoreOf(name))]) };
  return mapped(value, plain);
}

const special = (value: number): { readonly $number: string } => ({
  $number: Object.is(value, -0) ? '-0' : String(value),
});

function revived(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map(revived);
  if ('$map' in value) return new Map(revived(value.$map) as [unknown, unknown][]);
  if ('$set' in value) return new Set(revived(value.$set) as unknown[]);
  if ('$sorted' in value) return sortedOf(value.$sorted);
  if ('$number' in value) return Number(value.$number);
  return mapped(value, revived);
}

function sortedOf(entries: unknown): SortedNames {
  const names = new SortedNames();
  for (const [name, number] of revived(entries) as [string, number][]) names.set(name, number);
  return names;
}

/** The same members, each by the function; the object itself where that changes none. */
function mapped(value: object, by: (member: unknown) => unknown): object {
  const members = value as Readonly<Record<string, unknown>>;
  let result: Record<string, unknown> | null = null;
  for (const name in members) {
    const changed = by(members[name]);
    if (changed === members[name]) continue;
    result ??= { ...members };
    result[name] = changed;
  }
  return result ?? value;
}

// Duplicates

export const duplicate = (state: SharedState): SharedState => ({
  ...state,
  replicas: state.replicas.duplicate(),
  buckets: eachOf(state.buckets, bucketLike),
  reserving: new Set(state.reserving),
  grantsDue: state.grantsDue.duplicate(),
  upkeepDue: state.upkeepDue.duplicate(),
});

function bucketLike(bucket: Bucket): Bucket {
  const tickets = eachOf(bucket.tickets, (ticket) => ({ ...ticket }));
  return {
    ...bucket,
    meters: eachOf(bucket.meters, (meter) => ({ ...meter })),
    lanes: eachOf(bucket.lanes, laneLike),
    tickets,
    leases: eachOf(bucket.leases, (lease) => ({ ...lease, ticket: ticketLike(lease, bucket, tickets) })),
    reservations: new Map(bucket.reservations),
    reservationsDue: bucket.reservationsDue.duplicate(),
    expiries: bucket.expiries.duplicate(),
    unanswered: bucket.unanswered.duplicate(),
    asleep: bucket.asleep.duplicate(),
    replicas: bucket.replicas.duplicate(),
    documents: new Map(bucket.documents),
    documentAges: bucket.documentAges.duplicate(),
    estimated: eachOf(bucket.estimated, namesLike),
    ...turnsLike(bucket),
    background: bucket.background === null ? null : { ...bucket.background, ...turnsLike(bucket.background) },
  };
}

const turnsLike = ({ ready, idle, waitingCosts }: Turns): Pick<Turns, 'ready' | 'idle' | 'waitingCosts'> => ({
  ready: eachOf(ready, namesLike),
  idle: idle.duplicate(),
  waitingCosts: new Map(waitingCosts),
});

const laneLike = (lane: Lane): Lane => ({
  ...lane,
  line: lane.line.duplicate(),
  callers: lane.callers === null ? null : callersLike(lane.callers),
  waitingCosts: new Map(lane.waitingCosts),
  asleep: new Map(lane.asleep),
  abandoned: [...lane.abandoned],
});

const callersLike = (callers: Callers): Callers => ({
  ...callers,
  lines: eachOf(callers.lines, ({ line, start }) => ({ line: line.duplicate(), start })),
  turns: callers.turns.duplicate(),
});

/** The ticket of a lease is the one of its bucket, unless that has it no more. */
function ticketLike({ ticket }: Lease, from: Bucket, tickets: Bucket['tickets']): Ticket {
  const own = from.tickets.get(ticket.id) === ticket ? tickets.get(ticket.id) : undefined;
  return own ?? { ...ticket };
}

const namesLike = <Name extends string>(names: SortedNames<Name>): SortedNames<Name> => names.duplicate();

function eachOf<Key, Value>(
  map: ReadonlyMap<Key, Value>,
  duplicateOf: (value: Value) => Value,
): Map<Key, Value> {
  const all = new Map<Key, Value>();
  for (const [key, value] of map) all.set(key, duplicateOf(value));
  return all;
}
