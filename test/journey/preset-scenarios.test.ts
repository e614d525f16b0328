/** What presets are for, each against an upstream that behaves as its provider documents: quotas of operations, and refusals with two meanings. */
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';

const quick = fastClock(20);

interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
}

interface Answer {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** How long the call takes, milliseconds. */
  readonly tookMs?: number;
}

interface World {
  readonly log: readonly { readonly path: string; readonly status: number; readonly at: number }[];
  ask(path: string, sending?: RequestInit): Promise<Reply>;
  /** Replaces a part of the configuration while calls go on. */
  reload(from: string, to: string): Promise<void>;
  /** Resolves when a call waits. */
  waiting(): Promise<void>;
  /** Resolves when the gateway has closed a bucket. */
  closed(): Promise<void>;
}

interface Reply {
  readonly status: number;
  readonly code: string | null;
  readonly waitedMs: number;
}

const ending: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const end of ending.splice(0)) await end();
});

/** An upstream that answers like this behind a gateway that knows it by its preset. */
async function world(preset: string, answer: (asked: Asked) => Answer, clock: Clock = quick): Promise<World> {
  const log: { path: string; status: number; at: number }[] = [];
  const upstream = createServer((request, response) => {
    const { method = '', url: path = '', headers } = request;
    request.resume();
    const { status, headers: fields = {}, body = {}, tookMs = 0 } = answer({ method, path, headers });
    log.push({ path, status, at: clock.monotonic() });
    const reply = (): void => void response.writeHead(status, fields).end(JSON.stringify(body));
    if (tookMs === 0) reply();
    else clock.after(tookMs, reply);
  });
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const gateway: TestGateway = await startGateway({
    clock,
    upstreams: `  api: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, credential: "Bearer one", speaks: ${preset} }`,
  });
  ending.push(async () => {
    await gateway.close();
    upstream.closeAllConnections();
    await new Promise((resolve) => upstream.close(resolve));
  });
  let { yaml } = gateway;
  return {
    log,
    async reload(from, to) {
      expect(yaml).toContain(from);
      yaml = yaml.replace(from, to);
      await gateway.reload(yaml);
    },
    waiting: () =>
      until(() =>
        gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.waiting > 0),
      ),
    closed: () =>
      until(() =>
        gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.closedMs > 0),
      ),
    async ask(path, { headers, ...sending } = {}) {
      const own = { 'sluice-key': gateway.keys['acme'] ?? '', prefer: 'wait=70' };
      const response = await fetch(`${gateway.url}/via/api${path}`, {
        ...sending,
        headers: { ...own, ...(headers as Record<string, string> | undefined) },
      });
      await response.text();
      const admission = response.headers.get('sluice-admission') ?? '';
      const waitedMs = Number(/waited=(\d+)/.exec(admission)?.[1] ?? 'NaN');
      return { status: response.status, code: response.headers.get('sluice-error'), waitedMs };
    },
  };
}

const statusesOf = (replies: readonly Reply[]): readonly number[] => replies.map(({ status }) => status);
const ok = (count: number): readonly number[] => Array.from({ length: count }, () => 200);
const refusalsOf = ({ log }: World): number => log.filter(({ status }) => status >= 400).length;

test('calls that wait for the window of their operation go on under the one that a reload gives it', async () => {
  const searches = "{ requests: 2, seconds: 600, calls: 'GET /search/{}' }";
  const api = await world(`{ windows: [{ requests: 9, seconds: 600 }, ${searches}] }`, () => ({
    status: 200,
  }));
  const few = ['/search/a', '/search/b', '/other'].map((path) => api.ask(path));
  expect(statusesOf(await Promise.all(few))).toEqual(ok(3));
  expect(await api.ask('/search/c')).toMatchObject({ status: 429, code: 'wait_too_long' });
  expect((await api.ask('/other')).status).toBe(200);
  await api.reload(searches, searches.replace('600', '30'));
  const held = api.ask('/search/c');
  await api.waiting();
  await api.reload('requests: 2, seconds: 30', 'requests: 3, seconds: 30');
  expect((await held).waitedMs).toBeLessThan(15_000);
});

test('hubspot: searches beyond their own limit hold no other call', async () => {
  let isSpent = true;
  const api = await world('hubspot', ({ path }) =>
    path.endsWith('/search') && isSpent
      ? { status: 429, body: { errorType: 'RATE_LIMIT', policyName: 'SECONDLY' } }
      : { status: 200, headers: { 'x-hubspot-ratelimit-max': '100', 'x-hubspot-ratelimit-remaining': '90' } },
  );
  const search = api.ask('/crm/v3/objects/contacts/search', { method: 'POST', body: '{}' });
  await api.closed();
  const deals = api.ask('/crm/v3/objects/deals/search', { method: 'POST', body: '{}' });
  expect((await api.ask('/crm/v3/objects/contacts/7')).status).toBe(200);
  isSpent = false;
  expect(statusesOf(await Promise.all([search, deals]))).toEqual(ok(2));
  const at = (status: number): number[] =>
    api.log.filter((entry) => entry.status === status).map((entry) => entry.at);
  const [, firstServed = NaN] = at(200);
  expect(firstServed - (at(429)[0] ?? NaN)).toBeGreaterThanOrEqual(1_000);
});

