/**
 * Whose label is this? Another replica names its busiest workspaces by label only; to show their limits here, the label has
 * to be found among those of the configured workspaces. Owns the search and what is remembered of it; does not own
 * labels (`telemetry/labels.ts`).
 *
 * A label is a keyed digest of a few microseconds, a configuration may have 100,000 workspaces: the search goes on in
 * slices, only when a label is unknown, and at most every {@link pauseMs}.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../clock.ts';

/** After a search none begins for this long, milliseconds. */
export const pauseMs = 30_000;
/** Labels computed before calls in flight go on: a millisecond or two. */
const perSlice = 250;
/** Workspaces and labels remembered: as many as a few dozen replicas publish. */
const maxRemembered = 5_000;

/** Nobody's: no configured workspace has this label. */
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

  /** Workspaces of these labels, by label, as far as they are known or have been found. */
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

  /** The configuration changed: what was nobody's may be somebody's now. */
  reconfigured(): void {
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
    let sinceBreath = 0;
    for (const workspaceId of this.#parts.workspaces().keys()) {
      if (++sinceBreath > perSlice) {
        sinceBreath = 1;
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
