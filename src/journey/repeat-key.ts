/**
 * Which calls may be repeats of each other: those with the same `Idempotency-Key` (or another field that the upstream's
 * configuration names, such as a webhook id), and equal calls of an SDK that counts its attempts.
 *
 * Owns: reading that, the digest by which requests are compared, and the form in which a key goes upstream. Does not own: what is made
 * of it (`repeats/`). Invariants: calls are repeats of each other only within one workspace and with one credential; two requests
 * that differ in anything that goes upstream have different digests, but for the fields of `ofTheAttempt`.
 */
import { createHash } from 'node:crypto';
import type { Call, CallBody, Caller, Route } from '../call.ts';
import { isCarrier } from '../credential-carriers.policy.ts';
import { outgoingFields } from '../dispatch/fields.policy.ts';
import { Refusal } from '../errors.ts';
import { digest } from '../identity.ts';
import type { RepeatKey } from '../repeats/repeat.ts';
import type { Runtime } from '../runtime.ts';
import { valuesOf } from '../field-lines.policy.ts';
import { wordsOf } from '../words.policy.ts';

export interface RepeatInput {
  readonly call: Pick<Call, 'form' | 'method' | 'rawFields'>;
  readonly caller: Pick<Caller, 'keyFields'> & { readonly workspace: { readonly id: string } };
  readonly route: Route;
  readonly body: CallBody;
  /** By lower-case name; repeated ones are joined. */
  readonly fields: ReadonlyMap<string, string>;
  readonly labelKey: string;
  /** Identity of the account that the call is about: of the injected credential, or of what the client brings. */
  readonly account: string;
}

/**
 * Fields that clients write anew for each attempt of one request, and on which the upstream's answer does not depend: ids, counts and
 * times of attempts, and what is addressed to Sluice. All other fields that go upstream are compared; those of traces do not go.
 */
const ofTheAttempt = new Set(
  wordsOf(
    'date priority x-request-id x-correlation-id x-client-request-id x-ms-client-request-id client-request-id',
    'amz-sdk-request x-retry-count x-retry-attempt x-server-timeout x-stripe-client-telemetry',
  ),
);
const prefixOfTheAttempt = 'x-stainless-';

/**
 * The name and digest by which a call is known as a repeat; `null` = nothing suggests that it is one, or will be repeated.
 * @throws Refusal `request_invalid` where a field that serves as the key is repeated
 */
export function repeatKeyOf(input: RepeatInput): RepeatKey | null {
  const { fields, caller, labelKey, account, route } = input;
  const key = keyIn(input);
  const retries = fields.get('x-stainless-retry-count');
  if (key === null && retries === undefined) return null;
  const workspaceId = caller.workspace.id;
  const upstream = route.upstream.name;
  const { credential, request } = comparedParts(input, key?.field);
  const name = (kind: string, ...parts: readonly string[]): string =>
    digest(labelKey, kind, workspaceId, account, `${credential.length}`, ...credential, ...parts);
  const fingerprint = name('request', ...request);
  return {
    marker: key !== null ? 'key' : Number(retries) > 0 ? 'again' : 'first',
    name: key === null ? fingerprint : name('idempotency', upstream, key.field, key.value),
    fingerprint,
    owner: digest(labelKey, 'repeats', workspaceId),
    upstream,
    secret: { workspaceId, key: key?.value ?? fingerprint },
  };
}

/**
 * `Idempotency-Key`, quoted or bare (draft-ietf-httpapi-idempotency-key-header), else the first of the upstream's own fields
 * that the call has. `field`: lower case.
 */
function keyIn({
  call,
  fields,
  route,
}: RepeatInput): { readonly field: string; readonly value: string } | null {
  for (const field of keyFieldsOf(route)) {
    const written = fields.get(field);
    if (written === undefined) continue;
    // The two would be two keys, of which each layer might take another one.
    if (valuesOf(call.rawFields, field).length > 1) {
      throw new Refusal('request_invalid', {
        detail: 'A field that serves as the idempotency key is repeated: send it once.',
        param: field,
      });
    }
    const value = unquoted(written);
    if (value !== '') return { field, value };
  }
  return null;
}

const usualKeyFields = ['idempotency-key'];
const keyFieldsOf = ({ upstream: { idempotencyFields } }: Route): readonly string[] =>
  idempotencyFields.length === 0 ? usualKeyFields : [...usualKeyFields, ...idempotencyFields];

const unquoted = (written: string): string => written.trim().replace(/^"(.*)"$/, '$1');

/**
 * Everything of the request that goes upstream, but for its key and what changes with each attempt: what is known to carry a
 * credential of the client, and the rest. With another credential the same key is another key, as it is at the upstream.
 */
function comparedParts({ call, caller, route, body }: RepeatInput, keyField: string | undefined) {
  const injected = route.credential;
  const outgoing = outgoingFields({
    call,
    // The value of an injected credential may be renewed between two attempts; the account is the same.
    route: { ...route, credential: injected && { field: injected.field, value: '' } },
    dropFields: caller.keyFields,
    bodyBytes: body.bytes.length,
    traceparent: null,
  });
  const hash = createHash('sha256').update(body.bytes).digest('base64');
  const credential: string[] = [];
  const request = [call.method, route.origin, route.pathAndQuery, hash];
  for (const name of Object.keys(outgoing).sort()) {
    if (name === keyField || ofTheAttempt.has(name) || name.startsWith(prefixOfTheAttempt)) continue;
    const values = [outgoing[name] ?? []].flat();
    const compared = name === 'prefer' ? forTheUpstream(values) : values;
    const parts = isCarrier(name, route.upstream.carriers) ? credential : request;
    if (compared.length > 0) parts.push(name, `${compared.length}`, ...compared);
  }
  return { credential, request };
}

/** Preferences without those that Sluice reads (`wait`, `reserve`): a client may wait for another time at each attempt. */
const forTheUpstream = (values: readonly string[]): string[] =>
  values
    .flatMap((value) => value.split(','))
    .map((preference) => preference.trim())
    .filter((preference) => preference !== '' && !/^(?:wait|reserve)\s*(?:[=;]|$)/i.test(preference));

/**
 * The values with which the call's keys go upstream where its credential serves several workspaces, by lower-case name of their
 * field; `null` = it serves one. One provider then sees the keys of all of them as keys of one account: a digest of workspace and key keeps
 * two workspaces that use the same key apart. It has the form of a UUID, which providers accept as a key, and stays quoted where it was.
 */
export function keysOfSharedCredential(
  { caller, route, fields }: RepeatInput,
  run: Runtime,
): ReadonlyMap<string, string> | null {
  const { credential } = route;
  if (credential === null || !run.isShared(credential.quota)) return null;
  // A key has to be the same after a restart, because the upstream may have run the call before it; a generated label key is not.
  const { labelKey, labelKeyGenerated } = run.settings.privacy;
  const secret = labelKeyGenerated ? credential.quota : labelKey;
  const keys = new Map<string, string>();
  for (const field of keyFieldsOf(route)) {
    const written = (fields.get(field) ?? '').trim();
    if (unquoted(written) === '') continue;
    const uuid = uuidOf(secret, caller.workspace.id, unquoted(written));
    keys.set(field, written.startsWith('"') ? `"${uuid}"` : uuid);
  }
  return keys;
}

/** A UUID of version 4 in form, made of a keyed digest instead of chance. */
function uuidOf(secret: string, workspaceId: string, key: string): string {
  const hex = digest(secret, 'idempotency key of a shared credential', workspaceId, key);
  const variant = '89ab'.charAt(Number.parseInt(hex.charAt(16), 16) % 4);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
