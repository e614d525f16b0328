/** Official clients of APIs with presets, none of which repeats a call itself: what they list is whole, and refusals stay inside. */
import type { ServerResponse } from 'node:http';
import { afterEach, describe, expect, test } from '@jest/globals';
import { Octokit } from '@octokit/rest';
import { WebClient } from '@slack/web-api';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';
import { until } from '../support/until.ts';
import { startPagedApi, type PagedApi, type PagedApiOptions, type PagedRequest } from './paged-api.ts';
import { throughProxy } from './through-proxy.ts';

const pages = 300;
const token = 'upstream-token';

let api: PagedApi;
let gateway: TestGateway;
afterEach(async () => {
  await gateway.close();
  await api.close();
});

/** The API behind a gateway that knows it by its preset; an API key of the gateway. A minute of theirs takes a second. */
async function start(preset: string, options: Omit<PagedApiOptions, 'clock'>): Promise<string> {
  const clock = fastClock(60);
  api = await startPagedApi({ clock, ...options });
  gateway = await startGateway({
    upstreams: `  ${preset}:\n    origins: ["${api.url}"]\n    allowPrivateAddresses: true\n    credential: Bearer ${token}\n    speaks: ${preset}\n`,
    clock,
  });
  return gateway.keys['acme'] ?? '';
}

const json = { 'content-type': 'application/json; charset=utf-8' };
const wholeList = Array.from({ length: pages * 2 }, (_, at) => at + 1);
const idsOf = (page: number): { id: number }[] => [{ id: page * 2 - 1 }, { id: page * 2 }];

/** Of the 300 calls every 91st is refused, and sent again when the time has passed. */
function expectAbsorbed(path = '/orgs/acme/repos'): void {
  const of = (kind: string): number =>
    api.log.filter((entry) => entry.path === path && entry.kind === kind).length;
  expect([of('answered'), of('refused'), of('too early')]).toEqual([pages, 3, 0]);
  expect(new Set(api.log.map(({ credential }) => credential))).toEqual(new Set([`Bearer ${token}`]));
}

describe('@octokit/rest without plugins for throttling and retries', () => {
  /** A page names the next one by its whole URL. */
  function respond({ url }: PagedRequest, response: ServerResponse): void {
    const page = Number(url.searchParams.get('page') ?? '1');
    const next = new URL(url);
    next.searchParams.set('page', String(page + 1));
    const link = page < pages ? { link: `<${next.href}>; rel="next"` } : {};
    response.writeHead(200, { ...json, ...link }).end(JSON.stringify(idsOf(page)));
  }

  /** A secondary limit; only the sentence says so. */
  function refuse(response: ServerResponse): void {
    const message =
      'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.';
    response.writeHead(403, { ...json, 'x-ratelimit-remaining': '4900' }).end(JSON.stringify({ message }));
  }

  const github = { calls: 90, closedSeconds: 60, quotaOf: () => 'all', respond, refuse };

  async function expectWholeList(client: Octokit): Promise<void> {
    const found = await client.paginate(client.rest.repos.listForOrg, { org: 'acme', per_page: 2 });
    expect(found.map(({ id }) => id)).toEqual(wholeList);
    expectAbsorbed();
  }

  test('lists 300 pages by /via under a secondary limit that answers 403', async () => {
    const auth = await start('github', github);
    await expectWholeList(new Octokit({ auth, baseUrl: `${gateway.url}/via/github` }));
  });

  test('follows the absolute URLs of 300 pages by /proxy', async () => {
    const auth = await start('github', github);
    const request = { fetch: throughProxy(gateway.url) };
    await expectWholeList(new Octokit({ auth, baseUrl: api.url, request }));
  });
});

describe('@octokit/rest, which searches code and lists issues', () => {
  const resourceOf = (path: string): string => (path.startsWith('/search/code') ? 'code_search' : 'core');

  test('lists issues while its searches wait for the end of their own limit', async () => {
    const auth = await start('github', {
      calls: 9,
      closedSeconds: 60,
      quotaOf: resourceOf,
      respond: ({ url: { pathname } }, response) => {
        response.writeHead(200, { ...json, 'x-ratelimit-resource': resourceOf(pathname) });
        response.end(pathname.startsWith('/search') ? '{"total_count":0,"items":[]}' : '[]');
      },
      refuse: (response) => {
        const fields = {
          'x-ratelimit-resource': 'code_search',
          'x-ratelimit-remaining': '0',
          'retry-after': '60',
        };
        response.writeHead(403, { ...json, ...fields }).end('{"message":"API rate limit exceeded"}');
      },
    });
    const client = new Octokit({ auth, baseUrl: `${gateway.url}/via/github` });
    const search = (): Promise<unknown> => client.rest.search.code({ q: 'sluice' });
    for (let n = 0; n < 9; n += 1) await search();
    const first = search();
    await until(() =>
      gateway.service.gateway.parts.pressure.buckets().some(({ snapshot }) => snapshot.closedMs > 0),
    );
    const held = [first, search()];
    const { status } = await client.rest.issues.listForRepo({ owner: 'acme', repo: 'shop' });
    expect([status, api.log.at(-1)?.path]).toEqual([200, '/repos/acme/shop/issues']);
    await Promise.all(held);
    expect(api.count('too early')).toBe(0);
  });
});

describe('@slack/web-api without retries of its own', () => {
  /** A page names the next one by a cursor in its body. */
  function respond({ url, body }: PagedRequest, response: ServerResponse): void {
    if (!url.pathname.endsWith('.list')) return void response.writeHead(200, json).end('{"ok":true}');
    const page = Number(body.get('cursor') ?? '1');
    const next_cursor = page < pages ? String(page + 1) : '';
    const text = JSON.stringify({ ok: true, channels: idsOf(page), response_metadata: { next_cursor } });
    response.writeHead(200, json).end(text);
  }

  function refuse(response: ServerResponse): void {
    response.writeHead(429, { ...json, 'retry-after': '30' }).end('{"ok":false,"error":"ratelimited"}');
  }

  test('lists 300 pages under the limit of a method, while another method passes', async () => {
    const quotaOf = (path: string): string => path;
    const key = await start('slack', { calls: 90, closedSeconds: 30, quotaOf, respond, refuse });
    const client = new WebClient(key, {
      slackApiUrl: `${gateway.url}/via/slack/api/`,
      retryConfig: { retries: 0 },
      rejectRateLimitedCalls: true,
    });
    const found: number[] = [];
    const list = async (): Promise<void> => {
      for await (const page of client.paginate('conversations.list', { limit: 2 }))
        found.push(...((page as { channels?: { id: number }[] }).channels ?? []).map(({ id }) => id));
    };
    const listing = list();
    await until(() => api.count('refused') === 1);
    await client.chat.postMessage({ channel: 'C1', text: 'while the list waits' });
    expect(api.log.slice(-2)).toMatchObject([
      { path: '/api/conversations.list', kind: 'refused' },
      { path: '/api/chat.postMessage', kind: 'answered' },
    ]);
    await listing;
    expect(found).toEqual(wholeList);
    expectAbsorbed('/api/conversations.list');
  });
});
