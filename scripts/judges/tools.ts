/**
 * The outside judges: programs of PyPI in an environment of their own, and one built from Go modules, kept in the user's cache folder. Owns: getting them and running them with a bound. What cannot be had is `null`, with the reason given to `skipped`.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { env } from 'node:process';

/** Where the tools go: SLUICE_JUDGES_TOOLS, else the user's cache folder. */
const folder =
  env['SLUICE_JUDGES_TOOLS'] ?? join(env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'sluice-judges');
const versions = {
  schemathesis: '4.32.5',
  httplint: '2026.10.4',
};
const installMs = 240_000;

export interface Ran {
  readonly status: number | null;
  readonly output: string;
}

/** Runs a program for at most `maxMs` milliseconds; `input` is what it reads. */
export function ran(tool: string, args: readonly string[], maxMs: number, input = ''): Promise<Ran> {
  return new Promise((resolve) => {
    // Some judges write files where they run.
    mkdirSync(folder, { recursive: true });
    const options = { cwd: folder, timeout: maxMs, maxBuffer: 64 * 1024 * 1024 };
    const child = execFile(tool, [...args], options, (failure, stdout, stderr) => {
      const status = failure === null ? 0 : typeof failure.code === 'number' ? failure.code : null;
      const why = status === null ? (failure?.message.slice(0, 200) ?? '') : '';
      resolve({ status, output: `${stdout}${stderr}${why}`.trim() });
    });
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}

/** Where a program is, or why it cannot be had. */
export type Tool = { readonly path: string } | { readonly why: string };

/** A program of PyPI, installed into the environment of the judges; a reason where it cannot be had. */
export async function fromPyPi(name: 'schemathesis' | 'httplint'): Promise<Tool> {
  const path = join(folder, 'venv/bin', name);
  if (existsSync(path)) return { path };
  const made = await ran('python3', ['-m', 'venv', join(folder, 'venv')], installMs);
  if (made.status !== 0) return { why: `python3 -m venv: ${made.output.slice(-200)}` };
  const got = await ran(
    join(folder, 'venv/bin/pip'),
    ['install', '-q', `${name}==${versions[name]}`],
    installMs,
  );
  return existsSync(path) ? { path } : { why: `pip: ${got.output.slice(-200)}` };
}

/** A Go program of this folder, built again when its sources have changed. */
export async function ownGoProgram(name: 'linearizability'): Promise<Tool> {
  const sources = new URL(`${name}/`, import.meta.url).pathname;
  const digest = createHash('sha256');
  for (const file of readdirSync(sources).toSorted()) digest.update(readFileSync(join(sources, file)));
  const path = join(folder, `${name}-${digest.digest('hex').slice(0, 12)}`);
  if (existsSync(path)) return { path };
  const built = await ran('sh', ['-c', `cd '${sources}' && go build -o '${path}' .`], installMs);
  return existsSync(path) ? { path } : { why: `go build: ${built.output.slice(-200)}` };
}
