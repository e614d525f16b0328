/**
 * Presets: how widely used APIs count, report and refuse, a file of `presets/` each, which the build puts beside the compiled sources.
 * `speaks.ts` reads them.
 */
import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const folder = new URL('../../presets/', import.meta.url);
const ending = '.yaml';

/** Names of the presets, in the order of the alphabet. */
export const presetNames: readonly string[] = readdirSync(folder)
  .filter((file) => file.endsWith(ending))
  .map((file) => file.slice(0, -ending.length))
  .toSorted((a, b) => (a < b ? -1 : 1));

/** Path of the file of a preset. */
export const presetPath = (name: string): string => fileURLToPath(new URL(`${name}${ending}`, folder));
