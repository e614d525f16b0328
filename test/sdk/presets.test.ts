/**
 * Official clients of APIs with presets, none of which repeats a call itself: what they list is whole, and refusals stay inside. The
 * APIs limit as GitHub and Slack do: 90 calls of a quota, then refusals until a time. A call before that time is counted as one too
 * early, for which the real ones ban a client.
 */
import { expect, test } from '@jest/globals';
import { Octokit } from '@octokit/rest';
import { WebClient } from '@slack/web-api';
import { fastClock } from '../support/fast-clock.ts';
import { until } from '../support/until.ts';
import { throughProxy } from './through-proxy.ts';
import { upstreams, type Answer } from './upstream.ts';

const pages = 300;
const wholeList = Array.from({ length: pages * 2 }, (_, at) => at + 1);
const idsOf = (page: number): { id: number }[] => [{ id: page * 2 - 1 }, { id: page * 2 }];

const open = upstreams();
/** The API behind a gateway that knows it by its preset, with a quota for each path. A minute of theirs takes a second. */
async function start(
  preset: string,
  closedSeconds: number,
  refusal: Answer,
  respond: (url: URL, body: URLSearchParams) => Answer,
) {
  const clock = fastClock(60);
  const kinds: string[] = [];
  const quotas = new Map<string, { left: number; closedUntil: number }>();
  const judge = (path: string): 'answered' | 'refused' | 'too early' => {
    const quota = quotas.get(path) ?? { left: 90, closedUntil: 0 };
    quotas.set(path, quota);
    if (clock.now() < quota.closedUntil) return 'too early';
    if ((quota.left -= 1) >= 0) return 'answered';
    Object.assign(quota, { left: 90, closedUntil: clock.now() + closedSeconds * 1000 });
    return 'refused';
  };
  const behind = await open(
    `speaks: ${preset}, credential: Bearer upstream-token`,
    ({ line, body, origin }) => {
      const url = new URL(line.split(' ')[1] ?? '', origin);
      const kind = judge(url.pathname);
      kinds.push(`${url.pathname} ${kind}`);
      return kind === 'answered' ? respond(url, new URLSearchParams(body)) : refusal;
    },
    { clock },
  );
  /** Of the 300 calls every 91st is refused, and sent again when the time has passed. */
  const expectAbsorbed = (path: string): void => {
    const count = (kind: string) => kinds.filter((each) => each === `${path} ${kind}`).length;
    expect(['answered', 'refused', 'too early'].map(count)).toEqual([pages, 3, 0]);
    const credentials = new Set(behind.log.map(({ fields }) => fields.authorization));
    expect(credentials).toEqual(new Set(['Bearer upstream-token']));
  };
  return { ...behind, kinds, expectAbsorbed };
}

test.each(['/via', '/proxy'])(
  '@octokit/rest without plugins lists 300 pages by %s under a secondary limit that answers 403',
  async (form) => {
    // Only the sentence says that it is a limit. A page names the next one by its whole URL.
    const message =
      'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.';
    const refusal: Answer = [403, { message }, { 'x-ratelimit-remaining': '4900' }];
    const { url, origin, gateway, apiKey, expectAbsorbed } = await start('github', 60, refusal, (asked) => {
      const page = Number(asked.searchParams.get('page') ?? '1');
      const next = new URL(asked);
      next.searchParams.set('page', String(page + 1));
      return [200, idsOf(page), page < pages ? { link: `<${next.href}>; rel="next"` } : {}];
    });
    const proxied = { baseUrl: origin, request: { fetch: throughProxy(gateway.url) } };
    const client = new Octokit({ auth: apiKey, ...(form === '/via' ? { baseUrl: url } : proxied) });
    const found = await client.paginate(client.rest.repos.listForOrg, { org: 'acme', per_page: 2 });
    expect(found.map(({ id }) => id)).toEqual(wholeList);
    expectAbsorbed('/orgs/acme/repos');
  },
);

test('@slack/web-api without retries of its own lists 300 pages under the limit of a method, while another method passes', async () => {
  const refusal: Answer = [429, { ok: false, error: 'ratelimited' }, { 'retry-after': '30' }];
  // A page names the next one by a cursor in its body.
  const { url, apiKey, kinds, expectAbsorbed } = await start('slack', 30, refusal, ({ pathname }, body) => {
    if (!pathname.endsWith('.list')) return [200, { ok: true }];
    const page = Number(body.get('cursor') ?? '1');
    const next_cursor = page < pages ? String(page + 1) : '';
    return [200, { ok: true, channels: idsOf(page), response_metadata: { next_cursor } }];
  });
  const options = { retryConfig: { retries: 0 }, rejectRateLimitedCalls: true };
  const client = new WebClient(apiKey, { slackApiUrl: `${url}/api/`, ...options });
  const found: number[] = [];
  const list = async (): Promise<void> => {
    for await (const page of client.paginate('conversations.list', { limit: 2 }))
      found.push(...((page as { channels?: { id: number }[] }).channels ?? []).map(({ id }) => id));
  };
  const listing = list();
  await until(() => kinds.some((kind) => kind.endsWith('refused')));
  await client.chat.postMessage({ channel: 'C1', text: 'while the list waits' });
  expect(kinds.slice(-2)).toEqual(['/api/conversations.list refused', '/api/chat.postMessage answered']);
  await listing;
  expect(found).toEqual(wholeList);
  expectAbsorbed('/api/conversations.list');
});
