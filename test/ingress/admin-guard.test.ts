/** The admin port: what it shows, and to whom. No web page may ask it, by whatever name; commands need the token. */
import { afterEach, describe, expect, test } from '@jest/globals';
import request from 'supertest';
import {
  createAdminServer,
  type AdminServerOptions,
  type GivenCommand,
} from '../../src/ingress/admin-server.ts';
import { connectRaw } from '../support/raw-client.ts';

let admin: ReturnType<typeof createAdminServer> | null = null;
let port = 0;
const acted: string[] = [];
const commands: GivenCommand[] = [];
const bugs: unknown[] = [];
afterEach(async () => {
  await admin?.close();
  for (const seen of [acted, commands, bugs]) seen.length = 0;
});

const act = (verb: string) => (upstream: string) => {
  acted.push(`${verb} ${upstream}`);
  return Promise.resolve('done' as const);
};
const controls = { upstreams: () => ['api'], open: act('open'), pause: act('pause'), resume: act('resume') };
const ready = (isDraining: boolean) => ({ isDraining, trouble: null, contact: { kind: 'reached' } }) as const;

async function start({
  adminToken = null,
  ...more
}: Partial<AdminServerOptions> & { adminToken?: string | null } = {}) {
  admin = createAdminServer({
    settings: {
      adminHost: '127.0.0.1',
      adminPort: 0,
      adminNames: ['sluice-admin', 'sluice-admin.ns.svc.cluster.local'],
      adminToken,
    },
    readiness: () => ready(false),
    metrics: (format) =>
      Promise.resolve({ contentType: `text/x-${format}; charset=utf-8`, body: `# ${format}\n` }),
    activity: () => Promise.resolve({ workspaces: ['w_0'] }),
    addRoutes: (app) => void app.get('/', (_request, response) => void response.send('page')),
    controls,
    onCommand: (command) => void commands.push(command),
    onBug: (error) => bugs.push(error),
    ...more,
  });
  ({ port } = await admin.listen());
  return request(admin.server);
}

/** Status, and the code of the problem, if it is one. */
async function asked(line: string, fields: readonly string[]) {
  const client = await connectRaw(port);
  await client.send([line, ...fields, 'Connection: close', '', ''].join('\r\n'));
  const text = (await client.closed).bytes.toString('latin1');
  const code = /"code":"([a-z_]+)"/.exec(text)?.[1];
  return { said: `${text.slice(9, 12)}${code === undefined ? '' : ` ${code}`}`, text };
}
const get = async (path: string, fields: readonly string[], version = '1.1'): Promise<string> =>
  (await asked(`GET ${path} HTTP/${version}`, fields)).said;
const post = async (path: string, fields: readonly string[]): Promise<string> =>
  (await asked(`POST ${path} HTTP/1.1`, ['Content-Length: 0', ...fields])).said;

const foreignName = '403 admin_host_forbidden';
const foreignPage = '403 admin_origin_forbidden';
const noField = '403 admin_field_missing';
const own = 'Host: 127.0.0.1:9090';
const yes = 'Sluice-Admin: yes';
const pause = '/upstreams/api/pause?seconds=9';

describe('what the admin port shows', () => {
  test('is whether the replica lives, and whether it is ready', async () => {
    let isDraining = false;
    const server = await start({ readiness: () => ready(isDraining) });
    const statuses = async () => [(await server.get('/livez')).status, (await server.get('/readyz')).status];
    expect(await statuses()).toEqual([200, 200]);
    isDraining = true;
    expect(await statuses()).toEqual([200, 503]);
  });

  test.each([
    ['', 'prometheus'],
    ['*/*', 'prometheus'],
    ['text/plain', 'prometheus'],
    ['image/png', 'prometheus'],
    ['application/openmetrics-text', 'openmetrics'],
    [
      'application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2',
      'openmetrics',
    ],
    ['application/openmetrics-text;version=1.0.0;q=0.1, text/plain;version=0.0.4;q=0.6', 'prometheus'],
  ])('are metrics, for Accept: %p as %s', async (accept, format) => {
    const server = await start();
    const response = await server.get('/metrics').set(accept === '' ? {} : { Accept: accept });
    expect([response.status, response.text]).toEqual([200, `# ${format}\n`]);
    expect(response.headers['content-type']).toBe(`text/x-${format}; charset=utf-8`);
  });

  test('has no details of a failing renderer, which is reported once and breaks nothing else', async () => {
    const server = await start({ metrics: () => Promise.reject(new Error('secret')) });
    const response = await server.get('/metrics');
    expect([response.status, response.text, bugs.length]).toEqual([500, 'internal error\n', 1]);
    expect((await server.get('/livez')).status).toBe(200);
  });

  test('is activity as JSON, and the routes that it is given', async () => {
    const server = await start();
    expect((await server.get('/activity')).body).toEqual({ workspaces: ['w_0'] });
    expect((await server.get('/')).text).toBe('page');
    expect((await server.get('/other')).status).toBe(404);
  });
});

