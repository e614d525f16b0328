/**
 * A credential of an upstream: written alone, or with the field that carries it and where its value comes from. An upstream has one for
 * everybody (`upstream.ts`), a workspace its own (`workspace.ts`).
 */
import { resolve } from 'node:path';
import { z } from 'zod';
import type { PrivateAddresses } from '../target/address.policy.ts';
import { wordsOf } from '../words.policy.ts';
import { insideFault } from './origins.ts';
import * as is from './values.ts';

/** A secret that can be sent as an HTTP field value. */
const fieldValue = is.text(
  'give the value on one line, without blanks around it (often a line end of the secret’s file)',
  (text) => is.secretFault(text) ?? is.fieldValueFault(text),
);
const prefix = is.text('write what stands before the value: "Bearer "', (text) => {
  if (text === '') return null;
  return text.startsWith(' ') ? 'starts with a blank' : is.fieldValueFault(text.trimEnd());
});

/** Fields that frame a message, name its hop or say where it goes: only Sluice sets them. */
const ownFields = wordsOf(
  'connection content-length expect forwarded host http2-settings keep-alive te trailer transfer-encoding upgrade',
  'via x-real-ip',
);

const header = is
  .text('name a field such as authorization or x-api-key', (name) => {
    // RFC 9110 §5.6.2.
    if (!/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)) return 'is not an HTTP field name';
    const isOwn = /^(sluice-|proxy-|x-forwarded-)/i.test(name) || ownFields.includes(name.toLowerCase());
    return isOwn ? 'is a field that Sluice sets or removes itself' : null;
  })
  .toLowerCase();

const oauth = is
  .section(
    {
      tokenUrl: z.string().min(1),
      clientId: is.secret,
      clientSecret: is.secret,
      scope: is.orNull(z.string().min(1)),
      format: z.enum(['form', 'json']).default('form'),
      clientAuth: z.enum(['body', 'basic']).default('body'),
      shared: z.boolean().default(true),
      refreshTokenFile: is.orNull(is.filePath),
    },
    {
      tokenUrl: 'Token endpoint: https, or http where the upstream has allowPrivateAddresses.',
      clientId: 'Id of the client.',
      clientSecret: 'Secret of the client.',
      scope: 'Scopes to ask for, separated by blanks.',
      format: 'How the request’s body is written.',
      clientAuth: 'Where client id and secret stand: in the body, or in Authorization: Basic.',
      shared:
        'With redis, one replica fetches a token and the others read it there, encrypted: needed where the tokens of a client revoke each other. false: each replica fetches its own.',
      refreshTokenFile:
        'File that keeps the refresh token (RFC 6749 §6), as plain text or as the endpoint’s JSON; Sluice writes the next one into it. All replicas must see the same file. Relative to this file.',
    },
  )
  .superRefine(
    is.rule(({ shared, refreshTokenFile }, refuse) => {
      const fix = 'leave shared out: a refresh token is used by one replica, for all';
      if (refreshTokenFile !== null && !shared) refuse('is false beside refreshTokenFile', fix, 'shared');
    }),
  );

const withSource = is
  .section(
    {
      header: header.optional(),
      prefix: prefix.optional(),
      value: fieldValue.optional(),
      file: is.filePath.optional(),
      oauth: oauth.optional(),
    },
    {
      header: 'Field that carries the credential; default as for the short form.',
      prefix:
        'Stands before what file or oauth gives. Default: "Bearer " for oauth in authorization, else empty.',
      value: 'The whole field value, sent as it is ("Bearer …" included).',
      file: 'File with the value, read again when it changes; relative to this file.',
      oauth:
        'Client of a token endpoint (RFC 6749 §4.4, with refreshTokenFile §6); its tokens are renewed before they end.',
    },
  )
  .superRefine(
    is.rule((credential, refuse) => {
      const given = (['value', 'file', 'oauth'] as const).filter((key) => credential[key] !== undefined);
      const reason = given.length === 0 ? 'has no value' : `has ${given.join(' and ')}`;
      if (given.length !== 1) refuse(reason, 'give exactly one of value, file and oauth');
      else if (given[0] === 'value' && credential.prefix !== undefined)
        refuse('stands beside value', 'write it into value, which is sent as it is', 'prefix');
    }),
  );

/** Either form. */
export const credential = z.union([fieldValue, withSource]);

