/**
 * Notices that the configuration file or the `.env` beside it changed and hands over the new settings. Owns when the file is read again; what
 * the new settings change is the receiver's business. Invariants: an unusable file never replaces usable settings, an
 * older text never a newer one; a change is noticed within five seconds and a tenth (`file-watch.ts`) even if the file system
 * reports nothing; calls go on meanwhile, because the text is checked in a thread of its own and the settings are built in
 * slices.
 */
import type { Clock } from '../clock.ts';
import { FileWatch, type WatchFolder } from '../file-watch.ts';
import type { Slices } from '../slices.ts';
import type { StartThread } from './check-thread.ts';
import { readFiles, settingsApart, type ConfigSource, type WrittenConfig } from './load.ts';
import { ConfigError } from './problem.ts';
import type { Settings } from './settings.ts';

export interface WatchOptions extends ConfigSource {
  readonly clock: Pick<Clock, 'after'>;
  /** Digest of the text already in use (of `readSettings`); without it the first check hands the settings over once more. */
  readonly loadedDigest?: string;
  /** Takes settings over. The next ones come when this is done; when it fails, `onError` is called and they are not in use. */
  readonly onSettings: (settings: Settings) => void | Promise<void>;
  /** An unusable file (`ConfigError`), reported once per mistake, or a folder that cannot be watched. */
  readonly onError: (error: Error) => void;
  readonly watchFolder?: WatchFolder;
  readonly slices: Slices;
  /** Replaces the thread that checks texts. */
  readonly startThread?: StartThread;
}

/** Watches from its making on. */
export class SettingsWatch {
  readonly #options: WatchOptions;
  readonly #watch: FileWatch;
  readonly #stop = new AbortController();
  /** The text that is taken into use next; a newer one takes its place. */
  #next: WrittenConfig | null = null;
  #running: Promise<boolean> | null = null;
  #seenDigest: string | null = null;
  /** Of the newest text that is in use, on its way, or refused for what it says: it would be refused again. `null`: it is to be tried again. */
  #lastDigest: string | null;
  #lastComplaint = '';

  constructor(options: WatchOptions) {
    this.#options = options;
    this.#lastDigest = options.loadedDigest ?? null;
    this.#watch = new FileWatch({
      ...options,
      onCheck: () => this.#check(),
      onError: (error) => this.#complain(error),
    });
    this.#watch.checkSoon();
  }

  /**
   * Reads the file now, changed or not (SIGHUP). Resolves when nothing more is on its way; true when the newest text was usable and is in
   * use.
   */
  async reloadNow(): Promise<boolean> {
    this.#lastComplaint = '';
    const candidate = this.#read();
    return candidate !== null && (await this.#take(candidate));
  }

  /** Stops every watch and timer, and the thread that checks a text. Resolves when nothing of them is left. */
  async close(): Promise<void> {
    this.#watch.close();
    this.#stop.abort();
    await this.#running;
  }

  /** Takes over a text that is not in use nor on its way, and has been seen twice: a half-written file may be valid YAML. */
  #check(): void {
    const candidate = this.#read();
    if (candidate === null || candidate.digest === this.#lastDigest) return;
    const isStable = candidate.digest === this.#seenDigest;
    this.#seenDigest = candidate.digest;
    if (isStable) void this.#take(candidate);
    else this.#watch.checkSoon();
  }

  #read(): WrittenConfig | null {
    try {
      return readFiles(this.#options);
    } catch (error) {
      // What could not be read is refused: even the text in use is taken again when it is back, and the refusal is over.
      this.#lastDigest = null;
      this.#complain(error);
      return null;
    }
  }

  /**
   * One text after the other: an older one never replaces a newer one, and a file that changes all the time is still taken over now and
   * then. Resolves, when none is left, with whether the last one could be used.
   */
  #take(candidate: WrittenConfig): Promise<boolean> {
    this.#lastDigest = candidate.digest;
    this.#next = candidate;
    this.#running ??= this.#takeAll().finally(() => (this.#running = null));
    return this.#running;
  }

  async #takeAll(): Promise<boolean> {
    let isUsed = false;
    for (let candidate = this.#next; candidate !== null; candidate = this.#next) {
      this.#next = null;
      isUsed = await this.#use(candidate);
    }
    return isUsed;
  }

  async #use({ digest, ...written }: WrittenConfig): Promise<boolean> {
    const { slices, onSettings, startThread } = this.#options;
    const { signal } = this.#stop;
    try {
      await onSettings(await settingsApart(written, { slices, signal, startThread }));
      this.#lastComplaint = '';
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      if (!isFinal(error) && this.#lastDigest === digest) this.#lastDigest = null;
      this.#complain(error);
      return false;
    }
  }

  #complain(error: unknown): void {
    const fault = error instanceof Error ? error : new Error(String(error));
    if (fault.message !== this.#lastComplaint) this.#options.onError(fault);
    this.#lastComplaint = fault.message;
  }
}

/** Problems of the text itself have a line; another file that is missing may be there at the next check. */
const isFinal = (error: unknown): boolean =>
  error instanceof ConfigError && error.problems.every(({ line }) => line !== null);
