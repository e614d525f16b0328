/** How Twilio SendGrid counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const sendgrid: Preset = {
  title: 'Twilio SendGrid',
  source: 'https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits',
  counts: 'A quota for each endpoint, stated in every response; no Retry-After.',
  missing: null,
  speaks: {
    fields: {
      limit: 'x-ratelimit-limit',
      remaining: 'x-ratelimit-remaining',
      reset: { name: 'x-ratelimit-reset', as: 'epoch-seconds' },
    },
    bucketBy: ['credential', 'path:/v3/{*}/{*}'],
  },
};
