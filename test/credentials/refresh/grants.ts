/** A refresh token’s file in a folder of its own, a real token endpoint, and grants that use both as processes do. */
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { systemClock, systemRandom, type Clock } from '../../../src/clock.ts';
import type { OAuthClient } from '../../../src/config/settings.ts';
import { RefreshGrant } from '../../../src/credentials/refresh-grant.ts';
import type { Fetched, SendTokenRequest } from '../../../src/credentials/token-endpoint.ts';
import { createEndpoint } from '../../../src/dispatch/one-request.ts';
import { upstreamSettings } from '../../support/upstream-settings.ts';
import { oauthClient, startTokenEndpoint, type TokenEndpointOptions } from '../../support/token-endpoint.ts';

/** What a grant has otherwise: its own file, where it sees another one. */
interface Changes {
  readonly path?: string;
  readonly send?: SendTokenRequest;
  readonly clock?: Clock;
}

const tokenOf = (fetched: Fetched): string => (fetched.kind === 'token' ? fetched.token : fetched.fault);

export async function startGrants(options: TokenEndpointOptions) {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-refresh-'));
  const path = join(folder, 'token');
  const endpoint = await startTokenEndpoint(options);
  await writeFile(path, `${endpoint.refreshTokens[0] ?? ''}\n`, { mode: 0o600 });
  const client: OAuthClient = { ...oauthClient, tokenUrl: endpoint.url, refreshTokenFile: path };
  const upstream = upstreamSettings('shop', [], { allowPrivateAddresses: true });
  /** Log lines and outcomes of all grants, in order. */
  const said: string[] = [];
  const made: RefreshGrant[] = [];
  const log = Object.fromEntries(
    ['debug', 'info', 'warn', 'error', 'bug'].map((level) => [
      level,
      (text: string) => void said.push(`${level}: ${text}`),
    ]),
  );
  return {
    folder,
    path,
    endpoint,
    client,
    said,
    /** A grant as another process would have it. */
    grant(changes: Changes = {}): RefreshGrant {
      const grant = new RefreshGrant({
        path,
        clock: systemClock,
        random: systemRandom,
        send: createEndpoint({ clock: systemClock }),
        telemetry: {
          count: (_, labels) => void said.push(labels?.['outcome'] ?? ''),
          log: log as never,
        },
        ...changes,
      });
      made.push(grant);
      return grant;
    },
    /** One token by this grant, or the class of the failure. */
    fetch: async (grant: RefreshGrant, unwanted: string | null = null) =>
      tokenOf(await grant.fetch({ client, upstream, unwanted })),
    /** The refresh token in the file. */
    async kept(): Promise<string> {
      const text = await readFile(path, 'utf8');
      if (!text.startsWith('{')) return text.trim();
      return (JSON.parse(text) as { refresh_token: string }).refresh_token;
    },
    async close() {
      await Promise.all(made.map((grant) => grant.close()));
      await endpoint.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}
export type GrantWorld = Awaited<ReturnType<typeof startGrants>>;
