/** How Jira Cloud counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const jira: Preset = {
  title: 'Jira Cloud',
  source: 'https://developer.atlassian.com/cloud/jira/platform/rate-limiting/',
  counts: 'Limits by points and by second; each refusal has Retry-After.',
  missing: 'Points of a call before its response; limits of one issue.',
  speaks: {
    fields: {
      limit: 'x-ratelimit-limit',
      remaining: 'x-ratelimit-remaining',
      reset: { name: 'x-ratelimit-reset', as: 'date' },
    },
  },
};
