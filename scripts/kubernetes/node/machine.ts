/**
 * The real node, inside namespaces of its own: a control plane, containerd, kubelet, kube-proxy and CoreDNS. Everything
 * that it makes (links, mounts, rules, processes) ends with the namespaces; control groups are under a root of their own.
 */
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type ControlPlane, startControlPlane } from '../cluster/control-plane.ts';
import { command, flags, until } from '../cluster/processes.ts';
import { binaryOf, type Release } from '../programs.ts';
import { PAUSE } from './images.ts';

const ADDRESS = '10.200.0.1';
const GATEWAY = '10.244.0.1';
const SOCKET = '/run/containerd/sluice.sock';
const NODE = 'real-1';

export interface MachineOptions {
  readonly release: Release;
  readonly tools: { readonly kubectl: string; readonly helm3: string; readonly helm4: string };
  readonly archives: readonly string[];
  /** Name of the root of its control groups. */
  readonly group: string;
}

/** @returns the control plane, once the node is ready for pods */
export async function startMachine({
  release,
  tools,
  archives,
  group,
}: MachineOptions): Promise<ControlPlane> {
  await addLinks();
  await keepSystem();
  const plane = await startControlPlane(release, tools);
  const { folder, processes, credentials, client } = plane;
  startContainerd(plane);
  await until(
    'containerd answers',
    60_000,
    () => asked(['version']),
    async () => processes.log('containerd'),
  );
  for (const archive of archives)
    await command('ctr', ['-a', SOCKET, '-n', 'k8s.io', 'images', 'import', archive]);
  for (const [name, subject] of [
    ['kubelet', `/O=system:nodes/CN=system:node:${NODE}`],
    ['kube-proxy', '/CN=system:kube-proxy'],
    ['dns', '/O=system:masters/CN=dns'],
  ] as const) {
    await credentials.issue(name, subject);
    credentials.kubeconfig(name, plane.server);
  }
  startKubelet(plane, group);
  startProxy(plane);
  const corefile = join(folder, 'Corefile');
  writeFileSync(corefile, corefileFor(credentials.file('dns.kubeconfig')));
  processes.start('dns', binaryOf('dns'), ['-conf', corefile]);
  await until(
    'the node is ready',
    180_000,
    () => client.succeeds(['wait', '--for', 'condition=Ready', `node/${NODE}`, '--timeout', '1s']),
    async () => processes.log('kubelet'),
  );
  return plane;
}

const asked = (args: readonly string[]): Promise<boolean> =>
  command('ctr', ['-a', SOCKET, ...args]).then(
    () => true,
    () => false,
  );

async function addLinks(): Promise<void> {
  await command('ip', ['link', 'set', 'lo', 'up']);
  await command('ip', ['link', 'add', 'node0', 'type', 'bridge']);
  await command('ip', ['address', 'add', `${ADDRESS}/24`, 'dev', 'node0']);
  await command('ip', ['link', 'set', 'node0', 'up']);
  await command('ip', ['route', 'add', 'default', 'dev', 'node0']);
  writeFileSync('/proc/sys/net/ipv4/ip_forward', '1');
}

/** What a kubelet would change for the whole machine goes to files instead; its fixed folders are empty file systems. */
async function keepSystem(): Promise<void> {
  for (const path of ['/run/containerd', '/var/lib/kubelet', '/var/lib/cni']) {
    mkdirSync(path, { recursive: true });
    await command('mount', ['-t', 'tmpfs', 'tmpfs', path]);
  }
  const settings = ['vm/overcommit_memory', 'vm/panic_on_oom', 'kernel/panic', 'kernel/panic_on_oops'];
  for (const name of [...settings, 'kernel/keys/root_maxkeys', 'kernel/keys/root_maxbytes']) {
    const copy = `/run/containerd/${name.replaceAll('/', '-')}`;
    writeFileSync(copy, readFileSync(`/proc/sys/${name}`, 'utf8'));
    await command('mount', ['--bind', copy, `/proc/sys/${name}`]);
  }
}

function startContainerd({ folder, processes }: ControlPlane): void {
  const network = join(folder, 'cni');
  mkdirSync(network);
  const addresses = {
    type: 'host-local',
    ranges: [[{ subnet: '10.244.0.0/24', gateway: GATEWAY }]],
    routes: [{ dst: '0.0.0.0/0' }],
  };
  const bridge = {
    type: 'bridge',
    bridge: 'cni0',
    isGateway: true,
    ipMasq: false,
    hairpinMode: true,
    ipam: addresses,
  };
  const list = { cniVersion: '1.0.0', name: 'verify', plugins: [bridge] };
  writeFileSync(join(network, '10-verify.conflist'), JSON.stringify(list));
  const config = join(folder, 'containerd.toml');
  writeFileSync(
    config,
    `version = 2
root = "${join(folder, 'containerd')}"
state = "/run/containerd/state"
[grpc]
  address = "${SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${PAUSE}"
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "${network}"
`,
  );
  processes.start('containerd', 'containerd', ['--config', config]);
}

