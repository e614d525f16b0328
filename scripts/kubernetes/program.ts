/**
 * Builds the control plane of Kubernetes from its published Go modules, once, into the user's cache.
 * `program/go.mod` says which versions; `go mod tidy` adds what these need, and checks every sum with Go's checksum database.
 */
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { command } from './client.ts';

const program = fileURLToPath(new URL('program/', import.meta.url));
const files = ['go.mod', 'main.go'];

/** SLUICE_KUBERNETES, else a folder in the user's cache. About 300 MB. */
const cacheFolder =
  process.env['SLUICE_KUBERNETES'] ??
  join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'sluice-kubernetes');
export const planeBinary = join(cacheFolder, 'bin', 'plane');
/** The program, where Go may complete its go.mod. */
const sources = join(cacheFolder, 'program');

/** As `v1.36.3`. */
export function kubernetesVersion(): string {
  const version = /^\tk8s\.io\/kubernetes (v\S+)$/m.exec(readFileSync(join(program, 'go.mod'), 'utf8'))?.[1];
  if (version === undefined) throw new Error('program/go.mod names no Kubernetes');
  return version;
}

/** Go's own folder is searched last: its installer does not always add it to PATH. */
const environment = {
  ...process.env,
  PATH: `${process.env['PATH'] ?? ''}:/usr/local/go/bin`,
  CGO_ENABLED: '0',
  GOTOOLCHAIN: 'local',
};

/** @returns why nothing can be built or started here, or null */
export async function obstacle(): Promise<string | null> {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'not linux on x64';
  const found = await command('go', ['env', 'GOVERSION'], { env: environment }).catch(() => null);
  if (found === null) return 'no Go in PATH (1.26 or newer builds Kubernetes)';
  const minor = Number(/^go1\.(\d+)/.exec(found.stdout)?.[1] ?? 0);
  return minor >= 26 ? null : `Go 1.26 or newer is needed, this is ${found.stdout.trim()}`;
}

/** Builds what is missing, at the lowest priority. Minutes for the first time, then nothing. */
export async function build(): Promise<void> {
  const hash = createHash('sha256');
  for (const file of files) hash.update(readFileSync(join(program, file)));
  const [digest, stamp] = [hash.digest('hex'), `${planeBinary}.stamp`];
  if (existsSync(planeBinary) && existsSync(stamp) && readFileSync(stamp, 'utf8') === digest) return;
  mkdirSync(join(cacheFolder, 'bin'), { recursive: true });
  mkdirSync(sources, { recursive: true });
  for (const name of files) copyFileSync(join(program, name), join(sources, name));
  const version = kubernetesVersion();
  const [major = '1', minor = '0'] = version.slice(1).split('.');
  const variable = 'k8s.io/component-base/version';
  const link = `-s -w -X ${variable}.gitVersion=${version} -X ${variable}.gitMajor=${major} -X ${variable}.gitMinor=${minor}`;
  // The cloud providers that Kubernetes once had inside are left out.
  const flags = ['-p', '2', '-trimpath', '-tags', 'providerless', '-ldflags', link];
  const env = { ...environment, GOFLAGS: '-mod=mod' };
  for (const go of [
    ['mod', 'tidy'],
    ['build', ...flags, '-o', planeBinary, '.'],
  ])
    await command('nice', ['-n', '19', 'go', ...go], { cwd: sources, env, timeoutMs: 3_600_000 });
  writeFileSync(stamp, digest);
}

/** Files of a published Go module. @returns the module's folder in Go's own cache */
export async function moduleFolder(module: string): Promise<string> {
  const { stdout } = await command('go', ['mod', 'download', '-json', module], {
    cwd: cacheFolder,
    env: { ...environment, GOFLAGS: '-mod=mod' },
  });
  return (JSON.parse(stdout) as { readonly Dir: string }).Dir;
}
