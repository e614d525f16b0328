/**
 * Runs a script as the second process of network, mount and process namespaces of its own, so that a node with its
 * links, rules and processes is neither seen nor left outside. Removes what namespaces do not hold: control groups and the
 * folder for temporary files.
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { groupRoots } from './machine.ts';

const script = fileURLToPath(new URL('inside.ts', import.meta.url));
/** Folders that get a file system of their own inside; outside only an empty one may be left. */
const FIXED = ['/var/lib/kubelet', '/var/lib/cni', '/run/containerd'];

/** @param job for `inside.ts`, as JSON. @returns its exit code */
export async function runInNamespaces(job: object & { group: string }, ended: AbortSignal): Promise<number> {
  const absent = FIXED.filter((path) => !existsSync(path));
  const apart = ['--net', '--mount', '--pid', '--fork', '--kill-child', '--mount-proc'];
  // A shell is the first process, because the first has to take in the orphans of the others.
  const shell = ['bash', '-c', '"$@" & wait $!', 'bash', process.execPath, script, JSON.stringify(job)];
  const args = ['-n', '19', 'unshare', ...apart, '--propagation', 'private', ...shell];
  const folder = mkdtempSync(join(tmpdir(), 'sluice-node-'));
  const env = { ...process.env, TMPDIR: folder };
  const child = spawn('nice', args, { stdio: ['ignore', 'inherit', 'inherit'], env });
  const stop = (): void => void child.kill('SIGKILL');
  ended.addEventListener('abort', stop, { once: true });
  try {
    return await new Promise<number>((resolve, reject) => {
      child.once('error', reject);
      child.once('exit', (code) => resolve(code ?? 1));
    });
  } finally {
    ended.removeEventListener('abort', stop);
    for (const path of groupRoots(job.group)) await removeGroups(path);
    rmSync(folder, { recursive: true, force: true });
    for (const path of absent) if (existsSync(path) && readdirSync(path).length === 0) rmdirSync(path);
  }
}

/** Children first: a group with children cannot be removed, nor one whose processes have not quite ended. */
async function removeGroups(path: string): Promise<void> {
  if (!existsSync(path)) return;
  for (const entry of readdirSync(path, { withFileTypes: true }))
    if (entry.isDirectory()) await removeGroups(join(path, entry.name));
  for (let attempt = 0; existsSync(path); attempt += 1) {
    try {
      return rmdirSync(path);
    } catch (failure) {
      if (attempt === 50) throw failure;
      await sleep(200);
    }
  }
}
