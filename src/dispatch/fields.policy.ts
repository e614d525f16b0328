/**
 * Which fields go upstream.
 *
 * Owns: building the outgoing fields from the client's lines; the responses' side is `returning.policy.ts`. Does not
 * own: refusing malformed requests (`ingress/guard.policy.ts` did). Keeps: fields pass by default, but never hop-by-hop ones, never one
 * that carries an API key of ours, never a second credential beside an injected one, and framing is written here from the buffered length, whatever the client says in
 * `Connection`.
 */
import { showsApiKey } from '../auth/api-key.policy.ts';
import type { InjectedField, Route } from '../call.ts';
import { isCarrier } from '../credential-carriers.policy.ts';
import { isHopByHop } from './field-names.policy.ts';
import { isOfTheWayHere } from './way-here.policy.ts';
import { valuesOf } from '../field-lines.policy.ts';

/** Lower-case names; an array for a repeated field. No prototype, so that no name can mean anything but itself. */
export type OutgoingFields = Record<string, string | string[]>;

export interface OutgoingInput {
  /** The client's lines, name and value alternating. */
  readonly rawFields: readonly string[];
  readonly route: Pick<Route, 'host'> & {
    readonly credential: InjectedField | null;
    readonly upstream: Pick<Route['upstream'], 'propagateTrace' | 'carriers'>;
  };
  /** True where cookies of the client belong to this upstream (`cookies.policy.ts`). */
  readonly passesCookies: boolean;
  /** Lower-case names of fields that carried the API key. */
  readonly dropFields: readonly string[];
  readonly method: string;
  /** Length of the buffered body; 0 = none. */
  readonly bodyBytes: number;
  /** Our own name in `Via`. */
  readonly pseudonym: string;
  /** `traceparent` of the attempt's span; sent only where the upstream's configuration asks for it. */
  readonly traceparent: string | null;
  /** Values that go upstream in the place of the client's own, by lower-case name; absent or `null` = none. */
  readonly replacedFields?: ReadonlyMap<string, string> | null;
}

/**
 * Makes objects without inherited members that V8 keeps in its fast form; `Object.create(null)` makes a hash table, which
 * the proxy and Node then copy and walk several times per call.
 */
const EmptyFields = function () {} as unknown as new () => OutgoingFields;
EmptyFields.prototype = Object.create(null);

/** Written anew for the upstream, or answered here. */
const writtenHere = new Set(['host', 'content-length', 'expect']);

/** Methods that expect a body: a request of theirs without one says so with `Content-Length: 0` (RFC 9110 §8.6). */
const announcesEmptyBody = new Set(['POST', 'PUT', 'PATCH']);

const staysHere = (name: string): boolean =>
  writtenHere.has(name) || isHopByHop(name) || isOfTheWayHere(name) || /^sluice[-_]/.test(name);

/** Builds the fields of one attempt. Values of the client are passed on as they are, also empty ones. */
export function outgoingFields(input: OutgoingInput): OutgoingFields {
  const { rawFields, route, dropFields, bodyBytes } = input;
  const { credential, upstream } = route;
  const fields = new EmptyFields();
  fields['host'] = route.host;
  let brought: string | null = null;

  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const name = rawFields[at]?.toLowerCase() ?? '';
    const value = rawFields[at + 1] ?? '';
    if (name === 'sluice-upstream-authorization') brought = value;
    if (name === 'cookie' && !input.passesCookies) continue;
    if (dropFields.includes(name) || staysHere(name)) continue;
    // Two credentials make upstreams refuse the call, or judge it by the client's own.
    if (credential !== null && (name === credential.field || isCarrier(name, upstream.carriers))) continue;
    // Also when the client sends its key a second time, in another field.
    if (showsApiKey(value)) continue;
    append(fields, name, input.replacedFields?.get(name) ?? value);
  }

  if (credential !== null) fields[credential.field] = credential.value;
  else if (brought !== null && !showsApiKey(brought)) fields['authorization'] = brought;
  if (bodyBytes > 0 || announcesEmptyBody.has(input.method)) fields['content-length'] = String(bodyBytes);
  fields['via'] = `1.1 ${input.pseudonym}`;
  if (upstream.propagateTrace) propagate(fields, input);
  return fields;
}

function append(fields: OutgoingFields, name: string, value: string): void {
  const earlier = fields[name];
  if (earlier === undefined) fields[name] = value;
  else if (typeof earlier === 'string') fields[name] = [earlier, value];
  else earlier.push(value);
}

/** `tracestate` belongs to the trace that the client began and means nothing without its `traceparent`. */
function propagate(fields: OutgoingFields, { rawFields, traceparent }: OutgoingInput): void {
  if (traceparent === null) return;
  fields['traceparent'] = traceparent;
  for (const value of valuesOf(rawFields, 'tracestate')) append(fields, 'tracestate', value);
}
