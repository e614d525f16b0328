/**
 * Rules for names and values that are sent as HTTP fields or appear as labels: the schema and the command line share them.
 * Pure functions; most give the reason a text is unusable, or `null`.
 */

import { wordsOf } from '../words.policy.ts';

/** Upstream names become metric labels and path segments (`/via/{upstream}/…`). */
export const upstreamNamePattern = /^[a-z0-9][a-z0-9_-]{0,62}$/;

/** Workspace ids: 1 to 128 printable characters, no blank at either end. */
export function workspaceIdFault(id: string): string | null {
  if (id === '') return 'is empty';
  if (id.length > 128) return 'is longer than 128 characters';
  // The one name that an object cannot have as a key of its own like any other: such a workspace would vanish on its way.
  if (id === '__proto__') return 'is a word of JavaScript that cannot name anything';
  if (/[\p{C}\p{Zl}\p{Zp}]/u.test(id)) return 'holds a character that cannot be printed';
  return id.trim() === id ? null : 'starts or ends with a blank';
}

/** RFC 9110 §5.6.2 `token`. */
const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

/** Fields that frame a message, name its hop or say where it goes: only Sluice sets them. */
const ownFields = new Set(
  wordsOf(
    'connection content-length expect forwarded host http2-settings keep-alive te trailer transfer-encoding upgrade',
    'via x-real-ip',
  ),
);

/** Why a field name cannot carry an upstream credential. Case does not matter. */
export function credentialFieldFault(name: string): string | null {
  const field = name.toLowerCase();
  if (!token.test(field)) return 'is not an HTTP field name';
  if (/^(sluice-|proxy-|x-forwarded-)/.test(field) || ownFields.has(field)) {
    return 'is a field that Sluice sets or removes itself';
  }
  return null;
}

/** Why a text cannot be sent as a field value (Node refuses such values by throwing at send time). */
export function fieldValueFault(value: string): string | null {
  if (/[\r\n]/.test(value)) return 'holds a line break';
  if (/\p{Cc}/u.test(value)) return 'holds a control character';
  if (/[^ -\u00ff]/.test(value)) return 'holds a character that HTTP fields cannot carry';
  return value.trim() === value ? null : 'starts or ends with a blank';
}

/** True for texts that stand in documentation where a secret belongs. */
export function isPlaceholder(text: string): boolean {
  const bare = text
    .trim()
    .replace(/^(bearer|basic)(\s+|$)/i, '')
    .replace(/^sha256:/i, '');
  return (
    bare === '' ||
    bare.includes('…') ||
    /^\.{3,}$|^x{3,}$|^\*+$|^<.*>$/i.test(bare) ||
    /^(change[-_ ]?(me|it|this)|replace[-_ ]?(me|this)|your[-_ ]|todo\b|fixme\b|placeholder)/i.test(bare)
  );
}

/** Words of documentation and of people. */
const plainWord = /label|secret|sluice|example|laptop|password|changeme|default|development|testing/i;
/** Letters of one case throughout, and at most a number behind them: random texts have digits or both cases in between. */
const onlyWords = /^(?:[^0-9A-Z]+|[^0-9a-z]+)\d{0,8}$/;

/**
 * Why a label key is weak: whoever can guess it finds out from labels, and from Redis, who calls. `null` = nothing suggests that it is.
 * A random text passes from 22 characters of base64 or 32 hexadecimal digits on (128 bits).
 */
export function labelKeyWeakness(key: string): string | null {
  if (/^(.{8,})\1/s.test(key)) return 'repeats itself';
  if (plainWord.test(key) || onlyWords.test(key)) return 'is made of words';
  return bitsIn(key) < 72 ? 'is too short or has too few different characters' : null;
}

/**
 * Bits of a text if its characters were drawn by chance with the frequencies that they have in it. For random texts of a few dozen
 * characters it is a little less than what they really hold: 105 to 118 of the 128 bits of 32 hexadecimal digits.
 */
function bitsIn(text: string): number {
  const counts = new Map<string, number>();
  for (const character of text) counts.set(character, (counts.get(character) ?? 0) + 1);
  const { length } = Array.from(text);
  let bits = 0;
  for (const count of counts.values()) bits += count * Math.log2(length / count);
  return bits;
}

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
