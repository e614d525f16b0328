/** How long and how many calls wait: keys that a server, an upstream and its limits may state. */
import { defaultWaits } from './defaults.ts';
import { count, seconds } from './values.ts';

export const waitShape = {
  maxQueued: count()
    .optional()
    .describe(`Calls waiting per workspace and upstream. Default ${defaultWaits.maxQueued}.`),
  maxWaitSeconds: seconds()
    .optional()
    .describe(`How long a call waits unless it asks otherwise. Default ${defaultWaits.maxWaitSeconds}.`),
  maxWaitCeilingSeconds: seconds()
    .optional()
    .describe(
      `Longest wait that a call may ask for with "Prefer: wait=<seconds>". Default ${defaultWaits.maxWaitCeilingSeconds}.`,
    ),
};
