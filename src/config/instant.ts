/** Dates of the configuration and the command line: one strict form, judged by the calendar. */

/** Milliseconds since the epoch of `2027-01-01`, or of a date and time with `Z` or an offset; `null` for anything else. */
export function readInstant(text: string): number | null {
  const form =
    /^(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:\d{2}))?$/i.exec(text);
  if (form === null) return null;
  const instant = Date.parse(text.replace(' ', 'T'));
  // `Date.parse` reads 31 February as 3 March, so the day of the result is compared with the day that was written.
  const day = new Date(`${form[1] ?? ''}T00:00:00Z`);
  const exists = !Number.isNaN(day.getTime()) && day.toISOString().startsWith(form[1] ?? ' ');
  return Number.isNaN(instant) || !exists ? null : instant;
}
