/** How Mailchimp Marketing counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const mailchimp: Preset = {
  title: 'Mailchimp Marketing',
  source: 'https://mailchimp.com/developer/marketing/docs/fundamentals/',
  counts: '10 calls at once for each key, and no rate.',
  missing: 'Refusals at high volume with a bare 403.',
  speaks: {
    maxInFlight: 10,
    throttledBy: [{ status: 429, body: 'too many requests', waitSeconds: 2 }],
  },
};
