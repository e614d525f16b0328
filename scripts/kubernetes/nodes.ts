/** Nodes that do not exist: kwok reports them and their pods as ready, and runs nothing. */
import { fileURLToPath } from 'node:url';
import { freePort } from '../../test/support/free-port.ts';
import type { ControlPlane } from './control-plane.ts';
import { kwokBinary } from './program.ts';

const COUNT = 3;
const stages = fileURLToPath(new URL('stages.yaml', import.meta.url));
const size = { cpu: '32', memory: '128Gi', pods: '400', 'ephemeral-storage': '1Ti' };

function node(index: number): object {
  const name = `node-${index}`;
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: {
      name,
      annotations: { 'kwok.x-k8s.io/node': 'fake' },
      labels: {
        'kubernetes.io/arch': 'amd64',
        'kubernetes.io/os': 'linux',
        'kubernetes.io/hostname': name,
        'topology.kubernetes.io/zone': `zone-${index}`,
      },
    },
    status: { allocatable: size, capacity: size },
  };
}

/** Three nodes in three zones. */
export async function addSimulatedNodes({ client, kubeconfig, run }: ControlPlane): Promise<void> {
  const port = await freePort();
  run(kwokBinary, [
    '--kubeconfig',
    kubeconfig,
    '--config',
    stages,
    '--manage-nodes-with-annotation-selector',
    'kwok.x-k8s.io/node=fake',
    '--cidr',
    '10.244.0.1/16',
    '--node-ip',
    '127.0.0.1',
    '--node-lease-duration-seconds',
    '40',
    '--server-address',
    `127.0.0.1:${port}`,
    '--node-port',
    String(port),
  ]);
  await client.apply(...Array.from({ length: COUNT }, (_, at) => node(at + 1)));
  await client.kubectl(['wait', '--for', 'condition=Ready', 'node', '--all', '--timeout', '120s']);
}

/** Each claim of a value file takes one for good: nothing provisions them where no node is real. */
const VOLUMES = 20;

const volume = (index: number): object => ({
  apiVersion: 'v1',
  kind: 'PersistentVolume',
  metadata: { name: `volume-${index}` },
  spec: {
    accessModes: ['ReadWriteMany'],
    capacity: { storage: '1Gi' },
    hostPath: { path: '/var/empty' },
    persistentVolumeReclaimPolicy: 'Retain',
  },
});

/** Volumes without a storage class, which the control plane binds to claims that name none; no pod on a simulated node opens one. */
export const addVolumes = ({ client }: ControlPlane): Promise<unknown> =>
  client.apply(...Array.from({ length: VOLUMES }, (_, at) => volume(at + 1)));
