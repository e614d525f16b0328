/** One release with its upstream on the real node, and calls to it. */
import { createHash, randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ControlPlane } from '../cluster/control-plane.ts';
import { createNamespace } from '../cluster/namespace.ts';
import { Release } from '../cluster/release.ts';
import type { Report } from '../report.ts';
import { type LoadTarget, SteadyLoad } from './load.ts';
import { upstream, values } from './objects.ts';

/** What a key file holds of a key. */
export const hashOf = (key: string): string => `sha256:${createHash('sha256').update(key).digest('hex')}`;
export const newKey = (): string => `slc_verify_${randomBytes(32).toString('base64url')}`;

export class Shop {
  readonly plane: ControlPlane;
  readonly report: Report;
  readonly release: Release;
  readonly key = newKey();
  /** Calls in a second while something happens. */
  readonly rate = 15;
  #upgrades = 0;

  constructor(plane: ControlPlane, report: Report, options: { namespace: string; chart: string }) {
    this.plane = plane;
    this.report = report;
    this.release = new Release(plane.client, options.namespace, options.chart, 4);
  }

  /** A restricted namespace with the upstream in it. */
  async open(): Promise<void> {
    await createNamespace(this.plane.client, this.release.namespace);
    const text = upstream.map((one) => JSON.stringify(one)).join('\n---\n');
    await this.release.kubectl(['apply', '-f', '-'], text);
    await this.release.kubectl(['rollout', 'status', 'deployment/upstream', '--timeout', '120s']);
  }

  /** Options of helm for the common values, the workspaces of `keys`, and what is on top. */
  options(more: object = {}, keys: readonly string[] = [this.key]): string[] {
    const workspaces = { check: { keys: keys.map(hashOf), upstreams: ['api'] } };
    const base = join(this.plane.folder, `values-${this.release.namespace}.json`);
    const own = join(this.plane.folder, `values-${this.release.namespace}-${(this.#upgrades += 1)}.json`);
    writeFileSync(base, JSON.stringify({ ...values, config: { ...values.config, workspaces } }));
    writeFileSync(own, JSON.stringify(more));
    return ['-f', base, '-f', own];
  }

  /** Installs or upgrades, and waits. */
  async upgrade(more: object = {}, keys: readonly string[] = [this.key]): Promise<void> {
    await this.release.upgrade(this.options(more, keys));
  }

  async address(service: string): Promise<string> {
    const path = ['-o', 'jsonpath=http://{.spec.clusterIP}:{.spec.ports[0].port}'];
    return this.release.kubectl(['get', 'service', service, ...path]);
  }

  async target(): Promise<LoadTarget> {
    const [gateway, to] = [await this.address('s-sluice'), await this.address('upstream')];
    return { gateway, upstream: to, key: this.key };
  }

  /** What happens under load loses no call and takes no ready pod away. */
  async underLoad(
    name: string,
    happens: () => Promise<unknown>,
    { min, max }: { min: number; max: number },
  ): Promise<string> {
    const load = new SteadyLoad({ ...(await this.target()), name, rate: this.rate, upstreamMs: 800 });
    let note = '';
    let failure: unknown = null;
    await this.release
      .during(this.report, { name, min, max }, happens)
      .then((text) => (note = text))
      .catch((reason: unknown) => (failure = reason));
    const { load: counts, examples, maxMs } = await load.end();
    const calls = this.report.load(counts, examples);
    if (failure !== null) throw failure;
    return `${note}; ${calls}, longest ${maxMs} ms`;
  }

  async statusOf(key: string): Promise<number> {
    const response = await fetch(`${await this.address('s-sluice')}/via/api/after/1/probe-${Date.now()}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}` },
      signal: AbortSignal.timeout(10_000),
    });
    await response.arrayBuffer();
    return response.status;
  }

  /** Names of the gateway's pods that run, in order. */
  async pods(): Promise<string[]> {
    const label = `app.kubernetes.io/name=sluice,app.kubernetes.io/instance=${this.release.name}`;
    const all = await this.release.client.list(['pods', '-n', this.release.namespace, '-l', label]);
    return all
      .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
      .map(({ metadata }) => metadata.name)
      .toSorted();
  }

  /** Runs JavaScript in a pod of the gateway's image. @returns what it printed */
  async inside(pod: string, script: string, args: readonly string[] = []): Promise<string> {
    return (await this.release.kubectl(['exec', pod, '--', 'node', '-e', script, ...args])).trim();
  }

  async close(): Promise<void> {
    await this.release.kubectl(['delete', 'namespace', this.release.namespace, '--wait']);
  }
}
