/**
 * Mistakes about limits and names, each made on purpose with processes of their own: a refusal says what holds the call and what helps;
 * a command tells whose a label or a key is, and opens what an upstream has closed. The others are in `mistakes.test.ts`.
 */
import { afterEach, describe, expect, test } from '@jest/globals';
import { answering, rawUpstream, type RawUpstream, type Script } from '../support/raw-upstream.ts';
import { startRedis } from '../support/redis.ts';
import { until } from '../support/until.ts';
import { call, clean, fileOf, hash, privacy, said, serve, server, sluice } from './new-user.ts';
import { found } from './started.ts';

const opened: { close(): Promise<void> }[] = [];
afterEach(async () => {
  await clean();
  for (const one of opened.splice(0)) await one.close();
});

async function upstream(script: Script): Promise<RawUpstream> {
  const one = await rawUpstream(script);
  opened.push(one);
  return one;
}

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
const throttled = (seconds: number): string =>
  `HTTP/1.1 429 Too Many Requests\r\nretry-after: ${seconds}\r\ncontent-length: 0\r\n\r\n`;

test('a refusal names what holds the call: own ceiling, whose day, closed upstream, calls in flight, the line', async () => {
  const { origin } = await upstream(answering(ok));
  const closing = await upstream(answering(throttled(3_600)));
  const silent = await upstream(() => {});
  const yaml = (name: string, at: string, limits: string): string =>
    `  ${name}: { origins: ["${at}"], allowPrivateAddresses: true, limits: { ${limits} } }`;
  const { process, url } = await serve(
    [
      server,
      privacy,
      'upstreams:',
      yaml('minute', origin, 'requestsPerMinute: 100'),
      yaml('day', origin, 'requestsPerDay: 100'),
      yaml('their-day', origin, 'requestsPerDay: 1, learn: false'),
      yaml('closed', closing.origin, ''),
      yaml('serial', silent.origin, 'maxInFlight: 1, maxQueued: 1'),
      'workspaces:',
      `  acme: { keys: ["${hash}"], requestsPerMinute: { minute: 1 }, requestsPerDay: { day: 1, their-day: none } }`,
    ].join('\n'),
  );
  const held = {
    minute: [
      'ceiling_minute',
      /workspace has used up its requests per minute .* Prefer: wait=\d+ lets it wait/,
    ],
    day: ['ceiling_day', /workspace has used up its requests per day/],
    'their-day': ['upstream_day', /upstream's quota of the day is used up/],
    closed: [
      'closed',
      /upstream has named a time before which nothing may be sent; .* the operator can lift it/,
    ],
  } as const;
  for (const [name, [heldBy, words]] of Object.entries(held)) {
    await call(`${url}/via/${name}/x`);
    expect(await call(`${url}/via/${name}/x`)).toMatchObject({
      status: 429,
      heldBy,
      detail: expect.stringMatching(words),
    });
    expect(await process.saying(`"heldBy":"${heldBy}"`)).toContain(`"upstream":"${name}"`);
  }
  const underWay = call(`${url}/via/serial/x`).catch(() => {});
  await until(() => silent.connections.length === 1);
  expect(await call(`${url}/via/serial/x`, { prefer: 'wait=1' })).toMatchObject({
    heldBy: 'serialized',
    detail: expect.stringContaining('`maxInFlight`'),
  });
  const waiting = call(`${url}/via/serial/x`, { prefer: 'wait=60' }).catch(() => {});
  await until(async () => (await call(`${url}/via/serial/x`, { prefer: 'wait=1' })).code === 'queue_full');
  expect(await call(`${url}/via/serial/x`, { prefer: 'wait=60' })).toMatchObject({
    heldBy: 'queue',
    detail: expect.stringContaining('send fewer at once'),
  });
  await clean();
  await Promise.all([underWay, waiting]);
});

describe('names in metrics and logs', () => {
  const file = (more: string): string =>
    `${more}\nupstreams: { up: { origins: ["https://up.example"] } }\nworkspaces: { acme: { keys: ["${hash}"] } }\n`;

  test('lead back to a workspace by `sluice labels`, a hash by `sluice keys list`', async () => {
    const path = await fileOf(file(privacy));
    const list = ['keys', 'list', '--config', path, '--find'];
    const [labels, keys, nobody] = await Promise.all(
      [
        ['labels', '--config', path],
        [...list, hash.slice(0, 15)],
        [...list, 'ffffffffffff'],
      ].map((args) => said(sluice(...args))),
    );
    expect(labels?.screen).toMatch(/^label +workspace +keys\nw_[0-9a-f]{16} +"acme" +sha256:[0-9a-f]{12}…$/m);
    expect(found(/^"acme" +- +(\S+) +yes$/m, keys?.screen ?? '')).toBe(hash);
    expect(nobody).toEqual({
      code: 1,
      screen: expect.stringMatching(
        /^No key of the file has such a hash or id\. 1 of them have no id .*sha256sum/,
      ),
    });
  });

  test('that end with each start are said to lead nowhere, with the key to set', async () => {
    const { code, screen } = await said(sluice('labels', '--config', await fileOf(file(''))));
    expect([code, screen]).toEqual([
      1,
      expect.stringMatching(/^privacy\.labelKey is not set: .* Set it\.$/m),
    ]);
  });
});

test('an upstream closed for a day, with Redis also over a restart, is opened by the command that the refusal names', async () => {
  const redis = await startRedis();
  opened.push({ close: () => redis.stop() });
  let count = 0;
  const { origin } = await upstream(async (connection) => {
    for (let at = 1; ; at += 1) {
      await connection.requests(at);
      if (connection.socket.destroyed) return;
      count += 1;
      connection.send(count === 1 ? throttled(86_400) : ok);
    }
  });
  const yaml = `${server}\nredis: { url: "${redis.url}", commandTimeoutMs: 2000 }\n${privacy}\nupstreams: { up: { origins: ["${origin}"], allowPrivateAddresses: true } }\nworkspaces: { acme: { keys: ["${hash}"] } }\n`;
  const before = await serve(yaml);
  expect((await call(`${before.url}/via/up/x`)).status).toBe(429);
  before.process.signal('SIGTERM', 'group');
  await before.process.ended;
  const { url, adminUrl } = await serve(yaml);
  expect(await call(`${url}/via/up/x`)).toMatchObject({
    heldBy: 'closed',
    detail: expect.stringContaining('`sluice open`'),
  });
  const open = async (name: string, admin: string) =>
    said(sluice('open', '--upstream', name, '--admin', admin));
  expect((await said(sluice('open'))).screen).toMatch(
    /^--upstream is missing\.\n\nUsage: sluice open --upstream NAME/,
  );
  const wrong = [
    ['upp', adminUrl, /^No upstream of the configuration has this name: did you mean up\?$/m],
    ['nothing', adminUrl, /^No upstream of the configuration has this name\.$/m],
    [
      'up',
      'http://127.0.0.1:1',
      /^No Sluice answers at .*: name its admin port with --admin http:\/\/HOST:PORT\.$/m,
    ],
    ['up', url, /^Asked was .*: --admin http:\/\/HOST:PORT names the admin port of a Sluice\.$/m],
  ] as const;
  const failed = await Promise.all(wrong.map(([name, admin]) => open(name, admin)));
  expect(failed).toEqual(wrong.map(([, , words]) => ({ code: 1, screen: expect.stringMatching(words) })));
  expect(await open('up', adminUrl)).toEqual({
    code: 0,
    screen: 'up: what its responses had closed is open again, on all replicas\n',
  });
  expect((await call(`${url}/via/up/x`)).status).toBe(200);
});
