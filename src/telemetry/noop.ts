/** A log that nobody reads: for parts that run before the real one exists. */
import type { Log } from './events.ts';

const nothing = (): void => {};

export const silentLog: Log = { debug: nothing, info: nothing, warn: nothing, error: nothing, bug: nothing };
