/** How Amazon Selling Partner API counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const amazonSpApi: Preset = {
  title: 'Amazon Selling Partner API',
  source: 'https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits-in-the-sp-api',
  counts: 'Each operation has a rate of its own, stated in calls per second.',
  missing: 'The burst of a plan, which no response tells: calls leave evenly at the rate.',
  speaks: {
    fields: { rate: 'x-amzn-ratelimit-limit' },
    bucketBy: ['credential', 'path:/{*}/{*}/{*}'],
  },
};
