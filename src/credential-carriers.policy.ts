/**
 * Where a request carries a credential of an upstream: fields and query members by name, beside what the upstream's configuration
 * adds or takes out (`credentialFields`).
 *
 * One list decides two things. Where Sluice injects a credential, all of these are taken out of the request, so that no upstream has to
 * choose between two credentials, and no client can have an account of its own judged as the operator's. Where the client brings its
 * own, they say whose quota and whose breaker the call is about. An API key of Sluice is told from all of these by its pattern, so that
 * none leaves with a request.
 */
import type { UpstreamKind } from './config/defaults.ts';
import { fieldMap, percentDecoded } from './field-lines.policy.ts';
import { meaningOfWords, wordsOf } from './words.policy.ts';

/** How API keys begin, which `sluice keys create` makes. */
export const apiKeyPrefix = 'slc_';
/** A key anywhere in a value. */
const keyAnywhere = /slc_[A-Za-z0-9-]+_[A-Za-z0-9_-]{43}/;

/** User and password of `Basic` (RFC 7617), decoded; `null` for another scheme. What is no base64 gives no text that matters. */
export function basicText(value: string): string | null {
  const [, encoded] = /^basic +([a-z0-9+/_=-]+)$/i.exec(value) ?? [];
  return encoded === undefined ? null : Buffer.from(encoded, 'base64').toString('latin1');
}

const holdsApiKey = (text: string): boolean => text.includes(apiKeyPrefix) && keyAnywhere.test(text);

/** True when the text contains an API key, whether or not the key is valid, also as user or password of `Basic`. */
export const showsApiKey = (text: string): boolean => holdsApiKey(text) || holdsApiKey(basicText(text) ?? '');

/** What an upstream changes in the list. Names of fields, and of query members after `query:`; lower case. */
export interface CredentialCarriers {
  readonly added: ReadonlySet<string>;
  readonly removed: ReadonlySet<string>;
}

/** Request fields. */
const fieldNames: ReadonlySet<string> = new Set(
  wordsOf(
    'authorization admin-token auth authentication bearer circle-token client-secret dd-application-key',
    'fastly-key job-token jwt deploy-token personal-token session-token token user-token x-admin-token',
    'x-amz-security-token x-app-key x-app-token x-auth x-authentication x-authorization x-client-secret',
    'x-cmc_pro_api_key x-consul-token x-emby-token x-figma-token x-functions-key x-github-token',
    'x-gitlab-token x-hasura-admin-secret x-honeycomb-team x-insert-key x-jfrog-art-api x-jwt-assertion',
    'x-key x-license-key x-nomad-token x-parse-master-key x-parse-session-token x-plex-token',
    'x-postmark-account-token x-postmark-server-token x-rapidapi-key x-sentry-auth x-sentry-token',
    'x-serverless-authorization x-session-token x-shopify-storefront-access-token x-subscription-token',
    'x-token x-trackertoken x-user-token x-vault-token',
  ),
);

/** Ends of field names that providers put their own name before: `x-goog-api-key`, `cb-access-key`, `x-shopify-access-token`. */
const fieldEnds =
  /(?:api[-_]?(?:key|token|secret)|(?:access|auth|authentication|bearer|secret)[-_]?(?:key|token)|private-token|subscription-key)$/;

/**
 * What a query member of a name is.
 *
 * - `credential`: always a credential.
 * - `either`: a credential at some upstreams, something else at others (`key` of an entry, `token` of a link). It is taken out beside an
 *   injected credential, and names an account only where nothing else does: a call's own credential stands in a field then.
 * - `signature`: of one link or one call, or an id. It is left where it is, and names an account only where nothing else does.
 *
 * Names are compared as a whole, so that `page_token` and `pageToken` are nothing of the kind.
 */
type MemberMeaning = 'credential' | 'either' | 'signature';

const memberNames = meaningOfWords<MemberMeaning>([
  ['credential', 'access_key access_token accesskey accesstoken api-key api_key api_secret api_token'],
  ['credential', 'apikey apitoken app_key application_key auth_key auth_token authorization authtoken'],
  ['credential', 'bearer_token client_secret consumer_key consumer_secret hapikey job_token'],
  ['credential', 'oauth_token ocp-apim-subscription-key private_token subscription-key user_key'],
  ['credential', 'x-amz-credential x-amz-security-token x-api-key x-goog-api-key x-goog-credential'],
  ['either', 'auth key token x-amz-signature x-goog-signature'],
  ['signature', 'appid sig signature'],
]);

/** The list as it is. */
export const usualCarriers: CredentialCarriers = { added: new Set(), removed: new Set() };

const queryPrefix = 'query:';

/**
 * Members that are filters at commerce platforms, which take no credential in the query (Shopify's metafields by `key`): a call
 * without its filter would succeed with another result.
 */
const filtersOfCommerce: readonly string[] = [...memberNames]
  .filter(([, meaning]) => meaning === 'either')
  .map(([name]) => queryPrefix + name);

/** Reads `credentialFields`: `x-acme-key`, `query:acme_key`, and with `-` before it what is no credential here. */
export function readCarriers(words: readonly string[], kind: UpstreamKind): CredentialCarriers {
  const lower = words.map((word) => word.toLowerCase());
  const added = new Set(lower.filter((word) => !word.startsWith('-')));
  const removed = [
    ...(kind === 'commerce' ? filtersOfCommerce.filter((word) => !added.has(word)) : []),
    ...lower.filter((word) => word.startsWith('-')).map((word) => word.slice(1)),
  ];
  return { added, removed: new Set(removed) };
}

/** Why a word of `credentialFields` cannot be used; `null` = it can. */
export function carrierWordFault(word: string): string | null {
  const name = word.replace(/^-/, '').replace(/^query:/i, '');
  return /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$/.test(name) ? null : 'is neither a field nor a query member';
}

