/**
 * Finds the workspace to which a label belongs. Other replicas name their busiest workspaces by label only; to show the limits of
 * such a workspace, this replica compares the label with those of all configured workspaces. Owns: the search and its cache. Does
 * not own: how labels are made (`telemetry/labels.ts`).
 *
 * Making a label takes a few microseconds, and a configuration may have 100,000 workspaces. So the search runs in slices, only
 * when a label is unknown, and at most every {@link pauseMs}.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

/** Between the starts of two searches, milliseconds. */
export const pauseMs = 30_000;
/** Labels of one slice, after which other events are handled: one or two milliseconds of work. */
const perSlice = 250;
/** Size of each cache: as many labels as a few dozen replicas publish. */
const maxRemembered = 5_000;

/** `nobody`: no configured workspace has this label. */
type Found = { readonly workspaceId: string } | 'nobody';

export interface OwnerParts {
  readonly clock: Clock;
  readonly labelOf: (workspaceId: string) => string;
  /** All workspaces that are configured now, by id. */
  readonly workspaces: () => ReadonlyMap<string, unknown>;
}

export class Owners {
  readonly #parts: OwnerParts;
  readonly #labels = new LRUCache<string, string>({ max: maxRemembered });
  readonly #found = new LRUCache<string, Found>({ max: maxRemembered });
  #searchedAt: number | null = null;

  constructor(parts: OwnerParts) {
    this.#parts = parts;
  }

  /** The label of a workspace, computed once while it is remembered. */
  labelOf(workspaceId: string): string {
    let label = this.#labels.get(workspaceId);
    if (label === undefined) {
      label = this.#parts.labelOf(workspaceId);
      this.#labels.set(workspaceId, label);
      this.#found.set(label, { workspaceId });
    }
    return label;
  }

  /** By label: the ids of the workspaces that have these labels, as far as they could be found. */
  async of(labels: readonly string[]): Promise<ReadonlyMap<string, string>> {
    const unknown = new Set(labels.filter((label) => !this.#found.has(label)));
    if (unknown.size > 0 && this.#mayStart()) await this.#search(unknown);
    const owners = new Map<string, string>();
    for (const label of labels) {
      const found = this.#found.get(label) ?? 'nobody';
      if (found !== 'nobody') owners.set(label, found.workspaceId);
    }
    return owners;
  }

  /** The configuration changed: a label that belonged to nobody may belong to a workspace now. */
  reload(): void {
    for (const [label, found] of this.#found.entries()) if (found === 'nobody') this.#found.delete(label);
    this.#searchedAt = null;
  }

  #mayStart(): boolean {
    const now = this.#parts.clock.monotonic();
    if (this.#searchedAt !== null && now - this.#searchedAt < pauseMs) return false;
    this.#searchedAt = now;
    return true;
  }

  async #search(wanted: Set<string>): Promise<void> {
    let inThisSlice = 0;
    for (const workspaceId of this.#parts.workspaces().keys()) {
      if (++inThisSlice > perSlice) {
        inThisSlice = 1;
        await new Promise<void>((resume) => void this.#parts.clock.after(0, resume));
      }
      const label = this.#parts.labelOf(workspaceId);
      if (!wanted.delete(label)) continue;
      this.#found.set(label, { workspaceId });
      if (wanted.size === 0) return;
    }
    for (const label of wanted) this.#found.set(label, 'nobody');
  }
}
