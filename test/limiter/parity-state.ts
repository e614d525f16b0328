/**
 * The whole state of a bucket in one normal form, made from the policy's data and from what Redis holds. Numbers are
 * kept as they are: both stores must come to the same double.
 */
import {
  type Bucket,
  type DocumentCost,
  type Lane,
  type Lease,
  type Ticket,
} from '../../src/limiter/policy/bucket-state.policy.ts';
import { meterNames } from '../../src/limiter/policy/meter-names.policy.ts';
import type { Meter } from '../../src/limiter/policy/meter.policy.ts';
import type { SortedNames } from '../../src/limiter/policy/sorted.policy.ts';
import { readPacked } from './parity-messagepack.ts';

export type Normal = null | boolean | number | string | Normal[] | { [name: string]: Normal };

/** What a store keeps beside the policy's data. */
export interface Beside {
  readonly createdAt: number;
  readonly seen: number;
  /** Replica by lease, for grants their replica has not named. */
  readonly unnamed: ReadonlyMap<string, string>;
}

const scalars = [
  'learn',
  'probe',
  'opened',
  'probingSince',
  'closedUntil',
  'closedAt',
  'virtual',
  'sequence',
  'waiting',
  'waitingWeight',
] as const;
const meterFields = [
  'name',
  'limit',
  'windowMs',
  'stated',
  'reported',
  'level',
  'at',
  'granted',
  'answered',
  'returned',
  'others',
  'heardAt',
  'contest',
  'peak',
  'unreported',
  'fastestMs',
  'emptyAt',
  'log',
  'heldAs',
] as const;

export function stateOfPolicy(bucket: Bucket, beside: Beside): Normal {
  const waitingBy = new Map<string, number>();
  for (const ticket of bucket.tickets.values()) {
    if (ticket.lease === null) waitingBy.set(ticket.replica, (waitingBy.get(ticket.replica) ?? 0) + 1);
  }
  return {
    createdAt: beside.createdAt,
    seen: beside.seen,
    ...Object.fromEntries(scalars.map((field) => [field, bucket[field] ?? false])),
    lastGrantAt: bucket.lastGrantAt ?? false,
    pilotAfter: bucket.pilotAfter ?? false,
    crowdedAt: bucket.crowdedAt ?? false,
    searchedTo: bucket.searchedTo ?? false,
    documents: byName(bucket.documents, (known) => normalDocument(known)),
    documentAges: scored(bucket.documentAges),
    estimated: byName(bucket.estimated, (tickets) => tickets.names()),
    leaseCount: bucket.leases.size,
    waitingCosts: sums(bucket.waitingCosts),
    meters: byName(bucket.meters, normalMeter),
    lanes: byName(bucket.lanes, normalLane),
    tickets: byName(bucket.tickets, normalTicket),
    leases: byName(bucket.leases, (lease) => normalLease(lease, beside.unnamed)),
    lines: byName(new Map([...bucket.lanes].filter(([, lane]) => lane.line.size > 0)), (lane) =>
      lane.line.names(),
    ),
    expiries: scored(bucket.expiries),
    unanswered: scored(bucket.unanswered),
    ready: byName(new Map([...bucket.ready].filter(([, set]) => set.size > 0)), scored),
    asleep: scored(bucket.asleep),
    idle: scored(bucket.idle),
    replicas: scored(bucket.replicas),
    waitingBy: byName(waitingBy, (count) => count),
    unnamed: [...beside.unnamed].map(([token, replica]) => `${replica}:${token}`).toSorted(),
  };
}

const sleepReasons = ['ceiling_minute', 'ceiling_day', 'backoff', 'document'] as const;

const normalDocument = (known: DocumentCost): Normal => ({
  kind: known.kind,
  points: known.kind === 'reported' ? known.points : false,
  lease: known.kind === 'probing' ? known.lease : false,
  until: known.kind === 'probing' ? known.until : false,
  lanes: known.kind === 'probing' ? [...known.lanes] : [],
});