/** True for a field that carries a credential of the upstream. `name`: lower case. */
export const isCarrier = (name: string, { added, removed }: CredentialCarriers): boolean =>
  !removed.has(name) && (fieldNames.has(name) || added.has(name) || fieldEnds.test(name));

/** `null`: the query member of this name carries no credential. */
function meaningOf(name: string, { added, removed }: CredentialCarriers): MemberMeaning | null {
  const word = queryPrefix + name;
  if (removed.has(word)) return null;
  return added.has(word) ? 'credential' : (memberNames.get(name) ?? null);
}

/** Path and query without the members that carry a credential; all others stay as they were written. */
export function withoutCredentials(pathAndQuery: string, carriers: CredentialCarriers): string {
  const at = pathAndQuery.indexOf('?');
  if (at < 0) return pathAndQuery;
  const members = pathAndQuery.slice(at + 1).split('&');
  const kept = members.filter((member) => {
    const meaning = meaningOf(memberName(member), carriers);
    return meaning === null || meaning === 'signature';
  });
  if (kept.length === members.length) return pathAndQuery;
  return pathAndQuery.slice(0, at) + (kept.length === 0 ? '' : `?${kept.join('&')}`);
}

/** The name of a query member as the upstream reads it, lower case. */
function memberName(member: string): string {
  const at = member.indexOf('=');
  return percentDecoded(at < 0 ? member : member.slice(0, at)).toLowerCase();
}

/** What of a request may carry a credential that the client brings. */
export interface CarryingRequest {
  readonly workspaceId: string;
  /** Name and value alternating. */
  readonly rawFields: readonly string[];
  readonly pathAndQuery: string;
  /** Lower-case names of fields that are not sent, because they carry an API key of Sluice. */
  readonly keyFields: readonly string[];
}

/**
 * Names the account of the credentials that a request brings, the same for every order of its fields; `null` = it brings none. It may
 * be a secret: it goes into keyed digests only.
 */
export function broughtAccount(
  { workspaceId, rawFields, pathAndQuery, keyFields }: CarryingRequest,
  carriers: CredentialCarriers,
): string | null {
  const fields = fieldMap(rawFields);
  const found = new Map<string, string>();
  for (const [name, value] of fields)
    if (isCarrier(name, carriers) && !keyFields.includes(name) && !showsApiKey(value)) found.set(name, value);
  // Sent as `Authorization`, instead of the client's own.
  const replacing = fields.get('sluice-upstream-authorization');
  if (replacing !== undefined && !showsApiKey(replacing)) found.set('authorization', replacing);
  const inDoubt = new Map<string, string>();
  const [, ...queries] = pathAndQuery.split('?');
  for (const member of queries.join('?').split('&')) {
    const name = memberName(member);
    const meaning = meaningOf(name, carriers);
    const written = member.slice(member.indexOf('=') + 1);
    const value = percentDecoded(written);
    // A value of other characters than a credential's could spell the text of another account.
    const usable = /^[!-~]*$/.test(value) ? value : written;
    if (meaning !== null) (meaning === 'credential' ? found : inDoubt).set(queryPrefix + name, usable);
  }
  const naming = [...(found.size > 0 ? found : inDoubt)].filter(([, value]) => value.trim() !== '');
  if (naming.length === 0) return null;
  const parts = naming.toSorted(([a], [b]) => (a < b ? -1 : 1));
  return ['brought', ...parts.flatMap(([name, value]) => [name, lastingPart(value, workspaceId)])].join('\n');
}

/**
 * Parameters that name the signer, in schemes that sign each call: AWS and its kind, Huawei, OAuth 1.0, Akamai, Digest, Hawk, HTTP
 * signatures. They come in any order, apart by commas, semicolons or `&`.
 */
const signer =
  /\b(?:credential|access|access_token|client_token|oauth_consumer_key|oauth_token|username|keyid|id)="?[^",;&/\s]+/gi;

/** Older schemes: `AWS AKIA…:signature`, `SharedKey account:signature`; Baidu's is one word, `bce-auth-v1/AK/time/…/signature`. */
const signedShort =
  /^(?:(?!bearer |basic )[\w-]+ +(?<id>[^\s:=,;&/"]+):|(?<version>[\w-]*auth-v\d+)\/(?<key>[^/\s]+)\/)/i;

/**
 * The part of a credential that is the same for each call of an account: a signature is not. Who signs is no secret, so that another
 * workspace could claim it: such an account is the workspace's own.
 */
function lastingPart(value: string, workspaceId: string): string {
  const { id, key, version } = signedShort.exec(value)?.groups ?? {};
  if (id !== undefined || key !== undefined) return signed([version ?? '', id ?? key ?? '']);
  const [, scheme = '', rest = ''] = /^([\w-]+) +(.*)$/s.exec(value) ?? [];
  // The value of `X-Amz-Credential`: access key, day, region, service.
  if (scheme === '') return /^[^/\s]+(?=\/\d{8}\/.+_request$)/.test(value) ? signed([value]) : value;
  const isListed = rest.includes('=') && /[,;&]/.test(rest.slice(rest.indexOf('=')));
  const signers = isListed ? (rest.match(signer) ?? []) : [];
  return `${scheme.toLowerCase()} ${signers.length === 0 ? rest : signed(signers)}`;

  function signed(by: readonly string[]): string {
    return [...by.map((text) => text.split('/', 1)[0] ?? '').toSorted(), workspaceId].join(' of ');
  }
}

/** Names the quota of calls that carry no credential as far as can be seen: that of their workspace, and of no other. */
export const accountOfWorkspace = (workspaceId: string): string => `workspace\n${workspaceId}`;
