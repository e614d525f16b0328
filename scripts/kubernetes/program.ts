/**
 * Builds the control plane of Kubernetes from its published Go modules, once, into the user's cache, and kwok beside it.
 * `program/go.mod` says which versions; `go mod tidy` adds what these need, and checks every sum with Go's checksum database.
 */
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { command } from './command.ts';

const program = fileURLToPath(new URL('program/', import.meta.url));
const files = ['go.mod', 'main.go'];
const kwok = 'v0.8.0';

/** SLUICE_KUBERNETES, else a folder in the user's cache. About 300 MB. */
const cacheFolder =
  process.env['SLUICE_KUBERNETES'] ??
  join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'sluice-kubernetes');
export const planeBinary = join(cacheFolder, 'bin', 'plane');
export const kwokBinary = join(cacheFolder, 'bin', 'kwok');
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

/** Runs Go at the lowest priority unless the stamp beside the program says that it is there already. */
async function once(
  binary: string,
  stamp: string,
  ...commands: readonly (readonly string[])[]
): Promise<void> {
  const file = `${binary}.stamp`;
  if (existsSync(binary) && existsSync(file) && readFileSync(file, 'utf8') === stamp) return;
  for (const folder of ['bin', 'program']) mkdirSync(join(cacheFolder, folder), { recursive: true });
  for (const name of files) copyFileSync(join(program, name), join(sources, name));
  for (const go of commands)
    await command('nice', ['-n', '19', 'go', ...go], {
      cwd: sources,
      env: { ...environment, GOFLAGS: '-mod=mod', GOBIN: join(cacheFolder, 'bin') },
      timeoutMs: 3_600_000,
    });
  writeFileSync(file, stamp);
}

/** Builds what is missing. Minutes for the first time, then nothing. */
export async function build(): Promise<void> {
  const version = kubernetesVersion();
  const [major = '1', minor = '0'] = version.slice(1).split('.');
  const variable = 'k8s.io/component-base/version';
  const link = `-s -w -X ${variable}.gitVersion=${version} -X ${variable}.gitMajor=${major} -X ${variable}.gitMinor=${minor}`;
  const hash = createHash('sha256');
  for (const file of files) hash.update(readFileSync(join(program, file)));
  // The cloud providers that Kubernetes once had inside are left out.
  const flags = ['-p', '2', '-trimpath', '-tags', 'providerless', '-ldflags', link];
  await once(planeBinary, hash.digest('hex'), ['mod', 'tidy'], ['build', ...flags, '-o', planeBinary, '.']);
  await once(kwokBinary, kwok, ['install', '-p', '2', '-trimpath', `sigs.k8s.io/kwok/cmd/kwok@${kwok}`]);
}

/** Files of a published Go module. @returns the module's folder in Go's own cache */
export async function moduleFolder(module: string): Promise<string> {
  const { stdout } = await command('go', ['mod', 'download', '-json', module], {
    cwd: cacheFolder,
    env: { ...environment, GOFLAGS: '-mod=mod' },
  });
  const parsed: unknown = JSON.parse(stdout);
  if (typeof parsed !== 'object' || parsed === null || !('Dir' in parsed) || typeof parsed.Dir !== 'string')
    throw new Error(`${module}: ${stdout}`);
  return parsed.Dir;
}
