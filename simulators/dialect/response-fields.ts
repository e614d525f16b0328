/** What a described upstream writes into its responses: fields of its quota, and refusals as its conditions describe them. */
import type { SpokenCondition, SpokenField, SpokenFields, SpokenParts } from './parts.ts';
import type { WindowState } from './quota.ts';

export type FieldLines = Record<string, string>;

/** Fields of a response at `now`, milliseconds since the epoch. */
export function reportedFields(
  { fields }: SpokenParts,
  windows: readonly WindowState[],
  now: number,
): FieldLines {
  const lines: FieldLines = {};
  for (const described of fields === undefined ? [] : ([fields].flat() as readonly SpokenFields[])) {
    const state = windowOf(described, windows);
    if (state !== null) report(lines, described, state, now);
  }
  return lines;
}

/** The window that a set of fields describes: by its length, else the longest. */
function windowOf({ window }: SpokenFields, windows: readonly WindowState[]): WindowState | null {
  if (typeof window === 'number') return windows.find(({ seconds }) => seconds === window) ?? null;
  return windows.at(-1) ?? null;
}

function report(lines: FieldLines, described: SpokenFields, state: WindowState, now: number): void {
  const { limit, used, resetMs, seconds } = state;
  const put = (field: string | SpokenField | undefined, value: (as: string) => string): void => {
    if (field === undefined) return;
    const { name, member, as } =
      typeof field === 'string' ? { name: field, member: undefined, as: undefined } : field;
    const text = value(as ?? 'seconds');
    const part = member === undefined ? text : `${member}=${text}`;
    lines[name] = lines[name] === undefined || member === undefined ? part : `${lines[name]}; ${part}`;
  };
  put(described.limit, () => String(limit));
  put(described.used, () => String(used));
  put(described.remaining, () => String(Math.max(0, limit - used)));
  put(described.reset, (as) => timeText(as, resetMs, now));
  put(described.rate, () => String(limit / seconds));
  if (typeof described.window !== 'number') put(described.window, (as) => timeText(as, seconds * 1000, now));
}

/** A time in the unit of a field; never less than it is. */
function timeText(as: string, ms: number, now: number): string {
  switch (as) {
    case 'milliseconds':
      return String(Math.ceil(ms));
    case 'epoch-seconds':
      return String(Math.ceil((now + ms) / 1000));
    case 'epoch-milliseconds':
      return String(Math.ceil(now + ms));
    case 'date':
      return new Date(Math.ceil((now + ms) / 1000) * 1000).toUTCString();
    case 'duration':
      return `${Math.ceil(ms)}ms`;
    default:
      return String(Math.ceil(ms / 1000));
  }
}

export interface Refusal {
  readonly status: number;
  readonly fields: FieldLines;
  readonly body: string;
}

/** A refusal that meets this condition of the dialect. */
export function refusalBy({ status, field, equals, body }: SpokenCondition): Refusal {
  return {
    status: [status].flat()[0] ?? 429,
    fields: field === undefined ? {} : { [field]: equals ?? 'yes' },
    body: bodyWith([body ?? 'refused'].flat().join(': ')),
  };
}

/** A text with quotes is a part of a document as it stands. */
const bodyWith = (text: string): string =>
  text.includes('"') ? `{${text}}` : JSON.stringify({ message: text });
