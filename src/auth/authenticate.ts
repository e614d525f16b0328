/**
 * Who is calling: finds the API key among a call's field lines, and the workspace that it names. Owns which fields may carry a key,
 * which of them must not be passed on, and which keys are valid now (the keyring, which holds digests only).
 *
 * Invariants: two layers can never disagree about the caller (a repeated identity field is refused, and so are two
 * different keys); a refusal does not say which part of the credential was wrong, and an unknown key takes the same path as an expired
 * one; every field that shows the key is in `keyFields`; a request target that shows the key is refused, because the target is sent as
 * the client wrote it.
 */
import { hash } from 'node:crypto';
import type { Caller } from '../call.ts';
import type { Clock } from '../clock.ts';
import type { Settings, WorkspaceKey, WorkspaceSettings } from '../config/settings.ts';
import { apiKeyPrefix, basicText, showsApiKey } from '../credential-carriers.policy.ts';
import { Refusal } from '../errors.ts';

const maxKeyBytes = 256;
/** RFC 6750 §2.1 `b64token`. */
const keyForm = /^[A-Za-z0-9._~+/-]+=*$/;

/** Lower-case names of the fields in which credentials are sent to upstreams: an SDK may put its API key there. */
export function injectedFields(settings: Pick<Settings, 'upstreams' | 'workspaces'>): ReadonlySet<string> {
  const fields = new Set<string>();
  for (const { credential } of settings.upstreams.values())
    if (credential !== null) fields.add(credential.field);
  for (const { credentials } of settings.workspaces.values())
    for (const { field } of credentials.values()) fields.add(field);
  return fields;
}

/**
 * Finds the caller. `rawFields` alternates names and values as received, `injected`: the names of all fields in which credentials are
 * sent to upstreams, lower case.
 * The key is taken from `Sluice-Key`, else from an injected field whose value starts with `slc_`, else from
 * `Authorization`, where that is injected also without a scheme or in `Basic`. `rawUrl` is the request target as received.
 * @throws Refusal `unauthenticated` without a valid key, `request_invalid` for repeated fields, two different keys, or a
 *   key in the target
 */
export function authenticate(
  rawFields: readonly string[],
  keyring: Keyring,
  injected: ReadonlySet<string>,
  rawUrl = '/',
): Caller {
  const candidates = candidatesOf(rawFields, injected);
  const [chosen] = candidates;
  if (chosen === undefined) throw unauthenticated();
  if (candidates.some(({ key }) => key.startsWith(apiKeyPrefix) && key !== chosen.key)) {
    throw invalid('Send one API key: two fields hold different ones.');
  }
  const isUsable = chosen.key.length <= maxKeyBytes && keyForm.test(chosen.key);
  const match = isUsable ? keyring(chosen.key) : null;
  if (match === null) throw unauthenticated();
  if (targetShows(chosen.key, rawUrl)) {
    const words =
      'The target contains an API key, which must not travel upstream: send it in a header field only.';
    throw invalid(words, 'target');
  }
  return { ...match, keyFields: fieldsThatShow(chosen.key, rawFields, chosen.field) };
}

const invalid = (detail: string, param?: string): Refusal =>
  new Refusal('request_invalid', param === undefined ? { detail } : { detail, param });

/** The refusal of a key that is missing, unknown or expired: the words do not show which. */
export const unauthenticated = (): Refusal =>
  new Refusal('unauthenticated', {
    detail:
      "The API key is missing, unknown here, expired or removed. Send a valid one of Sluice, not the upstream's, as `Authorization: Bearer slc_…`, or in the field `Sluice-Key`.",
  });

/**
 * Keys that the call offers, and in which fields (lower case), the one that counts first. Where some upstream's credential is sent in
 * `Authorization`, SDKs write the key there as they write that one. @throws Refusal when a field that may say who calls is repeated
 */
function candidatesOf(rawFields: readonly string[], injected: ReadonlySet<string>) {
  const seen: string[] = [];
  const found: { readonly field: string; readonly key: string }[] = [];
  let authorization = '';
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const field = (rawFields[at] ?? '').toLowerCase();
    if (field !== 'sluice-key' && field !== 'authorization' && !injected.has(field)) continue;
    // Node keeps the first, other layers the last: refuse instead of choosing.
    if (seen.includes(field)) throw invalid('A field that identifies the caller is repeated.', field);
    seen.push(field);
    const key = rawFields[at + 1] ?? '';
    if (field === 'authorization') authorization = key;
    else if (field === 'sluice-key') found.unshift({ field, key });
    else if (key.startsWith(apiKeyPrefix)) found.push({ field, key });
  }
  for (const key of keysIn(authorization, injected.has('authorization')))
    found.push({ field: 'authorization', key });
  return found;
}

