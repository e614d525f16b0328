/**
 * Which scenarios run, and beside which. What needs the processor runs alone; what mostly waits runs side by side, each
 * with its own processes and its own Redis.
 */
import { bursts } from './bursts.ts';
import { holders } from './holders.ts';
import { redisFaults } from './redis-faults.ts';
import type { Scenario } from './row.ts';
import { topologies } from './topologies.ts';

/** One after the other. */
type Track = readonly Scenario[];

/** Stages follow each other; the tracks of one stage run at the same time. */
export const stages: readonly (readonly Track[])[] = [
  [[bursts.chatBurst]],
  [[bursts.shopBurst]],
  [
    [bursts.ceiling],
    [holders.killed, holders.stopped, redisFaults.awayLocal],
    [redisFaults.flushed, redisFaults.restarted, topologies.sentinel, topologies.cluster],
  ],
  [
    [redisFaults.hungLocal],
    [redisFaults.hungDeny, topologies.secured],
    [redisFaults.awayDeny, redisFaults.leaving],
  ],
];