/** The roots of control groups, one for each hierarchy; version 2 has a single one. */
export function groupRoots(group: string): string[] {
  const top = '/sys/fs/cgroup';
  if (existsSync(join(top, 'cgroup.controllers'))) return [join(top, group)];
  const apart = readdirSync(top, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return apart.map((entry) => join(top, entry.name, group));
}

/** A new group of version 1 has neither processors nor memory until it is given its parent's. */
function makeGroups(group: string): void {
  for (const path of groupRoots(group)) {
    mkdirSync(path, { recursive: true });
    for (const name of ['cpuset.cpus', 'cpuset.mems']) {
      const own = join(path, name);
      const above = join(dirname(path), name);
      if (existsSync(own) && existsSync(above)) writeFileSync(own, readFileSync(above, 'utf8').trim());
    }
  }
}

function kubeletConfig({ folder, credentials, release }: ControlPlane, group: string): object {
  return {
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    address: '0.0.0.0',
    authentication: {
      anonymous: { enabled: false },
      webhook: { enabled: true },
      x509: { clientCAFile: credentials.file('ca.crt') },
    },
    authorization: { mode: 'Webhook' },
    cgroupDriver: 'cgroupfs',
    cgroupRoot: `/${group}`,
    failSwapOn: false,
    clusterDNS: [GATEWAY],
    clusterDomain: 'cluster.local',
    containerRuntimeEndpoint: `unix://${SOCKET}`,
    resolvConf: join(folder, 'resolv.conf'),
    evictionHard: { 'memory.available': '100Mi', 'nodefs.available': '1%', 'imagefs.available': '1%' },
    imageGCHighThresholdPercent: 100,
    imageGCLowThresholdPercent: 99,
    enforceNodeAllocatable: ['pods'],
    configMapAndSecretChangeDetectionStrategy: 'Watch',
    // Newer releases: logs of pods in the run's folder, and the older control groups still accepted.
    ...(release === 'newest' ? { podLogsDir: join(folder, 'pods'), failCgroupV1: false } : {}),
  };
}

function startKubelet(plane: ControlPlane, group: string): void {
  const { folder, processes, credentials, release } = plane;
  makeGroups(group);
  writeFileSync(join(folder, 'resolv.conf'), `nameserver ${GATEWAY}\n`);
  const config = join(folder, 'kubelet.yaml');
  writeFileSync(config, JSON.stringify(kubeletConfig(plane, group)));
  const options = flags({
    config,
    kubeconfig: credentials.file('kubelet.kubeconfig'),
    'hostname-override': NODE,
    'node-ip': ADDRESS,
    'root-dir': join(folder, 'kubelet'),
    'cert-dir': join(folder, 'kubelet-pki'),
    'node-labels': 'topology.kubernetes.io/zone=zone-1',
  });
  processes.start('kubelet', binaryOf(`${release}/node`), ['kubelet', ...options]);
}

function startProxy({ folder, processes, credentials, release }: ControlPlane): void {
  const config = {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    bindAddress: '0.0.0.0',
    clientConnection: { kubeconfig: credentials.file('kube-proxy.kubeconfig') },
    mode: release === 'newest' ? 'nftables' : 'iptables',
    clusterCIDR: '10.244.0.0/16',
    conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
  };
  const file = join(folder, 'kube-proxy.yaml');
  writeFileSync(file, JSON.stringify(config));
  processes.start('kube-proxy', binaryOf(`${release}/node`), [
    'kube-proxy',
    '--config',
    file,
    '--hostname-override',
    NODE,
  ]);
}

const corefileFor = (kubeconfig: string): string => `cluster.local:53 {
  errors
  kubernetes cluster.local {
    kubeconfig ${kubeconfig} real
    pods insecure
    ttl 5
  }
}
.:53 {
  errors
  template ANY ANY {
    rcode NXDOMAIN
  }
}
`;

/** For messages of checks that fail: the end of every log of the node. */
export function keepLogs({ processes }: ControlPlane, file: string): void {
  for (const name of ['containerd', 'kubelet', 'kube-proxy', 'dns', 'kube-apiserver'])
    appendFileSync(file, `== ${name}\n${processes.log(name)}\n`);
}
