/**
 * What goes into the scripts of the bucket scheduler: one function per script, typed values in, KEYS and ARGV out. The
 * header of each script names the same arguments in the same order.
 *
 * Numbers are written so that Lua reads back the same double. Names (bucket, ticket, lane, replica, class) must be
 * opaque words of `A-Z a-z 0-9 _ . -`: they are parts of sorted members, never of a script's source.
 */
import type { Costs } from '../call.ts';
import { costEntries } from './bucket-state.policy.ts';
import { bucketKeys, type BucketKeys } from './keys.ts';
import { refusedUnits } from './lessons.policy.ts';
import type {
  Admission,
  BucketKey,
  BucketSetting,
  CeilingEdge,
  Lesson,
  Reconfiguration,
  Settlement,
} from './limiter.ts';

/** One script per transition of `scheduler.policy.ts`. */
export const scriptNames = [
  'admit',
  'settle',
  'learn',
  'charged',
  'reconfigure',
  'cancel',
  'tick',
  'forecast',
] as const;
export type ScriptName = (typeof scriptNames)[number];

/** One script call, ready for `redis[command](...keys, ...argv)`. */
export interface ScriptCall {
  readonly script: ScriptName;
  readonly keys: BucketKeys;
  readonly argv: readonly string[];
}

/** Leases one `tick` renews at most; a replica with more sends several. */
export const leasesPerTick = 64;
/** A lease may not outlive what a bucket remembers of an hour without use. Milliseconds. */
export const longestLeaseMs = 3_600_000;

/** Who asks, about which bucket. `now` is a test's time in milliseconds; left out, the server's `TIME` counts. */
export interface Asking {
  readonly bucket: BucketKey;
  readonly replica: string;
  readonly now?: number;
}

/** An admission as the store takes it: times are on its own clock, `null` = the time at which the script runs. */
export type StoredAdmission = Omit<Admission, 'position'> & {
  readonly position:
    | { readonly kind: 'arrival'; readonly at: number | null }
    | { readonly kind: 'kept'; readonly order: number };
};

/** Enters `admission.ticket`; safe to repeat. */
export const admitCall = (asking: Asking, admission: StoredAdmission): ScriptCall =>
  call('admit', asking, [
    word(admission.ticket),
    word(admission.lane),
    number(admission.weight),
    optionalNumber(admission.maxInFlight),
    optionalNumber(admission.perMinute),
    word(admission.ceiling),
    number(admission.maxQueued),
    number(admission.urgency),
    word(admission.callClass),
    costText(admission.costs),
    admission.document === null ? '' : word(admission.document),
    number(admission.maxWaitMs),
    number(admission.leaseMs),
    positionText(admission.position),
    ...settingTexts(admission.setting),
  ]);

const positionText = (position: StoredAdmission['position']): string =>
  position.kind === 'kept' ? `kept ${number(position.order)}` : `arrival ${optionalNumber(position.at)}`;

const settingTexts = (setting: BucketSetting): string[] => [
  meterText(setting),
  setting.learn ? '1' : '0',
  number(setting.probe),
];

/** New settings hold for the bucket and these lanes; safe to repeat. */
export function reconfigureCall(
  asking: Asking,
  { setting, lanes }: Omit<Reconfiguration, 'bucket'>,
): ScriptCall {
  const { script, keys, argv } = call('reconfigure', asking, settingTexts(setting));
  const changes = lanes.flatMap(({ lane, weight, maxInFlight, perMinute, ceiling }) => [
    word(lane),
    number(weight),
    optionalNumber(maxInFlight),
    optionalNumber(perMinute),
    word(ceiling),
  ]);
  return { script, keys, argv: [...argv, ...changes] };
}

/** Ends a lease; safe to repeat. */
export const settleCall = (
  asking: Asking,
  lease: string,
  settlement: Settlement,
  lesson: Lesson | null,
): ScriptCall =>
  call('settle', asking, [
    word(lease),
    settlement.kind,
    settlement.kind === 'succeeded' && settlement.spent !== null ? spentText(settlement.spent) : '-',
    number(settlement.kind === 'throttled' ? settlement.closeMs : 0),
    afterwards(settlement),
    number(settlement.kind === 'throttled' || settlement.kind === 'returned' ? settlement.sleepMs : 0),
    ...lessonTexts(lesson),
  ]);

