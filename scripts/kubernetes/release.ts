/**
 * One Helm release named `s` in one namespace of a real API server, and the questions that are asked of it. Every change
 * must pass without a warning of the API server.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type ApiObject, type Client, type Helm, warnings } from './client.ts';
import { chart } from '../packaging/generated.mjs';
import { until } from '../fleet/processes.ts';
import { CommandFailure, type Output } from './command.ts';
import { watchPods } from './watch.ts';

const KINDS = [
  'deployments',
  'services',
  'configmaps',
  'networkpolicies',
  'poddisruptionbudgets',
  'horizontalpodautoscalers',
  'ingresses',
  'serviceaccounts',
  'httproutes',
  'servicemonitors',
  'podmonitors',
  'prometheusrules',
  'scaledobjects',
  'externalsecrets',
];
const WAIT = ['--wait', '--timeout', '240s'];
/**
 * Warnings of an autoscaler that has no metrics, of pods that were not scheduled at once, of slices in a hurry, and of the
 * API server's loop over the addresses of Services, when it meets one that was given out a moment before.
 */
const EXPECTED =
  /FailedGetPodsMetric|FailedComputeMetricsReplicas|FailedGetResourceMetric|FailedToUpdateEndpoint|FailedScheduling|ClusterIPNotAllocated/;

export class Release {
  readonly name = 's';
  readonly deployment = 's-sluice';
  readonly client: Client;
  readonly namespace: string;
  /** Which helm makes the next change. */
  helm: Helm;

  constructor(client: Client, namespace: string, helm: Helm) {
    this.client = client;
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
    const said = warnings(await this.run(args));
    if (said.length > 0) throw new Error(`the API server warns:\n${said.join('\n')}`);
  }

  install(values: readonly string[]): Promise<void> {
    return this.#addressed(['install', this.name, chart, ...values, ...WAIT]);
  }

  upgrade(values: readonly string[]): Promise<void> {
    return this.#addressed(['upgrade', '--install', this.name, chart, ...values, ...WAIT]);
  }

  rollback(revision: number): Promise<void> {
    return this.change(['rollback', this.name, String(revision), ...WAIT]);
  }

  async manifest(revision: readonly string[] = []): Promise<string> {
    return (await this.run(['get', 'manifest', this.name, ...revision])).stdout;
  }

  /** @returns the Deployment as it is */
  async read(): Promise<ApiObject> {
    const [found] = (await this.client.list(['deployments', '-n', this.namespace])).filter(
      ({ metadata }) => metadata.name === this.deployment,
    );
    if (found === undefined) throw new Error(`there is no Deployment ${this.deployment}`);
    return found;
  }

  field(path: string): Promise<string> {
    return this.kubectl(['get', 'deployment', this.deployment, '-o', `jsonpath={${path}}`]);
  }

  async replicas(): Promise<number> {
    return Number(await this.field('.spec.replicas'));
  }

  async readyReplicas(): Promise<number> {
    return Number((await this.field('.status.readyReplicas')) || '0');
  }

  untilReady(count: number, limitMs = 120_000): Promise<void> {
    return until(
      `${count} pods are ready`,
      limitMs,
      async () => (await this.readyReplicas()) === count && (await this.replicas()) === count,
      () => this.kubectl(['get', 'pods,hpa', '-o', 'wide']),
    );
  }

  /** Under an autoscaler: once it has raised the number to its minimum. */
  async settled(): Promise<void> {
    const path = ['-o', 'jsonpath={.items[*].spec.minReplicas}'];
    const min = Number((await this.kubectl(['get', 'horizontalpodautoscalers', ...path])) || '0');
    await until('the autoscaler keeps its minimum', 120_000, async () => (await this.replicas()) >= min);
    await this.untilReady(await this.replicas());
  }

  async rolledOut(): Promise<void> {
    await this.kubectl(['rollout', 'status', `deployment/${this.deployment}`, '--timeout', '240s']);
  }

