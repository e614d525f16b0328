/** How Twilio counts, reports and refuses. */
import type { Preset } from './preset.ts';

export const twilio: Preset = {
  title: 'Twilio',
  source: 'https://www.twilio.com/docs/api/errors/20429',
  counts: 'Calls at once for each account; a refused call was never processed.',
  missing: 'How many calls an account may have at once, which Twilio does not tell.',
  speaks: {
    throttledBy: [{ status: 429, body: '20429', waitSeconds: 1 }],
  },
};