/** What becomes of the ticket, or why its lane sleeps, and under which limits. */
function afterwards(settlement: Settlement): string {
  if (settlement.kind === 'returned') {
    const { because, ceiling } = settlement;
    return ceiling === undefined ? because : `${because} ${word(ceiling)}`;
  }
  return settlement.kind === 'throttled' && settlement.requeue ? '1' : '0';
}

/** Learns from an answer whose call goes on. */
export const learnCall = (asking: Asking, lease: string, lesson: Lesson): ScriptCall =>
  call('learn', asking, [word(lease), ...lessonTexts(lesson)]);

/** A slot of a ceiling was taken that is nearly used; `null` = it is not nearly used any more. */
export const chargedCall = (asking: Asking, lease: string, edge: CeilingEdge | null): ScriptCall =>
  call('charged', asking, [word(lease), optionalNumber(edge?.slots ?? null), number(edge?.nextSlotMs ?? 0)]);

/** A waiting ticket leaves. */
export const cancelCall = (asking: Asking, ticket: string): ScriptCall =>
  call('cancel', asking, [word(ticket)]);

/** Where a waiting ticket stands. */
export const forecastCall = (asking: Asking, ticket: string): ScriptCall =>
  call('forecast', asking, [word(ticket)]);

/**
 * The replica lives, and goes on holding these leases (at most `leasesPerTick` of them; throws a `RangeError` beyond).
 * Without leases it is the pump that a reply's `nextInMs` asks for.
 */
export function tickCall(asking: Asking, leases: readonly string[]): ScriptCall {
  if (leases.length > leasesPerTick) throw new RangeError(`more than ${leasesPerTick} leases in one tick`);
  return call('tick', asking, [leases.map(word).join(' ')]);
}

function call(script: ScriptName, asking: Asking, own: readonly string[]): ScriptCall {
  const now = asking.now === undefined ? '' : number(asking.now);
  return {
    script,
    keys: bucketKeys(word(asking.bucket)),
    argv: [asking.bucket, word(asking.replica), ...own, now],
  };
}

function word(name: string): string {
  if (!/^[\w.-]+$/.test(name)) throw new RangeError('a name for Redis must be an opaque word');
  return name;
}

function number(value: number): string {
  if (Number.isNaN(value)) throw new RangeError('a number for Redis must not be NaN');
  if (Number.isFinite(value)) return String(value);
  return value > 0 ? 'inf' : '-inf';
}

/** '' = none. */
const optionalNumber = (value: number | null): string => (value === null ? '' : number(value));

const costText = (costs: Costs): string =>
  costEntries(costs)
    .map(([name, units]) => `${name}=${number(units)}`)
    .join(' ');

/** Unlike a reserved cost, a spent one may be zero. */
const spentText = (spent: Costs): string =>
  Object.entries(spent)
    .map(([name, units]) => `${name}=${number(units)}`)
    .join(' ');

const meterText = (setting: BucketSetting): string =>
  setting.meters.map((stated) => [stated.meter, stated.limit, stated.windowMs].join(':')).join(' ');

function lessonTexts(lesson: Lesson | null): string[] {
  if (lesson === null) return ['', '', '', '', '', ''];
  const { meters, throttle, requestedCost } = lesson.feedback;
  const reports = meters.map(({ meter, limit, windowMs, resetMs, level }) =>
    [
      meter,
      number(limit > 0 ? limit : 0),
      windowMs === null ? '-' : number(windowMs),
      level === null ? '-' : number(level.lowest),
      level === null ? '-' : number(level.highest),
      resetMs === undefined || resetMs === null ? '-' : number(resetMs),
    ].join(':'),
  );
  const rateMeter = throttle?.kind === 'rate' ? throttle.meter : null;
  const units = refusedUnits(lesson.feedback);
  return [
    number(lesson.sentAgoMs),
    number(lesson.headAgoMs),
    reports.join(' '),
    rateMeter ?? '',
    optionalNumber(units),
    optionalNumber(requestedCost ?? null),
  ];
}
