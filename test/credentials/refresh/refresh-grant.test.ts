/** Renewals by refresh tokens that are replaced with each use: what is asked, what is on the disk when, and what a mishap costs. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from '@jest/globals';
import { systemClock } from '../../../src/clock.ts';
import { RefreshGrant } from '../../../src/credentials/refresh-grant.ts';
import type { Fetched, SendTokenRequest } from '../../../src/credentials/token-endpoint.ts';
import { createEndpoint } from '../../../src/dispatch/one-request.ts';
import { closers } from '../../support/closers.ts';
import { upstreamSettings } from '../../support/upstream-settings.ts';
import { oauthClient, startTokenEndpoint, type RefreshRule } from '../../support/token-endpoint.ts';
import { until } from '../../support/until.ts';

const ask = createEndpoint({ clock: systemClock });
const tokenOf = (fetched: Fetched): string => (fetched.kind === 'token' ? fetched.token : fetched.fault);

/** A refresh token’s file in a folder of its own, a real token endpoint, and grants that use both as processes do. */
async function start(refresh: RefreshRule) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-refresh-'));
  closers.push(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'token');
  const endpoint = await startTokenEndpoint({ refresh, isRotating: true });
  closers.push(() => endpoint.close());
  writeFileSync(path, `${endpoint.refreshTokens[0] ?? ''}\n`, { mode: 0o600 });
  const client = { ...oauthClient, tokenUrl: endpoint.url, refreshTokenFile: path };
  const upstream = upstreamSettings('shop', [], { allowPrivateAddresses: true });
  const input = { client, upstream, unwanted: null };
  /** Log lines and outcomes of all grants, in order. */
  const said: string[] = [];
  const saying = (level: string) => [level, (text: string) => void said.push(`${level}: ${text}`)] as const;
  const log = Object.fromEntries(['debug', 'info', 'warn', 'error', 'bug'].map(saying));
  return {
    folder,
    path,
    endpoint,
    input,
    said,
    /** A folder in the place of the new file, as a disk that takes no more. */
    fillDisk: (): unknown => mkdirSync(join(`${path}.new`, 'x'), { recursive: true }),
    emptyDisk: (): void => rmSync(`${path}.new`, { recursive: true }),
    /** A grant as another process would have it. */
    grant(changes: { readonly path?: string; readonly send?: SendTokenRequest } = {}): RefreshGrant {
      const count = (_: string, labels?: Readonly<Record<string, string>>): void =>
        void said.push(labels?.['outcome'] ?? '');
      const telemetry = { count, log: log as never };
      const parts = { path, clock: systemClock, send: ask, telemetry };
      const grant = new RefreshGrant({ ...parts, ...changes });
      closers.push(() => grant.close());
      return grant;
    },
    /** One token by this grant, or the class of the failure. */
    fetch: async (grant: RefreshGrant, unwanted: string | null = null) =>
      tokenOf(await grant.fetch({ ...input, unwanted })),
    /** The refresh token in the file. */
    kept(): string {
      const text = readFileSync(path, 'utf8');
      if (!text.startsWith('{')) return text.trim();
      return (JSON.parse(text) as { refresh_token: string }).refresh_token;
    },
  };
}

describe('a renewal by a refresh token', () => {
  test('sends it, and keeps the next one before the access token is given out', async () => {
    const { endpoint, fetch, folder, grant, kept } = await start('single_use');
    const mine = grant();
    const first = await fetch(mine);
    expect([endpoint.isValid(first), kept()]).toEqual([true, endpoint.refreshTokens[1]]);
    expect(endpoint.requests[0]?.body).toBe(
      `grant_type=refresh_token&refresh_token=${endpoint.refreshTokens[0] ?? ''}&client_id=client-sim&client_secret=secret-of-the-client`,
    );
    const second = await fetch(mine, first);
    expect([second !== first, kept()]).toEqual([true, endpoint.refreshTokens[2]]);
    expect(readdirSync(folder)).toEqual(['token']);
  });

  test('keeps the refresh token that the response does not replace', async () => {
    const { endpoint, fetch, grant, kept } = await start('same');
    const mine = grant();
    expect(await fetch(mine, await fetch(mine))).toBe(endpoint.issued[1]);
    expect(kept()).toBe(endpoint.refreshTokens[0]);
  });

  test('keeps the next refresh token also beside an access token that cannot be used', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    const body = '{"access_token":"not a token","refresh_token":"canary-next"}';
    endpoint.respond({ kind: 'answer', status: 200, body });
    expect(await fetch(grant())).toBe('invalid');
    expect(kept()).toBe('canary-next');
  });

  test('happens once for all who ask a process at a time', async () => {
    const { endpoint, fetch, grant } = await start('single_use');
    const mine = grant();
    const first = await Promise.all(Array.from({ length: 8 }, () => fetch(mine)));
    expect([new Set(first).size, endpoint.requests.length]).toEqual([1, 1]);
    const second = await Promise.all(first.map((token) => fetch(mine, token)));
    expect([new Set(second).size, endpoint.requests.length, endpoint.maxAtOnce]).toEqual([1, 2, 1]);
    expect(endpoint.refusedGrants).toBe(0);
  });

  test('ends with the gateway only when its response is on the disk', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    endpoint.respond({ kind: 'issue', afterMs: 300 });
    const mine = grant();
    const fetched = fetch(mine);
    await until(() => endpoint.requests.length === 1);
    await mine.close();
    expect(kept()).toBe(endpoint.refreshTokens[1]);
    expect(endpoint.isValid(await fetched)).toBe(true);
  });
});

