/**
 * Which workspaces are the busiest over all replicas, so that they are the ones with a label. How busy one is on a replica is
 * counted in `recorder.ts`; when a label changes hands is decided in `telemetry/labels.ts`.
 */
import type { Labelled } from './shape.ts';
import type { Recorder } from './recorder.ts';
import type { SharedActivity } from './shared.ts';

/** Labels that are shown at a time. */
const maxLabels = 100;

export interface BusiestParts {
  readonly recorder: Pick<Recorder, 'busiest'>;
  readonly shared: Pick<SharedActivity, 'busiest'>;
  readonly labels: {
    prefer(busy: ReadonlyMap<string, number>): void;
    /** Ids of the workspaces that have a label now. */
    holders(): Iterable<string>;
  };
  /** The label of a workspace, whether it is shown under it now or not. */
  readonly labelOf: (workspaceId: string) => string;
  readonly isConfigured: (workspaceId: string) => boolean;
}

/**
 * Lets the busiest workspaces have the labels; called before they are shown, and every few seconds. Resolves with those to be shown:
 * workspaces that have a label here, and labels under which other replicas alone have counted calls.
 */
export async function preferBusiest({
  recorder,
  shared,
  labels,
  labelOf,
  isConfigured,
}: BusiestParts): Promise<Labelled> {
  const elsewhere = new Map(await shared.busiest());
  const busy = new Map<string, number>();
  for (const [workspaceId, here] of recorder.busiest()) {
    const label = labelOf(workspaceId);
    // A workspace that was removed has no row: its calls are among the others.
    if (isConfigured(workspaceId)) busy.set(workspaceId, here + (elsewhere.get(label) ?? 0));
    elsewhere.delete(label);
  }
  labels.prefer(busy);
  const own = [...labels.holders()].map((workspaceId) => ({ workspaceId, busy: busy.get(workspaceId) ?? 0 }));
  for (const { workspaceId } of own) elsewhere.delete(labelOf(workspaceId));
  const others = [...elsewhere].map(([label, there]) => ({ label, busy: there }));
  const shown = [...own, ...others].sort((a, b) => b.busy - a.busy).slice(0, maxLabels);
  return {
    workspaceIds: shown.flatMap((each) => ('workspaceId' in each ? [each.workspaceId] : [])),
    elsewhere: shown.flatMap((each) => ('label' in each ? [each.label] : [])),
  };
}
