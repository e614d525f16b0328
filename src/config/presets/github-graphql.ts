/** How GitHub GraphQL counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const githubGraphql: Preset = {
  title: 'GitHub GraphQL',
  source: 'https://docs.github.com/en/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api',
  counts: 'The primary limit refuses with 200 and an error, a secondary one with 200 or 403.',
  missing: 'What a query costs in points before its response.',
  speaks: {
    fields: {
      limit: 'x-ratelimit-limit',
      remaining: 'x-ratelimit-remaining',
      reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
    },
    throttledBy: [
      { status: [200, 403, 429], body: 'secondary rate limit', waitSeconds: 60 },
      { status: 200, field: 'x-ratelimit-remaining', equals: '0', body: 'RATE_LIMITED' },
    ],
    maxInFlight: 100,
  },
};
