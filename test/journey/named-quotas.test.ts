/** An upstream whose responses name the quota of their call (`answer:x-ratelimit-resource`): each name has a bucket. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, test } from '@jest/globals';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { skippingClock } from '../support/skipping-clock.ts';
import { until } from '../support/until.ts';

const clock = skippingClock();
const windowMs = 60_000;
let gateway: TestGateway;

interface Resource {
  readonly limit: number;
  used: number;
  endsAt: number;
}
let resources: Record<'core' | 'search' | 'code_search', Resource>;
let credential = 0;
/** Path and status of each call that came. */
const log: { readonly path: string; readonly status: number }[] = [];

const resourceOf = (path: string): keyof typeof resources => {
  if (path.startsWith('/search/code')) return 'code_search';
  return path.startsWith('/search') ? 'search' : 'core';
};

const upstream = createServer((request, response) => {
  const path = request.url ?? '';
  const name = resourceOf(path);
  const resource = resources[name];
  const now = clock.monotonic();
  if (now >= resource.endsAt) Object.assign(resource, { used: 0, endsAt: now + windowMs });
  const hasRoom = resource.used < resource.limit;
  if (hasRoom) resource.used += 1;
  const status = hasRoom ? 200 : 429;
  log.push({ path, status });
  response.writeHead(status, {
    'x-ratelimit-limit': resource.limit,
    'x-ratelimit-remaining': resource.limit - resource.used,
    'x-ratelimit-reset': Math.ceil((resource.endsAt - now) / 1000),
    'x-ratelimit-resource': name,
    'retry-after': hasRoom ? '' : String(Math.ceil((resource.endsAt - now) / 1000)),
  });
  response.end();
});
beforeAll(async () => {
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  const upstreams = ['one', 'two', 'three'].map(
    (name) =>
      `  ${name}: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, credential: "Bearer ${name}", maxWaitSeconds: 75, speaks: { fields: { limit: x-ratelimit-limit, remaining: x-ratelimit-remaining, reset: { name: x-ratelimit-reset, as: seconds } }, bucketBy: [credential, "answer:x-ratelimit-resource"] } }`,
  );
  gateway = await startGateway({ clock, upstreams: upstreams.join('\n') });
});
afterAll(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});
beforeEach(() => {
  const endsAt = clock.monotonic() + windowMs;
  resources = {
    core: { limit: 5_000, used: 0, endsAt },
    search: { limit: 30, used: 0, endsAt },
    code_search: { limit: 10, used: 0, endsAt },
  };
  log.length = 0;
  credential += 1;
});

const nameOf = (): string => ['one', 'two', 'three'][credential - 1] ?? '';

async function ask(path: string): Promise<{ readonly status: number; readonly waitedMs: number }> {
  const response = await fetch(`${gateway.url}/via/${nameOf()}${path}`, {
    headers: { 'sluice-key': gateway.keys['acme'] ?? '' },
  });
  await response.text();
  const [, waited = 'NaN'] = /waited=(\d+)/.exec(response.headers.get('sluice-admission') ?? '') ?? [];
  return { status: response.status, waitedMs: Number(waited) };
}

const many = (count: number, path: string): Promise<{ status: number; waitedMs: number }[]> =>
  Promise.all(Array.from({ length: count }, (_, n) => ask(`${path}${n}`)));
/** What waits for the end of a window, which comes sooner. */
async function later<Result>(waiting: Promise<Result>): Promise<Result> {
  let isOver = false;
  const done = waiting.finally(() => (isOver = true));
  await until(() => {
    if (!isOver) clock.skip(1_000);
    return isOver;
  });
  return done;
}

const refused = (): number => log.filter(({ status }) => status === 429).length;

test('a quota that is used up holds nothing of another one', async () => {
  await many(10, '/search/code?q=');
  const held = ask('/search/code?q=more');
  const others = [...(await many(10, '/search/issues?q=')), ...(await many(20, '/repos/acme/shop/issues/'))];
  expect(others.filter(({ status }) => status !== 200)).toEqual([]);
  // The window of the held call is far from over.
  expect(log.some(({ path, status }) => path === '/search/code?q=more' && status === 200)).toBe(false);
  expect((await later(held)).status).toBe(200);
  expect(refused()).toBeLessThanOrEqual(1);
});

test('calls of several forms share the quota that their responses name', async () => {
  expect((await ask('/search/issues?q=0')).status).toBe(200);
  expect((await ask('/search/labels?q=0')).status).toBe(200);
  resources.search.used = resources.search.limit;
  const first = ask('/search/issues?q=1');
  await until(() =>
    gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.closedMs > 0),
  );
  const seen = log.length;
  const others = ['/search/labels?q=1', '/search/labels?q=2', '/search/issues?q=2'].map(ask);
  expect((await ask('/user')).status).toBe(200);
  expect(log.slice(seen).filter(({ path }) => path.startsWith('/search'))).toEqual([]);
  expect((await later(Promise.all([first, ...others]))).map(({ status }) => status)).toEqual([
    200, 200, 200, 200,
  ]);
  expect(refused()).toBe(1);
});

test('what the first calls of a quota have learned of it holds for all that wait', async () => {
  const waiting = many(18, '/search/code?q=');
  const idle = () =>
    gateway.service.gateway.parts.pressure.buckets().every(({ snapshot }) => snapshot.inFlight === 0);
  await until(() => log.length >= 10 && idle());
  const burst = await later(waiting);
  expect(burst.filter(({ status }) => status !== 200)).toEqual([]);
  // All come before a response says how many have room. What is refused is refused once.
  expect(refused()).toBeLessThanOrEqual(8);
});
