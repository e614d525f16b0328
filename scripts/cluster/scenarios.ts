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
import { holders } from './holders.ts';
import { joiningWorkspaces } from './joining-workspaces.ts';
import { outsiders } from './outsider.ts';
import { redisFaults } from './redis-faults.ts';
import { reloads } from './reloads.ts';
import { renewals } from './renewals.ts';
import { repeats } from './repeats.ts';
import type { Scenario } from './row.ts';
import { slowedBursts } from './slowed.ts';
import { topologies } from './topologies.ts';

/** One after the other. */
type Track = readonly Scenario[];

/** Stages follow each other; the tracks of one stage run at the same time. */
export const stages: readonly (readonly Track[])[] = [
  [[bursts.shopBurst]],
  [bursts.chat],
  [farRedisBursts],
  [
    [bursts.ceiling],
    [holders.killed, holders.stopped, redisFaults.unavailableLocal],
    [redisFaults.flushed, redisFaults.restarted, topologies.sentinel, topologies.cluster],
  ],
  [
    [redisFaults.hungLocal],
    [topologies.secured, redisFaults.hungDeny],
    [redisFaults.leaving, redisFaults.unavailableDeny],
  ],
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
  [[repeats]],
  [[renewals.short]],
];

/** Rows of five minutes and more each, which run with `--long`. */
export const long: readonly (readonly Track[])[] = [
  [[crowds.embedded]],
  [[crowds.replicas]],
  [[renewals.long]],
];
