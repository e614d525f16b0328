/**
 * Notices that the configuration file changed and hands over the new settings. Owns when the file is read again; what
 * the new settings change is the receiver's business. Invariant: an unusable file never replaces usable settings, and a
 * change is noticed within {@link pollMs} plus {@link settleMs} even if the file system tells nothing.
 *
 * Watches the folder, not the file: Kubernetes mounts a ConfigMap as a link `..data` that is swapped, editors replace
 * the file, and a watch on the old inode would stay silent for ever.
 */
import { watch } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from '../clock.ts';
import { readSettings, readText, textDigest } from './load.ts';
import type { ConfigSource } from './load.ts';
import type { Settings } from './settings.ts';

/** The file is compared this often in any case, milliseconds: half of the time in which a removed key must be refused. */
export const pollMs = 5_000;
/** A changed text is used when it reads the same twice, this far apart: a half-written file may be valid YAML. */
export const settleMs = 100;

/** Tells `onEvent` that something in the folder changed, perhaps; returns how to stop. */
export type WatchFolder = (
  folder: string,
  onEvent: () => void,
  onError: (error: Error) => void,
) => () => void;

export interface WatchOptions extends ConfigSource {
  readonly clock: Pick<Clock, 'after'>;
  /** Digest of the text already in use (of `readSettings`); without it the first look hands the settings over once more. */
  readonly loadedDigest?: string;
  readonly onSettings: (settings: Settings) => void;
  /** An unusable file (`ConfigError`), reported once per mistake, or a folder that cannot be watched. */
  readonly onError: (error: Error) => void;
  readonly watchFolder?: WatchFolder;
}

export interface SettingsWatch {
  /** Reads the file now, changed or not (SIGHUP). True when it was usable and handed over. */
  reloadNow(): boolean;
  /** Stops every watch and timer. */
  close(): void;
}

const systemWatch: WatchFolder = (folder, onEvent, onError) => {
  const watcher = watch(folder, { persistent: false }, onEvent);
  watcher.on('error', onError);
  return () => watcher.close();
};

/** Starts watching. */
export function watchSettings(options: WatchOptions): SettingsWatch {
  const { path, env, clock, onSettings, onError, watchFolder = systemWatch } = options;
  let usedDigest = options.loadedDigest ?? null;
  let seenDigest: string | null = null;
  let lastComplaint = '';
  let cancelLook: (() => void) | null = null;

  const complain = (error: unknown): void => {
    const fault = error instanceof Error ? error : new Error(String(error));
    if (fault.message !== lastComplaint) onError(fault);
    lastComplaint = fault.message;
  };

  const load = (): boolean => {
    try {
      const { settings, digest } = readSettings({ path, env });
      onSettings(settings);
      usedDigest = digest;
      lastComplaint = '';
      return true;
    } catch (error) {
      complain(error);
      return false;
    }
  };

  const lookSoon = (): void => {
    cancelLook ??= clock.after(settleMs, () => {
      cancelLook = null;
      look();
    });
  };

  /** Loads a text that differs from the used one and has been seen twice; a refused text is tried again at each poll. */
  const look = (): void => {
    try {
      const digest = textDigest(readText(path));
      const isStable = digest === seenDigest;
      seenDigest = digest;
      if (digest === usedDigest) lastComplaint = '';
      else if (isStable) load();
      else lookSoon();
    } catch (error) {
      complain(error);
    }
  };

  let cancelPoll = (): void => {};
  const poll = (): void => {
    cancelPoll = clock.after(pollMs, () => {
      look();
      poll();
    });
  };

  let stopWatching = (): void => {};
  try {
    stopWatching = watchFolder(dirname(path), lookSoon, complain);
  } catch (error) {
    complain(error);
  }
  poll();
  lookSoon();

  return {
    reloadNow: () => {
      lastComplaint = '';
      return load();
    },
    close: () => {
      stopWatching();
      cancelPoll();
      cancelLook?.();
    },
  };
}
