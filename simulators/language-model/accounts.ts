/**
 * Who a credential belongs to.
 *
 * Owns: keys to organisation and project. Invariant: two keys of one project are one account.
 */
import type { IncomingHttpHeaders } from 'node:http';
import type { LanguageModelSettings } from './options.ts';

export interface Account {
  readonly org: string;
  readonly project: string;
}

/** The credential as sent, in whichever field the dialect uses; empty when there is none. */
export function keyOf(headers: IncomingHttpHeaders, dialect: LanguageModelSettings['dialect']): string {
  const bearer = /^bearer\s+(.+)$/i.exec(headers.authorization ?? '')?.[1];
  const named = dialect === 'azure' ? headers['api-key'] : headers['x-api-key'];
  const other = dialect === 'openai' || dialect === 'groq' ? undefined : named;
  return (typeof other === 'string' ? other : undefined) ?? bearer ?? '';
}

export function accountsOf(settings: LanguageModelSettings): ReadonlyMap<string, Account> {
  const accounts = new Map<string, Account>();
  for (const [org, { projects }] of Object.entries(settings.orgs)) {
    for (const [project, { keys }] of Object.entries(projects)) {
      for (const key of keys) accounts.set(key, { org, project });
    }
  }
  return accounts;
}

/** False when the call names another organisation or project than its key belongs to. */
export function belongsToAccount(headers: IncomingHttpHeaders, account: Account): boolean {
  const { 'openai-organization': org, 'openai-project': project } = headers;
  return (
    (org === undefined || org === '' || org === account.org) &&
    (project === undefined || project === '' || project === account.project)
  );
}
