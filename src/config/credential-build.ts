/**
 * From a credential as it is written to one as it is used. Owns the name of the quota it stands for, which outlives its
 * value. Invariant: names of different kinds never meet, because no field value has a line break.
 */
import { resolve } from 'node:path';
import type { CredentialInput } from './schema.ts';
import type { CredentialSource, OAuthClient, UpstreamCredential } from './settings.ts';

type OAuthInput = NonNullable<Exclude<CredentialInput, string>['oauth']>;

export interface CredentialContext {
  /** Field of credentials that name none. */
  readonly defaultField: string;
  /** The quota's name as configured beside the credential. */
  readonly account: string | undefined;
  /** Where relative paths start. */
  readonly folder: string;
}

export function buildCredential(
  input: CredentialInput,
  { defaultField, account, folder }: CredentialContext,
): UpstreamCredential {
  const form = typeof input === 'string' ? { value: input } : input;
  const field = (form.header ?? defaultField).toLowerCase();
  const source = sourceOf(form, field, folder);
  return { field, source, quota: account === undefined ? quotaOf(source) : `account\n${account}` };
}

function sourceOf(form: Exclude<CredentialInput, string>, field: string, folder: string): CredentialSource {
  const { value, file, oauth, prefix } = form;
  if (file !== undefined) return { kind: 'file', path: resolve(folder, file), prefix: prefix ?? '' };
  if (oauth === undefined) return { kind: 'value', value: value ?? '' };
  return {
    kind: 'oauth',
    // RFC 6750 §2.1: what authorization carries is `Bearer` and the token.
    prefix: prefix ?? (field === 'authorization' ? 'Bearer ' : ''),
    client: clientOf(oauth, folder),
  };
}

function clientOf({ refreshTokenFile, ...oauth }: OAuthInput, folder: string): OAuthClient {
  return {
    ...oauth,
    scope: oauth.scope ?? null,
    refreshTokenFile: refreshTokenFile === undefined ? null : resolve(folder, refreshTokenFile),
  };
}

/** The name of a quota. One client may hold grants of many accounts, so where there is a refresh token its file distinguishes them. */
function quotaOf(source: CredentialSource): string {
  switch (source.kind) {
    case 'value':
      return source.value;
    case 'file':
      return `file\n${source.path}`;
    case 'oauth': {
      const { tokenUrl, clientId, refreshTokenFile } = source.client;
      return refreshTokenFile === null
        ? `oauth\n${tokenUrl}\n${clientId}`
        : `refresh token\n${refreshTokenFile}`;
    }
  }
}
