/** How long and how many calls wait: keys that a server, an upstream and its limits may state, the last one before the others. */
import { z } from 'zod';
import { defaultWaits } from './defaults.ts';
import type { Fault } from './problem.ts';
import { count, seconds } from './values.ts';

export const waitShape = {
  maxQueued: z
    .exactOptional(count)
    .describe(`Calls waiting per workspace and upstream. Default ${defaultWaits.maxQueued}.`),
  maxWaitSeconds: z
    .exactOptional(seconds)
    .describe(`How long a call waits unless it asks otherwise. Default ${defaultWaits.maxWaitSeconds}.`),
  maxWaitCeilingSeconds: z
    .exactOptional(seconds)
    .describe(
      `Longest wait that a call may ask for with "Prefer: wait=<seconds>". Default ${defaultWaits.maxWaitCeilingSeconds}.`,
    ),
};

export const waitKeys = ['maxQueued', 'maxWaitSeconds', 'maxWaitCeilingSeconds'] as const;

/** Those of a section. */
export interface Waits {
  readonly maxQueued?: number;
  readonly maxWaitSeconds?: number;
  readonly maxWaitCeilingSeconds?: number;
}

/** What is wrong with `maxWaitSeconds` of a section: a default wait above the longest wait would never be reached. */
export function waitFault({ maxWaitSeconds, maxWaitCeilingSeconds }: Waits, inherited: number): Fault | null {
  const ceiling = maxWaitCeilingSeconds ?? inherited;
  if (maxWaitSeconds === undefined || maxWaitSeconds <= ceiling) return null;
  return {
    reason: `is above maxWaitCeilingSeconds (${ceiling})`,
    fix: `lower it, or raise maxWaitCeilingSeconds to at least ${maxWaitSeconds}`,
  };
}
