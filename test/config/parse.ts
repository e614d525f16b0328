/** Configuration texts of one upstream and one workspace, and what is said of them. */
import { ConfigError, parseSettings, type Env, type Problem } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';

export const hash = `sha256:${'1f'.repeat(32)}`;
export const strongKey =
  "privacy: { labelKey: '9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08' }\n";

/** Upstream `api` and workspace `acme`, with these further keys of theirs, each ended by a comma, and sections behind. */
export const file = ({ api = '', acme = '', more = '' } = {}): string =>
  `upstreams:\n  api: { ${api}origins: ['https://api.example.com'] }\nworkspaces:\n  acme: { ${acme}keys: ['${hash}'] }\n${more}`;

export const parse = (text: string, env: Env = {}): Settings =>
  parseSettings(text, { path: 'test.yaml', env });

export function problemsOf(text: string, env: Env = {}): readonly Problem[] {
  try {
    parse(text, env);
  } catch (error) {
    if (error instanceof ConfigError) return error.problems;
    throw error;
  }
  return [];
}

/** The text of a file of the project, and an environment that gives its variables values. */
export const filled = (text: string): Env => ({
  ...Object.fromEntries(
    [...text.matchAll(/(?<!\$)\$\{(\w+)\}/g)].map(([, name = ''], at) => [
      name,
      name.endsWith('HASH') ? `sha256:${at.toString(16).padStart(64, '0')}` : `value-of-${name}`,
    ]),
  ),
  NAME: 'x',
  REDIS_URL: 'rediss://redis:6379',
});
