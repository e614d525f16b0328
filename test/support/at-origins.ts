/** Runs a block of tests once for each origin of time (`support/origins.ts`). */
import { describe } from '@jest/globals';
import { origins } from './origins.ts';

/** The time so many milliseconds after the origin. */
export type Instant = (afterMs: number) => number;

export function atOrigins(what: string, tests: (instant: Instant) => void): void {
  describe.each(origins)(`${what}, by $name:`, ({ ms }) => tests((afterMs) => ms + afterMs));
}
