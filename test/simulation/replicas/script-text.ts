/**
 * The words of script calls, read and written as the Lua does: ARGV to arguments, replies and messages to text. What
 * the product writes (`script-calls.ts`) and reads (`script-replies.ts`) goes through here in the simulation.
 */
import type { Costs, Feedback, MeterName, MeterReport } from '../../../src/call.ts';
import type {
  Admission,
  BucketSetting,
  CeilingEdge,
  Lesson,
  MeterSetting,
  Position,
  Reconfiguration,
  Settlement,
  SleepReason,
} from '../../../src/limiter/limiter.ts';
import type {
  AdmitReply,
  BucketReply,
  CancelReply,
  ForecastReply,
  LeaseReply,
  ReconfigureReply,
  TickReply,
  ToldGrant,
} from '../../../src/limiter/script-replies.ts';
import type { Sent } from '../../limiter/script-model.ts';

const number = (text: string | undefined): number => {
  if (text === 'inf') return Infinity;
  if (text === '-inf') return -Infinity;
  const read = Number(text);
  if (text === undefined || text === '' || Number.isNaN(read)) throw new Error(`not a number: ${text}`);
  return read;
};

/** '' = none. */
const optional = (text: string | undefined): number | null =>
  text === '' || text === undefined ? null : number(text);

const words = (text: string | undefined): string[] => (text ?? '').split(' ').filter((word) => word !== '');

const costsOf = (text: string | undefined): Costs =>
  Object.fromEntries(
    words(text).map((word) => {
      const [name, units] = word.split('=');
      return [name as MeterName, number(units)];
    }),
  );

const metersOf = (text: string | undefined): MeterSetting[] =>
  words(text).map((word) => {
    const [meter, limit, windowMs] = word.split(':');
    return { meter: meter as MeterName, limit: number(limit), windowMs: number(windowMs) };
  });

/** ARGV of `admit` from the third on. */
export function admissionOf(bucket: string, argv: readonly string[]): Admission {
  const [ticket = '', lane = '', weight, cap, perMinute, ceiling = '', queued, urgency, ...more] = argv;
  const [callClass = '', costs, document, maxWaitMs, leaseMs, position, ...setting] = more;
  return {
    ticket,
    bucket,
    lane,
    weight: number(weight),
    maxInFlight: optional(cap),
    perMinute: optional(perMinute),
    ceiling,
    maxQueued: number(queued),
    urgency: number(urgency),
    callClass,
    costs: costsOf(costs),
    maxWaitMs: number(maxWaitMs),
    leaseMs: number(leaseMs),
    document: document === undefined || document === '' ? null : document,
    position: positionOf(position),
    setting: bucketSettingOf(setting),
  };
}

/** A time that the replica could not tell is that of the script, which is never before what the store has seen. */
function positionOf(text: string | undefined): Position {
  const [kind, value] = (text ?? '').split(' ');
  if (kind === 'kept') return { kind, order: number(value) };
  if (kind !== 'arrival') throw new Error(`not a position: ${text}`);
  return { kind, at: optional(value) ?? Infinity };
}

const bucketSettingOf = ([meters, learn, probe]: readonly (string | undefined)[]): BucketSetting => ({
  meters: metersOf(meters),
  learn: learn === '1',
  probe: number(probe),
});

/** ARGV of `reconfigure` from the third on; its time stands before the lanes. */
export function reconfigurationOf(argv: readonly string[]): Omit<Reconfiguration, 'bucket'> {
  const lanes: Reconfiguration['lanes'][number][] = [];
  for (let at = 3; at + 4 < argv.length; at += 5) {
    const [lane = '', weight, cap, perMinute, ceiling = ''] = argv.slice(at, at + 5);
    lanes.push({
      lane,
      weight: number(weight),
      maxInFlight: optional(cap),
      perMinute: optional(perMinute),
      ceiling,
    });
  }
  return { setting: bucketSettingOf(argv), lanes };
}

/** ARGV of `charged` from the fourth on. */
export function edgeOf([slots, nextSlotMs]: readonly (string | undefined)[]): CeilingEdge | null {
  const left = optional(slots);
  return left === null ? null : { slots: left, nextSlotMs: number(nextSlotMs) };
}

/** ARGV of `settle` from the fourth on. */
export function settlementOf(argv: readonly string[]): Settlement {
  const [kind, spent, closeMs, afterwards = '', sleepMs] = argv;
  switch (kind) {
    case 'succeeded':
      return { kind, spent: spent === '-' ? null : costsOf(spent) };
    case 'throttled':
      return { kind, closeMs: number(closeMs), requeue: afterwards === '1', sleepMs: number(sleepMs) };
    case 'returned':
      return { kind, sleepMs: number(sleepMs), ...whyOf(afterwards) };
    case 'dropped':
    case 'unknown':
      return { kind };
    default:
      throw new Error(`no settlement ${kind}`);
  }
}