/** What is absent is `false` there, and what has parts a list. */
function normalMeter(meter: Meter): Normal {
  const { stated, reported, contest, peak, unreported, log } = meter;
  const lists: Record<string, Normal> = {
    stated: stated === null ? false : [stated.limit, stated.windowMs],
    reported: reported === null ? false : [reported.limit, reported.windowMs ?? false, reported.sentAt],
    contest: contest === null ? false : [contest.units, contest.allowance, contest.at],
    peak: peak === null ? false : [peak.level, peak.at, peak.headAt],
    unreported: unreported === null ? false : [unreported.units, unreported.at],
    log:
      log === null ? false : [log.counts, log.slots.map(({ since, until, units }) => [since, until, units])],
  };
  const plain: Record<string, unknown> = { ...meter, ...lists };
  return Object.fromEntries(meterFields.map((field) => [field, (plain[field] ?? false) as Normal]));
}

const normalLane = (lane: Lane): Normal => ({
  weight: lane.weight,
  maxInFlight: lane.maxInFlight ?? false,
  perMinute: lane.perMinute ?? false,
  ceilingTag: lane.ceilingTag,
  start: lane.start,
  inFlight: lane.inFlight,
  waiting: lane.line.size,
  waitingCosts: sums(lane.waitingCosts),
  asleep: sleepReasons.map((reason) => lane.asleep.get(reason) ?? false),
  slots: lane.slots ?? false,
  unconfirmed: lane.unconfirmed,
  serviceMs: lane.serviceMs,
  grantedAt: lane.grantedAt ?? false,
  abandoned: [...lane.abandoned],
  slotBackAt: lane.slotBackAt ?? false,
  readyAs: lane.readyAs ?? false,
});

const normalTicket = (ticket: Ticket): Normal => ({
  lane: ticket.lane,
  replica: ticket.replica,
  order: ticket.order,
  callClass: ticket.callClass,
  costs: sums(new Map(Object.entries(ticket.costs))),
  document: ticket.document ?? false,
  leaseMs: ticket.leaseMs,
  lease: ticket.lease ?? false,
});

const normalLease = (lease: Lease, unnamed: ReadonlyMap<string, string>): Normal => ({
  ticket: lease.ticket.id,
  lane: lease.ticket.lane,
  replica: lease.ticket.replica,
  document: lease.ticket.document ?? false,
  grantedAt: lease.grantedAt,
  spacing: lease.spacing,
  marks: byName(lease.marks, (mark) => [
    mark.cost,
    mark.granted,
    mark.returned,
    mark.drainsAt,
    mark.inTransit.map(({ grantedAt, units }) => [grantedAt, units]),
  ]),
  expiresAt: lease.expiresAt,
  answered: lease.answered,
  stage: lease.stage,
  named: !unnamed.has(lease.token),
});

/** What the four keys of a bucket hold, as read with buffers. */
export interface Dump {
  readonly state: Buffer | null;
  readonly records: Readonly<Record<string, Buffer>>;
  readonly order: readonly string[];
  readonly replicas: readonly string[];
  /** Milliseconds each existing key has to live. */
  readonly lives: readonly number[];
}

const bucketFields = [
  'createdAt',
  'seen',
  'learn',
  'probe',
  'opened',
  'probingSince',
  'closedUntil',
  'closedAt',
  'virtual',
  'sequence',
  'lastGrantAt',
  'pilotAfter',
  'crowdedAt',
  'waiting',
  'waitingWeight',
  'leaseCount',
  'waitingCosts',
  'meters',
  'due',
  'promisedBy',
  'promisedAt',
  'searchedTo',
];
const recordFields: Record<string, readonly string[]> = {
  l: [
    'key',
    'weight',
    'maxInFlight',
    'perMinute',
    'ceilingTag',
    'start',
    'inFlight',
    'waiting',
    'waitingCosts',
    'asleep',
    'slots',
    'unconfirmed',
    'serviceMs',
    'grantedAt',
    'abandoned',
    'slotBackAt',
    'readyAs',
  ],
  t: ['id', 'lane', 'replica', 'order', 'callClass', 'costs', 'document', 'leaseMs', 'lease'],
  d: ['kind', 'points', 'lease', 'until', 'lanes', 'at'],
  e: [
    'token',
    'ticket',
    'lane',
    'replica',
    'document',
    'grantedAt',
    'spacing',
    'marks',
    'expiresAt',
    'answered',
    'stage',
    'named',
  ],
};

