/**
 * Which calls are repeats of each other, as far as they show: an `Idempotency-Key` or a field that the upstream's configuration
 * names (webhook ids), an SDK's own count of its attempts, a client that is known to repeat calls without saying so.
 *
 * Owns: that reading. Does not own: what is made of it (`repeats/`). Keeps: calls are repeats of each other only within one
 * workspace and with one credential: a response made with one is nobody else's.
 */
import { createHash } from 'node:crypto';
import type { Call, CallBody, Route } from '../call.ts';
import { digest } from '../identity.ts';
import type { RepeatKey } from '../repeats/repeat.ts';

export interface RepeatInput {
  readonly call: Pick<Call, 'method'>;
  readonly route: Route;
  readonly body: CallBody;
  /** By lower-case name. */
  readonly fields: ReadonlyMap<string, string>;
  readonly workspaceId: string;
  readonly labelKey: string;
  /** What identifies the caller besides the workspace: the call's credential, injected or its own, and its cookies. */
  readonly identity: readonly string[];
}

/** Fields that are read here, of every call. */
export const repeatFields: readonly string[] = ['idempotency-key', 'x-stainless-retry-count', 'user-agent'];

/** Clients that send a call again after a time-out, whatever its method, and do not say so: shopify-api-node@3.15.0 (got). */
const silentRepeater = /^shopify-api-node\//;

/** `null` = nothing suggests that the call is a repeat or will be repeated. */
export function repeatKeyOf(input: RepeatInput): RepeatKey | null {
  const named = keyIn(input);
  const resends = input.fields.get('x-stainless-retry-count');
  const isSilent = silentRepeater.test(input.fields.get('user-agent') ?? '');
  if (named === null && resends === undefined && !isSilent) return null;
  const { call, route, body, workspaceId, labelKey, identity } = input;
  const name = (kind: string, ...parts: readonly string[]): string =>
    digest(labelKey, kind, workspaceId, ...identity, ...parts);
  const hash = createHash('sha256').update(body.bytes).digest('base64');
  const fingerprint = name('call', call.method, route.origin, route.pathAndQuery, hash);
  const common = {
    fingerprint,
    owner: digest(labelKey, 'repeats', workspaceId),
    upstream: route.upstream.name,
  };
  if (named !== null) {
    const secret = { workspaceId, key: named.value };
    return {
      ...common,
      marker: 'key',
      name: name('idempotency', common.upstream, named.field, named.value),
      secret,
    };
  }
  const secret = { workspaceId, key: hash };
  if (resends === undefined) return { ...common, marker: 'silent', name: fingerprint, secret };
  return { ...common, marker: Number(resends) > 0 ? 'again' : 'first', name: fingerprint, secret };
}

/**
 * `Idempotency-Key`, quoted or bare (draft-ietf-httpapi-idempotency-key-header), else the first of the upstream's own fields
 * that the call has.
 */
function keyIn({ fields, route }: RepeatInput): { readonly field: string; readonly value: string } | null {
  for (const field of ['idempotency-key', ...route.upstream.idempotencyFields]) {
    const value = fields
      .get(field)
      ?.trim()
      .replace(/^"(.*)"$/, '$1');
    if (value !== undefined && value !== '') return { field, value };
  }
  return null;
}
