/** Volumes for claims of the value files: nothing provisions them where no node is real, and no pod on a simulated node opens one. */
import type { Client } from '../cluster/client.ts';

/** Each claim takes one for good: more than the groups of checks make of claims, over all value files, helms and passages. */
const COUNT = 60;

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

/** Volumes without a storage class, which the control plane binds to claims that name none. */
export const addVolumes = (client: Client): Promise<unknown> =>
  client.apply(...Array.from({ length: COUNT }, (_, at) => volume(at + 1)));
