/**
 * A real control plane on the loopback address: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with
 * certificates, RBAC and Pod Security. Owns its processes and its folder; who runs the pods is decided elsewhere.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { answers, freePort, start, until, type Started } from '../processes.ts';
import { Client, type Tools } from './client.ts';
import { Credentials } from './credentials.ts';
import { planeBinary } from './program.ts';

export interface ControlPlane {
  readonly client: Client;
  readonly credentials: Credentials;
  /** Starts a program at the lowest priority, which `stop` ends. */
  run(program: string, args: readonly string[]): Started;
  /** Ends every process that was started and removes the folder. */
  stop(): Promise<void>;
}

const START_LIMIT_MS = 180_000;

const flags = (options: Readonly<Record<string, string | number | boolean>>): string[] =>
  Object.entries(options).map(([name, value]) => `--${name}=${value}`);

export async function startControlPlane(tools: Tools): Promise<ControlPlane> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-kubernetes-'));
  const running: Started[] = [];
  const run = (program: string, args: readonly string[]): Started => {
    const started = start('nice', ['-n', '19', program, ...args]);
    running.push(started);
    return started;
  };
  const stop = async (): Promise<void> => {
    for (const one of running.reverse()) await one.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const credentials = new Credentials(folder);
    const port = await freePort();
    await issueAll(credentials);
    for (const name of ['admin', 'controllers', 'scheduler'])
      credentials.kubeconfig(name, `https://127.0.0.1:${port}`);
    const client = new Client(credentials.file('admin.kubeconfig'), join(folder, 'helm'), tools);
    const etcd = await startEtcd(run, folder);
    const server = run(planeBinary, ['kube-apiserver', ...flags(serverOptions(port, etcd, credentials))]);
    await until(
      'kube-apiserver is ready',
      START_LIMIT_MS,
      () => client.succeeds(['get', '--raw', '/readyz']),
      server.said,
    );
    await startControllers(run, credentials);
    await until('the controllers work', START_LIMIT_MS, () =>
      client.succeeds(['get', 'serviceaccount', 'default', '-n', 'default']),
    );
    return { client, credentials, run, stop };
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

type Run = ControlPlane['run'];

/** Nothing of it outlives the run, so it never syncs. */
async function startEtcd(run: Run, folder: string): Promise<string> {
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
  const etcd = run(planeBinary, ['etcd', ...flags(options)]);
  await until('etcd answers', START_LIMIT_MS, () => answers(`${clients}/health`), etcd.said);
  return clients;
}

function serverOptions(
  port: number,
  etcd: string,
  credentials: Credentials,
): Readonly<Record<string, string | number | boolean>> {
  const file = (name: string): string => credentials.file(name);
  return {
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
  };
}

async function startControllers(run: Run, credentials: Credentials): Promise<void> {
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
  };
  run(planeBinary, ['kube-controller-manager', ...flags(controllers)]);
  run(planeBinary, ['kube-scheduler', ...flags(await common('scheduler'))]);
}
