/** Who may ask the admin port: no web page, by whatever name it reaches it, and for commands only who has the token. */
import { afterEach, describe, expect, test } from '@jest/globals';
import { addControlRoutes, type GivenCommand } from '../../src/ingress/control-routes.ts';
import { createAdminServer, type AdminServer } from '../../src/ingress/admin-server.ts';
import { connectRaw } from '../support/raw-client.ts';

let admin: AdminServer | null = null;
let port = 0;
const acted: string[] = [];
const commands: GivenCommand[] = [];

afterEach(async () => {
  await admin?.close();
  acted.length = 0;
  commands.length = 0;
});

const act = (verb: string) => (upstream: string) => {
  acted.push(`${verb} ${upstream}`);
  return Promise.resolve('done' as const);
};

async function start(adminNames: readonly string[] = [], adminToken: string | null = null): Promise<void> {
  admin = createAdminServer({
    host: '127.0.0.1',
    port: 0,
    adminNames,
    adminToken,
    readiness: () => ({ isDraining: false, trouble: null, contact: { kind: 'reached' } }),
    metrics: () => Promise.resolve({ contentType: 'text/plain', body: '' }),
    activity: () => Promise.resolve({}),
    routes: [
      (app) =>
        addControlRoutes(
          app,
          { upstreams: () => ['api'], open: act('open'), pause: act('pause'), resume: act('resume') },
          (command) => void commands.push(command),
        ),
    ],
    onBug: () => {},
  });
  ({ port } = await admin.listen());
}

/** Status, code of the problem, if it is one, and the fields. */
async function asked(line: string, fields: readonly string[]) {
  const client = await connectRaw(port);
  await client.send([line, ...fields, 'Connection: close', '', ''].join('\r\n'));
  const { bytes } = await client.closed;
  const text = bytes.toString('latin1');
  const code = /"code":"([a-z_]+)"/.exec(text)?.[1] ?? null;
  return { status: Number(text.slice(9, 12)), code, text };
}
const get = async (path: string, fields: readonly string[], version = '1.1') => {
  const { status, code } = await asked(`GET ${path} HTTP/${version}`, fields);
  return { status, code };
};
const post = async (path: string, fields: readonly string[]) => {
  const { status, code } = await asked(`POST ${path} HTTP/1.1`, ['Content-Length: 0', ...fields]);
  return { status, code };
};

const fine = { status: 200, code: null };
const foreignName = { status: 403, code: 'admin_host_forbidden' };
const foreignPage = { status: 403, code: 'admin_origin_forbidden' };

describe('a request to the admin port', () => {
  test.each([
    'localhost',
    'LocalHost:9090',
    '127.0.0.1',
    '127.0.0.1:9090',
    '10.2.3.4:9090',
    '192.168.0.1',
    '[::1]',
    '[::1]:9090',
    'sluice-admin',
    'SLUICE-ADMIN:9090',
    'sluice-admin.ns.svc.cluster.local',
    'sluice-admin.ns.svc.cluster.local.',
  ])('names it by an address, localhost or a configured name: %s', async (host) => {
    await start(['sluice-admin', 'sluice-admin.ns.svc.cluster.local']);
    for (const path of ['/livez', '/readyz', '/metrics', '/activity', '/'])
      expect(await get(path, [`Host: ${host}`])).toEqual(fine);
  });

  test.each([
    'rebind.evil.example',
    'rebind.evil.example:9090',
    'localhost.evil.example',
    'evil-localhost',
    'notlocalhost',
    '127.0.0.1.nip.io',
    '127.0.0.1.',
    '127.1',
    '2130706433',
    '0x7f.0.0.1',
    '127.0.0.1:9090@evil.example',
    '::1',
    '[::1',
    '[evil]',
    'sluice-admin.evil.example',
    'xsluice-admin',
    'h',
    '',
  ])('is refused by any other name, on every route: %j', async (host) => {
    await start(['sluice-admin']);
    for (const path of ['/livez', '/readyz', '/metrics', '/activity', '/', '/page/events', '/nowhere'])
      expect(await get(path, [`Host: ${host}`])).toEqual(foreignName);
    expect(await post('/upstreams/api/pause?seconds=9', [`Host: ${host}`, 'Sluice-Admin: yes'])).toEqual(
      foreignName,
    );
    expect(acted).toEqual([]);
  });

  test('is refused when it names two hosts, in either order', async () => {
    await start();
    for (const hosts of [
      ['Host: localhost', 'Host: evil.example'],
      ['Host: evil.example', 'Host: localhost'],
      ['Host: localhost', 'Host: localhost'],
    ])
      expect((await get('/activity', hosts)).status).not.toBe(200);
  });

  test('is refused when its target names a host of its own, whatever its Host says', async () => {
    await start();
    for (const target of [
      'http://evil.example/activity',
      'HTTP://evil.example/livez',
      'http://localhost/activity',
    ])
      for (const host of ['localhost', 'evil.example'])
        expect(await get(target, [`Host: ${host}`])).toEqual(foreignName);
  });

  test('needs no name as an HTTP/1.0 probe, which no browser sends, and for nothing else', async () => {
    await start();
    expect(await get('/livez', [], '1.0')).toEqual(fine);
    expect(await get('/readyz', [], '1.0')).toEqual(fine);
    for (const path of ['/metrics', '/activity', '/'])
      expect(await get(path, [], '1.0')).toEqual(foreignName);
  });

  test.each([
    ['Sec-Fetch-Site: cross-site'],
    ['sec-fetch-site: Cross-Site'],
    ['Sec-Fetch-Site: none', 'Sec-Fetch-Site: cross-site'],
    ['Origin: https://evil.example'],
    ['Origin: null'],
    ['Origin: '],
    ['Origin: http://localhost:3000'],
    ['Origin: http://localhost'],
    ['Origin: http://127.0.0.1:9090'],
    ['Origin: http://localhost:9090.evil.example'],
    ['Origin: http://localhost:9090', 'Origin: https://evil.example'],
    ['Origin: file://localhost:9090'],
  ])('is refused from a page of another site: %s', async (...fields) => {
    await start(['sluice-admin']);
    const all = ['Host: localhost:9090', 'Sluice-Admin: yes', ...fields];
    expect(await get('/activity', all)).toEqual(foreignPage);
    expect(await post('/upstreams/api/pause?seconds=9', all)).toEqual(foreignPage);
    expect(acted).toEqual([]);
  });

  test.each([
    ['Origin: http://localhost:9090'],
    ['Origin: https://LOCALHOST:9090'],
    ['Origin: https://sluice-admin'],
    ['Sec-Fetch-Site: same-origin', 'Origin: http://localhost:9090'],
    ['Sec-Fetch-Site: none'],
    ['Referer: https://evil.example/'],
  ])('passes from its own pages and from no page: %s', async (...fields) => {
    await start(['sluice-admin']);
    expect(await get('/activity', ['Host: localhost:9090', ...fields])).toEqual(fine);
  });

  test('is told what to do, as a problem document', async () => {
    await start();
    const { text } = await asked('GET /metrics HTTP/1.1', ['Host: prometheus.example']);
    expect(text).toContain('Content-Type: application/problem+json');
    expect(text).toContain('server.adminNames');
    expect(text.toLowerCase()).not.toContain('access-control-');
  });
});

