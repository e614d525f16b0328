/**
 * Official clients of APIs with presets, none of which repeats a call itself: what they list is whole, and refusals stay inside. The
 * APIs limit as GitHub and Slack do: so many calls of a quota, then refusals until a time. A call before that time is counted as one
 * too early, for which the real ones ban a client.
 */
import { describe, expect, test } from '@jest/globals';
import { Octokit } from '@octokit/rest';
import { WebClient } from '@slack/web-api';
import { fastClock } from '../support/fast-clock.ts';
import { until } from '../support/until.ts';
import { throughProxy } from './through-proxy.ts';
import { upstreams, type Answer } from './upstream.ts';

const pages = 300;
const wholeList = Array.from({ length: pages * 2 }, (_, at) => at + 1);
const idsOf = (page: number): { id: number }[] => [{ id: page * 2 - 1 }, { id: page * 2 }];

interface PagedApi {
  /** Calls of one quota until it refuses. */
  readonly calls: number;
  /** For so long after the first refusal every call of the quota is refused. */
  readonly closedSeconds: number;
  readonly quotaOf: (path: string) => string;
  readonly refusal: Answer;
  readonly respond: (url: URL, body: URLSearchParams) => Answer;
}
type Kind = 'answered' | 'refused' | 'too early';

const open = upstreams();
/** The API behind a gateway that knows it by its preset. A minute of theirs takes a second. */
async function start(preset: string, { calls, closedSeconds, quotaOf, refusal, respond }: PagedApi) {
  const clock = fastClock(60);
  const kinds: { readonly path: string; readonly kind: Kind }[] = [];
  const quotas = new Map<string, { left: number; closedUntil: number }>();
  const judge = (path: string): Kind => {
    const now = clock.now();
    const quota = quotas.get(quotaOf(path)) ?? { left: calls, closedUntil: 0 };
    quotas.set(quotaOf(path), quota);
    if (now < quota.closedUntil) return 'too early';
    if (quota.left > 0) {
      quota.left -= 1;
      return 'answered';
    }
    quota.left = calls;
    quota.closedUntil = now + closedSeconds * 1000;
    return 'refused';
  };
  const settings = `speaks: ${preset}, credential: Bearer upstream-token`;
  const behind = await open(
    settings,
    ({ line, body, fields }) => {
      const url = new URL(line.split(' ')[1] ?? '', `http://${fields.host ?? ''}`);
      const kind = judge(url.pathname);
      kinds.push({ path: url.pathname, kind });
      return kind === 'answered' ? respond(url, new URLSearchParams(body.toString())) : refusal;
    },
    { clock },
  );
  const count = (kind: Kind, path?: string): number =>
    kinds.filter((one) => one.kind === kind && one.path === (path ?? one.path)).length;
  /** Of the 300 calls every 91st is refused, and sent again when the time has passed. */
  const expectAbsorbed = (path: string): void => {
    expect([count('answered', path), count('refused', path), count('too early', path)]).toEqual([
      pages,
      3,
      0,
    ]);
    const credentials = new Set(behind.log.map(({ fields }) => fields.authorization));
    expect(credentials).toEqual(new Set(['Bearer upstream-token']));
  };
  return { ...behind, kinds, count, expectAbsorbed };
}

describe('@octokit/rest without plugins for throttling and retries', () => {
  const secondary =
    'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.';
  const listing: PagedApi = {
    calls: 90,
    closedSeconds: 60,
    quotaOf: () => 'all',
    // A secondary limit; only the sentence says so.
    refusal: [403, { message: secondary }, { 'x-ratelimit-remaining': '4900' }],
    // A page names the next one by its whole URL.
    respond: (url) => {
      const page = Number(url.searchParams.get('page') ?? '1');
      const next = new URL(url);
      next.searchParams.set('page', String(page + 1));
      return [200, idsOf(page), page < pages ? { link: `<${next.href}>; rel="next"` } : {}];
    },
  };

  test.each(['/via', '/proxy'])(
    'lists 300 pages by %s under a secondary limit that answers 403',
    async (form) => {
      const { url, origin, gateway, apiKey: auth, expectAbsorbed } = await start('github', listing);
      const request = { fetch: throughProxy(gateway.url) };
      const client = new Octokit(
        form === '/via' ? { auth, baseUrl: url } : { auth, baseUrl: origin, request },
      );
      const found = await client.paginate(client.rest.repos.listForOrg, { org: 'acme', per_page: 2 });
      expect(found.map(({ id }) => id)).toEqual(wholeList);
      expectAbsorbed('/orgs/acme/repos');
    },
  );
});

test('@slack/web-api without retries of its own lists 300 pages under the limit of a method, while another method passes', async () => {
  const { url, apiKey, kinds, count, expectAbsorbed } = await start('slack', {
    calls: 90,
    closedSeconds: 30,
    quotaOf: (path) => path,
    refusal: [429, { ok: false, error: 'ratelimited' }, { 'retry-after': '30' }],
    // A page names the next one by a cursor in its body.
    respond: ({ pathname }, body) => {
      if (!pathname.endsWith('.list')) return [200, { ok: true }];
      const page = Number(body.get('cursor') ?? '1');
      const next_cursor = page < pages ? String(page + 1) : '';
      return [200, { ok: true, channels: idsOf(page), response_metadata: { next_cursor } }];
    },
  });
  const client = new WebClient(apiKey, {
    slackApiUrl: `${url}/api/`,
    retryConfig: { retries: 0 },
    rejectRateLimitedCalls: true,
  });
  const found: number[] = [];
  const list = async (): Promise<void> => {
    for await (const page of client.paginate('conversations.list', { limit: 2 }))
      found.push(...((page as { channels?: { id: number }[] }).channels ?? []).map(({ id }) => id));
  };
  const listing = list();
  await until(() => count('refused') === 1);
  await client.chat.postMessage({ channel: 'C1', text: 'while the list waits' });
  expect(kinds.slice(-2)).toEqual([
    { path: '/api/conversations.list', kind: 'refused' },
    { path: '/api/chat.postMessage', kind: 'answered' },
  ]);
  await listing;
  expect(found).toEqual(wholeList);
  expectAbsorbed('/api/conversations.list');
});
