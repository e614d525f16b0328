/** Everything that running containers can show, on a real node of one release of Kubernetes; as root only. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chart } from '../packaging/generated.mjs';
import { type RunOptions, shortVersion } from './control-plane-run.ts';
import { makeImages } from './node/images.ts';
import type { NodePart } from './node/inside.ts';
import { runInNamespaces } from './node/namespaces.ts';
import { nodeObstacle } from './node/obstacles.ts';
import { build, cacheFolder, versionOf } from './programs.ts';
import type { Findings, Report } from './report.ts';

export async function runNode(
  report: Report,
  { release, tools, short, setUpFailure, ended }: RunOptions,
  parts: readonly NodePart[],
): Promise<void> {
  const version = shortVersion(release);
  report.section(`Kubernetes ${versionOf(release)}: a real node (kubelet, containerd), with the real image`);
  const why = nodeObstacle();
  if (why !== null) return report.skip(`${version}, real node: ${parts.join(', ')}`, why);
  let archives: string[] = [];
  const made = await report.setUp(`${version}, real node: programs and images are built`, async () => {
    await build(['newest/plane', `${release}/plane`, `${release}/node`, 'newest/pause', 'dns']);
    archives = makeImages();
  });
  if (!made) return report.skip(`${version}, real node: ${parts.join(', ')}`, 'nothing to run');
  const folder = mkdtempSync(join(tmpdir(), 'sluice-findings-'));
  const findings = join(folder, 'findings.json');
  const logs = join(cacheFolder, 'logs', `node-${release}.log`);
  const job = { release, version, tools, archives, chart, short, setUpFailure, parts, findings, logs };
  try {
    await runInNamespaces({ ...job, group: `sluice-verify-${process.pid}` }, ended);
    const found: Findings = JSON.parse(readFileSync(findings, 'utf8'));
    report.add(found);
  } catch (failure) {
    await report.check(`${version}, real node: the run itself`, () => Promise.reject(failure as Error));
  } finally {
    rmSync(folder, { recursive: true });
  }
}
