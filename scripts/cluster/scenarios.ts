/**
 * Which scenarios run, and beside which. What needs the processor runs alone; what mostly waits runs side by side, each
 * with its own processes and its own Redis.
 */
import { bursts } from './bursts.ts';
import { closings } from './closing.ts';
import { oneDocument } from './costs.ts';
import { crowds } from './crowd.ts';
import { defaultWaits } from './default-wait.ts';
import { farRedisBursts } from './far-redis.ts';
import { flood } from './flood.ts';
import { joiningWorkspaces } from './joining-workspaces.ts';
import { outsiders } from './outsider.ts';
import { reloads } from './reloads.ts';
import { renewals } from './renewals.ts';
import type { Scenario } from './row.ts';
import { slowedBursts } from './slowed.ts';

/** One after the other. */
type Track = readonly Scenario[];

/** Stages follow each other; the tracks of one stage run at the same time. */
export const stages: readonly (readonly Track[])[] = [
  [[bursts.shopBurst]],
  [bursts.chat],
  [farRedisBursts],
  [[bursts.ceiling]],
  [
    [joiningWorkspaces.embedded],
    [defaultWaits.embedded],
    [defaultWaits.replicas],
    [joiningWorkspaces.replicas],
    [reloads.embedded],
  ],
  [slowedBursts],
  [[flood]],
  [[outsiders.embedded]],
  [[outsiders.replicas]],
  [[closings.embedded], [closings.replicas]],
  [[...oneDocument], [reloads.replicas]],
  [[renewals.short]],
];

/** Rows of five minutes and more each, which run with `--long`. */
export const long: readonly (readonly Track[])[] = [
  [[crowds.embedded]],
  [[crowds.replicas]],
  [[renewals.long]],
];
