/** Official clients that are not among the dependencies of this project, in versions that were tried: installed once, and kept in `.cache`. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { test } from '@jest/globals';

const root = fileURLToPath(new URL('../../', import.meta.url));

interface Python {
  readonly program: string;
  /** `test`, or `test.skip` where the packages cannot be had. */
  readonly test: (title: string, body: () => Promise<void>) => void;
  /** Behind a title: why it is skipped. */
  readonly why: string;
}

/** An interpreter with this package: `openai==3.54.0`. */
export function pythonWith(wanted: string): Python {
  const home = `${root}.cache/python-${wanted.replaceAll(/[^\w.]+/g, '-')}`;
  const program = `${home}/bin/python`;
  const run = (command: string, args: readonly string[]) =>
    execFileSync(command, args, { stdio: 'pipe', timeout: 90_000 });
  try {
    if (!existsSync(`${home}/ready`)) {
      mkdirSync(home, { recursive: true });
      run('python3', ['-m', 'venv', home]);
      const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--retries', '1'];
      run(program, [...pip, '--timeout', '10', wanted]);
      writeFileSync(`${home}/ready`, '');
    }
    return { program, test, why: '' };
  } catch {
    const why = ' (NOT RUN: python3 with venv, or the package index, cannot be reached)';
    return { program, test: test.skip, why };
  }
}
