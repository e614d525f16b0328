/**
 * The mistakes of a first evening, each made on purpose and as a user makes it, with processes of their own. What Sluice says must be
 * enough to mend each one: the test holds the words that name the cause and what to do. Those about limits are in
 * `mistakes-limits.test.ts`.
 */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { afterEach, describe, expect, test } from '@jest/globals';
import { freePort } from '../support/free-port.ts';
import { rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';
import { startRedis, type RedisServer } from '../support/redis.ts';
import {
  call,
  clean,
  fileOf,
  hash,
  key,
  npmStart,
  privacy,
  said,
  serve,
  server,
  sluice,
} from './new-user.ts';
import { found } from './started.ts';

const opened: (RawUpstream | { close(): Promise<void> })[] = [];
afterEach(async () => {
  await clean();
  for (const one of opened.splice(0)) await one.close();
});

const pem = (name: string): string =>
  readFileSync(new URL(`../fixtures/tls/upstream.test.${name}`, import.meta.url), 'utf8');

async function upstream(...wanted: Parameters<typeof rawUpstream>): Promise<string> {
  const one = await rawUpstream(...wanted);
  opened.push(one);
  return one.origin;
}

async function redis(...args: readonly string[]): Promise<RedisServer> {
  const one = await startRedis({ args });
  opened.push({ close: () => one.stop() });
  return one;
}

const workspaces = `workspaces: { acme: { keys: ["${hash}"] } }`;
const someUpstream = 'upstreams: { up: { origins: ["https://up.example"] } }';

describe('an upstream that cannot be reached', () => {
  test('says why in the response, the log, the metric and `check --connect`, in words of each cause', async () => {
    const plain = await upstream(async (connection) => {
      await connection.until((received) => received.length > 0);
      connection.send('HTTP/1.1 400 Bad Request\r\n\r\n');
    });
    const reset = await upstream(async (connection) => {
      await connection.requests(1);
      connection.socket.resetAndDestroy();
    });
    const inNetwork = await upstream(() => {});
    const wrong = {
      refused: [
        `http://127.0.0.1:${await freePort()}`,
        /was refused.*does it run, and are host and port of its origin right\?/,
      ],
      dns: [
        'https://no-such-name.invalid',
        /name of the upstream could not be resolved: is its origin right/,
      ],
      certificate: [
        await upstream(() => {}, { tls: { key: pem('key'), cert: pem('crt') } }),
        /certificate of the upstream is not trusted.*`caFile` of the upstream names further authorities/,
      ],
      reset: [reset, /ended the connection before its response was complete/],
      timeout: [await upstream(() => {}), /did not begin its response within `timeouts.headSeconds`/],
      protocol: [plain.replace('http:', 'https:'), /is the scheme of its origin \(http or https\) right\?/],
    } as const;
    const lines = Object.entries(wrong).map(
      ([name, [origin]]) =>
        `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: true, timeouts: { connectSeconds: 60, headSeconds: 1 } }`,
    );
    const outside = inNetwork.replace('127.0.0.1', 'localhost');
    lines.push(`  outside: { origins: ["${outside}"], allowPrivateAddresses: ["10.0.0.0/8"] }`);
    const { process, url, adminUrl, path } = await serve(
      `${server}\n${privacy}\nupstreams:\n${lines.join('\n')}\n${workspaces}`,
    );
    const trial = said(sluice('check', '--connect', '--config', path));
    for (const [reason, [, words]] of Object.entries(wrong)) {
      const { detail } = await call(`${url}/via/${reason}/x`);
      expect(detail).toMatch(words);
      expect(detail).toContain(`Reason: ${reason}.`);
      expect(await process.saying(`"reason":"${reason}"`)).toContain(`"upstream":"${reason}"`);
      const metrics = await (await fetch(`${adminUrl}/metrics`)).text();
      const series = `sluice_upstream_failures_total{upstream="${reason}",reason="${reason}"}`;
      expect(Number(metrics.split(`${series} `)[1]?.split('\n')[0])).toBeGreaterThan(0);
    }
    // No `reason`: nothing failed on the way there.
    const denied =
      /a private one that its `allowPrivateAddresses` does not allow, or one that is never connected to/;
    const refusal = await call(`${url}/via/outside/x`);
    expect(refusal).toMatchObject({ code: 'target_address_denied', detail: expect.stringMatching(denied) });
    const { code, screen } = await trial;
    expect(code).toBe(1);
    expect(found(/^ +FAILED: (outside .*)$/m, screen)).toMatch(denied);
    for (const [reason, [, words]] of Object.entries(wrong)) {
      expect(found(new RegExp(`^ +FAILED: (${reason} .*)$`, 'm'), screen)).toMatch(words);
    }
  });
});

describe('a Redis that cannot be used', () => {
  /** A busy machine keeps Redis from answering for longer than the default. */
  const file = (url: string): string =>
    `${server}\nredis: { url: "${url}", commandTimeoutMs: 5000 }\n${privacy}\n${someUpstream}\n${workspaces}\n`;

  test('is named with its cause in the log at the start, in readiness and by `check --connect`', async () => {
    const locked = await redis('--requirepass', 'canary-right');
    const plain = await redis();
    const copy = await redis('--replicaof', '127.0.0.1', String(plain.port));
    const wrong = [
      [
        `redis://:canary-wrong@127.0.0.1:${locked.port}`,
        'password',
        /refuses the user or the password of redis.url/,
      ],
      [locked.url, 'password', /or wants one where none is given: correct the URL,/],
      ['redis://no-such-name.invalid', 'name', /host name of redis.url cannot be resolved: correct it/],
      [
        `redis://127.0.0.1:${await freePort()}`,
        'refused',
        /Nothing takes connections .*: start Redis, or correct host and port of the URL/,
      ],
      [plain.url.replace('redis:', 'rediss:'), 'tls', /write redis:\/\/ instead of rediss:\/\//],
      [copy.url, 'read_only', /redis.url must lead to the primary, or to Sentinels/],
    ] as const;
    await Promise.all(
      wrong.map(async ([redisUrl, reason, words]) => {
        const { process, adminUrl, path } = await serve(file(redisUrl));
        const line = found(
          new RegExp(`^(.*"reason":"${reason}".*)$`, 'm'),
          await process.saying(`"reason":"${reason}"`),
        );
        expect(line).toMatch(words);
        expect(process.printed()).not.toContain('canary');
        expect(await (await fetch(`${adminUrl}/readyz`)).text()).toMatch(words);
        const { code, screen } = await said(sluice('check', '--connect', '--config', path));
        expect(code).toBe(1);
        expect(found(/^ +FAILED: (redis .*)$/m, screen)).toMatch(words);
      }),
    );
  });

  test('stops the start when it evicts keys', async () => {
    const evicting = await redis('--maxmemory-policy', 'allkeys-lru');
    const path = await fileOf(file(evicting.url));
    expect(await said(sluice('serve', '--config', path))).toEqual({
      code: 1,
      screen: expect.stringMatching(/^Sluice could not start: .*set maxmemory-policy to noeviction\.$/m),
    });
  });

  test('is not looked for by `check` alone, which says so', async () => {
    const path = await fileOf(file('redis://:canary@127.0.0.1:1'));
    const { code, screen } = await said(sluice('check', '--config', path));
    expect(code).toBe(0);
    expect(screen).toContain('connections: not tried; with --connect Redis, origins and credentials are');
  });
});

test('a reload says which of the changed keys take effect at the next start only', async () => {
  const text = (bytes: number, labelKey: string, whenDown: string): string =>
    `server: { host: 127.0.0.1, adminHost: 127.0.0.1, port: 0, adminPort: 0, maxBodyBytes: ${bytes} }\n` +
    `redis: { url: "redis://127.0.0.1:1", whenDown: ${whenDown} }\nprivacy: { labelKey: "${labelKey}" }\n${someUpstream}\n${workspaces}`;
  const { process, path } = await serve(text(1_000, 'a label key for tests only', 'local'));
  await writeFile(path, text(2_000, 'another label key for tests', 'deny'));
  const printed = await process.saying('restart Sluice');
  const keys = found(
    /^.*"keys":"(.*)","message":"these keys were changed and take effect at the next start/m,
    printed,
  );
  for (const name of ['server.maxBodyBytes', 'redis.whenDown', 'privacy.labelKey'])
    expect(keys).toContain(name);
});

describe('npm start', () => {
  test('serves responses that say where the key goes and which routes there are', async () => {
    const demo = npmStart('--port', '0', '--admin-port', '0');
    const text = await demo.saying('Ctrl-C ends this');
    const url = found(/data port +(\S+)/, text);
    const good = { 'sluice-key': found(/API key +(\S+)/, text) };
    const wanted = 'as `Authorization: Bearer slc_…`, or in the field `Sluice-Key`';
    for (const fields of [{ 'sluice-key': '' }, { 'sluice-key': key }, { authorization: 'Bearer sk-123' }])
      expect(await call(`${url}/via/openai/v1/models`, fields)).toMatchObject({
        status: 401,
        detail: expect.stringContaining(wanted),
      });
    expect(await call(`${url}/v1/models`, good)).toMatchObject({
      status: 404,
      detail: expect.stringMatching(/\/proxy\?target=.*\/via\/\{upstream\}\/\{path\}.*GET \/activity/),
    });
  });

  test('refuses --calls, which its --serve would drop, and names the command for a burst', async () => {
    const { code, screen } = await said(npmStart('--calls', '9'));
    expect(code).toBe(2);
    expect(screen).toMatch(/^--calls and --serve exclude each other: --serve sends no burst\.$/m);
    expect(screen).toMatch(/sluice demo \[--calls N \| --serve\]/);
  });
});

describe('sluice serve', () => {
  test('says how to write a first file where its file is missing', async () => {
    const path = await fileOf(null);
    const { code, screen } = await said(sluice('serve', '--config', path));
    expect(code).toBe(1);
    expect(screen).toContain('the file does not exist');
    expect(screen).toMatch(/run `npx sluice init` to write one .* or name another file with --config/);
  });

  test('writes nothing but JSON, also of a refused reload, and a last line when it ends', async () => {
    const text = `${server}\n${someUpstream.replace('{ origins', '{ kind: language-model, origins')}\n`;
    const whole = `${text}workspaces: { acme: { keys: ["${hash}"], requestsPerMinute: none } }\n`;
    const { process, path } = await serve(whole);
    await writeFile(path, whole.replace('kind:', 'kond:'));
    const admin = async (asked: string) => {
      const adminPort = found(/"adminPort":(\d+)/, await process.saying('"message":"serving"'));
      return (await fetch(`http://127.0.0.1:${adminPort}/${asked}`)).text();
    };
    const scrape = () => admin('metrics');
    const at = async () =>
      Number(/^sluice_config_last_reload_success_timestamp_seconds (\S+)$/m.exec(await scrape())?.[1]);
    const startedAt = await at();
    expect(startedAt).toBeGreaterThan(1e9);
    expect(await process.saying('configuration refused')).toMatch(/upstreams\.up\.kond: is not a known key/);
    expect(await scrape()).toMatch(/^sluice_config_last_reload_successful 0$/m);
    expect(await admin('activity')).toMatch(
      /"Your last change is not in force\."[^}]*Your configuration was refused at \d\d:\d\d.UTC, line \d+\./,
    );
    expect(await at()).toBe(startedAt);
    await writeFile(path, whole.replace('none', '5'));
    await process.saying('configuration reloaded');
    expect(await scrape()).toMatch(/^sluice_config_last_reload_successful 1$/m);
    expect(await at()).toBeGreaterThan(startedAt);
    process.signal('SIGTERM', 'group');
    expect(await process.ended).toBe(0);
    const lines = process
      .printed()
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as { readonly message: unknown; readonly time: string });
    for (const { time } of lines) expect(Date.parse(time)).not.toBeNaN();
    expect(lines.at(-1)?.message).toBe('ended');
  });
});
