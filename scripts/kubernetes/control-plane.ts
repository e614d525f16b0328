/**
 * A real control plane on the loopback address: etcd, kube-apiserver and kube-controller-manager, with RBAC and Pod Security. There is no
 * node: pods stay unscheduled, and `Stand` says of them what a kubelet would.
 */
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../../test/support/free-port.ts';
import { answers, newFolder, start, until } from '../fleet/processes.ts';
import { Client } from './client.ts';
import { planeBinary } from './program.ts';

const startLimitMs = 300_000;

type Options = Readonly<Record<string, string | number | boolean>>;

/** One of its programs, at the lowest priority. */
const run = (name: string, options: Options) =>
  start('nice', [
    '-n19',
    planeBinary,
    name,
    ...Object.entries(options).map(([option, value]) => `--${option}=${value}`),
  ]);

/** Its processes and its folder end with those of the verification. */
export async function startControlPlane(tools: ConstructorParameters<typeof Client>[1]): Promise<Client> {
  const [folder, port] = [await newFolder(), await freePort()];
  const file = (name: string): string => join(folder, name);
  const token = randomBytes(16).toString('hex');
  writeFileSync(file('tokens.csv'), `${token},verify,verify,system:masters\n`);
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  writeFileSync(file('accounts.key'), privateKey.export({ type: 'sec1', format: 'pem' }));
  const kubeconfig = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [
      { name: 'verify', cluster: { server: `https://127.0.0.1:${port}`, 'insecure-skip-tls-verify': true } },
    ],
    users: [{ name: 'verify', user: { token } }],
    contexts: [{ name: 'verify', context: { cluster: 'verify', user: 'verify' } }],
    'current-context': 'verify',
  };
  writeFileSync(file('kubeconfig'), JSON.stringify(kubeconfig), { mode: 0o600 });
  const client = new Client({ port, token, kubeconfig: file('kubeconfig'), home: file('helm') }, tools);

  const [clients, peers] = [`http://127.0.0.1:${await freePort()}`, `http://127.0.0.1:${await freePort()}`];
  mkdirSync(file('etcd'), { mode: 0o700 });
  const etcd = run('etcd', {
    name: 'real',
    'data-dir': file('etcd'),
    // Nothing of it outlives the run.
    'unsafe-no-fsync': true,
    'listen-client-urls': clients,
    'advertise-client-urls': clients,
    'listen-peer-urls': peers,
    'initial-advertise-peer-urls': peers,
    'initial-cluster': `real=${peers}`,
  });
  await until('etcd answers', startLimitMs, () => answers(`${clients}/health`), etcd.said);
  const server = run('kube-apiserver', {
    'etcd-servers': clients,
    'bind-address': '127.0.0.1',
    'advertise-address': '127.0.0.1',
    'secure-port': port,
    // It signs its own certificate.
    'cert-dir': folder,
    'endpoint-reconciler-type': 'none',
    'service-cluster-ip-range': '10.96.0.0/16',
    'authorization-mode': 'RBAC',
    'token-auth-file': file('tokens.csv'),
    'service-account-issuer': 'https://kubernetes.default.svc',
    'service-account-key-file': file('accounts.key'),
    'service-account-signing-key-file': file('accounts.key'),
  });
  const is200 = async (path: string): Promise<boolean> => (await client.request('GET', path))[0] === 200;
  await until('kube-apiserver is ready', startLimitMs, () => is200('/readyz'), server.said);
  const controllers = run('kube-controller-manager', {
    kubeconfig: file('kubeconfig'),
    'bind-address': '127.0.0.1',
    'secure-port': await freePort(),
    'leader-elect': false,
    'use-service-account-credentials': true,
    'service-account-private-key-file': file('accounts.key'),
  });
  const account = '/api/v1/namespaces/default/serviceaccounts/default';
  await until('the controllers work', startLimitMs, () => is200(account), controllers.said);
  return client;
}
