/** The file `.env` beside a configuration: values for `${NAME}` that the environment does not have. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseEnv } from 'node:util';
import type { Env } from '../config/load.ts';

/** Path of the `.env` that belongs to a configuration file. */
export const envFileOf = (config: string): string => join(dirname(config), '.env');

/** The variables of a text in the form of `.env`. */
export const variablesOf = (text: string): Env => parseEnv(text);

/** The environment, and behind it the `.env` beside the configuration. What cannot be read has no variables. */
export function withEnvFile(config: string, env: Env): Env {
  try {
    return { ...variablesOf(readFileSync(envFileOf(config), 'utf8')), ...env };
  } catch {
    return env;
  }
}