  /**
   * Watches while something happens. @throws when fewer than `min` pods were ready, or more than `max` existed: one more may be there
   * for a moment, because a Deployment counts the pods that it asked for, not those that are still to be deleted.
   */
  async during({ min, max }: { min: number; max: number }, happens: () => Promise<unknown>): Promise<string> {
    await this.rolledOut();
    const watched = await watchPods(this.client, this.namespace, this.name);
    let failure: unknown = null;
    await happens().catch((reason: unknown) => (failure = reason));
    const seen = await watched.stop();
    if (failure !== null) throw failure;
    const text = `ready before ${seen.readyBefore}, min ${seen.minReady}, at most ${seen.maxPods} pods`;
    if (seen.minReady < min) throw new Error(`${text}: fewer than ${min} were ready`);
    if (seen.maxPods > max + 1) throw new Error(`${text}: more than ${max} pods are allowed`);
    return text;
  }

  /** Generations of everything, to see that nothing was changed. */
  async generations(): Promise<string> {
    const label = ['-l', `app.kubernetes.io/instance=${this.name}`];
    const all = await this.client.list([KINDS.join(','), '-n', this.namespace, ...label]);
    return all
      .map(({ kind, metadata }) => `${kind} ${metadata.name} ${metadata.generation ?? ''}`)
      .join('\n');
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
    const label = ['-l', `app.kubernetes.io/instance=${this.name}`];
    const live = (await this.kubectl(['get', KINDS.join(','), ...label, '-o', 'name'])).split('\n');
    const named = await this.kubectl(['get', '-f', '-', '-o', 'name'], await this.manifest());
    return live.filter((name) => name !== '' && !named.includes(name));
  }

  async uninstall(): Promise<void> {
    await this.change(['uninstall', this.name, '--wait', '--timeout', '240s']);
    const kinds = (
      await this.client.kubectl(['api-resources', '--namespaced', '--verbs', 'list', '-o', 'name'])
    )
      .split('\n')
      .filter((kind) => kind !== '' && !kind.startsWith('events') && !kind.includes('metrics.k8s.io'));
    const label = ['-l', `app.kubernetes.io/instance=${this.name}`, '-o', 'name'];
    const left = async (): Promise<string> =>
      (await this.kubectl(['get', kinds.join(','), ...label])) +
      (await this.kubectl(['get', 'secrets', '-l', 'owner=helm', '-o', 'name']));
    await until('nothing is left', 60_000, async () => (await left()) === '', left);
  }

  /** Warning events, but for those that say only what is not there in this run. */
  async warningEvents(expected = EXPECTED): Promise<string[]> {
    const template =
      '{range .items[*]}{.involvedObject.kind} {.involvedObject.name} {.reason}: {.message}{"\\n"}{end}';
    const all = await this.kubectl([
      'get',
      'events',
      '--field-selector',
      'type=Warning',
      '-o',
      `jsonpath=${template}`,
    ]);
    return all.split('\n').filter((line) => line !== '' && !expected.test(line));
  }

  /** A change during which a Service of type LoadBalancer gets its address, in place of a cloud. */
  async #addressed(args: readonly string[]): Promise<void> {
    const ended = new AbortController();
    const address = this.#giveAddress(ended.signal);
    try {
      await this.change(args);
    } finally {
      ended.abort();
      await address;
    }
  }

  async #giveAddress(ended: AbortSignal): Promise<void> {
    const ingress = JSON.stringify({ status: { loadBalancer: { ingress: [{ ip: '203.0.113.1' }] } } });
    const patch = ['--subresource', 'status', '--type', 'merge', '-p', ingress];
    const balanced = 'jsonpath={.items[?(@.spec.type=="LoadBalancer")].metadata.name}';
    while (!ended.aborted) {
      const name = await this.kubectl(['get', 'services', '-o', balanced]);
      if (name !== '') {
        await this.kubectl(['patch', 'service', name, ...patch]);
        return;
      }
      await sleep(1000, null, { signal: ended }).catch(() => null);
    }
  }
}

/** kubectl diff ends with 1 for differences and with more for everything else. */
function isDifference(failure: unknown): false {
  if (failure instanceof CommandFailure && failure.output.stdout !== '') return false;
  throw failure;
}
