/** How GitLab counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const gitlab: Preset = {
  title: 'GitLab',
  source: 'https://docs.gitlab.com/administration/settings/user_and_ip_rate_limits/',
  counts:
    'A limit per minute for each user, stated under the names of the IETF draft, with an instant as reset.',
  missing: 'Limits of single features, which have no fields: they are met with their refusals.',
  speaks: {
    fields: {
      limit: 'ratelimit-limit',
      used: 'ratelimit-observed',
      remaining: 'ratelimit-remaining',
      reset: { name: 'ratelimit-reset', as: 'epoch-seconds' },
      window: 60,
    },
  },
};
