/** Official clients that are not among the dependencies of this project, in versions that were tried: installed once, and kept in `.cache`. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { test } from '@jest/globals';

const root = fileURLToPath(new URL('../../', import.meta.url));

export interface Client {
  /** Folder of the packages. */
  readonly home: string;
  /** `test`, or `test.skip` where they cannot be had. */
  readonly test: (title: string, body: () => Promise<void>) => void;
  /** Behind a title: why it is skipped. */
  readonly why: string;
}

type Run = (program: string, args: readonly string[]) => void;

/** `needed`: what must be there and reachable. */
function installed(
  kind: string,
  packages: readonly string[],
  needed: string,
  install: (home: string, run: Run) => void,
): Client {
  const home = `${root}.cache/${kind}-${packages.join('-').replaceAll(/[^\w.]+/g, '-')}`;
  const ready = `${home}/ready`;
  try {
    if (!existsSync(ready)) {
      mkdirSync(home, { recursive: true });
      install(home, (program, args) => void execFileSync(program, args, { stdio: 'pipe', timeout: 90_000 }));
      writeFileSync(ready, '');
    }
    return { home, test, why: '' };
  } catch {
    return { home, test: test.skip, why: ` (NOT RUN: ${needed} cannot be reached)` };
  }
}

/** An interpreter (`program`) with these packages: `openai==3.54.0`. */
export function pythonWith(...packages: readonly string[]): Client & { readonly program: string } {
  const needed = 'python3 with venv, or the package index,';
  const client = installed('python', packages, needed, (home, run) => {
    run('python3', ['-m', 'venv', home]);
    const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--retries', '1'];
    run(`${home}/bin/python`, [...pip, '--timeout', '10', ...packages]);
  });
  return { ...client, program: `${client.home}/bin/python` };
}

/** A folder whose `node_modules` has these packages: `stripe@23.1.0`. Nothing of them is run when they are installed. */
export const nodeWith = (...packages: readonly string[]): Client =>
  installed('node', packages, 'the registry of npm', (home, run) =>
    run('npm', ['install', '--prefix', home, '--ignore-scripts', '--no-audit', '--no-fund', ...packages]),
  );
