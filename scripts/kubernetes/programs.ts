/**
 * Builds Kubernetes itself from its published Go modules, once, into the user's cache: control plane, node, kwok and
 * CoreDNS. `programs/<release>/go.mod` says which versions; its sums are checked by Go. Owns no process.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const sources = fileURLToPath(new URL('programs/', import.meta.url));
const KWOK = 'v0.8.0';

/** The newest release that builds, and the oldest that the chart claims. */
export type Release = 'newest' | 'oldest';
/** A folder with a `main.go`: `plane`, `node` and `pause` of a release, or CoreDNS. */
export type Program = `${Release}/plane` | `${Release}/node` | 'newest/pause' | 'dns';

/** SLUICE_KUBERNETES, else a folder in the user's cache. About 500 MB. */
export const cacheFolder =
  process.env['SLUICE_KUBERNETES'] ??
  join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'sluice-kubernetes');

/** As `v1.36.3`. */
export function versionOf(release: Release): string {
  const text = readFileSync(join(sources, release, 'go.mod'), 'utf8');
  const version = /^\tk8s\.io\/kubernetes (v\S+)$/m.exec(text)?.[1];
  if (version === undefined) throw new Error(`programs/${release}/go.mod names no Kubernetes`);
  return version;
}

/** Where the built program is. */
export const binaryOf = (program: Program): string => join(cacheFolder, 'bin', program.replace('/', '-'));
export const kwokBinary = join(cacheFolder, 'bin', 'kwok');

/** Go's own folder is searched last: its installer does not always add it to PATH. */
const environment = {
  ...process.env,
  PATH: `${process.env['PATH'] ?? ''}:/usr/local/go/bin`,
  CGO_ENABLED: '0',
  GOTOOLCHAIN: 'local',
};

/** @returns why nothing can be built here, or null */
export async function goObstacle(): Promise<string | null> {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'not linux on x64';
  const found = await run('go', ['env', 'GOVERSION'], { env: environment }).catch(() => null);
  if (found === null) return 'no Go in PATH (1.26 or newer builds Kubernetes)';
  const minor = Number(/^go1\.(\d+)/.exec(found.stdout)?.[1] ?? 0);
  return minor >= 26 ? null : `Go 1.26 or newer is needed, this is ${found.stdout.trim()}`;
}

/** Runs `build` unless the stamp beside the program says that it is there already. */
async function once(binary: string, stamp: string, build: () => Promise<unknown>): Promise<void> {
  const file = `${binary}.stamp`;
  if (existsSync(binary) && existsSync(file) && readFileSync(file, 'utf8') === stamp) return;
  mkdirSync(join(cacheFolder, 'bin'), { recursive: true });
  const started = Date.now();
  await build();
  writeFileSync(file, stamp);
  console.log(`        built ${binary} in ${Math.round((Date.now() - started) / 1000)} s`);
}

function stampOf(program: Program): string {
  const folder = program === 'dns' ? 'dns' : (program.split('/')[0] ?? '');
  const files = ['go.mod', 'go.sum'].map((name) => join(sources, folder, name));
  files.push(join(sources, program, 'main.go'));
  const hash = createHash('sha256');
  for (const file of files) hash.update(readFileSync(file));
  return hash.digest('hex');
}

function linkFlags(program: Program): string {
  if (program === 'dns' || program === 'newest/pause') return '-s -w';
  const version = versionOf(program.startsWith('newest') ? 'newest' : 'oldest');
  const [major = '1', minor = '0'] = version.slice(1).split('.');
  const variable = 'k8s.io/component-base/version';
  return `-s -w -X ${variable}.gitVersion=${version} -X ${variable}.gitMajor=${major} -X ${variable}.gitMinor=${minor}`;
}

/** Builds what is missing, at the lowest priority. Minutes for the first time, then nothing. */
export async function build(programs: readonly Program[]): Promise<void> {
  for (const program of programs) {
    const folder = program === 'dns' ? 'dns' : (program.split('/')[0] ?? '');
    const name = program === 'dns' ? '.' : `./${program.split('/')[1] ?? ''}`;
    // The cloud providers that Kubernetes once had inside are left out of the old release.
    const flags = ['build', '-p', '2', '-trimpath', '-tags', 'providerless', '-ldflags', linkFlags(program)];
    await once(binaryOf(program), stampOf(program), () =>
      run('nice', ['-n', '19', 'go', ...flags, '-o', binaryOf(program), name], {
        cwd: join(sources, folder),
        env: { ...environment, GOFLAGS: '-mod=readonly' },
        maxBuffer: 1 << 26,
      }),
    );
  }
}

/** kwok plays the kubelets of nodes that do not exist. */
export async function buildKwok(): Promise<void> {
  await once(kwokBinary, KWOK, () =>
    run('nice', ['-n', '19', 'go', 'install', '-p', '2', '-trimpath', `sigs.k8s.io/kwok/cmd/kwok@${KWOK}`], {
      env: { ...environment, GOFLAGS: '-mod=mod', GOBIN: join(cacheFolder, 'bin') },
      maxBuffer: 1 << 26,
    }),
  );
}

/** Files of a published Go module. @returns the module's folder in Go's own cache */
export async function moduleFolder(module: string): Promise<string> {
  const { stdout } = await run('go', ['mod', 'download', '-json', module], {
    cwd: cacheFolder,
    env: { ...environment, GOFLAGS: '-mod=mod' },
    maxBuffer: 1 << 26,
  });
  const parsed: unknown = JSON.parse(stdout);
  if (typeof parsed !== 'object' || parsed === null || !('Dir' in parsed) || typeof parsed.Dir !== 'string')
    throw new Error(`${module}: ${stdout}`);
  if (readdirSync(parsed.Dir).length === 0) throw new Error(`${module} is empty`);
  return parsed.Dir;
}
