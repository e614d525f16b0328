/** What the nightly run consists of: everything that the gate on each change leaves out. */
import type { Part } from './run.ts';

const npm = (script: string, ...args: readonly string[]): Part['command'] => [
  'npm',
  'run',
  '--silent',
  script,
  '--',
  ...args,
];

export const parts: readonly Part[] = [
  {
    name: 'long',
    what: 'test files that take long, 2,000 histories of each simulation',
    command: npm('verify:long'),
  },
  {
    name: 'cluster',
    what: 'makespan and order of whole bursts over three replicas',
    command: npm('verify:cluster'),
  },
  { name: 'soak', what: 'ten minutes of random faults', command: npm('verify:soak') },
  {
    name: 'cost',
    what: 'what a call costs, of the gateway and of Redis',
    command: npm('bench:cost'),
  },
  {
    name: 'replicas',
    what: 'what a call costs where one, three and ten replicas share an upstream',
    command: npm('bench:cost', '--replicas=1,3,10'),
  },
  {
    name: 'hostile',
    what: 'what compression bombs and streams of junk cost the other workspaces',
    command: npm('bench:hostile'),
  },
  { name: 'held', what: 'what a held call costs', command: npm('bench:held') },
  {
    name: 'observability',
    what: 'rules and queries by promtool, the page in a browser, what observing costs',
    command: npm('verify:observability'),
  },
  {
    name: 'packaging',
    what: 'chart, image, proxies in front, autoscaling queries',
    command: npm('verify:packaging'),
  },
  { name: 'judges', what: 'what programs of others say', command: npm('verify:judges') },
  {
    name: 'kubernetes',
    what: 'chart and manifests on the control plane of Kubernetes',
    command: npm('verify:kubernetes', '--where-possible'),
  },
  {
    name: 'mutations',
    what: 'every planted fault is found',
    command: npm('verify:mutations'),
    isWeekly: true,
  },
];
