/**
 * Labels of workspaces. Owns the cap on them; does not own how a label is made (`identity.ts`) and who may be labelled
 * where: everything visible outside (metrics, logs, traces, activity) asks here.
 *
 * The cap: a process holds `limit` labels at a time. A workspace keeps the label it was given while it is active, so
 * its counters never go backwards; a label is taken back only when another workspace needs it *and* its own workspace has
 * been idle for `idleMs`, or is clearly less busy than the other (the listener then removes its series). Until then
 * further workspaces fold into `other`. Least-recently-used eviction would be wrong: 101 busy workspaces would restart each other's
 * counters all the time.
 */
import type { Clock } from '../clock.ts';
import { workspaceLabel } from '../identity.ts';
import { minuteMs } from '../time-units.ts';

/** Label of every workspace beyond the cap. */
const otherLabel = 'other';
/** Label of calls whose workspace is not known (not authenticated); also the upstream of calls without a route. */
export const noneLabel = 'none';

export type Labels = ReturnType<typeof createLabels>;

/**
 * Label cache of one process. Map order is order of last activity, so the idlest slot is always the first.
 * @param options labels held at a time; idle time after which a label may be given to another workspace, milliseconds (longer than
 *   Prometheus looks back for a stale series); called when a label is taken back, because its series must go
 */
export function createLabels(
  labelKey: string,
  clock: Clock,
  { limit = 100, idleMs = 15 * minuteMs, onRelease = (_label: string): void => {} } = {},
) {
  const slots = new Map<string, { readonly label: string; readonly lastActive: number }>();
  function take(workspaceId: string, lastActive: number): string {
    const label = slots.get(workspaceId)?.label ?? workspaceLabel(labelKey, workspaceId);
    slots.delete(workspaceId);
    slots.set(workspaceId, { label, lastActive });
    return label;
  }
  function giveUp(workspaceId: string): void {
    const held = slots.get(workspaceId);
    slots.delete(workspaceId);
    if (held !== undefined) onRelease(held.label);
  }
  const labels = {
    /** The label under which this workspace may be shown now: its own, or `other`. Counts as activity. */
    of(workspaceId: string): string {
      const now = clock.monotonic();
      const held = slots.get(workspaceId);
      // Moving on every call would cost more than it is worth; a second of coarseness keeps the order good enough.
      if (held !== undefined && now - held.lastActive <= 1_000) return held.label;
      const [idlest] = slots;
      if (held === undefined && slots.size >= limit && idlest !== undefined) {
        if (now - idlest[1].lastActive < idleMs) return otherLabel;
        giveUp(idlest[0]);
      }
      return take(workspaceId, now);
    },
    /** The label that `of` returns, read without counting as activity: reading does not prolong the time for which a label is held. */
    peek: (workspaceId: string): string => slots.get(workspaceId)?.label ?? labels.of(workspaceId),
    /**
     * Gives labels to workspaces that are clearly busier than some that hold one, the busiest first, and takes them from the least busy:
     * twice as busy, and two calls more, so that workspaces of similar traffic, or with next to none, do not take labels from each other
     * for ever. `busy`: how busy workspaces are; one that is left out is idle.
     */
    prefer(busy: ReadonlyMap<string, number>): void {
      const busyOf = (workspaceId: string): number => busy.get(workspaceId) ?? 0;
      const holders = [...slots.keys()].sort((a, b) => busyOf(a) - busyOf(b));
      const others = [...busy].filter(([id]) => !slots.has(id)).sort(([, a], [, b]) => b - a);
      for (const [id, calls] of others) {
        if (slots.size >= limit) {
          const least = holders.shift();
          if (least === undefined || calls < 2 * busyOf(least) + 2) return;
          giveUp(least);
        }
        take(id, clock.monotonic());
      }
    },
    holds: (workspaceId: string): boolean => slots.has(workspaceId),
  };
  return labels;
}
