/**
 * How long a time to try again the client of a call is known to wait for. A client that is given a longer time comes back too
 * early, or gives up in its own way, so a refusal with a longer time says that it must not repeat at all.
 *
 * Owns: the table of known clients. Does not own: the refusal (`ingress/`), resending (`dispatch/resend.policy.ts`). Pure.
 */
import { valuesOf } from './field-lines.policy.ts';

/** Most clients ignore a minute and more: openai for JavaScript up to 6.26, the AI SDK. Milliseconds. */
const commonMs = 59_999;

type Version = readonly [major: number, minor: number];

interface KnownClient {
  readonly lang: string;
  /** The first version of the SDK to which the row applies; the rows of a language are in descending order. */
  readonly from: Version;
  /** A wait is honoured up to this, milliseconds. */
  readonly honouredMs: number;
}

/**
 * Clients made by Stainless name their language and their version (`x-stainless-lang`, `x-stainless-package-version`). Those
 * without a bound of their own (openai for JavaScript 6.27 to 7.4, Anthropic's and Groq's) would sleep for any time, far beyond
 * what their caller was ready to wait: they get the same time as all others.
 */
const knownClients: readonly KnownClient[] = [
  // openai for Python, 2.52.0 of 2026-07-31: more than 120 s is not repeated at all.
  { lang: 'python', from: [2, 52], honouredMs: 120_000 },
  // openai for Python before, anthropic for Python 0.x.
  { lang: 'python', from: [0, 0], honouredMs: 60_000 },
  // openai for JavaScript, 7.5.0 of 2026-08-17.
  { lang: 'js', from: [7, 5], honouredMs: 60_000 },
];

/** Longest time that the client of a call honours, milliseconds. `rawFields` alternates name and value. */
export function honouredWaitMs(rawFields: readonly string[]): number {
  const [lang = ''] = valuesOf(rawFields, 'x-stainless-lang');
  const version = versionOf(valuesOf(rawFields, 'x-stainless-package-version')[0] ?? '');
  if (version === null) return commonMs;
  const known = knownClients.find(
    (client) => client.lang === lang.trim().toLowerCase() && !isBefore(version, client.from),
  );
  return known?.honouredMs ?? commonMs;
}

function versionOf(text: string): Version | null {
  const found = /^(\d{1,6})\.(\d{1,6})\b/.exec(text.trim());
  return found === null ? null : [Number(found[1]), Number(found[2])];
}

const isBefore = (a: Version, b: Version): boolean => a[0] < b[0] || (a[0] === b[0] && a[1] < b[1]);
