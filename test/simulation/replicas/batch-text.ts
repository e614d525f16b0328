/**
 * The words of `apply`, read and written as the Lua does: a batch to events, a reply and messages to text. What the
 * product writes (`event-codec.ts`) and reads (`reply-codec.ts`) goes through here in the simulation.
 */
import { laneKey, leaseToken, ticketId, type LaneKey } from '../../../src/ids.ts';
import type { Costs, Feedback, MeterName, Throttle } from '../../../src/call.ts';
import type { BucketEvent, EventReply } from '../../../src/limiter/policy/bucket-events.ts';
import type { TimedLesson } from '../../../src/limiter/policy/lessons.policy.ts';
import type { BucketSetting, LaneSetting, MeterSnapshot, Settlement } from '../../../src/limiter/limiter.ts';
import type { BatchReply } from '../../../src/limiter/redis/protocol/reply-codec.ts';
import type { GrantReply } from '../../../src/limiter/redis/protocol/message-codec.ts';
import type { Sent } from '../../limiter/script-model.ts';
import { isEventKind } from '../../support/event-kinds.ts';

type Wire = Readonly<Record<string, unknown>>;

function number(value: unknown): number {
  const read = value === 'inf' ? Infinity : value === '-inf' ? -Infinity : value;
  if (typeof read !== 'number') throw new Error(`not a number: ${String(value)}`);
  return read;
}

const optional = (value: unknown): number | null => (value === undefined ? null : number(value));

function word(value: unknown): string {
  if (typeof value !== 'string' || !/^[\w.-]+$/.test(value)) throw new Error(`not a word: ${String(value)}`);
  return value;
}

function list(value: unknown): readonly Wire[] {
  if (!Array.isArray(value)) throw new Error('not a list');
  return value as readonly Wire[];
}

const costsOf = (pairs: unknown): Costs =>
  Object.fromEntries(
    (pairs as readonly [MeterName, unknown][]).map(([name, units]) => [name, number(units)]),
  );

export interface Batch {
  readonly bucket: string;
  readonly replica: string;
  readonly events: readonly BucketEvent[];
}

export function batchOf(text: string): Batch {
  const { bucket, replica, events } = JSON.parse(text) as Wire;
  let setting: BucketSetting | null = null;
  return {
    bucket: word(bucket),
    replica: word(replica),
    events: list(events).map((event) => {
      if (event['setting'] !== undefined) setting = settingOf(event['setting'] as Wire);
      return eventOf(event, setting);
    }),
  };
}

function eventOf(event: Wire, setting: BucketSetting | null): BucketEvent {
  const { kind } = event;
  if (!isEventKind(kind)) throw new Error(`no event ${String(kind)}`);
  switch (kind) {
    case 'admit':
      return { kind, admission: { ...admissionOf(event), setting: present(setting) } };
    case 'settle': {
      const lesson = event['lesson'] === undefined ? null : lessonOf(event['lesson'] as Wire);
      return { kind, lease: leaseToken(word(event['lease'])), settlement: settlementOf(event), lesson };
    }
    case 'learn':
      return { kind, lease: leaseToken(word(event['lease'])), lesson: lessonOf(event['lesson'] as Wire) };
    case 'charge': {
      const slots = optional(event['slots']);
      const tag = event['ceilingTag'] === undefined ? {} : { ceilingTag: word(event['ceilingTag']) };
      const edge = slots === null ? null : { slots, nextSlotMs: number(event['nextSlotMs']), ...tag };
      return { kind, lease: leaseToken(word(event['lease'])), edge };
    }
    case 'cancel':
    case 'forecast':
      return { kind, ticket: ticketId(word(event['ticket'])) };
    case 'tick':
      return { kind, leases: list(event['leases']).map((lease) => leaseToken(word(lease))) };
    case 'reconfigure':
      return { kind, setting: present(setting), lanes: list(event['lanes']).map(laneOf) };
    case 'wake':
      return { kind, lane: laneKey(word(event['lane'])) };
    case 'open':
      return { kind, before: optional(event['before']) };
  }
}

function present<T>(value: T | null): T {
  if (value === null) throw new Error('an event without a setting');
  return value;
}

const laneOf = (wire: Wire): LaneSetting & { readonly lane: LaneKey } => ({
  lane: laneKey(word(wire['lane'])),
  weight: number(wire['weight']),
  maxInFlight: optional(wire['maxInFlight']),
  perMinute: optional(wire['perMinute']),
  ceilingTag: word(wire['ceilingTag']),
});

function admissionOf(wire: Wire): Omit<Extract<BucketEvent, { kind: 'admit' }>['admission'], 'setting'> {
  const order = optional(wire['order']);
  return {
    ...laneOf(wire),
    ticket: ticketId(word(wire['ticket'])),
    maxQueued: number(wire['maxQueued']),
    urgency: number(wire['urgency']),
    callClass: word(wire['callClass']),
    costs: costsOf(wire['costs']),
    document: wire['document'] === undefined ? null : word(wire['document']),
    maxWaitMs: number(wire['maxWaitMs']),
    leaseMs: number(wire['leaseMs']),
    position: order === null ? { kind: 'arrival', at: optional(wire['arrivedAt']) } : { kind: 'kept', order },
  };
}

