/** How Airtable counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const airtable: Preset = {
  title: 'Airtable',
  source: 'https://airtable.com/developers/web/api/rate-limits',
  counts:
    '5 calls per second and base; after a refusal the base stays closed for 30 s, and no response says so.',
  missing: 'The 50 calls per second that all bases of a user share.',
  speaks: {
    windows: [{ requests: 5, seconds: 1 }],
    bucketBy: ['credential', 'path:/v0/{*}'],
    penaltySeconds: 30,
  },
};
