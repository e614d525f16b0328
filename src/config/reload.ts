/**
 * Notices that the configuration file or the `.env` beside it changed and hands over the new settings. Owns when the file is read again; what
 * the new settings change is the receiver's business. Invariants: an unusable file never replaces usable settings, an
 * older text never a newer one; a change is taken over within a second, and a long text as soon as it is checked: in a thread of its own,
 * so that calls go on meanwhile.
 */
import { statSync } from 'node:fs';
import { every, filePollMs, type Clock } from '../clock.ts';
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
export function watchSettings(options: WatchOptions) {
  const { path, clock, onSettings, onError } = options;
  const stopped = new AbortController();
  const { signal } = stopped;
  /** Of both files, at the last look. */
  let stamp = '';
  let readsLeft = 0;
  /** The reload that was asked for last: they follow each other. */
  let last: Promise<boolean> = Promise.resolve(true);
  let isReloading = false;
  let seenDigest: string | null = null;
  /** Of the text that is in use, on its way, or refused for what it says: it would be refused again. `null`: it is to be tried again. */
  let lastDigest = options.loadedDigest ?? null;
  let lastComplaint = '';

  function failed(thrown: unknown): void {
    // Problems of the text itself have a line. Whatever else is wrong may be over at the next look, and the same text is usable.
    const isFinal = thrown instanceof ConfigError && thrown.problems.every(({ line }) => line !== null);
    if (!isFinal) lastDigest = null;
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    if (error.message !== lastComplaint) onError(error);
    lastComplaint = error.message;
  }

  async function reload(): Promise<boolean> {
    isReloading = true;
    try {
      signal.throwIfAborted();
      const written = readFiles(options);
      lastDigest = written.digest;
      const settings = await settingsApart(written, signal);
      signal.throwIfAborted();
      await onSettings(settings);
      lastComplaint = '';
      return true;
    } catch (error) {
      if (!signal.aborted) failed(error);
      return false;
    } finally {
      isReloading = false;
    }
  }

  const reloadNext = (): Promise<boolean> => (last = last.then(reload));

  /** Takes over a text that is not in use and has been seen twice: a half-written file may be valid YAML. */
  const stopLooking = every(clock, filePollMs, () => {
    if (isReloading) return;
    try {
      const now = `${stampOf(path)}, ${stampOf(envFileOf(path))}`;
      readsLeft = now === stamp ? readsLeft - 1 : readsAfterChange;
      stamp = now;
      if (readsLeft < 0) return;
      const { digest } = readFiles(options);
      if (digest !== lastDigest && digest === seenDigest) void reloadNext();
      seenDigest = digest;
    } catch (error) {
      failed(error);
    }
  });

  return {
    /** Reads the file, changed or not (SIGHUP), after the reload under way. Resolves with whether it was usable and is in use. */
    reloadNow(): Promise<boolean> {
      lastComplaint = '';
      return reloadNext();
    },
    /** Stops every watch and timer, and the thread that checks a text. Resolves when nothing of them is left. */
    async close(): Promise<void> {
      stopLooking();
      stopped.abort();
      await last;
    },
  };
}
