/** How Notion counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const notion: Preset = {
  title: 'Notion',
  source: 'https://developers.notion.com/reference/request-limits',
  counts: 'About 3 calls per second and connection, counted over a minute; bursts pass.',
  missing: 'Budgets above the stated average, which depend on the plan.',
  speaks: {
    windows: [{ requests: 180, seconds: 60 }],
  },
};
