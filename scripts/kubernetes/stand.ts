/**
 * No node runs here and no cloud answers: what a kubelet would say of each pod and a cloud of each Service is written here, and seen before
 * it is written. Nothing else makes a pod ready, so no moment in which fewer are ready can be missed.
 */
import { pause } from '../../test/support/redis-fleet.ts';
import type { ApiObject, Client } from './client.ts';

/** Pods are ready so late, so that rollouts have something to wait for. Milliseconds. */
const readyAfterMs = 1_500;
const everyMs = 250;

/** Counts of the pods of a namespace over the time that was watched. */
export interface Seen {
  minReady: number;
  maxPods: number;
}

const isReady = ({ status }: ApiObject): boolean =>
  status?.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') === true;
const isTest = ({ metadata }: ApiObject): boolean => metadata.annotations?.['helm.sh/hook'] === 'test';

export class Stand {
  readonly #client: Client;
  readonly #watching = new Map<string, Seen>();
  #addresses = 1;

  constructor(client: Client) {
    this.#client = client;
  }

  /** Goes on until the process ends. The pod annotation `verify/ready: "false"` keeps a pod from becoming ready. */
  async run(): Promise<never> {
    for (; ; await pause(everyMs)) {
      // While the API server is busy the next round is soon enough.
      await this.#round().catch(() => null);
    }
  }

  /** Counts pods of this namespace from now on, until they are taken with {@link seen}. */
  watch(namespace: string): void {
    this.#watching.set(namespace, { minReady: Infinity, maxPods: 0 });
  }

  async seen(namespace: string): Promise<Seen> {
    // What has just happened still counts.
    await pause(4 * everyMs);
    const seen = this.#watching.get(namespace) ?? { minReady: 0, maxPods: 0 };
    this.#watching.delete(namespace);
    return seen;
  }

  async #round(): Promise<void> {
    const pods = (await this.#list('pods')).filter(
      ({ metadata }) => metadata.deletionTimestamp === undefined,
    );
    for (const [namespace, seen] of this.#watching) {
      const own = pods.filter((pod) => pod.metadata.namespace === namespace && !isTest(pod));
      seen.minReady = Math.min(seen.minReady, own.filter(isReady).length);
      seen.maxPods = Math.max(seen.maxPods, own.length);
    }
    for (const pod of pods) {
      const { creationTimestamp, annotations = {} } = pod.metadata;
      const isDue = Date.now() - Date.parse(creationTimestamp) >= readyAfterMs;
      if (isTest(pod) && isReady(pod)) await this.#say('pods', pod, { phase: 'Succeeded' });
      else if (isDue && !isReady(pod) && annotations['verify/ready'] !== 'false')
        await this.#say('pods', pod, this.#ready());
    }
    for (const service of await this.#list('services'))
      if (service.spec?.type === 'LoadBalancer' && service.status?.loadBalancer?.ingress === undefined)
        await this.#say('services', service, { loadBalancer: { ingress: [{ ip: '203.0.113.1' }] } });
  }

  #ready(): object {
    const now = new Date().toISOString().replace(/\.\d+/, '');
    const podIP = `10.244.${this.#addresses >> 8}.${this.#addresses & 255}`;
    this.#addresses += 1;
    const types = ['Initialized', 'Ready', 'ContainersReady', 'PodScheduled'];
    const conditions = types.map((type) => ({ type, status: 'True', lastTransitionTime: now }));
    return { phase: 'Running', podIP, podIPs: [{ ip: podIP }], startTime: now, conditions };
  }

  async #list(kind: string): Promise<readonly ApiObject[]> {
    const [, text] = await this.#client.request('GET', `/api/v1/${kind}`);
    return (JSON.parse(text) as { readonly items: readonly ApiObject[] }).items;
  }

  async #say(kind: string, { metadata: { namespace, name } }: ApiObject, status: object): Promise<void> {
    const path = `/api/v1/namespaces/${namespace}/${kind}/${name}/status`;
    await this.#client.request('PATCH', path, { status });
  }
}
