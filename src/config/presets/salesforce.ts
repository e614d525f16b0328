/** How Salesforce counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const salesforce: Preset = {
  title: 'Salesforce',
  source: 'https://developer.salesforce.com/docs/platform/salesforce-app-limits-cheatsheet',
  counts: 'A quota for any 24 hours; when it is used up a 403 says so, and no wait of a call is that long.',
  missing: 'The 25 places count only calls of 20 s and longer; here they count all.',
  speaks: {
    permanentBy: [{ status: 403, body: 'REQUEST_LIMIT_EXCEEDED' }],
    maxInFlight: 25,
  },
};
