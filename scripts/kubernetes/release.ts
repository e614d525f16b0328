/**
 * One Helm release named `s` in one namespace of a real API server, and the questions that are asked of it. Every change
 * must pass without a warning of the API server.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { until } from '../fleet/processes.ts';
import { chart } from '../packaging/manifests.mjs';
import { CommandFailure, withoutWarning, type Client, type Helm, type Output } from './client.ts';
import type { Stand } from './stand.ts';

const kinds =
  'deployments,services,configmaps,networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,ingresses,serviceaccounts,httproutes,servicemonitors,podmonitors,prometheusrules,scaledobjects,externalsecrets';
const wait = ['--wait', '--timeout', '240s'];
/** Warnings of an autoscaler that has no metrics, of slices in a hurry, and of a claim or address that is given a moment later. */
const expected =
  /FailedGetPodsMetric|FailedComputeMetricsReplicas|FailedGetResourceMetric|FailedToUpdateEndpoint|ClusterIPNotAllocated/;

export class Release {
  readonly deployment = 'deployment/s-sluice';
  readonly client: Client;
  readonly namespace: string;
  readonly #stand: Stand;
  /** Which helm makes the next change. */
  helm: Helm;

  constructor(client: Client, stand: Stand, namespace: string, helm: Helm) {
    this.client = client;
    this.#stand = stand;
    this.namespace = namespace;
    this.helm = helm;
  }

  /** kubectl in the namespace. */
  kubectl(args: readonly string[], input?: string): Promise<string> {
    return this.client.kubectl(['-n', this.namespace, ...args], input);
  }

  run(args: readonly string[]): Promise<Output> {
    return this.client.helm(this.helm, [...args, '-n', this.namespace]);
  }

  /** A change that the API server takes without a warning. */
  async change(args: readonly string[]): Promise<void> {
    withoutWarning(await this.run(args));
  }

  install(values: readonly string[]): Promise<void> {
    return this.change(['install', 's', chart, ...values, ...wait]);
  }

  upgrade(values: readonly string[]): Promise<void> {
    return this.change(['upgrade', 's', chart, ...values, ...wait]);
  }

  rollback(revision: number): Promise<void> {
    return this.change(['rollback', 's', String(revision), ...wait]);
  }

  async manifest(revision: readonly string[] = []): Promise<string> {
    return (await this.run(['get', 'manifest', 's', ...revision])).stdout;
  }

  field(path: string): Promise<string> {
    return this.kubectl(['get', this.deployment, '-o', `jsonpath={${path}}`]);
  }

  async replicas(): Promise<number> {
    return Number(await this.field('.spec.replicas'));
  }

  untilReady(count: number): Promise<void> {
    const counts = (): Promise<string> => this.field('.spec.replicas}{" "}{.status.readyReplicas');
    const look = (): Promise<string> => this.kubectl(['get', 'pods,hpa', '-o', 'wide']);
    const holds = async (): Promise<boolean> => (await counts()) === `${count} ${count}`;
    return until(`${count} pods are ready`, 120_000, holds, look);
  }

  /** Under an autoscaler: once it has raised the number to its minimum. */
  async settled(): Promise<void> {
    const path = ['-o', 'jsonpath={.items[*].spec.minReplicas}'];
    const min = Number((await this.kubectl(['get', 'horizontalpodautoscalers', ...path])) || '0');
    await until('the autoscaler keeps its minimum', 120_000, async () => (await this.replicas()) >= min);
    await this.untilReady(await this.replicas());
  }

  async rolledOut(): Promise<void> {
    await this.kubectl(['rollout', 'status', this.deployment, '--timeout', '240s']);
  }

  /**
   * Watches while something happens. @throws when fewer than `min` pods were ready, or more than `max` existed: one more may be there
   * for a moment, because a Deployment counts the pods that it asked for, not those that are still to be deleted.
   */
  async during({ min, max }: { min: number; max: number }, happens: () => Promise<unknown>): Promise<string> {
    await this.rolledOut();
    this.#stand.watch(this.namespace);
    const failure: unknown = await happens().then(
      () => null,
      (reason: unknown) => reason,
    );
    const { minReady, maxPods } = await this.#stand.seen(this.namespace);
    if (failure !== null) throw failure;
    const text = `at least ${minReady} ready, at most ${maxPods} pods`;
    if (minReady < min) throw new Error(`${text}: fewer than ${min} were ready`);
    if (maxPods > max + 1) throw new Error(`${text}: more than ${max} pods are allowed`);
    return text;
  }

  /** Generations of everything, to see that nothing was changed. */
  async generations(): Promise<string> {
    const all = await this.client.list([kinds, '-n', this.namespace, '-l', 'app.kubernetes.io/instance=s']);
    return all.map(({ kind, metadata: { name, generation } }) => `${kind} ${name} ${generation}`).join('\n');
  }

  /** @throws with the differences between the manifest and what the API server holds */
  async matchesManifest(): Promise<void> {
    const args = ['-n', this.namespace, 'diff', '--server-side', '--force-conflicts', '-f', '-'];
    const manifest = await this.manifest();
    // A status that changes while kubectl compares is a difference too: it asks again.
    for (let asked = 0; asked < 4; asked += 1) {
      if (await this.client.output(args, manifest).then(() => true, isDifference)) return;
      await sleep(2000);
    }
    await this.client.kubectl(args, manifest);
  }

  /** Objects that carry the release's label but are not in its manifest. */
  async orphans(): Promise<string[]> {
    const label = ['-l', 'app.kubernetes.io/instance=s'];
    const live = (await this.kubectl(['get', kinds, ...label, '-o', 'name'])).split('\n');
    const named = await this.kubectl(['get', '-f', '-', '-o', 'name'], await this.manifest());
    return live.filter((name) => name !== '' && !named.includes(name));
  }

  async uninstall(): Promise<void> {
    await this.change(['uninstall', 's', '--wait', '--timeout', '240s']);
    const resources = ['api-resources', '--namespaced', '--verbs', 'list', '-o', 'name'];
    const listed = (await this.client.kubectl(resources)).split('\n');
    const all = listed.filter((kind) => kind !== '' && !/^events|metrics\.k8s\.io/.test(kind)).join(',');
    const left = async (): Promise<string> =>
      (await this.kubectl(['get', all, '-l', 'app.kubernetes.io/instance=s', '-o', 'name'])) +
      (await this.kubectl(['get', 'secrets', '-l', 'owner=helm', '-o', 'name']));
    await until('nothing is left', 60_000, async () => (await left()) === '', left);
  }

  /** Warning events, but for those that say only what is not there in this run. */
  async warningEvents(): Promise<string[]> {
    const template =
      '{range .items[*]}{.involvedObject.kind} {.involvedObject.name} {.reason}: {.message}{"\\n"}{end}';
    const warned = ['get', 'events', '--field-selector', 'type=Warning', '-o', `jsonpath=${template}`];
    const all = await this.kubectl(warned);
    return all.split('\n').filter((line) => line !== '' && !expected.test(line));
  }
}

/** kubectl diff ends with 1 for differences and with more for everything else. */
function isDifference(failure: unknown): false {
  if (failure instanceof CommandFailure && failure.output.stdout !== '') return false;
  throw failure;
}
