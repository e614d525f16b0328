/** Durations as people write them, in the configuration, on the command line and in queries: `90`, `90s`, `5m` or `2h`. */

const unitSeconds = { s: 1, m: 60, h: 3_600 } as const;

/** Seconds of a duration, fractions allowed; `null` = the text is none. */
export function secondsOf(text: string): number | null {
  const [, digits, unit = 's'] = /^(\d{1,9}(?:\.\d{1,9})?)([smh])?$/.exec(text.trim()) ?? [];
  return digits === undefined ? null : Number(digits) * unitSeconds[unit as keyof typeof unitSeconds];
}

/** Seconds that a member of a URL's query states; `null` = it is missing, given twice, or no duration. */
export function secondsInQuery(url: string, member: string): number | null {
  const [text = '', ...more] = new URLSearchParams(url.slice(url.indexOf('?') + 1 || url.length)).getAll(
    member,
  );
  return more.length > 0 ? null : secondsOf(text);
}

/** Whether a key of the configuration holds a duration: its number is seconds, and it may be written with a unit. */
export const isDurationKey = (key: string | number): boolean =>
  typeof key === 'string' && /^seconds$|Seconds$|^keepAliveComments$/.test(key);