/**
 * What is wrong with the times before which no lease ends and no lane wakes, as the bucket keeps them: none may be later than
 * the first entry of its section, or that entry is not looked for in time. `null` = nothing.
 */
export function dueDifference(dump: Dump): string | null {
  if (dump.state === null) return null;
  const due = mapOf(named(readPacked(dump.state), bucketFields)['due']);
  for (const section of ['e', 's']) {
    const times = dump.order
      .filter((member) => member.startsWith(`${section}:`))
      .map((member) => numberOf(member.slice(2, 18)));
    const kept = due.get(section);
    if (times.length > 0 && !(typeof kept === 'number' && kept <= Math.min(...times)))
      return `due.${section} is ${String(kept)}, and an entry stands at ${Math.min(...times)}`;
  }
  return null;
}

/** `null`: Redis does not know the bucket. */
export function stateOfRedis(dump: Dump): Normal {
  if (dump.state === null) return null;
  const bucket = named(readPacked(dump.state), bucketFields);
  const kinds: Record<string, Map<string, Normal>> = {
    l: new Map(),
    t: new Map(),
    e: new Map(),
    d: new Map(),
    w: new Map(),
  };
  for (const [field, packed] of Object.entries(dump.records)) {
    const kind = field.slice(0, 1);
    const name = field.slice(2);
    kinds[kind]?.set(name, kind === 'w' ? Number(packed.toString()) : record(kind, packed));
  }
  const sections = sectionsOf(dump.order);
  return {
    createdAt: bucket['createdAt'] ?? null,
    seen: bucket['seen'] ?? null,
    ...Object.fromEntries(scalars.map((field) => [field, bucket[field] ?? null])),
    lastGrantAt: bucket['lastGrantAt'] ?? null,
    pilotAfter: bucket['pilotAfter'] ?? null,
    crowdedAt: bucket['crowdedAt'] ?? null,
    searchedTo: bucket['searchedTo'] ?? null,
    documents: byName(kinds['d'] ?? new Map(), (known) => known),
    documentAges: sections.documentAges,
    estimated: byName(sections.estimated, (tickets) => tickets),
    leaseCount: bucket['leaseCount'] ?? null,
    waitingCosts: sums(mapOf(bucket['waitingCosts'])),
    meters: byName(
      new Map(listOf(bucket['meters']).map((values) => [nameIn(values), named(values, meterFields)])),
      (meter) => meter,
    ),
    lanes: byName(kinds['l'] ?? new Map(), (lane) => lane),
    tickets: byName(kinds['t'] ?? new Map(), (ticket) => ticket),
    leases: byName(kinds['e'] ?? new Map(), (lease) => lease),
    lines: byName(sections.lines, (line) => line),
    expiries: sections.expiries,
    unanswered: sections.unanswered,
    ready: byName(sections.ready, (lanes) => lanes),
    asleep: sections.asleep,
    idle: sections.idle,
    replicas: pairs(dump.replicas).map(([replica, heard]) => `${replica} ${Number(heard)}`),
    waitingBy: byName(kinds['w'] ?? new Map(), (count) => count),
    unnamed: sections.unnamed,
  };
}

function record(kind: string, packed: Buffer): Normal {
  const fields = named(readPacked(packed), recordFields[kind] ?? []);
  if (kind === 'l') fields['waitingCosts'] = sums(mapOf(fields['waitingCosts']));
  if (kind === 't') fields['costs'] = sums(new Map(listOf(fields['costs']).map(costPair)));
  if (kind === 'e') {
    const marks = listOf(fields['marks']).map((mark) => [nameIn(mark), listOf(mark)[1] ?? null] as const);
    fields['marks'] = byName(new Map(marks), (mark) => mark);
  }
  if (kind === 'd') fields['lanes'] = listOf(fields['lanes']);
  const { key: _key, id: _id, token: _token, at: _at, ...rest } = fields;
  return rest;
}

