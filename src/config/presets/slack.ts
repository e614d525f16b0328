/** How Slack Web API counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const slack: Preset = {
  title: 'Slack Web API',
  source: 'https://api.slack.com/apis/rate-limits',
  counts: 'A quota for each method, app and workspace; a refusal has Retry-After.',
  missing: 'The quotas themselves: Slack states minima, and refuses with Retry-After beyond its own.',
  speaks: {
    bucketBy: ['credential', 'path:/api/{*}'],
  },
};
