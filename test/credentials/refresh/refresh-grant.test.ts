/** Renewals by refresh tokens that are replaced with each use: what is asked, what is on the disk when, and what a mishap costs. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from '@jest/globals';
import { systemClock } from '../../../src/clock.ts';
import type { SendTokenRequest } from '../../../src/credentials/token-endpoint.ts';
import { lockMs } from '../../../src/credentials/token-file.ts';
import { createEndpoint } from '../../../src/dispatch/one-request.ts';
import type { RefreshRule, TokenEndpointOptions } from '../../support/token-endpoint.ts';
import { until } from '../../support/until.ts';
import { startGrants, type GrantWorld } from './grants.ts';

let world: GrantWorld;
afterEach(() => world.close());
const start = async (refresh: RefreshRule, more: TokenEndpointOptions = {}): Promise<GrantWorld> =>
  (world = await startGrants({ refresh, isRotating: true, ...more }));
const nextFile = (): string => `${world.path}.new`;
/** A folder in the place of the new file, as a disk that takes no more. */
const fillDisk = (): unknown => mkdirSync(join(nextFile(), 'x'), { recursive: true });
const ask = createEndpoint({ clock: systemClock });
/** Asks the endpoint, after whose first response the disk is full. */
const filling: SendTokenRequest = async (...request) => {
  const response = await ask(...request);
  if (world.endpoint.requests.length === 1) fillDisk();
  return response;
};

describe('a renewal by a refresh token', () => {
  test('sends it, and keeps the next one before the access token is given out', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    const mine = grant();
    const first = await fetch(mine);
    expect([endpoint.isValid(first), await kept()]).toEqual([true, endpoint.refreshTokens[1]]);
    expect(endpoint.requests[0]?.body).toBe(
      `grant_type=refresh_token&refresh_token=${endpoint.refreshTokens[0] ?? ''}&client_id=client-sim&client_secret=secret-of-the-client`,
    );
    const second = await fetch(mine, first);
    expect([second !== first, await kept()]).toEqual([true, endpoint.refreshTokens[2]]);
    expect(readdirSync(world.folder)).toEqual(['token']);
  });

  test('keeps the refresh token that the response does not replace', async () => {
    const { endpoint, fetch, grant, kept } = await start('same');
    const mine = grant();
    expect(await fetch(mine, await fetch(mine))).toBe(endpoint.issued[1]);
    expect(await kept()).toBe(endpoint.refreshTokens[0]);
  });

  test('keeps the next refresh token also beside an access token that cannot be used', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    const body = '{"access_token":"not a token","refresh_token":"canary-next"}';
    endpoint.respond({ kind: 'answer', status: 200, body });
    expect(await fetch(grant())).toBe('invalid');
    expect(await kept()).toBe('canary-next');
  });

  test('happens once for all processes that share the file, without Redis: the others read the new token from it', async () => {
    const { endpoint, fetch, grant } = await start('single_use');
    const many = Array.from({ length: 8 }, () => grant());
    const first = await Promise.all(many.map((each) => fetch(each)));
    expect([new Set(first).size, endpoint.requests.length]).toEqual([1, 1]);
    const second = await Promise.all(many.map((each) => fetch(each, first[0])));
    expect([new Set(second).size, endpoint.requests.length, endpoint.maxAtOnce]).toEqual([1, 2, 1]);
    expect(endpoint.refusedGrants).toBe(0);
  });

  test('takes the token of another process that renewed while this one waited', async () => {
    const { endpoint, fetch, grant } = await start('single_use');
    endpoint.respond({ kind: 'issue', afterMs: 300 });
    const first = fetch(grant());
    await until(() => endpoint.requests.length === 1);
    expect(await fetch(grant())).toBe(await first);
    expect(endpoint.requests).toHaveLength(1);
  });

  test('ends with the gateway only when its response is on the disk', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    endpoint.respond({ kind: 'issue', afterMs: 300 });
    const mine = grant();
    const fetched = fetch(mine);
    await until(() => endpoint.requests.length === 1);
    await mine.close();
    expect(await kept()).toBe(endpoint.refreshTokens[1]);
    expect(endpoint.isValid(await fetched)).toBe(true);
  });
});

