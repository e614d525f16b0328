/**
 * Notices that the configuration file or the `.env` beside it changed and hands over the new settings. Owns when the file is read again; what
 * the new settings change is the receiver's business. Invariants: an unusable file never replaces usable settings, an
 * older text never a newer one; a change is taken over within a second, and a long text as soon as it is checked: in a thread of its own,
 * so that calls go on meanwhile.
 */
import { statSync } from 'node:fs';
import { every, filePollMs, type CancelTimer, type Clock } from '../clock.ts';
import { ConfigError, envFileOf, readFiles, settingsApart, type ConfigSource } from './load.ts';
import type { Settings } from './settings.ts';

export interface WatchOptions extends ConfigSource {
  readonly clock: Pick<Clock, 'after'>;
  /** Digest of the text already in use (of `readSettings`); without it the first check hands the settings over once more. */
  readonly loadedDigest?: string;
  /** Takes settings over. The next ones come when this is done; when it fails, `onError` is called and they are not in use. */
  readonly onSettings: (settings: Settings) => void | Promise<void>;
  /** An unusable file (`ConfigError`), reported once per mistake. */
  readonly onError: (error: Error) => void;
}

/** At so many looks after a change the files are read: the times of some file systems do not tell two changes of one second apart. */
const readsAfterChange = 6;

/** What the system says of a file: of one that has changed something else. */
function stampOf(path: string): string {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat === undefined ? '' : `${stat.ino} ${stat.size} ${stat.mtimeMs} ${stat.ctimeMs}`;
}

/** Watches from its making on. */
export class SettingsWatch {
  readonly #options: WatchOptions;
  readonly #stopWatching: CancelTimer;
  readonly #stop = new AbortController();
  /** Of both files, at the last look. */
  #stamp = '';
  #readsLeft = readsAfterChange;
  /** The reload that was asked for last: they follow each other. */
  #last: Promise<boolean> = Promise.resolve(true);
  #isReloading = false;
  #seenDigest: string | null = null;
  /** Of the text that is in use, on its way, or refused for what it says: it would be refused again. `null`: it is to be tried again. */
  #lastDigest: string | null;
  #lastComplaint = '';

  constructor(options: WatchOptions) {
    this.#options = options;
    this.#lastDigest = options.loadedDigest ?? null;
    this.#stopWatching = every(options.clock, filePollMs, () => this.#check());
  }

  /** Reads the file, changed or not (SIGHUP), after the reload under way. Resolves with whether it was usable and is in use. */
  reloadNow(): Promise<boolean> {
    this.#lastComplaint = '';
    return this.#reloadNext();
  }

  /** Stops every watch and timer, and the thread that checks a text. Resolves when nothing of them is left. */
  async close(): Promise<void> {
    this.#stopWatching();
    this.#stop.abort();
    await this.#last;
  }

  /** Takes over a text that is not in use and has been seen twice: a half-written file may be valid YAML. */
  #check(): void {
    if (this.#isReloading) return;
    const { path } = this.#options;
    try {
      const stamp = `${stampOf(path)}, ${stampOf(envFileOf(path))}`;
      if (stamp !== this.#stamp) this.#readsLeft = readsAfterChange;
      this.#stamp = stamp;
      if (this.#readsLeft === 0) return;
      this.#readsLeft -= 1;
      const { digest } = readFiles(this.#options);
      if (digest === this.#lastDigest) return;
      if (digest === this.#seenDigest) void this.#reloadNext();
      this.#seenDigest = digest;
    } catch (error) {
      this.#failed(error);
    }
  }

  #reloadNext(): Promise<boolean> {
    this.#last = this.#last.then(() => this.#reload());
    return this.#last;
  }

  async #reload(): Promise<boolean> {
    const { signal } = this.#stop;
    this.#isReloading = true;
    try {
      signal.throwIfAborted();
      const written = readFiles(this.#options);
      this.#lastDigest = written.digest;
      const settings = await settingsApart(written, signal);
      signal.throwIfAborted();
      await this.#options.onSettings(settings);
      this.#lastComplaint = '';
      return true;
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
      return false;
    } finally {
      this.#isReloading = false;
    }
  }

  #failed(error: unknown): void {
    // Problems of the text itself have a line. Whatever else is wrong may be over at the next look, and the same text is usable.
    const isFinal = error instanceof ConfigError && error.problems.every(({ line }) => line !== null);
    if (!isFinal) this.#lastDigest = null;
    this.#complain(error);
  }

  #complain(error: unknown): void {
    const fault = error instanceof Error ? error : new Error(String(error));
    if (fault.message !== this.#lastComplaint) this.#options.onError(fault);
    this.#lastComplaint = fault.message;
  }
}