const settingOf = (wire: Wire): BucketSetting => ({
  meters: list(wire['meters']).map((meter) => ({
    meter: word(meter['meter']) as MeterName,
    limit: number(meter['limit']),
    windowMs: number(meter['windowMs']),
    ...(meter['counts'] === undefined ? {} : { counts: word(meter['counts']) as 'rolling' | 'fixed' }),
  })),
  learn: wire['learn'] === true,
  probe: number(wire['probe']),
});

function settlementOf(wire: Wire): Settlement {
  const { outcome } = wire;
  switch (outcome) {
    case 'succeeded':
      return { kind: outcome, spent: wire['spent'] === undefined ? null : costsOf(wire['spent']) };
    case 'throttled':
      return {
        kind: outcome,
        closeMs: number(wire['closeMs']),
        requeue: wire['requeue'] === true,
        sleepMs: number(wire['sleepMs']),
      };
    case 'returned':
      return {
        kind: outcome,
        sleepMs: number(wire['sleepMs']),
        because: word(wire['because']) as 'backoff',
        ...(wire['ceilingTag'] === undefined ? {} : { ceilingTag: word(wire['ceilingTag']) }),
      };
    case 'dropped':
    case 'unknown':
      return { kind: outcome };
    default:
      throw new Error(`no settlement ${String(outcome)}`);
  }
}

/** Only what the scheduler asks of a throttle: which meter refused, and whether a time was named. */
function throttleOf({ rateMeter, isTimed }: Wire): Throttle | null {
  if (rateMeter === undefined && isTimed === undefined) return null;
  const meter = rateMeter === undefined ? null : (word(rateMeter) as MeterName);
  return { kind: 'rate', waitMs: isTimed === true ? 1 : null, meter };
}

function lessonOf(wire: Wire): TimedLesson {
  const [refusedUnits, requestedCost] = [optional(wire['refusedUnits']), optional(wire['requestedCost'])];
  const meters = list(wire['meters']).map((report) => ({
    meter: word(report['meter']) as MeterName,
    limit: number(report['limit']),
    windowMs: optional(report['windowMs']),
    ...(report['resetMs'] === undefined ? {} : { resetMs: number(report['resetMs']) }),
    level:
      report['lowest'] === undefined
        ? null
        : { lowest: number(report['lowest']), highest: number(report['highest']) },
  }));
  const throttle = throttleOf(wire);
  const feedback: Feedback = {
    meters,
    throttle,
    ...(requestedCost === null ? {} : { requestedCost }),
    ...(refusedUnits === null ? {} : { requestedTokens: refusedUnits }),
  };
  return { feedback, sentAt: number(wire['sentAt']), headAt: number(wire['headAt']) };
}

const wait = (ms: number): unknown => (ms === Infinity ? 'inf' : ms);

const grantWords = ({ ticket, lane, lease, expiresAt }: GrantReply): unknown => [
  ticket,
  lane,
  lease,
  expiresAt,
];

export function replyText({ bucket, replies }: BatchReply, events: readonly BucketEvent[]): string {
  const { now, nextInMs, closedMs, createdAt, isPumpLeader, grants, unnamed } = bucket;
  const own = replies.map((reply, at) => words(reply, events[at]?.kind ?? '', createdAt !== null));
  return JSON.stringify([
    now,
    nextInMs,
    closedMs,
    createdAt,
    isPumpLeader,
    grants.map(grantWords),
    unnamed,
    own,
  ]);
}

const known: Readonly<Record<string, string>> = { settle: 'settled', learn: 'learned', charge: 'noted' };

function words(reply: EventReply, kind: string, isKnown: boolean): unknown {
  switch (reply.kind) {
    case 'granted':
      return ['granted', reply.order, reply.lease, reply.expiresAt];
    case 'queued':
      return ['queued', wait(reply.forecastMs), reply.ahead, reply.order, reply.heldBy];
    case 'refused':
      return [reply.reason, wait(reply.retryInMs), reply.heldBy, reply.ahead];
    case 'lease':
      return [reply.known ? known[kind] : 'unknown_lease'];
    case 'cancel':
      return [isKnown ? 'cancelled' : 'unknown_bucket'];
    case 'forecast': {
      const { forecast } = reply;
      return forecast === null
        ? ['not_waiting']
        : ['waiting', wait(forecast.waitMs), forecast.ahead, forecast.heldBy];
    }
    case 'tick':
      if (!isKnown) return ['unknown_bucket'];
      return ['ticked', reply.waitingHere, reply.meters.map(meterWords), reply.missing];
    case 'reconfigure':
      return [isKnown ? 'reconfigured' : 'unknown_bucket'];
    case 'wake':
      return [isKnown ? 'woken' : 'unknown_bucket'];
    case 'open':
      return [isKnown ? 'opened' : 'unknown_bucket'];
  }
}

const meterWords = ({ meter, limit, level, windowMs }: MeterSnapshot): unknown => [
  meter,
  limit,
  level,
  windowMs,
];

export function messageText(message: Sent): string {
  if (message.kind === 'closed') return `c ${message.bucket} ${message.closedMs}`;
  const grants = message.grants.map(
    ({ ticket, lane, lease, expiresAt }) => `${ticket} ${lane} ${lease} ${expiresAt}`,
  );
  return [`g ${message.bucket} ${message.createdAt}`, ...grants].join('\n');
}
