/** From `speaks` as written to the {@link Dialect} that the rest of the code sees. Refuses nothing. */
import type { ResponseCondition, CountField, Dialect, DialectFields, DialectWindow } from './dialect.ts';
import type { Separator, TimeField, TimeUnit, WindowMeter } from './dialect.ts';
import type { PresetName } from './presets.ts';
import { presetParts, type SpeaksInput } from './speaks-schema.ts';
import { readSeparator } from './bucket-parts.ts';

/** A dialect, and the keys of an upstream that it gives defaults for. */
export interface BuiltDialect {
  readonly dialect: Dialect;
  /** `null`: not stated. */
  readonly bucketBy: readonly ('credential' | 'host')[] | null;
  readonly maxInFlight: number | null;
}

const dayMs = 86_400_000;
/** A window of this length or more counts beside a shorter one as the hourly one. */
const hourlyMs = 1_800_000;

/** The parts, with those of the preset that they leave out. */
export function partsOf(speaks: PresetName | SpeaksInput): SpeaksInput {
  if (typeof speaks === 'string') return presetParts(speaks);
  if (speaks.preset === undefined) return speaks;
  const stated = Object.entries(speaks).filter(([, value]) => value !== undefined);
  return { ...presetParts(speaks.preset), ...Object.fromEntries(stated) };
}

export function buildDialect(speaks: PresetName | SpeaksInput): BuiltDialect {
  const parts = partsOf(speaks);
  const throttledBy = (parts.throttledBy ?? []).map(conditionOf);
  const permanentBy = (parts.permanentBy ?? []).map(conditionOf);
  const expiredBy = (parts.expiredBy ?? [{ status: 401 }]).map(conditionOf);
  const by = parts.bucketBy ?? null;
  const reading = [...throttledBy, ...permanentBy, ...expiredBy].filter(({ body }) => body !== null);
  return {
    dialect: {
      windows: buildWindows(parts.windows ?? []),
      fields: parts.fields === undefined ? null : [parts.fields].flat().map(fieldsOf),
      throttledBy,
      permanentBy,
      expiredBy,
      separators: (by ?? []).map(readSeparator).filter((one): one is Separator => typeof one === 'object'),
      penaltyMs: parts.penaltySeconds === undefined ? null : parts.penaltySeconds * 1000,
      bodyStatuses: reading.flatMap(({ statuses }) => statuses.filter((status) => status < 400)),
    },
    bucketBy:
      by === null
        ? null
        : by.map(readSeparator).filter((one): one is 'credential' | 'host' => typeof one === 'string'),
    maxInFlight: parts.maxInFlight ?? null,
  };
}

/** Each window with its meter. The longest of a day is the day's; there is one meter for each of three shorter ones. */
export function buildWindows(windows: NonNullable<SpeaksInput['windows']>): DialectWindow[] {
  const sorted = windows.toSorted((a, b) => a.seconds - b.seconds);
  const shorter = sorted.filter(({ seconds }) => seconds * 1000 < dayMs);
  const meters = metersFor(shorter.map(({ seconds }) => seconds * 1000));
  return sorted.map(({ requests, seconds, kind }, index) => ({
    meter: meters[index] ?? 'requests_day',
    requests,
    windowMs: seconds * 1000,
    kind,
  }));
}

function metersFor(windowsMs: readonly number[]): WindowMeter[] {
  const longest = windowsMs.at(-1) ?? 0;
  switch (windowsMs.length) {
    case 0:
      return [];
    case 1:
      return ['requests'];
    case 2:
      return longest >= hourlyMs ? ['requests', 'requests_hour'] : ['requests_burst', 'requests'];
    default:
      return ['requests_burst', 'requests', 'requests_hour'];
  }
}

type InputFields = Extract<NonNullable<SpeaksInput['fields']>, readonly unknown[]>[number];
type InputField = InputFields['limit'] | InputFields['reset'];

function fieldsOf({ limit, used, remaining, reset, window, rate }: InputFields): DialectFields {
  return {
    limit: countField(limit),
    used: countField(used),
    remaining: countField(remaining),
    reset: timeField(reset, 'inferred'),
    window: typeof window === 'number' ? window * 1000 : timeField(window, 'seconds'),
    rate: countField(rate),
  };
}

function countField(field: InputField): CountField | null {
  if (field === undefined) return null;
  if (typeof field === 'string') return { name: field.toLowerCase(), member: null };
  return { name: field.name.toLowerCase(), member: field.member?.toLowerCase() ?? null };
}

function timeField(field: InputField, unstated: TimeUnit): TimeField | null {
  const counted = countField(field);
  if (counted === null) return null;
  const as = typeof field === 'object' && 'as' in field ? field.as : undefined;
  return { ...counted, as: as ?? unstated };
}

type InputCondition = NonNullable<SpeaksInput['throttledBy']>[number];

const conditionOf = ({ status, field, equals, body, waitSeconds }: InputCondition): ResponseCondition => ({
  statuses: [status].flat(),
  field: field?.toLowerCase() ?? null,
  equals: equals ?? null,
  body: body?.toLowerCase() ?? null,
  waitMs: waitSeconds === undefined ? null : waitSeconds * 1000,
});
