/**
 * How many buckets a workspace may have by values that its calls choose: models, fields, path segments and body members of `bucketBy`,
 * and credentials that clients bring.
 *
 * Each bucket begins with an empty window, so a client that invents values would have a new window with every call. Keeps: of the calls
 * of one workspace to one upstream, at most `maxBuckets` values have buckets of their own at a time; a value gives its bucket up when it
 * was not used for the longest window of the upstream, so that no window is had twice. Known to each replica for itself: what is bounded
 * is `maxBuckets` times the replicas, and only a workspace that goes beyond the bound has calls of one value in two buckets.
 */
import type { Dialect, DialectWindow, UpstreamSettings } from '../config/settings.ts';

const minuteMs = 60_000;
const dayMs = 86_400_000;

export interface Chooser {
  readonly workspaceId: string;
  readonly upstream: UpstreamSettings;
}

interface Chosen {
  /** When each value was used last, monotonic milliseconds; the one that is unused for longest comes first. */
  readonly usedAt: Map<string, number>;
  forgottenAt: number;
}

export class ChosenBuckets {
  /** By workspace and upstream; the one that is unused for longest comes first. */
  readonly #chosen = new Map<string, Chosen>();

  /**
   * True where the calls with `value` have a bucket of their own; else they share one with all further values of the workspace.
   * @param now monotonic milliseconds
   */
  hasOwn({ workspaceId, upstream }: Chooser, value: string, now: number): boolean {
    const keepMs = longestWindowMs(upstream);
    const { usedAt } = this.#of(`${upstream.name}\n${workspaceId}`, now + keepMs, now);
    if (!usedAt.delete(value) && usedAt.size >= upstream.maxBuckets) {
      for (const [unused, at] of usedAt) {
        if (at + keepMs > now) break;
        usedAt.delete(unused);
      }
      if (usedAt.size >= upstream.maxBuckets) return false;
    }
    usedAt.set(value, now);
    return true;
  }

  #of(name: string, forgottenAt: number, now: number): Chosen {
    const known = this.#chosen.get(name);
    const chosen: Chosen = known ?? { usedAt: new Map(), forgottenAt };
    chosen.forgottenAt = forgottenAt;
    this.#chosen.delete(name);
    if (known === undefined) {
      for (const [unused, { forgottenAt: at }] of this.#chosen) {
        if (at > now) break;
        this.#chosen.delete(unused);
      }
    }
    this.#chosen.set(name, chosen);
    return chosen;
  }
}

/** The longest window in which an upstream is configured to count, at least a minute. */
function longestWindowMs({ kind, dialect, limits }: UpstreamSettings): number {
  const { bucket, requestsPerDay, tokensPerDay } = limits;
  return Math.max(
    minuteMs,
    requestsPerDay !== null || tokensPerDay !== null ? dayMs : 0,
    kind === 'commerce' ? (bucket.capacity / bucket.leakPerSecond) * 1000 : 0,
    ...windowsOf(dialect).map(({ windowMs }) => windowMs),
  );
}

const windowsOf = (dialect: Dialect | null): readonly DialectWindow[] =>
  dialect === null ? [] : [...dialect.windows, ...dialect.operations.flatMap(({ windows }) => windows)];
