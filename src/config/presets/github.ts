/** How GitHub REST counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const github: Preset = {
  title: 'GitHub REST',
  source: 'https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api',
  counts:
    'The primary limit refuses with 403 or 429 and nothing remaining; a secondary limit says so in a sentence, with Retry-After or at least a minute.',
  missing: 'Limits by points and CPU time that GitHub does not tell: they are met with its refusals.',
  speaks: {
    fields: {
      limit: 'x-ratelimit-limit',
      remaining: 'x-ratelimit-remaining',
      reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
    },
    throttledBy: [
      { status: [403, 429], body: 'secondary rate limit', waitSeconds: 60 },
      { status: 403, body: 'abuse detection mechanism', waitSeconds: 60 },
      { status: [403, 429], field: 'x-ratelimit-remaining', equals: '0' },
    ],
    bucketBy: ['credential', 'path:/search'],
    maxInFlight: 100,
  },
};
