/**
 * Says when a file may have changed: after something happened in its folder, and every few seconds in any case, because not
 * every change of a mounted file makes an event. Owns its watcher and its timers; reads nothing.
 *
 * Watches the folder, not the file: Kubernetes mounts a ConfigMap as a link `..data` that is swapped, editors replace the file, and a
 * watch on the old inode would stay silent for ever.
 */
import { watch } from 'node:fs';
import { dirname } from 'node:path';
import type { Clock } from './clock.ts';

/** The file is looked at this often in any case, milliseconds. */
export const pollMs = 5_000;
/** Time from an event to the look at the file, milliseconds: writing takes a moment. */
export const settleMs = 100;

/** Calls `onEvent` when something in the folder may have changed; returns the function that stops the watch. */
type WatchFolder = (folder: string, onEvent: () => void, onError: (error: Error) => void) => () => void;

const systemWatch: WatchFolder = (folder, onEvent, onError) => {
  const watcher = watch(folder, { persistent: false }, onEvent);
  watcher.on('error', (error) => {
    watcher.close();
    onError(error);
  });
  return () => watcher.close();
};

export interface FileWatchParts {
  readonly path: string;
  readonly clock: Pick<Clock, 'after'>;
  /** The file may have changed. */
  readonly onCheck: () => void;
  /** The folder is gone or cannot be watched: what is left is to look every few seconds. */
  readonly onError?: (error: unknown) => void;
  readonly watchFolder?: WatchFolder;
}

/** Watches from now on. `checkSoon` has the file looked at once for all that ask within {@link settleMs}. */
export function watchFile(parts: FileWatchParts) {
  const { path, clock, onCheck, onError = () => {}, watchFolder = systemWatch } = parts;
  let isClosed = false;
  let cancelPoll = (): void => {};
  let cancelCheck: (() => void) | null = null;
  let stopWatching = (): void => {};
  const checkSoon = (): void => {
    if (isClosed) return;
    cancelCheck ??= clock.after(settleMs, () => {
      cancelCheck = null;
      onCheck();
    });
  };
  const poll = (): void => {
    cancelPoll = clock.after(pollMs, () => {
      onCheck();
      poll();
    });
  };
  try {
    stopWatching = watchFolder(dirname(path), checkSoon, onError);
  } catch (error) {
    onError(error);
  }
  poll();
  return {
    checkSoon,
    close: (): void => {
      isClosed = true;
      cancelPoll();
      cancelCheck?.();
      stopWatching();
    },
  };
}