describe('a lost response', () => {
  test('is asked for again with the same refresh token, where that works until its replacement is used', async () => {
    const { endpoint, fetch, grant, kept } = await start('until_next_is_used');
    endpoint.respond({ kind: 'lose' }, { kind: 'issue' });
    const mine = grant();
    expect(await fetch(mine)).toBe('unreachable');
    expect(kept()).toBe(endpoint.refreshTokens[0]);
    expect(await fetch(mine)).toBe(endpoint.issued[1]);
    expect([kept(), endpoint.refusedGrants]).toEqual([endpoint.refreshTokens[2], 0]);
  });

  test('at an endpoint that takes each refresh token once ends the grant', async () => {
    const { endpoint, fetch, grant } = await start('single_use');
    endpoint.respond({ kind: 'lose' }, { kind: 'issue' });
    const mine = grant();
    expect([await fetch(mine), await fetch(mine)]).toEqual(['unreachable', 'grant_ended']);
  });
});

describe('a refresh token that the endpoint refuses', () => {
  test('is not sent again, until there is another one in the file', async () => {
    const { endpoint, fetch, grant, kept, path, said } = await start('single_use');
    const mine = grant();
    const next = endpoint.authorize();
    for (let n = 0; n < 3; n += 1) expect(await fetch(mine)).toBe('grant_ended');
    expect(endpoint.requests).toHaveLength(1);
    expect(said).toEqual([
      expect.stringMatching(/^error: a refresh token is not valid any more: authorize the client/),
    ]);
    writeFileSync(path, `${endpoint.authorize()}\n`);
    expect(next).not.toBe(kept());
    expect(await fetch(mine)).toBe(endpoint.issued[0]);
  });

  test('has ended, for no stated time, also while somebody replaces it', async () => {
    const { endpoint, grant, input, path } = await start('single_use');
    const mine = grant();
    const headers = { 'Retry-After': '600' };
    endpoint.respond({ kind: 'answer', status: 400, body: '{"error":"invalid_grant"}', headers });
    const ended = { kind: 'failed', fault: 'grant_ended', statedMs: null };
    expect(await mine.fetch(input)).toEqual(ended);
    writeFileSync(path, '');
    expect(await mine.fetch(input)).toEqual(ended);
    rmSync(path);
    expect(await mine.fetch(input)).toEqual(ended);
  });
});

describe('a refresh token’s file that cannot be replaced', () => {
  test('keeps its token: the endpoint is not asked', async () => {
    const { endpoint, fetch, fillDisk, emptyDisk, folder, grant } = await start('single_use');
    fillDisk();
    expect(await fetch(grant())).toBe('unwritable');
    expect(endpoint.requests).toHaveLength(0);
    emptyDisk();
    expect(await fetch(grant())).toBe(endpoint.issued[0]);
    expect(await fetch(grant({ path: '/proc/sys/kernel/ostype' }))).toBe('unwritable');
    expect(await fetch(grant({ path: join(folder, 'none') }))).toBe('missing');
  });

  test('after an exchange is reported, and the access token is used', async () => {
    const { endpoint, fetch, fillDisk, grant, kept, said } = await start('single_use');
    const filling: SendTokenRequest = async (...request) => {
      const response = await ask(...request);
      fillDisk();
      return response;
    };
    expect(endpoint.isValid(await fetch(grant({ send: filling })))).toBe(true);
    expect([kept(), said]).toEqual([
      endpoint.refreshTokens[0],
      ['unwritable', expect.stringMatching(/^error: a new refresh token could not be written/)],
    ]);
  });
});

test('no refresh token is in a log line', async () => {
  const { endpoint, fetch, grant, path, said } = await start('single_use');
  const mine = grant();
  await fetch(mine, await fetch(mine));
  writeFileSync(path, endpoint.refreshTokens[0] ?? '');
  expect(await fetch(mine, endpoint.issued[1])).toBe('grant_ended');
  expect(said).toHaveLength(1);
  expect(said.join()).not.toContain('canary');
});
