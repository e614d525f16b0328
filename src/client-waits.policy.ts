/**
 * What a call's fields say of its client's waiting: which time to try again it honours, how long the call may wait (`Prefer: wait`, RFC
 * 7240; its client's time-out), and how urgent it is (`Priority`, RFC 9218).
 */
import { valuesOf } from './field-lines.policy.ts';

// A client that is given a longer time than it honours comes back too early, or gives up in its own way: such a refusal says that it must
// not repeat at all.

/** Most clients ignore a minute and more: openai for JavaScript up to 6.26, the AI SDK. Milliseconds. */
const commonMs = 59_999;

/**
 * Clients made by Stainless name their language and their version (`x-stainless-lang`, `x-stainless-package-version`). Those
 * without a bound of their own (openai for JavaScript 6.27 to 7.4, Anthropic's and Groq's) would sleep for any time, far beyond
 * what their caller was ready to wait: they get the same time as all others. A row holds from its version on, up to the row before it;
 * a version is a thousand times its major number, and its minor one.
 */
const stainlessClients: readonly (readonly [lang: string, version: number, honouredMs: number])[] = [
  // openai for Python, 2.52.0 of 2026-07-31: more than 120 s is not repeated at all.
  ['python', 2_052, 120_000],
  // openai for Python before, anthropic for Python 0.x.
  ['python', 0, 60_000],
  // openai for JavaScript, 7.5.0 of 2026-08-17.
  ['js', 7_005, 60_000],
];

/** Longest time that the client of a call honours, milliseconds. `rawFields` alternates name and value. */
export function honouredWaitMs(rawFields: readonly string[]): number {
  const [lang = ''] = valuesOf(rawFields, 'x-stainless-lang');
  const [text = ''] = valuesOf(rawFields, 'x-stainless-package-version');
  const [, major = NaN, minor = NaN] = /^(\d{1,6})\.(\d{1,3})\b/.exec(text.trim())?.map(Number) ?? [];
  const version = 1_000 * major + minor;
  const known = stainlessClients.find(
    ([name, from]) => name === lang.trim().toLowerCase() && version >= from,
  );
  return known?.[2] ?? commonMs;
}

// What the call asks for

/** Seconds asked for by `Prefer: wait=<seconds>` (RFC 7240), or `null`. Malformed preferences are ignored, as the RFC asks. */
export function preferredWaitSeconds(prefer = ''): number | null {
  const [, digits] = /(?:^|[,;])\s*wait\s*=\s*"?(\d{1,7})"?\s*(?:[,;]|$)/i.exec(prefer) ?? [];
  return digits === undefined ? null : Number(digits);
}

/** True where a refused call is to keep its position: `Prefer: reserve`. */
export const prefersReservation = (prefer = ''): boolean => /(?:^|,)\s*reserve\s*(?:[,;]|$)/i.test(prefer);

/** Urgency of `Priority: u=0..7` (RFC 9218), 3 when absent or malformed. */
export function urgencyOf(priority: string | undefined): number {
  const found = /(?:^|[,\s])u\s*=\s*([0-7])(?=$|[,;\s])/.exec(priority ?? '');
  return found?.[1] === undefined ? 3 : Number(found[1]);
}

/** How much of a client's time-out is kept for the response, or the refusal, to reach the client, seconds. */
const responseSeconds = 5;
/**
 * How long a call may wait, milliseconds, at least 0: what the call asks for, up to the maximum (`maxWaitCeilingSeconds`),
 * else the default (`maxWaitSeconds`).
 *
 * A call never waits into its client's time-out: the refusal has to arrive before the client hangs up. The wait ends five
 * seconds before the time-out, so that they are left for the response; of a time-out under 7.5 s, a third is wait and two thirds
 * are left. A time-out that the call states always counts. One that is only known of its client counts unless the call asks for a wait:
 * `Prefer: wait` says how long this client waits.
 */