const reasons: readonly Exclude<SleepReason, 'document'>[] = ['ceiling_minute', 'ceiling_day', 'backoff'];

/** Why a lane sleeps, and under which limits its ceiling refused. */
function whyOf(text: string): Pick<Extract<Settlement, { kind: 'returned' }>, 'because' | 'ceiling'> {
  const [reason, ceiling] = text.split(' ');
  const because = reasons.find((one) => one === reason);
  if (because === undefined) throw new Error(`no reason to sleep: ${text}`);
  return ceiling === undefined ? { because } : { because, ceiling };
}

/** The six words of a lesson. */
export function lessonOf(argv: readonly string[]): Lesson | null {
  const [sentAgo, headAgo, reports, rateMeter, refused, requested] = argv;
  if (sentAgo === '') return null;
  const meters = words(reports).map((word): MeterReport => {
    const [meter, limit, windowMs, lowest, highest] = word.split(':');
    return {
      meter: meter as MeterName,
      limit: number(limit),
      windowMs: windowMs === '-' ? null : number(windowMs),
      level: lowest === '-' ? null : { lowest: number(lowest), highest: number(highest) },
    };
  });
  const throttle: Feedback['throttle'] =
    rateMeter === '' ? null : { kind: 'rate', waitMs: null, meter: rateMeter as MeterName };
  const [refusedUnits, requestedCost] = [optional(refused), optional(requested)];
  const feedback: Feedback = {
    meters,
    throttle,
    ...(requestedCost === null ? {} : { requestedCost }),
    ...(refusedUnits === null ? {} : { requestedTokens: refusedUnits }),
  };
  return { feedback, sentAgoMs: number(sentAgo), headAgoMs: number(headAgo) };
}

export const wordsOf = words;

const text = (value: number): string => (value === Infinity ? 'inf' : String(value));

const grantText = ({ ticket, lane, lease, expiresAt }: ToldGrant): string =>
  `${ticket} ${lane} ${lease} ${text(expiresAt)}`;

const replyText = (code: string, own: readonly string[], common: BucketReply): unknown => [
  code,
  own,
  text(common.now),
  common.nextInMs === null ? '' : text(common.nextInMs),
  text(common.closedMs),
  common.born === null ? '' : text(common.born),
  common.grants.map(grantText),
  common.leads ? '1' : '',
];

export function admitText(reply: AdmitReply): unknown {
  const { code } = reply;
  if (code === 'granted') {
    const { lease, expiresAt } = reply.grant;
    return replyText(code, [text(reply.order), lease, text(expiresAt)], reply);
  }
  const own =
    code === 'queued'
      ? [text(reply.forecastMs), text(reply.ahead), text(reply.order), reply.heldBy]
      : [text(reply.retryInMs), reply.heldBy, text(reply.ahead)];
  return replyText(code, own, reply);
}

export const reconfigureText = (reply: ReconfigureReply): unknown =>
  replyText(reply.born === null ? 'unknown_bucket' : 'reconfigured', [], reply);

export const leaseText = (reply: LeaseReply, known: 'settled' | 'learned' | 'noted'): unknown =>
  replyText(reply.leaseKnown ? known : 'unknown_lease', [], reply);

export const cancelText = (reply: CancelReply): unknown =>
  replyText(reply.cancelled ? 'cancelled' : 'not_waiting', [], reply);

export function forecastText(reply: ForecastReply): unknown {
  const { standing } = reply;
  if (standing === null) return replyText('not_waiting', [], reply);
  return replyText('waiting', [text(standing.waitMs), text(standing.ahead), standing.heldBy], reply);
}

export function tickText(reply: TickReply): unknown {
  if (reply.born === null) return replyText('unknown_bucket', [], reply);
  const counts = [reply.waitingHere, reply.unnamed, reply.waiting, reply.inFlight].map(text);
  const meters = reply.meters.map(
    ({ meter, limit, level, windowMs }) => `${meter} ${text(limit)} ${text(level)} ${text(windowMs)}`,
  );
  return replyText('ticked', [...counts, ...meters], reply);
}

export function messageText(message: Sent): string {
  if (message.kind === 'closed') return `c ${message.bucket} ${text(message.closedMs)}`;
  return [`g ${message.bucket} ${text(message.born)}`, ...message.grants.map(grantText)].join('\n');
}
