/**
 * How long a time to try again the client of a call is known to wait for. A client that is given a longer time comes back too
 * early, or gives up in its own way, so a refusal with a longer time says that it must not repeat at all.
 *
 * Owns: the table of known clients. Does not own: the refusal (`ingress/`), resending (`dispatch/resend.policy.ts`). Pure.
 */
import { valuesOf } from './field-lines.policy.ts';

/** Most clients ignore a minute and more: openai for JavaScript up to 6.26, the AI SDK. Milliseconds. */
const commonMs = 59_999;

/**
 * Clients made by Stainless name their language and their version (`x-stainless-lang`, `x-stainless-package-version`). Those
 * without a bound of their own (openai for JavaScript 6.27 to 7.4, Anthropic's and Groq's) would sleep for any time, far beyond
 * what their caller was ready to wait: they get the same time as all others. A row holds from its version on, up to the row before it.
 */
const knownClients: readonly (readonly [lang: string, major: number, minor: number, honouredMs: number])[] = [
  // openai for Python, 2.52.0 of 2026-07-31: more than 120 s is not repeated at all.
  ['python', 2, 52, 120_000],
  // openai for Python before, anthropic for Python 0.x.
  ['python', 0, 0, 60_000],
  // openai for JavaScript, 7.5.0 of 2026-08-17.
  ['js', 7, 5, 60_000],
];

/** Longest time that the client of a call honours, milliseconds. `rawFields` alternates name and value. */
export function honouredWaitMs(rawFields: readonly string[]): number {
  const [lang] = valuesOf(rawFields, 'x-stainless-lang');
  if (lang === undefined) return commonMs;
  const [version = ''] = valuesOf(rawFields, 'x-stainless-package-version');
  const [, major = NaN, minor = NaN] = /^(\d{1,6})\.(\d{1,6})\b/.exec(version.trim())?.map(Number) ?? [];
  const known = knownClients.find(
    ([name, fromMajor, fromMinor]) =>
      name === lang.trim().toLowerCase() &&
      (major > fromMajor || (major === fromMajor && minor >= fromMinor)),
  );
  return known?.[3] ?? commonMs;
}
