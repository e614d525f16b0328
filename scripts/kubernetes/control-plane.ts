/**
 * A real control plane on the loopback address: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with
 * RBAC and Pod Security. Owns its processes and its folder; who runs the pods is decided elsewhere.
 */
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../test/support/free-port.ts';
import { answers, start, until, type Started } from '../fleet/processes.ts';
import { Client, type Tools } from './client.ts';
import { planeBinary } from './program.ts';

export interface ControlPlane {
  readonly client: Client;
  /** Of one who may do everything. */
  readonly kubeconfig: string;
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
    const port = await freePort();
    const kubeconfig = writeCredentials(folder, port);
    const client = new Client(kubeconfig, join(folder, 'helm'), tools);
    const etcd = await startEtcd(run, folder);
    const server = run(planeBinary, ['kube-apiserver', ...flags(serverOptions(folder, port, etcd))]);
    await until(
      'kube-apiserver is ready',
      START_LIMIT_MS,
      () => client.succeeds(['get', '--raw', '/readyz']),
      server.said,
    );
    await startControllers(run, folder, kubeconfig);
    await until('the controllers work', START_LIMIT_MS, () =>
      client.succeeds(['get', 'serviceaccount', 'default', '-n', 'default']),
    );
    return { client, kubeconfig, run, stop };
  } catch (failure) {
    await stop();
    throw failure;
  }
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

/** @param folder has what {@link writeCredentials} wrote */
const serverOptions = (
  folder: string,
  port: number,
  etcd: string,
): Readonly<Record<string, string | number | boolean>> => ({
  'etcd-servers': etcd,
  'bind-address': '127.0.0.1',
  'advertise-address': '127.0.0.1',
  'secure-port': port,
  // It signs its own certificate.
  'cert-dir': folder,
  'endpoint-reconciler-type': 'none',
  'service-cluster-ip-range': '10.96.0.0/16',
  'authorization-mode': 'RBAC',
  'token-auth-file': join(folder, 'tokens.csv'),
  'service-account-issuer': 'https://kubernetes.default.svc',
  'service-account-key-file': join(folder, 'accounts.key'),
  'service-account-signing-key-file': join(folder, 'accounts.key'),
});

async function startControllers(run: Run, folder: string, kubeconfig: string): Promise<void> {
  const options = async () => ({
    kubeconfig,
    'bind-address': '127.0.0.1',
    'secure-port': await freePort(),
    'leader-elect': false,
  });
  const accounts = {
    'use-service-account-credentials': true,
    'service-account-private-key-file': join(folder, 'accounts.key'),
  };
  run(planeBinary, ['kube-controller-manager', ...flags({ ...(await options()), ...accounts })]);
  run(planeBinary, ['kube-scheduler', ...flags(await options())]);
}

/** A token of one who may do everything, and the key that signs tokens of service accounts. @returns the path of a kubeconfig */
function writeCredentials(folder: string, port: number): string {
  const token = randomBytes(16).toString('hex');
  writeFileSync(join(folder, 'tokens.csv'), `${token},verify,verify,system:masters\n`);
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  writeFileSync(join(folder, 'accounts.key'), privateKey.export({ type: 'sec1', format: 'pem' }));
  const cluster = { server: `https://127.0.0.1:${port}`, 'insecure-skip-tls-verify': true };
  const content = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'verify', cluster }],
    users: [{ name: 'verify', user: { token } }],
    contexts: [{ name: 'verify', context: { cluster: 'verify', user: 'verify' } }],
    'current-context': 'verify',
  };
  const path = join(folder, 'kubeconfig');
  writeFileSync(path, JSON.stringify(content), { mode: 0o600 });
  return path;
}