function costPair(pair: Normal): [string, number] {
  return [nameIn(pair), Number(listOf(pair)[1])];
}

interface Sections {
  readonly lines: Map<string, Normal[]>;
  readonly ready: Map<string, Normal[]>;
  readonly expiries: Normal[];
  readonly unanswered: Normal[];
  readonly asleep: Normal[];
  readonly idle: Normal[];
  readonly unnamed: Normal[];
  readonly documentAges: Normal[];
  readonly estimated: Map<string, Normal[]>;
}

function sectionsOf(members: readonly string[]): Sections {
  const found: Sections = {
    lines: new Map(),
    ready: new Map(),
    expiries: [],
    unanswered: [],
    asleep: [],
    idle: [],
    unnamed: [],
    documentAges: [],
    estimated: new Map(),
  };
  const push = (map: Map<string, Normal[]>, key: string, value: string): void => {
    map.set(key, [...(map.get(key) ?? []), value]);
  };
  for (const member of members) {
    const [section, first = '', second = '', third = ''] = member.split(':');
    if (section === 'l') push(found.lines, first, third);
    else if (section === 'r') push(found.ready, first, `${third} ${numberOf(second)}`);
    else if (section === 'e') found.expiries.push(`${second} ${numberOf(first)}`);
    else if (section === 'g') found.unanswered.push(`${second} ${numberOf(first)}`);
    else if (section === 's') found.asleep.push(`${second} ${numberOf(first)}`);
    else if (section === 'd') found.documentAges.push(`${second} ${numberOf(first)}`);
    else if (section === 'c') push(found.estimated, first, second);
    else if (section === 'i') found.idle.push(`${second} ${numberOf(first)}`);
    else found.unnamed.push(`${first}:${second}`);
  }
  return found;
}

/** The number behind 16 sortable digits. */
function numberOf(digits: string): number {
  const bytes = Buffer.from(digits, 'hex');
  const high = bytes.readUInt8(0);
  if (high >= 0x80) bytes.writeUInt8(high - 0x80, 0);
  else bytes.forEach((byte, at) => bytes.writeUInt8(255 - byte, at));
  return bytes.readDoubleBE(0);
}

const scored = (set: SortedNames): Normal[] => set.names().map((name) => `${name} ${set.scoreOf(name)}`);

function byName<T>(map: ReadonlyMap<string, T>, normal: (value: T) => Normal): Normal {
  const names = [...map.keys()].toSorted();
  return Object.fromEntries(names.map((name) => [name, normal(map.get(name) as T)]));
}

function sums(map: ReadonlyMap<string, number | undefined>): Normal {
  return meterNames.map((name) => (map.get(name) ?? 0) + 0);
}

function named(values: unknown, fields: readonly string[]): Record<string, Normal> {
  const list = listOf(values);
  if (list.length !== fields.length)
    throw new Error(`a record has ${list.length} of ${fields.length} fields`);
  return Object.fromEntries(fields.map((field, at) => [field, list[at] ?? null]));
}

/** The name a packed pair or meter begins with. */
function nameIn(values: Normal): string {
  const [name] = listOf(values);
  if (typeof name !== 'string') throw new Error('a packed record without its name');
  return name;
}

const listOf = (value: unknown): Normal[] => (Array.isArray(value) ? value : []);

const mapOf = (value: unknown): Map<string, number> =>
  new Map(Array.isArray(value) || value === null || typeof value !== 'object' ? [] : Object.entries(value));

const pairs = (flat: readonly string[]): [string, string][] =>
  flat.flatMap((name, at) => (at % 2 === 0 ? [[name, flat[at + 1] ?? ''] as [string, string]] : []));