describe('a lost response', () => {
  test('is asked for again with the same refresh token, where that works until its replacement is used', async () => {
    const { endpoint, fetch, grant, kept } = await start('until_next_is_used');
    endpoint.respond({ kind: 'lose' }, { kind: 'issue' });
    const mine = grant();
    expect(await fetch(mine)).toBe('unreachable');
    expect(await kept()).toBe(endpoint.refreshTokens[0]);
    expect(await fetch(mine)).toBe(endpoint.issued[1]);
    expect([await kept(), endpoint.refusedGrants]).toEqual([endpoint.refreshTokens[2], 0]);
  });

  test('of a process that is killed between response and file is asked for again by the next one', async () => {
    const { endpoint, fetch, grant, kept, client } = await start('until_next_is_used');
    const script = join(import.meta.dirname, 'killed.ts');
    const child = spawn(process.execPath, [script, JSON.stringify(client)], { stdio: 'inherit' });
    const [, signal] = (await once(child, 'exit')) as [number | null, string | null];
    expect([signal, endpoint.issued.length]).toEqual(['SIGKILL', 1]);
    expect(await kept()).toBe(endpoint.refreshTokens[0]);
    // It left its lock, which is taken over when it is old.
    const longAgo = new Date(systemClock.now() - 2 * lockMs);
    utimesSync(join(world.folder, 'token.lock'), longAgo, longAgo);
    expect(await fetch(grant())).toBe(endpoint.issued[1]);
    expect([await kept(), endpoint.refusedGrants]).toEqual([endpoint.refreshTokens[2], 0]);
    expect(readdirSync(world.folder)).toEqual(['token']);
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
    const { endpoint, fetch, grant, kept, said } = await start('single_use');
    const mine = grant();
    const next = endpoint.authorize();
    for (let n = 0; n < 3; n += 1) expect(await fetch(mine)).toBe('grant_ended');
    expect(endpoint.requests).toHaveLength(1);
    expect(said).toEqual([
      expect.stringMatching(/^error: a refresh token is not valid any more: authorize the client/),
    ]);
    writeFileSync(world.path, `${endpoint.authorize()}\n`);
    expect(next).not.toBe(await kept());
    expect(await fetch(mine)).toBe(endpoint.issued[0]);
  });

  test('is not the end when another process has replaced it meanwhile', async () => {
    const { endpoint, fetch, grant, path } = await start('single_use');
    let asked = 0;
    const late: SendTokenRequest = async (request, way, signal) => {
      asked += 1;
      if (asked > 1) return ask(request, way, signal);
      writeFileSync(path, endpoint.authorize());
      return {
        kind: 'answered',
        reply: { status: 400, fields: new Map(), body: '{"error":"invalid_grant"}' },
      };
    };
    expect(await fetch(grant({ send: late }))).toBe(endpoint.issued[0]);
  });

  test('counts as another one behind a link that leads to another file', async () => {
    const { endpoint, fetch, grant, folder } = await start('single_use');
    mkdirSync(join(folder, 'v1'));
    mkdirSync(join(folder, 'v2'));
    writeFileSync(join(folder, 'v1', 'token'), 'of-no-worth');
    writeFileSync(join(folder, 'v2', 'token'), endpoint.refreshTokens[0] ?? '');
    symlinkSync('v1', join(folder, 'data'));
    const mine = grant({ path: join(folder, 'data', 'token') });
    expect(await mine.hasChanged()).toBe(true);
    expect(await mine.hasChanged()).toBe(false);
    symlinkSync('v2', join(folder, 'data_next'));
    renameSync(join(folder, 'data_next'), join(folder, 'data'));
    expect(await mine.hasChanged()).toBe(true);
    expect(await fetch(mine)).toBe(endpoint.issued[0]);
    // What this process wrote is no news for it.
    expect(await mine.hasChanged()).toBe(false);
    expect(readFileSync(join(folder, 'v2', 'token'), 'utf8')).toContain(endpoint.refreshTokens[1]);
  });
});

describe('a refresh token’s file that cannot be replaced', () => {
  test('keeps its token: the endpoint is not asked', async () => {
    const { endpoint, fetch, grant } = await start('single_use');
    fillDisk();
    expect(await fetch(grant())).toBe('unwritable');
    expect(endpoint.requests).toHaveLength(0);
    rmSync(nextFile(), { recursive: true });
    expect(await fetch(grant())).toBe(endpoint.issued[0]);
    expect(await fetch(grant({ path: '/proc/sys/kernel/ostype' }))).toBe('unwritable');
    expect(await fetch(grant({ path: join(world.folder, 'none') }))).toBe('missing');
  });

  test('after an exchange is written with the next one or at the end, and renewals go on from memory until then', async () => {
    const { endpoint, fetch, grant, kept, said } = await start('single_use');
    const mine = grant({ send: filling });
    const first = await fetch(mine);
    expect([endpoint.isValid(first), await kept()]).toEqual([true, endpoint.refreshTokens[0]]);
    expect(said).toContain('unwritable');
    const second = await fetch(mine, first);
    expect([endpoint.isValid(second), endpoint.refusedGrants]).toEqual([true, 0]);
    rmSync(nextFile(), { recursive: true });
    await mine.close();
    expect(await kept()).toBe(endpoint.refreshTokens[2]);
  });

  test('and was changed by somebody else meanwhile: what was written by hand goes before the memory', async () => {
    const { endpoint, fetch, grant, kept } = await start('single_use');
    const mine = grant({ send: filling });
    const first = await fetch(mine);
    const next = endpoint.authorize();
    writeFileSync(world.path, next);
    rmSync(nextFile(), { recursive: true });
    expect(endpoint.isValid(await fetch(mine, first))).toBe(true);
    expect([await kept(), endpoint.refusedGrants]).toEqual([endpoint.refreshTokens.at(-1), 0]);
  });
});

test('no refresh token is in a log line', async () => {
  const { endpoint, fetch, grant, said } = await start('single_use');
  const mine = grant();
  await fetch(mine, await fetch(mine));
  writeFileSync(world.path, endpoint.refreshTokens[0] ?? '');
  expect(await fetch(mine, endpoint.issued[1])).toBe('grant_ended');
  expect(said).toHaveLength(1);
  expect(said.join()).not.toContain('canary');
});
