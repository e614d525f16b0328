/**
 * A real control plane on the loopback address: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with
 * certificates, RBAC and Pod Security. Owns its processes and its folder; who runs the pods is decided elsewhere.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../ports.ts';
import { binaryOf, type Release, versionOf } from '../programs.ts';
import { Client } from './client.ts';
import { Credentials } from './credentials.ts';
import { command, flags, Processes, until } from './processes.ts';

export interface ControlPlane {
  readonly release: Release;
  readonly version: string;
  readonly client: Client;
  readonly credentials: Credentials;
  readonly processes: Processes;
  /** `https://127.0.0.1:PORT` */
  readonly server: string;
  /** Logs, keys and data. Removed by `stop`. */
  readonly folder: string;
  /** Ends every process that was started and removes the folder. */
  stop(): Promise<void>;
}

const START_LIMIT_MS = 180_000;

/** @param tools paths of kubectl and of both helms */
export async function startControlPlane(
  release: Release,
  tools: { readonly kubectl: string; readonly helm3: string; readonly helm4: string },
): Promise<ControlPlane> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-kubernetes-'));
  const processes = new Processes(folder);
  const stop = async (): Promise<void> => {
    await processes.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const credentials = new Credentials(folder);
    const port = await freePort();
    const server = `https://127.0.0.1:${port}`;
    await issueAll(credentials);
    for (const name of ['admin', 'controllers', 'scheduler']) credentials.kubeconfig(name, server);
    const client = new Client(credentials.file('admin.kubeconfig'), join(folder, 'helm'), tools);
    const etcd = await startEtcd(processes, folder);
    startServer(processes, { release, port, etcd, credentials });
    await until(
      'kube-apiserver is ready',
      START_LIMIT_MS,
      () => client.succeeds(['get', '--raw', '/readyz']),
      async () => processes.log('kube-apiserver'),
    );
    await startControllers(processes, release, credentials);
    await until('the controllers work', START_LIMIT_MS, () =>
      client.succeeds(['get', 'serviceaccount', 'default', '-n', 'default']),
    );
    return { release, version: versionOf(release), client, credentials, processes, server, folder, stop };
  } catch (failure) {
    await stop();
    throw failure;
  }
}

async function issueAll(credentials: Credentials): Promise<void> {
  await credentials.createAuthority();
  const names = 'IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc';
  await credentials.issue('apiserver', '/CN=kube-apiserver', names);
  await credentials.issue('admin', '/O=system:masters/CN=admin');
  await credentials.issue('controllers', '/CN=system:kube-controller-manager');
  await credentials.issue('scheduler', '/CN=system:kube-scheduler');
}

/** etcd of the newest release serves every API server; nothing of it outlives the run, so it never syncs. */
async function startEtcd(processes: Processes, folder: string): Promise<string> {
  const [clients, peers] = [`http://127.0.0.1:${await freePort()}`, `http://127.0.0.1:${await freePort()}`];
  mkdirSync(join(folder, 'etcd'), { mode: 0o700 });
  const options = {
    name: 'real',
    'data-dir': join(folder, 'etcd'),
    'unsafe-no-fsync': true,
    'listen-client-urls': clients,
    'advertise-client-urls': clients,
    'listen-peer-urls': peers,
    'initial-advertise-peer-urls': peers,
    'initial-cluster': `real=${peers}`,
  };
  processes.start('etcd', binaryOf('newest/plane'), ['etcd', ...flags(options)]);
  await until(
    'etcd answers',
    START_LIMIT_MS,
    async () => (await fetch(`${clients}/health`).catch(() => null))?.ok === true,
    async () => processes.log('etcd'),
  );
  return clients;
}

interface ServerOptions {
  readonly release: Release;
  readonly port: number;
  readonly etcd: string;
  readonly credentials: Credentials;
}

function startServer(processes: Processes, { release, port, etcd, credentials }: ServerOptions): void {
  const file = (name: string): string => credentials.file(name);
  const options = {
    'etcd-servers': etcd,
    'bind-address': '127.0.0.1',
    'advertise-address': '127.0.0.1',
    'secure-port': port,
    'endpoint-reconciler-type': 'none',
    'service-cluster-ip-range': '10.96.0.0/16',
    'allow-privileged': true,
    'authorization-mode': 'Node,RBAC',
    'enable-admission-plugins': 'NodeRestriction',
    'client-ca-file': file('ca.crt'),
    'tls-cert-file': file('apiserver.crt'),
    'tls-private-key-file': file('apiserver.key'),
    'kubelet-client-certificate': file('admin.crt'),
    'kubelet-client-key': file('admin.key'),
    'kubelet-preferred-address-types': 'InternalIP',
    'service-account-issuer': 'https://kubernetes.default.svc',
    'service-account-key-file': file('accounts.key'),
    'service-account-signing-key-file': file('accounts.key'),
    // For the custom metrics API, which is served by another process.
    'requestheader-client-ca-file': file('ca.crt'),
    'requestheader-allowed-names': 'front-proxy',
    'requestheader-username-headers': 'X-Remote-User',
    'requestheader-group-headers': 'X-Remote-Group',
    'requestheader-extra-headers-prefix': 'X-Remote-Extra-',
    'proxy-client-cert-file': file('admin.crt'),
    'proxy-client-key-file': file('admin.key'),
  };
  processes.start('kube-apiserver', binaryOf(`${release}/plane`), ['kube-apiserver', ...flags(options)]);
}

async function startControllers(
  processes: Processes,
  release: Release,
  credentials: Credentials,
): Promise<void> {
  const common = async (name: string): Promise<Record<string, string | number | boolean>> => {
    const config = credentials.file(`${name}.kubeconfig`);
    return {
      kubeconfig: config,
      'authentication-kubeconfig': config,
      'authorization-kubeconfig': config,
      'bind-address': '127.0.0.1',
      'secure-port': await freePort(),
      'leader-elect': false,
    };
  };
  const controllers = {
    ...(await common('controllers')),
    'use-service-account-credentials': true,
    'service-account-private-key-file': credentials.file('accounts.key'),
    'root-ca-file': credentials.file('ca.crt'),
    // The default is 15 s: the same decisions, sooner.
    'horizontal-pod-autoscaler-sync-period': '5s',
  };
  const binary = binaryOf(`${release}/plane`);
  const name = 'kube-controller-manager';
  processes.start(name, binary, [name, ...flags(controllers)]);
  const scheduler = flags(await common('scheduler'));
  processes.start('kube-scheduler', binary, ['kube-scheduler', ...scheduler]);
}

/** Whether `openssl` is there, which signs the certificates. */
export async function opensslObstacle(): Promise<string | null> {
  return (await command('openssl', ['version']).catch(() => null)) === null ? 'no openssl in PATH' : null;
}
