/**
 * An official client of an API with a preset, which repeats no call itself: what it lists is whole, and refusals stay inside. The API
 * limits as GitHub does: 90 calls, then refusals for a minute. It bans clients that call before that time.
 */
import { expect, test } from '@jest/globals';
import { Octokit } from '@octokit/rest';
import { fastClock } from '../support/fast-clock.ts';
import { throughProxy } from './through-proxy.ts';
import { upstreams } from './upstream.ts';

const pages = 300;
const start = upstreams();

test.each(['/via', '/proxy'])(
  '@octokit/rest without plugins lists 300 pages by %s under a secondary limit that answers 403',
  async (form) => {
    // A minute of theirs takes a second.
    const clock = fastClock(60);
    const count = { answered: 0, refused: 0, tooEarly: 0 };
    let [left, closedUntil] = [90, 0];
    // Only the sentence says that it is a limit. A page names the next one by its whole URL.
    const message =
      'You have exceeded a secondary rate limit. Please wait a few minutes before you try again.';
    const refusal = [403, { message }, { 'x-ratelimit-remaining': '4900' }] as const;
    const { url, origin, gateway, apiKey, log } = await start(
      'speaks: github, credential: Bearer upstream-token',
      ({ line, origin: api }) => {
        if (clock.now() < closedUntil) count.tooEarly += 1;
        else if ((left -= 1) < 0) {
          [left, closedUntil] = [90, clock.now() + 60_000];
          count.refused += 1;
        } else {
          count.answered += 1;
          const next = new URL(line.split(' ')[1] ?? '', api);
          const page = Number(next.searchParams.get('page') ?? '1');
          next.searchParams.set('page', String(page + 1));
          const link = page < pages ? { link: `<${next.href}>; rel="next"` } : {};
          return [200, [{ id: page * 2 - 1 }, { id: page * 2 }], link];
        }
        return refusal;
      },
      { clock },
    );
    const proxied = { baseUrl: origin, request: { fetch: throughProxy(gateway.url) } };
    const client = new Octokit({ auth: apiKey, ...(form === '/via' ? { baseUrl: url } : proxied) });
    const found = await client.paginate(client.rest.repos.listForOrg, { org: 'acme', per_page: 2 });
    expect(found.map(({ id }) => id)).toEqual(Array.from({ length: pages * 2 }, (_, at) => at + 1));
    // Every 91st call is refused, and sent again when the time has passed.
    expect(count).toEqual({ answered: pages, refused: 3, tooEarly: 0 });
    const credentials = new Set(log.map(({ fields }) => fields.authorization));
    expect(credentials).toEqual(new Set(['Bearer upstream-token']));
  },
);
