/** Virtual environments with official Python clients, of versions that were tried. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { test } from '@jest/globals';

const root = fileURLToPath(new URL('../../', import.meta.url));

export interface Python {
  /** Path of an interpreter that has the packages; empty where there can be none. */
  readonly program: string;
  /** `test`, or `test.skip` where there is no interpreter. */
  readonly test: (title: string, body: () => Promise<void>) => void;
  /** Behind a title: why it is skipped. */
  readonly why: string;
}

/** An interpreter with these packages (`openai==3.54.0`), made once and kept in `.cache`. */
export function pythonWith(...packages: readonly string[]): Python {
  const home = `${root}.cache/python-${packages.join('-').replaceAll(/[^\w.]+/g, '-')}`;
  const program = `${home}/bin/python`;
  const ready = `${home}/ready`;
  if (existsSync(ready)) return { program, test, why: '' };
  const quiet = { stdio: 'pipe', timeout: 90_000 } as const;
  try {
    mkdirSync(home, { recursive: true });
    execFileSync('python3', ['-m', 'venv', home], quiet);
    const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--retries', '1'];
    execFileSync(program, [...pip, '--timeout', '10', ...packages], quiet);
    writeFileSync(ready, '');
    return { program, test, why: '' };
  } catch {
    const why = ' (NOT RUN: python3 with venv, or the package index, cannot be reached)';
    return { program: '', test: test.skip, why };
  }
}
