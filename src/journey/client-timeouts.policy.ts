/**
 * How long a call's client waits for a response before it hangs up: what its fields state, and what is known of clients
 * that state nothing. Owns: the fields, the table of known clients. Does not own: the wait that follows
 * (`preferences.policy.ts`). Pure.
 */

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

interface KnownClient {
  readonly field: 'user-agent' | 'x-stainless-runtime';
  readonly pattern: RegExp;
  readonly seconds: number;
  /** `default`: a time-out in the call's fields stands in its place. `transport`: holds beside whatever the fields state. */
  readonly kind: 'default' | 'transport';
}

/** Known clients. A client may match several rows: the shortest time-out counts. */
const knownClients: readonly KnownClient[] = [
  {
    // shopify-api-node@3.15.0, the whole request: `timeout: 60000` in its index.js.
    field: 'user-agent',
    pattern: /^shopify-api-node\//,
    seconds: 60,
    kind: 'default',
  },
  {
    // groq-sdk 1.x: DEFAULT_TIMEOUT in src/client.ts of github.com/groq/groq-typescript.
    field: 'user-agent',
    pattern: /^Groq\/JS /,
    seconds: 60,
    kind: 'default',
  },
  {
    // openai@6.49.0: DEFAULT_TIMEOUT in its client.js.
    field: 'user-agent',
    pattern: /^(?:Azure)?OpenAI\/JS /,
    seconds: 600,
    kind: 'default',
  },
  {
    // SDKs made by Stainless, on Node's fetch: undici's `headersTimeout`. openai@6.49.0 gave up after 301 s, whatever
    // its own time-out was (github.com/openai/openai-node/issues/2153).
    field: 'x-stainless-runtime',
    pattern: /^node$/,
    seconds: 300,
    kind: 'transport',
  },
  {
    // The AI SDK (ai@6 and its providers), on Node's fetch: the same limit.
    field: 'user-agent',
    pattern: /\bruntime\/node\.js\//,
    seconds: 300,
    kind: 'transport',
  },
  {
    // @shopify/admin-api-client@2.0.0, on Node's fetch: the same limit. An application's name may stand before.
    field: 'user-agent',
    pattern: /(?:^| \| )Admin API Client v/,
    seconds: 300,
    kind: 'transport',
  },
  {
    // Node's fetch without an SDK: the same limit.
    field: 'user-agent',
    pattern: /^(?:node|undici)$/,
    seconds: 300,
    kind: 'transport',
  },
];

/** Reads when the client of a call with these fields hangs up. Values that are no number of seconds are ignored. */
export function clientTimeouts(fields: ReadonlyMap<string, string>): ClientTimeouts {
  let stated: number | null = null;
  for (const name of timeoutFields) stated = earlier(stated, secondsIn(fields.get(name)));
  let known: number | null = null;
  for (const { field, pattern, seconds, kind } of knownClients) {
    if (stated !== null && kind !== 'transport') continue;
    const value = fields.get(field);
    if (value !== undefined && pattern.test(value)) known = earlier(known, seconds);
  }
  return { statedSeconds: stated, knownSeconds: known };
}

/** A decimal number of seconds; `null` = nothing: SDKs also write words such as `NOT_GIVEN`. */
function secondsIn(text: string | undefined): number | null {
  return text !== undefined && /^\d{1,9}(?:\.\d{1,9})?$/.test(text) ? Number(text) : null;
}

/** The smaller of two times; `null` = there is none. */
function earlier(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return one ?? other;
  return Math.min(one, other);
}
