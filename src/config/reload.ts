/**
 * Notices that the configuration file changed and hands over the new settings. Owns when the file is read again; what
 * the new settings change is the receiver's business. Invariants: an unusable file never replaces usable settings, an
 * older text never a newer one; a change is noticed within five seconds and a tenth (`file-watch.ts`) even if the file system
 * reports nothing; calls go on meanwhile, because the text is checked in a thread of its own and the settings are built in
 * slices.
 */
import type { Clock } from '../clock.ts';
import { FileWatch, type WatchFolder } from '../file-watch.ts';
import type { Slices } from '../slices.ts';
import type { StartThread } from './check-thread.ts';
import { readText, settingsApart, textDigest, type ConfigSource } from './load.ts';
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

export interface SettingsWatch {
  /** Reads the file now, changed or not (SIGHUP). True when this text, or a newer one, was usable and taken over. */
  reloadNow(): Promise<boolean>;
  /** Stops every watch and timer, and the thread that checks a text. Resolves when nothing of them is left. */
  close(): Promise<void>;
}

/** Starts watching. */
export function watchSettings(options: WatchOptions): SettingsWatch {
  return new WatchedSettings(options);
}

class WatchedSettings implements SettingsWatch {
  readonly #options: WatchOptions;
  readonly #queue: ReloadQueue;
  readonly #watch: FileWatch;
  #usedDigest: string | null;
  #seenDigest: string | null = null;
  /** A text that was refused for what it says; the same text would be refused again. */
  #refusedDigest: string | null = null;
  #lastComplaint = '';

  constructor(options: WatchOptions) {
    this.#options = options;
    this.#usedDigest = options.loadedDigest ?? null;
    this.#queue = new ReloadQueue((candidate, signal) => this.#use(candidate, signal));
    this.#watch = new FileWatch({
      ...options,
      onCheck: () => this.#check(),
      onError: (error) => this.#complain(error),
    });
    this.#watch.checkSoon();
  }

  async reloadNow(): Promise<boolean> {
    this.#lastComplaint = '';
    const candidate = this.#read();
    return candidate !== null && (await this.#queue.add(candidate));
  }

  async close(): Promise<void> {
    this.#watch.close();
    await this.#queue.close();
  }

  /** Takes over a text that is not in use nor on its way, and has been seen twice: a half-written file may be valid YAML. */
  #check(): void {
    const candidate = this.#read();
    if (candidate === null) return;
    const { digest } = candidate;
    const isStable = digest === this.#seenDigest;
    this.#seenDigest = digest;
    const { newest } = this.#queue;
    if (newest === null && digest === this.#usedDigest) {
      this.#lastComplaint = '';
      this.#refusedDigest = null;
    } else if (digest === newest || (newest === null && digest === this.#refusedDigest)) {
      return;
    } else if (isStable) {
      void this.#queue.add(candidate);
    } else {
      this.#watch.checkSoon();
    }
  }

  #read(): Candidate | null {
    try {
      const text = readText(this.#options.path);
      return { text, digest: textDigest(text) };
    } catch (error) {
      this.#complain(error);
      return null;
    }
  }

  async #use({ text, digest }: Candidate, signal: AbortSignal): Promise<boolean> {
    const { path, env, slices, onSettings, startThread } = this.#options;
    try {
      await onSettings(await settingsApart(text, { path, env }, { slices, signal, startThread }));
      this.#usedDigest = digest;
      this.#refusedDigest = null;
      this.#lastComplaint = '';
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      this.#refusedDigest = isFinal(error) ? digest : null;
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

/** A text that is to be used, and how it is recognized. */
interface Candidate {
  readonly text: string;
  readonly digest: string;
}

interface Waiting extends Candidate {
  /** All that asked since the last one began: the newest text answers for those before it. */
  readonly waiting: ((isUsed: boolean) => void)[];
}

/**
 * Takes one text of the configuration after the other into use: one at a time, of those that come meanwhile only the newest, so that an
 * older text never replaces a newer one, and a file that changes all the time is still taken over now and then.
 */
class ReloadQueue {
  readonly #use: (candidate: Candidate, signal: AbortSignal) => Promise<boolean>;
  readonly #stop = new AbortController();
  #running: { readonly digest: string; readonly ended: Promise<void> } | null = null;
  #next: Waiting | null = null;

  /** `use` takes a text into use and says whether it could; it does not reject, and ends soon when `signal` is aborted. */
  constructor(use: (candidate: Candidate, signal: AbortSignal) => Promise<boolean>) {
    this.#use = use;
  }

  /** Digest of the text that will be the last one taken into use, or `null` while none is on its way. */
  get newest(): string | null {
    return this.#next?.digest ?? this.#running?.digest ?? null;
  }

  /** Takes a text into use, now or after the one that is on its way. Resolves with whether it, or a newer one instead, could be used. */
  add(candidate: Candidate): Promise<boolean> {
    return new Promise((resolve) => {
      this.#next = { ...candidate, waiting: [...(this.#next?.waiting ?? []), resolve] };
      if (this.#running === null) this.#start();
    });
  }

  /** Takes no further text into use. Resolves when the one on its way has ended. */
  async close(): Promise<void> {
    this.#stop.abort();
    await this.#running?.ended;
  }

  #start(): void {
    const candidate = this.#next;
    this.#next = null;
    if (candidate === null) return;
    const ended = this.#use(candidate, this.#stop.signal).then((isUsed) => {
      this.#running = null;
      for (const report of candidate.waiting) report(isUsed);
      this.#start();
    });
    this.#running = { digest: candidate.digest, ended };
  }
}