export function maxWaitMsOf(
  asked: {
    readonly preferSeconds: number | null;
    readonly client: ClientTimeouts;
    /** Time since the call's head arrived: the client counts it, too. */
    readonly elapsedMs: number;
  },
  limits: { readonly maxWaitSeconds: number; readonly maxWaitCeilingSeconds: number },
): number {
  const { preferSeconds, client, elapsedMs } = asked;
  let waitMs =
    1_000 *
    (preferSeconds === null ? limits.maxWaitSeconds : Math.min(preferSeconds, limits.maxWaitCeilingSeconds));
  for (const timeout of [client.statedSeconds, preferSeconds === null ? client.knownSeconds : null])
    if (timeout !== null) waitMs = Math.min(waitMs, Math.max(0, waitBeforeMs(timeout * 1_000) - elapsedMs));
  return waitMs;
}

/** The part of a time-out in which a call may wait. */
const waitBeforeMs = (timeoutMs: number): number =>
  Math.max(timeoutMs - responseSeconds * 1000, timeoutMs / 3);

// How long a call's client waits for a response before it hangs up: what its fields state, and what is known of clients that state nothing

/** Seconds after which the client hangs up; `null` = nobody knows. */
export interface ClientTimeouts {
  /** As the call's own fields say. */
  readonly statedSeconds: number | null;
  /** The client's known time-out, where its configuration did not change it. */
  readonly knownSeconds: number | null;
}

/** Fields that hold a time-out in seconds. A call with several of them is given up at the first. */
const timeoutFields = [
  // The JavaScript SDKs made by Stainless: whole seconds, cut off, so 0 is less than a second. @anthropic-ai/sdk sends
  // it always, openai and groq-sdk for calls that have a time-out of their own.
  'x-stainless-timeout',
  // The Python SDKs made by Stainless (openai, anthropic): always, seconds with a fraction.
  'x-stainless-read-timeout',
  // @google/genai, google-genai and other Google clients that have a time-out: seconds, rounded up.
  'x-server-timeout',
] as const;

/**
 * Known clients: the field and the pattern by which one is known, and its time-out in seconds. `default`: a time-out in the call's fields
 * stands in its place. `transport`: holds beside whatever the fields state. A client may match several rows: the shortest counts.
 */
const knownClients: readonly (readonly [string, RegExp, number, 'default' | 'transport'])[] = [
  // shopify-api-node@3.15.0, the whole request: `timeout: 60000` in its index.js.
  ['user-agent', /^shopify-api-node\//, 60, 'default'],
  // groq-sdk 1.x: DEFAULT_TIMEOUT in src/client.ts of github.com/groq/groq-typescript.
  ['user-agent', /^Groq\/JS /, 60, 'default'],
  // openai@6.49.0: DEFAULT_TIMEOUT in its client.js.
  ['user-agent', /^(?:Azure)?OpenAI\/JS /, 600, 'default'],
  // SDKs made by Stainless, on Node's fetch: undici's `headersTimeout`. openai@6.49.0 gave up after 301 s, whatever
  // its own time-out was (github.com/openai/openai-node/issues/2153).
  ['x-stainless-runtime', /^node$/, 300, 'transport'],
  // The AI SDK (ai@6 and its providers), on Node's fetch: the same limit.
  ['user-agent', /\bruntime\/node\.js\//, 300, 'transport'],
  // @shopify/admin-api-client@2.0.0, on Node's fetch: the same limit. An application's name may stand before.
  ['user-agent', /(?:^| \| )Admin API Client v/, 300, 'transport'],
  // Node's fetch without an SDK: the same limit.
  ['user-agent', /^(?:node|undici)$/, 300, 'transport'],
];

/** Reads when the client of a call with these fields hangs up. Values that are no number of seconds (`NOT_GIVEN`) are ignored. */
export function clientTimeouts(fields: ReadonlyMap<string, string>): ClientTimeouts {
  let statedSeconds: number | null = null;
  for (const name of timeoutFields) {
    const text = fields.get(name);
    if (text !== undefined && /^\d{1,9}(?:\.\d{1,9})?$/.test(text))
      statedSeconds = Math.min(statedSeconds ?? Infinity, Number(text));
  }
  let knownSeconds: number | null = null;
  for (const [field, pattern, seconds, kind] of knownClients) {
    const counts = (statedSeconds === null || kind === 'transport') && seconds < (knownSeconds ?? Infinity);
    if (counts && pattern.test(fields.get(field) ?? '')) knownSeconds = seconds;
  }
  return { statedSeconds, knownSeconds };
}
