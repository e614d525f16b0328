/** The file `.env` beside a configuration: values for `${NAME}` that the environment does not have. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseEnv } from 'node:util';
import type { Env } from './check-text.ts';

/** Path of the `.env` that belongs to a configuration file. */
export const envFileOf = (config: string): string => join(dirname(config), '.env');

/** The variables of a text in the form of `.env`. */
export const variablesOf = (text: string): Env => parseEnv(text);

/** The text of the `.env` beside the configuration; empty when it cannot be read. */
export function envFileText(config: string): string {
  try {
    return readFileSync(envFileOf(config), 'utf8');
  } catch {
    return '';
  }
}
