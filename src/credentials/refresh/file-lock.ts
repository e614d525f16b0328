/**
 * A lock for processes that see the same folder: a lock file, held by the process that created it.
 *
 * Owns: taking, removing after a holder's death, and releasing the lock file. Does not own: what the lock protects
 * (`refresh-grant.ts`). Keeps: one holder at a time, provided that each holds the lock for less than {@link lockMs}; after a
 * holder was killed, the others wait for that long. The age of a lock is measured by the clock of the file system, because the
 * clocks of two machines may differ.
 */
import { link, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';

/**
 * A lock older than this may be removed by another process: longer than a request to a token endpoint may take (10 s).
 * Milliseconds.
 */
export const lockMs = 12_000;

export class FileLock {
  readonly #path: string;
  readonly #id: string;

  /** @param id identifies this attempt to take the lock, of letters and digits; never used twice */
  constructor(path: string, id: string) {
    this.#path = path;
    this.#id = id;
  }

  /** `held`: another process holds the lock · `failed`: the lock file cannot be written. Never rejects. */
  async take(): Promise<'taken' | 'held' | 'failed'> {
    const made = await this.#make(this.#path);
    if (made !== 'exists') return made;
    await this.#removeOld();
    return 'held';
  }

  /** False when this process has held the lock for too long and another process has taken it. Never rejects. */
  async isOurs(): Promise<boolean> {
    return (await readFile(this.#path, 'utf8').catch(() => null)) === this.#id;
  }

  async release(): Promise<void> {
    if (await this.isOurs()) await rm(this.#path, { force: true }).catch(() => {});
  }

  async #make(path: string): Promise<'taken' | 'exists' | 'failed'> {
    try {
      await writeFile(path, this.#id, { flag: 'wx', mode: 0o600 });
      return 'taken';
    } catch (error) {
      if (isExists(error)) return 'exists';
      // On a full disk the lock file was created but not written.
      if ((await readFile(path, 'utf8').catch(() => null)) === '')
        await rm(path, { force: true }).catch(() => {});
      return 'failed';
    }
  }

  /** Removes a lock file that is too old, so that the next attempt may take the lock. */
  async #removeOld(): Promise<void> {
    const aside = `${this.#path}.${this.#id}`;
    try {
      const held = await stat(this.#path);
      if ((await this.#make(aside)) !== 'taken') return;
      const { mtimeMs: now } = await stat(aside);
      if (now - held.mtimeMs < lockMs) return;
      await rename(this.#path, aside);
      const moved = await stat(aside);
      // Another process had removed the old lock file before, and the one just renamed is a living holder's: it is put back.
      if (moved.ino !== held.ino || moved.mtimeMs !== held.mtimeMs) await link(aside, this.#path);
    } catch {
      // The lock file is gone, or its age cannot be read: the next attempt decides.
    } finally {
      await rm(aside, { force: true }).catch(() => {});
    }
  }
}

const isExists = (error: unknown): boolean =>
  typeof error === 'object' && error !== null && 'code' in error && error.code === 'EEXIST';
