/** What the nightly run consists of: everything that the gate on each change leaves out. */
import type { Part } from './run.ts';

const part = (name: string, what: string, script: string, ...args: readonly string[]): Part => ({
  name,
  what,
  command: ['npm', 'run', '--silent', script, '--', ...args],
});

export const parts: readonly Part[] = [
  part('long', 'test files that take long, 2,000 histories of each simulation', 'verify:long'),
  part('cluster', 'makespan and order of whole bursts over three replicas', 'verify:cluster'),
  part('soak', 'ten minutes of random faults', 'verify:soak'),
  part('cost', 'what a call costs, of the gateway and of Redis', 'bench:cost'),
  part('replicas', 'the same where replicas share an upstream', 'bench:cost', '--replicas=1,3,10'),
  part('hostile', 'what bombs and streams of junk cost the other workspaces', 'bench:hostile'),
  part('held', 'what a held call costs', 'bench:held'),
  part('observability', 'rules, queries, the page in a browser', 'verify:observability'),
  part('packaging', 'chart, image, proxies in front, autoscaling queries', 'verify:packaging'),
  part('judges', 'what programs of others say', 'verify:judges'),
  part('kubernetes', 'chart and manifests on the control plane', 'verify:kubernetes', '--where-possible'),
  { ...part('mutations', 'every planted fault is found', 'verify:mutations'), isWeekly: true },
];
