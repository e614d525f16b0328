/** How Discord counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const discord: Preset = {
  title: 'Discord',
  source: 'https://docs.discord.com/developers/topics/rate-limits',
  counts: 'A quota for each channel, guild or webhook; the time left is stated to the millisecond.',
  missing: 'The 50 calls per second of a bot over all routes, and buckets that routes of one resource share.',
  speaks: {
    fields: {
      limit: 'x-ratelimit-limit',
      remaining: 'x-ratelimit-remaining',
      reset: { name: 'x-ratelimit-reset-after', as: 'seconds' },
    },
    bucketBy: [
      'credential',
      'path:/api/{*}/channels/{*}',
      'path:/api/{*}/guilds/{*}',
      'path:/api/{*}/webhooks/{*}',
    ],
  },
};