test('salesforce: too many calls at once wait for two seconds, a day that is used up for a probe', async () => {
  let inside = 0;
  let isDayOver = false;
  const errorCode = 'REQUEST_LIMIT_EXCEEDED';
  const api = await world('salesforce', () => {
    if (isDayOver) return { status: 403, body: [{ message: 'TotalRequests Limit exceeded.', errorCode }] };
    if (inside >= 5) {
      const message = 'ConcurrentRequests (Concurrent API Requests) Limit exceeded.';
      return { status: 403, body: [{ message, errorCode }] };
    }
    inside += 1;
    quick.after(800, () => void (inside -= 1));
    return { status: 200, tookMs: 800 };
  });
  const path = '/services/data/v60.0/query';
  expect(statusesOf(await Promise.all(Array.from({ length: 12 }, () => api.ask(path))))).toEqual(ok(12));
  isDayOver = true;
  expect(await api.ask(path)).toMatchObject({ status: 403, code: null });
  expect(await api.ask(path)).toMatchObject({ status: 403, code: 'upstream_refused' });
});

test('xero: too many calls at once wait for a second, and the day of one organisation is not that of another', async () => {
  let isFirst = true;
  const api = await world('xero', ({ headers }) => {
    if (headers['xero-tenant-id'] === 'spent')
      return { status: 429, headers: { 'x-rate-limit-problem': 'day', 'retry-after': '9000' } };
    const refuses = isFirst;
    isFirst = false;
    return refuses
      ? { status: 429, headers: { 'x-rate-limit-problem': 'concurrent', 'x-minlimit-remaining': '55' } }
      : { status: 200, headers: { 'x-minlimit-remaining': '54' } };
  });
  const of = (tenant: string): Promise<Reply> =>
    api.ask('/api.xro/2.0/Invoices', { headers: { 'xero-tenant-id': tenant } });
  expect((await of('one')).status).toBe(200);
  const [refusedAt = NaN, servedAt = NaN] = api.log.map(({ at }) => at);
  expect(servedAt - refusedAt).toBeGreaterThanOrEqual(1_000);
  // No more than a window of a minute, which is what refusals without a time of their own would wait.
  expect(servedAt - refusedAt).toBeLessThan(60_000);
  expect(await of('spent')).toMatchObject({ status: 429, code: null });
  expect(await of('spent')).toMatchObject({ status: 429, code: 'upstream_refused' });
  expect((await of('one')).status).toBe(200);
});

test('discord: a global refusal stops all routes, that of a route the route alone', async () => {
  let globalUntil = 0;
  let routeUntil = 0;
  const api = await world('discord', ({ path }) => {
    const now = quick.monotonic();
    const left = (until: number): string => String((until - now) / 1_000);
    if (now < globalUntil)
      return { status: 429, headers: { 'retry-after': left(globalUntil), 'x-ratelimit-global': 'true' } };
    const isSent = path.endsWith('/messages');
    const bucket = { 'x-ratelimit-bucket': isSent ? 'messages' : 'channel' };
    if (isSent && path.includes('/1/') && now < routeUntil)
      return { status: 429, headers: { ...bucket, 'retry-after': left(routeUntil) } };
    return { status: 200, headers: bucket };
  });
  routeUntil = quick.monotonic() + 20_000;
  const held = api.ask('/api/v10/channels/1/messages', { method: 'POST' });
  await api.closed();
  const others = ['/api/v10/channels/1', '/api/v10/channels/2/messages', '/api/v10/users/@me'];
  expect(statusesOf(await Promise.all(others.map((path) => api.ask(path))))).toEqual(ok(3));
  expect((await held).status).toBe(200);
  expect(refusalsOf(api)).toBe(1);
  globalUntil = quick.monotonic() + 20_000;
  const first = api.ask('/api/v10/channels/5');
  await api.closed();
  const later = [6, 7, 8].map((id) => api.ask(`/api/v10/channels/${id}/messages`, { method: 'POST' }));
  expect(statusesOf(await Promise.all([first, ...later]))).toEqual(ok(4));
  expect(refusalsOf(api)).toBe(2);
});

test('jira: writes to one issue wait alone, and the points of an hour hold all endpoints', async () => {
  let pointsUntil = 0;
  let issueUntil = 0;
  const api = await world('jira', ({ path }) => {
    const now = quick.monotonic();
    const refused = (reason: string, until: number): Answer => ({
      status: 429,
      headers: { 'ratelimit-reason': reason, 'retry-after': String(Math.ceil((until - now) / 1_000)) },
    });
    if (now < pointsUntil) return refused('jira-quota-tenant-based', pointsUntil);
    return path.endsWith('/issue/A-1') && now < issueUntil
      ? refused('jira-per-issue-on-write', issueUntil)
      : { status: 200 };
  });
  issueUntil = quick.monotonic() + 20_000;
  const write = api.ask('/rest/api/3/issue/A-1', { method: 'PUT' });
  await until(() => refusalsOf(api) === 1);
  expect((await api.ask('/rest/api/3/project/A')).status).toBe(200);
  expect((await write).status).toBe(200);
  pointsUntil = quick.monotonic() + 20_000;
  const first = api.ask('/rest/api/3/search');
  await api.closed();
  const later = ['/rest/api/3/project/A', '/rest/api/3/issue/A-1'].map((path) => api.ask(path));
  expect(statusesOf(await Promise.all([first, ...later]))).toEqual(ok(3));
  expect(refusalsOf(api)).toBe(2);
});

test('monday: a 200 that says the budget is used up is waited out, for as long as it says', async () => {
  let isFirst = true;
  const api = await world('monday', () => {
    const refuses = isFirst;
    isFirst = false;
    return refuses
      ? {
          status: 200,
          body: {
            error_code: 'ComplexityException',
            errors: ['Complexity budget exhausted … reset in 9 seconds'],
          },
        }
      : { status: 200, body: { data: {} } };
  });
  const reply = await api.ask('/v2', { method: 'POST', body: '{"query":"{ me { id } }"}' });
  expect(reply.status).toBe(200);
  expect(api.log).toHaveLength(2);
  expect((api.log[1]?.at ?? 0) - (api.log[0]?.at ?? 0)).toBeGreaterThanOrEqual(9_000);
});
