/** Who reaches what under the chart's NetworkPolicies: each way tried by a connection. */
import { enforcePolicies, stopEnforcing } from './network-policy.ts';
import { prober } from './objects.ts';
import type { Shop } from './shop.ts';

type Reach = 'open' | 'closed';
interface Way {
  /** Where the connection comes from: `NAMESPACE/POD`. */
  readonly from: string;
  readonly host: string;
  readonly port: number;
  readonly wanted: Reach;
}

const CONNECT = `
const socket = require('net').connect(Number(process.argv[2]), process.argv[1]);
const end = (text) => { console.log(text); process.exit(); };
socket.on('connect', () => end('open')).on('error', () => end('closed'));
setTimeout(() => end('closed'), 3000);`;

async function connect(shop: Shop, { from, host, port }: Way): Promise<string> {
  const [namespace = '', pod = ''] = from.split('/');
  const { client } = shop.plane;
  const args = ['-n', namespace, 'exec', pod, '--', 'node', '-e', CONNECT, host, String(port)];
  return (await client.kubectl(args)).trim();
}

async function addProber(shop: Shop, namespace: string, object: object): Promise<void> {
  const { client } = shop.plane;
  await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } });
  await client.kubectl(['-n', namespace, 'apply', '-f', '-'], JSON.stringify(object));
  const ready = ['wait', '--for', 'condition=Ready', 'pod', '-l', 'probes=yes', '--timeout', '120s'];
  await client.kubectl(['-n', namespace, ...ready]);
}

const labels = { probes: 'yes' };
const asTest = { ...labels, 'app.kubernetes.io/name': 'sluice-test', 'app.kubernetes.io/instance': 's' };

/** Enforces the policies and tries every way. @throws with the ways that are not as they should be */
export async function waysAreAsWanted(shop: Shop): Promise<string> {
  const { namespace } = shop.release;
  await addProber(shop, namespace, prober('prober', labels));
  await addProber(shop, namespace, prober('as-test', asTest));
  await addProber(shop, 'monitoring', prober('prober', labels));
  await enforcePolicies(shop.plane.client);
  try {
    const ways = await waysOf(shop);
    const problems: string[] = [];
    for (const way of ways) {
      const reach = await connect(shop, way);
      if (reach !== way.wanted) problems.push(`${way.from} to ${way.host}:${way.port} is ${reach}`);
    }
    if (problems.length > 0) throw new Error(problems.join('\n'));
    const status = await shop.statusOf(shop.key);
    if (status !== 200) throw new Error(`a call under the policies is answered ${status}`);
    return `${ways.length} ways`;
  } finally {
    await stopEnforcing();
    await shop.plane.client.kubectl(['delete', 'namespace', 'monitoring', '--wait']);
    await shop.release.kubectl(['delete', 'pod', '-l', 'probes=yes', '--wait']);
  }
}

async function waysOf(shop: Shop): Promise<Way[]> {
  const { namespace } = shop.release;
  const [gateway = ''] = await shop.pods();
  const own = (pod: string): string => `${namespace}/${pod}`;
  const host = (service: string): string => `${service}.${namespace}.svc.cluster.local`;
  const prober = await shop.release.kubectl(['get', 'pod', 'prober', '-o', 'jsonpath={.status.podIP}']);
  const [data, admin, redis] = [host('s-sluice'), host('s-sluice-admin'), host('s-sluice-redis')];
  const outside = 'monitoring/prober';
  return [
    { from: own('prober'), host: data, port: 80, wanted: 'open' },
    { from: outside, host: data, port: 80, wanted: 'open' },
    { from: outside, host: admin, port: 9090, wanted: 'open' },
    { from: own('as-test'), host: admin, port: 9090, wanted: 'open' },
    { from: own('prober'), host: admin, port: 9090, wanted: 'closed' },
    { from: own(gateway), host: admin, port: 9090, wanted: 'closed' },
    { from: own('prober'), host: redis, port: 6379, wanted: 'closed' },
    { from: outside, host: redis, port: 6379, wanted: 'closed' },
    { from: own(gateway), host: redis, port: 6379, wanted: 'open' },
    { from: own(gateway), host: host('upstream'), port: 80, wanted: 'open' },
    { from: own(gateway), host: prober, port: 443, wanted: 'closed' },
  ];
}

export async function checkPolicies(shop: Shop, version: string): Promise<void> {
  await shop.report.check(`${version}, real node: NetworkPolicies, by nftables: who reaches what`, () =>
    waysAreAsWanted(shop),
  );
}
