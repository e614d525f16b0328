/** A process that no longer answers: it must leave the Service, and be restarted. */
import { readdirSync, readFileSync } from 'node:fs';
import { until } from '../cluster/processes.ts';
import type { Shop } from './shop.ts';

const OUT_MS = 60_000;
const RESTART_MS = 240_000;

function processOf(container: string): number {
  const found = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .find((name) => {
      try {
        return (
          readFileSync(`/proc/${name}/cgroup`, 'utf8').includes(container) &&
          readFileSync(`/proc/${name}/cmdline`, 'utf8').includes('dist/main.js')
        );
      } catch {
        // It ended between the two questions.
        return false;
      }
    });
  if (found === undefined) throw new Error(`no process of ${container}`);
  return Number(found);
}

/** @param restarted false: it is enough that the pod leaves the Service */
export async function hangs(shop: Shop, restarted = true): Promise<string> {
  const [pod = ''] = await shop.pods();
  const field = (path: string): Promise<string> =>
    shop.release.kubectl(['get', 'pod', pod, '-o', `jsonpath={${path}}`]);
  const container = (await field('.status.containerStatuses[0].containerID')).replace('containerd://', '');
  const restarts = Number(await field('.status.containerStatuses[0].restartCount'));
  const id = processOf(container);
  const begunMs = Date.now();
  const since = (): number => Math.round((Date.now() - begunMs) / 1000);
  process.kill(id, 'SIGSTOP');
  try {
    const ready = '.status.conditions[?(@.type=="Ready")].status';
    await until('the pod leaves the Service', OUT_MS, async () => (await field(ready)) === 'False');
    const out = since();
    if (!restarted) return `out of the Service after ${out} s`;
    await until('the container is restarted and ready', RESTART_MS, async () => {
      const now = await field('.status.containerStatuses[0].restartCount');
      return Number(now) > restarts && (await field(ready)) === 'True';
    });
    return `out of the Service after ${out} s, restarted and ready after ${since()} s`;
  } finally {
    try {
      process.kill(id, 'SIGCONT');
    } catch {
      // It was ended by its kubelet, as it should be.
    }
  }
}
