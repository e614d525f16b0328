import { afterEach, describe, expect, test } from '@jest/globals';
import request from 'supertest';
import { createAdminServer } from '../../src/ingress/admin-server.ts';
import type { AdminServer, AdminServerOptions, Readiness } from '../../src/ingress/admin-server.ts';

let admin: AdminServer | null = null;
const bugs: unknown[] = [];

afterEach(async () => {
  await admin?.close();
  bugs.length = 0;
});

const reachable = (isDraining: boolean): Readiness => ({
  isDraining,
  trouble: null,
  contact: { kind: 'reached' },
});

async function start(more: Partial<AdminServerOptions> = {}): Promise<AdminServer> {
  admin = createAdminServer({
    host: '127.0.0.1',
    port: 0,
    adminNames: [],
    adminToken: null,
    readiness: () => reachable(false),
    metrics: (format) =>
      Promise.resolve({ contentType: `text/x-${format}; charset=utf-8`, body: `# ${format}\n` }),
    activity: () => Promise.resolve({ workspaces: ['w_0'] }),
    onBug: (error) => bugs.push(error),
    ...more,
  });
  await admin.listen();
  return admin;
}

describe('the probes of the admin port', () => {
  test('report liveness independently of readiness', async () => {
    const { server } = await start({ readiness: () => reachable(true) });
    expect((await request(server).get('/livez')).status).toBe(200);
    expect((await request(server).get('/readyz')).status).toBe(503);
  });

  test('report the readiness of the replica', async () => {
    let isDraining = false;
    const { server } = await start({ readiness: () => reachable(isDraining) });
    expect((await request(server).get('/readyz')).status).toBe(200);
    isDraining = true;
    expect((await request(server).get('/readyz')).status).toBe(503);
  });
});

describe('the metrics of the admin port', () => {
  test.each([
    [undefined, 'prometheus'],
    ['*/*', 'prometheus'],
    ['text/plain', 'prometheus'],
    ['image/png', 'prometheus'],
    ['application/openmetrics-text', 'openmetrics'],
    [
      'application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2',
      'openmetrics',
    ],
    [
      'application/openmetrics-text; version=1.0.0; charset=utf-8;q=0.1, text/plain;version=0.0.4;q=0.6',
      'prometheus',
    ],
  ])('are served for Accept: %p as %s', async (accept, format) => {
    const { server } = await start();
    const asked = request(server).get('/metrics');
    const response = await (accept === undefined ? asked : asked.set('Accept', accept));
    expect(response.status).toBe(200);
    expect(response.headers['content-type']).toBe(`text/x-${format}; charset=utf-8`);
    expect(response.text).toBe(`# ${format}\n`);
  });

  test('report a failing renderer once, respond without details, and break nothing else', async () => {
    const { server } = await start({ metrics: () => Promise.reject(new Error('secret')) });
    const response = await request(server).get('/metrics');
    expect([response.status, response.text]).toEqual([500, 'internal error\n']);
    expect(bugs).toHaveLength(1);
    expect((await request(server).get('/livez')).status).toBe(200);
  });
});

describe('the pages of the admin port', () => {
  test('serve activity as JSON', async () => {
    const { server } = await start();
    expect((await request(server).get('/activity')).body).toEqual({ workspaces: ['w_0'] });
  });

  test('serve a short text until a page is given', async () => {
    const { server } = await start();
    expect((await request(server).get('/')).text).toContain('/metrics');
  });

  test('serve a given page and further routes', async () => {
    const { server } = await start({
      page: (_request, response) => {
        response.send('page');
      },
      routes: [(app) => app.get('/more', (_request, response) => void response.send('more'))],
    });
    expect((await request(server).get('/')).text).toBe('page');
    expect((await request(server).get('/more')).text).toBe('more');
    expect((await request(server).get('/other')).status).toBe(404);
  });
});
