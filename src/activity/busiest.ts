/**
 * Which workspaces are the busiest over all replicas, so that they are the ones with a label. Owns the ranking; does not
 * own how busy one is on a replica (`recorder.ts`) and when a label changes hands (`telemetry/labels.ts`).
 */
import { Owners, type OwnerParts } from './owners.ts';
import type { Recorder } from './recorder.ts';
import type { SharedActivity } from './shared.ts';

export interface BusiestParts extends OwnerParts {
  readonly recorder: Pick<Recorder, 'busiest'>;
  readonly shared: Pick<SharedActivity, 'busiest'>;
  readonly labels: { prefer(busy: ReadonlyMap<string, number>): void };
}

export class Busiest {
  readonly #parts: BusiestParts;
  readonly #owners: Owners;

  constructor(parts: BusiestParts) {
    this.#parts = parts;
    this.#owners = new Owners(parts);
  }

  /** The label of a workspace, whether it is shown under it now or not. */
  labelOf(workspaceId: string): string {
    return this.#owners.labelOf(workspaceId);
  }

  /** Lets the busiest workspaces have the labels. Called before they are shown, and every few seconds. */
  async prefer(): Promise<void> {
    const elsewhere = await this.#parts.shared.busiest();
    const owners = await this.#owners.of([...elsewhere.keys()]);
    const busy = new Map(this.#parts.recorder.busiest());
    for (const [label, there] of elsewhere) {
      const workspaceId = owners.get(label);
      if (workspaceId !== undefined) busy.set(workspaceId, (busy.get(workspaceId) ?? 0) + there);
    }
    // A workspace that was removed has no row: its calls are among the others.
    const workspaces = this.#parts.workspaces();
    for (const workspaceId of busy.keys()) if (!workspaces.has(workspaceId)) busy.delete(workspaceId);
    this.#parts.labels.prefer(busy);
  }

  /** The configuration changed: labels of other replicas may belong to workspaces that are configured now. */
  reload(): void {
    this.#owners.reload();
  }
}
