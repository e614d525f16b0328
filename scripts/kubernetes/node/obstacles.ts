/** What the real node needs of the machine: root, and programs of Debian, which are installed where apt-get can. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';

/** Program → Debian package. */
const PROGRAMS = {
  containerd: 'containerd',
  runc: 'runc',
  buildah: 'buildah',
  debootstrap: 'debootstrap',
  nft: 'nftables',
  iptables: 'iptables',
  conntrack: 'conntrack',
  unshare: 'util-linux',
  ip: 'iproute2',
  'redis-server': 'redis-server',
  'redis-cli': 'redis-tools',
  prometheus: 'prometheus',
} as const;
const PLUGINS = '/usr/lib/cni/bridge';

const has = (program: string): boolean => spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;

function missing(): string[] {
  const packages: string[] = Object.entries(PROGRAMS)
    .filter(([program]) => !has(program))
    .map(([, name]) => name);
  return existsSync(PLUGINS) ? packages : [...packages, 'containernetworking-plugins'];
}

/** @returns why no container can run here, or null */
export function nodeObstacle(): string | null {
  if (process.getuid?.() !== 0) return 'not root';
  const wanted = missing();
  if (wanted.length === 0) return null;
  if (!has('apt-get')) return `no ${wanted.join(', ')}, and no apt-get to install them`;
  spawnSync('apt-get', ['update', '-qq'], { stdio: 'ignore' });
  try {
    // Packages that start a service would start it: this run needs the programs only.
    const install = ['install', '-y', '-qq', '--no-install-recommends', ...wanted];
    const environment = { ...process.env, DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' };
    execFileSync('apt-get', install, { stdio: 'pipe', env: environment });
  } catch (failure) {
    return `apt-get could not install ${wanted.join(', ')}: ${String(failure).slice(-300)}`;
  }
  const left = missing();
  return left.length === 0 ? null : `${left.join(', ')} cannot be installed`;
}
