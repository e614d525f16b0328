/**
 * Counts ready pods and ready endpoints from watch events while something happens, so that no dip between two questions
 * is missed. A pod is ready while its condition says so and it is not being deleted; it exists until it is being deleted.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ApiObject, Client } from './client.ts';

/** Counts of pods or endpoints over the time that was watched. */
export interface Seen {
  readonly readyBefore: number;
  readonly minReady: number;
  readonly maxPods: number;
}

interface Count {
  readonly ready: number;
  readonly exists: number;
}

const record = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null ? { ...value } : {};
const items = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);

function ofPod({ metadata, status }: ApiObject): Count {
  const gone = metadata.deletionTimestamp !== undefined;
  const conditions = items(record(status)['conditions']).map(record);
  const ready = conditions.some((one) => one['type'] === 'Ready' && one['status'] === 'True');
  return { ready: Number(!gone && ready), exists: Number(!gone) };
}

function ofSlice(slice: ApiObject): Count {
  const endpoints = items(slice['endpoints']).map(record);
  const ready = endpoints.filter((one) => record(one['conditions'])['ready'] === true);
  return { ready: ready.length, exists: endpoints.length };
}

/** One kind of object in one namespace, from now on. */
class Watch {
  readonly #objects = new Map<string, ApiObject>();
  readonly #child: ChildProcess;
  readonly #of: (object: ApiObject) => Count;
  #minReady: number;
  #maxExisting: number;
  readonly readyBefore: number;

  constructor(child: ChildProcess, initial: readonly ApiObject[], of: (object: ApiObject) => Count) {
    this.#child = child;
    this.#of = of;
    for (const object of initial) this.#objects.set(object.metadata.uid ?? '', object);
    const { ready, exists } = this.#total();
    [this.readyBefore, this.#minReady, this.#maxExisting] = [ready, ready, exists];
    if (child.stdout) createInterface(child.stdout).on('line', (line) => this.#take(line));
  }

  #total(): Count {
    const counts = [...this.#objects.values()].map(this.#of);
    return {
      ready: counts.reduce((sum, one) => sum + one.ready, 0),
      exists: counts.reduce((sum, one) => sum + one.exists, 0),
    };
  }

  #take(line: string): void {
    const { type, object }: { type: string; object: ApiObject } = JSON.parse(line);
    const uid = object.metadata.uid ?? '';
    if (type === 'DELETED') this.#objects.delete(uid);
    else if (type === 'ADDED' || type === 'MODIFIED') this.#objects.set(uid, object);
    const { ready, exists } = this.#total();
    this.#minReady = Math.min(this.#minReady, ready);
    this.#maxExisting = Math.max(this.#maxExisting, exists);
  }

  stop(): Seen {
    if (this.#child.exitCode !== null) throw new Error('the watch ended before what it watched');
    this.#child.kill('SIGTERM');
    return { readyBefore: this.readyBefore, minReady: this.#minReady, maxPods: this.#maxExisting };
  }
}

async function start(
  client: Client,
  path: string,
  query: string,
  of: (object: ApiObject) => Count,
): Promise<Watch> {
  const list: { metadata: { resourceVersion: string }; items: ApiObject[] } = JSON.parse(
    await client.kubectl(['get', '--raw', `${path}?${query}`]),
  );
  const from = `resourceVersion=${list.metadata.resourceVersion}&timeoutSeconds=1800`;
  const url = `${path}?watch=1&${from}&${query}`;
  const [program, args, env] = client.longRunning(['get', '--raw', url]);
  return new Watch(spawn(program, args, { env, stdio: ['ignore', 'pipe', 'ignore'] }), list.items, of);
}

/** Ready pods of a release, and ready endpoints of its data Service: the smaller number counts. */
export interface Watched {
  stop(): Promise<Seen>;
}

/** @param release name of the release, whose objects are named after it */
export async function watchPods(client: Client, namespace: string, release: string): Promise<Watched> {
  const selector = encodeURIComponent(`app.kubernetes.io/name=sluice,app.kubernetes.io/instance=${release}`);
  const service = encodeURIComponent(`kubernetes.io/service-name=${release}-sluice`);
  const pods = await start(
    client,
    `/api/v1/namespaces/${namespace}/pods`,
    `labelSelector=${selector}`,
    ofPod,
  );
  const slices = await start(
    client,
    `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`,
    `labelSelector=${service}`,
    ofSlice,
  );
  return {
    async stop() {
      // Events that are on their way still count.
      await sleep(1000);
      const [seen, endpoints] = [pods.stop(), slices.stop()];
      return { ...seen, minReady: Math.min(seen.minReady, endpoints.minReady) };
    },
  };
}