describe('a command at the admin port', () => {
  const own = 'Host: 127.0.0.1:9090';
  const yes = 'Sluice-Admin: yes';
  const token = 'a-token-of-the-operator';

  test('carries a field that no form of a page can send', async () => {
    await start();
    const missing = { status: 403, code: 'admin_field_missing' };
    expect(await post('/upstreams/api/open', [own])).toEqual(missing);
    expect(await post('/upstreams/api/open', [own, 'Sluice-Admin: no'])).toEqual(missing);
    expect(await post('/anything', [own])).toEqual(missing);
    expect(await post('/upstreams/api/open', [own, yes])).toEqual(fine);
    expect(acted).toEqual(['open api']);
  });

  test.each([
    [],
    ['Authorization: Bearer '],
    ['Authorization: Bearer a-token-of-the-operatoR'],
    ['Authorization: Bearer a-token-of-the-operator2'],
    ['Authorization: Bearer a-token-of-the'],
    ['Authorization: a-token-of-the-operator'],
    ['Authorization: Basic a-token-of-the-operator'],
    ['Authorization: Bearer x', 'Authorization: Bearer a-token-of-the-operator'],
    ['Sluice-Key: a-token-of-the-operator'],
  ])('carries the token where one is configured, and not %j', async (...fields) => {
    await start([], token);
    const { status, code, text } = await asked('POST /upstreams/api/pause?seconds=9 HTTP/1.1', [
      own,
      yes,
      'Content-Length: 0',
      ...fields,
    ]);
    expect([status, code]).toEqual([401, 'admin_token_missing']);
    expect(text).toContain('WWW-Authenticate: Bearer');
    expect(text).not.toContain(token);
    expect(acted).toEqual([]);
  });

  test('is done with the token, and what only shows something needs none', async () => {
    await start([], token);
    expect(
      await post('/upstreams/api/pause?seconds=9', [own, yes, `Authorization: Bearer ${token}`]),
    ).toEqual(fine);
    expect(await post('/upstreams/api/pause?seconds=9', [own, `Authorization: Bearer ${token}`])).toEqual({
      status: 403,
      code: 'admin_field_missing',
    });
    for (const path of ['/metrics', '/readyz', '/activity', '/'])
      expect(await get(path, [own])).toEqual(fine);
    expect(acted).toEqual(['pause api']);
  });

  test('with a path that means no text is the mistake of whoever sent it', async () => {
    await start();
    expect((await post('/upstreams/%ff/open', ['Host: localhost', 'Sluice-Admin: yes'])).status).toBe(400);
  });

  test('is reported with what came of it, by the names of the configuration only', async () => {
    await start();
    await post('/upstreams/api/pause?seconds=9.5', [own, yes]);
    await post('/upstreams/api/pause?seconds=5m', [own, yes]);
    await post('/upstreams/api/pause?seconds=25h', [own, yes]);
    await post('/upstreams/somebody-s-secret/pause', [own, yes]);
    await post('/upstreams/somebody-s-secret/resume', [own, yes]);
    expect(commands).toEqual([
      { verb: 'pause', upstream: 'api', seconds: 9.5, result: 'done' },
      { verb: 'pause', upstream: 'api', seconds: 300, result: 'done' },
      { verb: 'pause', upstream: null, seconds: null, result: 'invalid' },
      { verb: 'pause', upstream: null, seconds: null, result: 'invalid' },
      { verb: 'resume', upstream: null, seconds: null, result: 'unknown' },
    ]);
  });
});
