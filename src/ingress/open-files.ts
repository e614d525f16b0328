/**
 * How many client connections the files allow that this process may open. Beyond it the system would cut connections, also those of the
 * admin port, and nobody would hear of it.
 */
import { readFileSync } from 'node:fs';

/** What the process has open itself: Redis, the log, the admin port. */
const own = 64;
/** A client's connection, and the one to the upstream. */
const perConnection = 2;

/** Files that this process may open; `null` = the system does not say. Node has raised the limit as far as it may. */
export function openFilesLimit(): number | null {
  try {
    const [, soft] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'latin1')) ?? [];
    return soft === undefined ? null : Number(soft);
  } catch {
    return null;
  }
}

/** `wanted`, or fewer connections, when that many files may be open. */
export const connectionsWithin = (files: number | null, wanted: number): number =>
  files === null ? wanted : Math.max(1, Math.min(wanted, Math.floor((files - own) / perConnection)));
