/** How BigCommerce counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const bigcommerce: Preset = {
  title: 'BigCommerce',
  source: 'https://docs.bigcommerce.com/developer/docs/overview/api-fundamentals/rate-limits',
  counts: 'A quota by plan for 30 s, for each store; fields tell quota, rest, reset and window.',
  missing: null,
  speaks: {
    fields: {
      limit: 'x-rate-limit-requests-quota',
      remaining: 'x-rate-limit-requests-left',
      reset: { name: 'x-rate-limit-time-reset-ms', as: 'milliseconds' },
      window: { name: 'x-rate-limit-time-window-ms', as: 'milliseconds' },
    },
    bucketBy: ['credential', 'path:/stores/{*}'],
  },
};