describe('a request to the admin port', () => {
  const paths = ['/livez', '/readyz', '/metrics', '/activity', '/'];
  const named =
    'localhost LocalHost:9090 127.0.0.1 127.0.0.1:9090 10.2.3.4:9090 192.168.0.1 [::1] [::1]:9090';
  const configured =
    'sluice-admin SLUICE-ADMIN:9090 sluice-admin.ns.svc.cluster.local sluice-admin.ns.svc.cluster.local.';
  test.each(`${named} ${configured}`.split(' '))(
    'names it by an address, localhost or a configured name: %s',
    async (host) => {
      await start();
      for (const path of paths) expect(await get(path, [`Host: ${host}`])).toBe('200');
    },
  );

  const foreign =
    'rebind.evil.example rebind.evil.example:9090 localhost.evil.example evil-localhost notlocalhost sluice-admin.evil.example xsluice-admin h';
  const odd =
    '127.0.0.1.nip.io 127.0.0.1. 127.1 2130706433 0x7f.0.0.1 127.0.0.1:9090@evil.example ::1 [::1 [evil]';
  test.each(['', ...`${foreign} ${odd}`.split(' ')])(
    'is refused by any other name, on every route: %j',
    async (host) => {
      await start();
      for (const path of [...paths, '/page/events', '/nowhere'])
        expect(await get(path, [`Host: ${host}`])).toBe(foreignName);
      expect(await post(pause, [`Host: ${host}`, yes])).toBe(foreignName);
      expect(acted).toEqual([]);
    },
  );

  test('is refused when it names two hosts, or a host in its target, whatever its Host says', async () => {
    await start();
    const [local, evil] = ['Host: localhost', 'Host: evil.example'];
    for (const hosts of [
      [local, evil],
      [evil, local],
      [local, local],
    ])
      expect(await get('/activity', hosts)).not.toBe('200');
    for (const target of [
      'http://evil.example/activity',
      'HTTP://evil.example/livez',
      'http://localhost/activity',
    ])
      for (const host of [local, evil]) expect(await get(target, [host])).toBe(foreignName);
  });

  test('needs no name as an HTTP/1.0 probe, which no browser sends, and for nothing else', async () => {
    await start();
    for (const path of paths)
      expect(await get(path, [], '1.0')).toBe(path === '/livez' || path === '/readyz' ? '200' : foreignName);
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
    await start();
    const all = ['Host: localhost:9090', yes, ...fields];
    expect([await get('/activity', all), await post(pause, all)]).toEqual([foreignPage, foreignPage]);
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
    await start();
    expect(await get('/activity', ['Host: localhost:9090', ...fields])).toBe('200');
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
  const adminToken = 'a-token-of-the-operator';

  test('carries a field that no form of a page can send', async () => {
    await start();
    expect(await post('/upstreams/api/open', [own])).toBe(noField);
    expect(await post('/upstreams/api/open', [own, 'Sluice-Admin: no'])).toBe(noField);
    expect(await post('/anything', [own])).toBe(noField);
    expect(await post('/upstreams/api/open', [own, yes])).toBe('200');
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
    await start({ adminToken });
    const { said, text } = await asked(`POST ${pause} HTTP/1.1`, [own, yes, 'Content-Length: 0', ...fields]);
    expect(said).toBe('401 admin_token_missing');
    expect(text).toContain('WWW-Authenticate: Bearer');
    expect(text).not.toContain(adminToken);
    expect(acted).toEqual([]);
  });

  test('is done with the token, and what only shows something needs none', async () => {
    await start({ adminToken });
    const authorized = [own, `Authorization: Bearer ${adminToken}`];
    expect([await post(pause, [...authorized, yes]), await post(pause, authorized)]).toEqual([
      '200',
      noField,
    ]);
    for (const path of ['/metrics', '/readyz', '/activity', '/']) expect(await get(path, [own])).toBe('200');
    expect(acted).toEqual(['pause api']);
  });

  test('is reported with what came of it, by the names of the configuration only', async () => {
    await start();
    for (const path of [
      'api/pause?seconds=9.5',
      'api/pause?seconds=5m',
      'api/pause?seconds=25h',
      'secret/pause',
      'secret/resume',
    ])
      await post(`/upstreams/${path}`, [own, yes]);
    expect(commands).toEqual([
      { verb: 'pause', upstream: 'api', seconds: 9.5, result: 'done' },
      { verb: 'pause', upstream: 'api', seconds: 300, result: 'done' },
      { verb: 'pause', upstream: 'api', seconds: null, result: 'invalid' },
      { verb: 'pause', upstream: null, seconds: null, result: 'invalid' },
      { verb: 'resume', upstream: null, seconds: null, result: 'unknown' },
    ]);
    // A path that means no text is the mistake of whoever sent it.
    expect(await post('/upstreams/%ff/open', [own, yes])).toMatch(/^400/);
  });
});