/** Name of the quota behind a credential. */
export const account = is
  .text('use 1 to 128 printable characters, such as acme-shop', (name) => {
    if (is.isPlaceholder(name)) return 'is a placeholder, not a name';
    return /^[^\p{C}\p{Z}](?:[^\p{C}]{0,126}[^\p{C}\p{Z}])?$/u.test(name) ? null : 'is not a usable name';
  })
  .describe(
    'Names the quota that the credential stands for: with it the bucket, its order and what was learned of it outlive a new value. Default: each fixed value, file, or client of a token endpoint is a quota of its own.',
  );

/** What the short form means, for descriptions. */
export const shortForm =
  'Short form: the value alone, in the upstream’s credential field (authorization, or x-shopify-access-token for commerce).';

type CredentialInput = z.output<typeof credential>;

/** The form with keys; a text alone is the value. */
export const withKeys = (credential: CredentialInput): Exclude<CredentialInput, string> =>
  typeof credential === 'string' ? { value: credential } : credential;

/** Why a token endpoint may not be asked; `null`: it may, or there is none. `allowed`: private addresses that its upstream may have. */
export function tokenUrlFault(client: Pick<OAuthClient, 'tokenUrl'> | undefined, allowed: PrivateAddresses) {
  if (client === undefined) return null;
  const url = URL.parse(client.tokenUrl);
  if (url === null) return { reason: 'is not an absolute URL', fix: 'write https://host/path' };
  if (url.protocol !== 'https:' && url.protocol !== 'http:')
    return { reason: 'is neither https nor http', fix: 'write https://host/path' };
  if (url.username !== '' || url.password !== '' || url.hash !== '')
    return { reason: 'holds user information or a fragment', fix: 'use clientId and clientSecret' };
  return insideFault(url.protocol.slice(0, -1), url.hostname, allowed);
}

/** A token endpoint and how this client asks it (RFC 6749 §4.4, with a refresh token §6). The path of its file is absolute. */
export type OAuthClient = is.Frozen<z.output<typeof oauth>>;

/** Where the value of a credential comes from. `prefix` stands before it in the field. */
export type CredentialSource =
  | { readonly kind: 'value'; readonly value: string }
  | { readonly kind: 'file'; readonly path: string; readonly prefix: string }
  | { readonly kind: 'oauth'; readonly client: OAuthClient; readonly prefix: string };

/** What is injected into a call on its way upstream. */
export interface UpstreamCredential {
  /** Lower case. */
  readonly field: string;
  readonly source: CredentialSource;
  /**
   * Names the quota that the credential stands for: `account` where it is configured, else the fixed value, the path of the file
   * with the value or the refresh token, or token URL and client id. Credentials of one upstream with the same name share bucket
   * and order. Names of different kinds never meet, because no field value has a line break. It may be a secret: it goes into keyed
   * digests only.
   */
  readonly quota: string;
}

/**
 * The credential as it is used.
 * @param defaults field of credentials that name none, name of the quota as configured beside the credential, folder where relative
 *   paths start
 */
export function settleCredential(
  written: CredentialInput,
  defaults: { readonly field: string; readonly account: string | undefined; readonly folder: string },
): UpstreamCredential {
  const { header: field = defaults.field, value = '', file, oauth, prefix } = withKeys(written);
  const { account, folder } = defaults;
  const settled = (quota: string, source: CredentialSource): UpstreamCredential => ({
    field,
    source,
    quota: account === undefined ? quota : `account\n${account}`,
  });
  if (file !== undefined) {
    const path = resolve(folder, file);
    return settled(`file\n${path}`, { kind: 'file', path, prefix: prefix ?? '' });
  }
  if (oauth === undefined) return settled(value, { kind: 'value', value });
  const { tokenUrl, clientId, refreshTokenFile } = oauth;
  const tokenFile = refreshTokenFile === null ? null : resolve(folder, refreshTokenFile);
  // One client may hold grants of many accounts: their files tell them apart.
  const quota = tokenFile === null ? `oauth\n${tokenUrl}\n${clientId}` : `refresh token\n${tokenFile}`;
  // RFC 6750 §2.1: what authorization carries is `Bearer` and the token.
  const usual = field === 'authorization' ? 'Bearer ' : '';
  const client = { ...oauth, refreshTokenFile: tokenFile };
  return settled(quota, { kind: 'oauth', client, prefix: prefix ?? usual });
}