/**
 * The keys in `Authorization`: what stands behind `Bearer`, and a key of ours behind another scheme, because SDKs put their key behind
 * the upstream's own: `token` (octokit), `Bot` (discord.js). Where SDKs write the upstream's credential, also a key of ours without a
 * scheme (Linear), or as password (Twilio, Mailchimp) or user (Stripe, `curl -u`) of `Basic`.
 */
function keysIn(authorization: string, isInjected: boolean): readonly string[] {
  const isOurs = (text: string): boolean => text.startsWith(apiKeyPrefix);
  const [, scheme = '', key = ''] = /^([a-z][\w-]*) ([^ ].*)$/i.exec(authorization) ?? [];
  if (scheme.toLowerCase() === 'bearer' || (isOurs(key) && !/^basic$/i.test(scheme))) return [key];
  if (!isInjected) return [];
  const [, user = '', password = ''] = /^([^:]*):(.*)$/s.exec(basicText(authorization) ?? '') ?? [];
  return [authorization, password, user].filter(isOurs);
}

/** Names of all fields in which the key, or anything of a key's shape, can be read. */
function fieldsThatShow(key: string, rawFields: readonly string[], keyField: string): readonly string[] {
  const fields = new Set([keyField, 'sluice-key']);
  const isOfForm = key.startsWith(apiKeyPrefix);
  for (let at = 0; at + 1 < rawFields.length; at += 2) {
    const written = rawFields[at + 1] ?? '';
    // Of almost all fields this says that they show none.
    if (isOfForm && !written.includes(apiKeyPrefix) && !/^basic /i.test(written)) continue;
    const value = basicText(written) ?? written;
    // A key of another form may be short: only whole values are compared then.
    const shows = isOfForm ? value.includes(key) : value.replace(/^bearer /i, '') === key;
    if (shows || showsApiKey(written)) fields.add((rawFields[at] ?? '').toLowerCase());
  }
  return [...fields];
}

/** A target is percent-encoded once for the upstream and a second time as our parameter; one further layer is a margin. */
const layersOfEncoding = 3;

/** True when the key, or anything of a key's shape, can be read in the target, as written or percent-decoded. */
function targetShows(key: string, rawUrl: string): boolean {
  const isOfForm = key.startsWith(apiKeyPrefix);
  for (let text = rawUrl, layers = 0; ; layers++, text = decodedOnce(text)) {
    // A key of another form may be short: only whole segments and values are compared then.
    const shows = isOfForm ? text.includes(key) : text.split(/[/?&=]/).includes(key);
    if (shows || showsApiKey(text)) return true;
    if (layers === layersOfEncoding || !text.includes('%')) return false;
  }
}

/** One layer less. Where an encoding is broken, octet by octet: what is no ASCII need not be right then, but no key may hide behind it. */
function decodedOnce(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
  }
}

/** A key, and whose it is. */
interface Entry {
  readonly workspace: WorkspaceSettings;
  readonly key: WorkspaceKey;
}

/** The keys of all workspaces, by digest, hexadecimal. A reload makes a new index while the old one is in use. */
type KeyIndex = ReadonlyMap<string, Entry>;

export function keyIndexOf({ workspaces }: Pick<Settings, 'workspaces'>): KeyIndex {
  const index = new Map<string, Entry>();
  for (const workspace of workspaces.values())
    for (const key of workspace.keys) index.set(key.sha256, { workspace, key });
  return index;
}

/** Finds the valid entry of a key, and afterwards whether it is valid still. */
export type Keyring = ReturnType<typeof createKeyring>;

/** `keys`: those that are valid now: a key that a reload has removed is refused at once, waiting calls included. */
export function createKeyring(keys: () => KeyIndex, clock: Pick<Clock, 'now'>) {
  const valid = (sha256: string): Entry | null => {
    const entry = keys().get(sha256);
    return entry !== undefined && clock.now() < (entry.key.expiresAt ?? Infinity) ? entry : null;
  };
  return (key: string) => {
    // The digest is asked for as text: making a buffer, and text of it, takes three times as long.
    const sha256 = hash('sha256', key, 'hex');
    const entry = valid(sha256);
    /** True while the key still names the same workspace and has not expired. */
    return entry && { ...entry, stillValid: () => valid(sha256)?.workspace.id === entry.workspace.id };
  };
}
