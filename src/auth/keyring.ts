/**
 * The API keys that are valid now. Owns lookup, expiry and the swap at a reload; where a key was found in a call is
 * decided in `authenticate.ts`. Keys are held as digests only. Invariant: an unknown key and an expired one take the same
 * path and give the same result.
 */
import { hash } from 'node:crypto';
import type { Clock } from '../clock.ts';
import type { Settings, WorkspaceKey, WorkspaceSettings } from '../config/settings.ts';

/** A valid key: whose it is. All calls with one key share it. */
interface KeyMatch {
  readonly workspace: WorkspaceSettings;
  readonly key: WorkspaceKey;
  /** True while the key still names the same workspace and has not expired. */
  readonly stillValid: () => boolean;
}

interface Entry {
  readonly workspace: WorkspaceSettings;
  readonly key: WorkspaceKey;
  /** `null` = the key has not been used yet. */
  match: KeyMatch | null;
}

/** The keys of all workspaces, by digest, hexadecimal. A reload makes a new index while the old one is in use. */
type KeyIndex = ReadonlyMap<string, Entry>;

export function keyIndexOf({ workspaces }: Pick<Settings, 'workspaces'>): KeyIndex {
  const index = new Map<string, Entry>();
  for (const workspace of workspaces.values())
    for (const key of workspace.keys) index.set(key.sha256, { workspace, key, match: null });
  return index;
}

export class Keyring {
  readonly #clock: Pick<Clock, 'now'>;
  /** Those that are valid now: a key that a reload has removed is refused at once, waiting calls included. */
  readonly #keys: () => KeyIndex;

  constructor(keys: () => KeyIndex, clock: Pick<Clock, 'now'>) {
    this.#clock = clock;
    this.#keys = keys;
  }

  /** The workspace of a key that is known and not expired, else `null`. */
  find(key: string): KeyMatch | null {
    // The digest is asked for as text: making a buffer, and text of it, takes three times as long.
    const name = hash('sha256', key, 'hex');
    const entry = this.#keys().get(name);
    const isCurrent = this.#clock.now() < (entry?.key.expiresAt ?? Infinity);
    if (entry === undefined || !isCurrent) return null;
    entry.match ??= this.#matchOf(entry, name);
    return entry.match;
  }

  /** `digest`: SHA-256 of the key, hexadecimal. Not for logs. */
  #matchOf({ workspace, key }: Entry, digest: string): KeyMatch {
    const stillValid = (): boolean => {
      const entry = this.#keys().get(digest);
      if (entry === undefined || entry.workspace.id !== workspace.id) return false;
      return this.#clock.now() < (entry.key.expiresAt ?? Infinity);
    };
    return { workspace, key, stillValid };
  }
}
