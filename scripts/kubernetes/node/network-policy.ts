/**
 * NetworkPolicy by nftables, in place of a network plugin that enforces it: one table made from the policies, pods and
 * namespaces of now. Traffic of the node itself (probes) is never refused, as Kubernetes wants it. IPv4, matchLabels and
 * ports by name; anything else throws, so that no policy is enforced by halves.
 */
import type { ApiObject, Client } from '../cluster/client.ts';
import { command } from '../cluster/processes.ts';

type Labels = Readonly<Record<string, string>>;
interface Selector {
  readonly matchLabels?: Labels;
  readonly matchExpressions?: readonly unknown[];
}
interface Peer {
  readonly podSelector?: Selector;
  readonly namespaceSelector?: Selector;
  readonly ipBlock?: { readonly cidr: string; readonly except?: readonly string[] };
}
interface Port {
  readonly port: number | string;
  readonly protocol?: string;
}
interface Rule {
  readonly from?: readonly Peer[];
  readonly to?: readonly Peer[];
  readonly ports?: readonly Port[];
}
interface Policy extends ApiObject {
  readonly spec: {
    readonly podSelector: Selector;
    readonly policyTypes: readonly string[];
    readonly ingress?: readonly Rule[];
    readonly egress?: readonly Rule[];
  };
}
interface Pod extends ApiObject {
  readonly status: { readonly podIP?: string; readonly phase: string };
  readonly spec: {
    readonly containers: readonly { readonly ports?: readonly { name?: string; containerPort: number }[] }[];
  };
}

interface World {
  readonly pods: readonly Pod[];
  readonly namespaces: ReadonlyMap<string, Labels>;
}

function matches(selector: Selector, labels: Labels): boolean {
  if (selector.matchExpressions?.length) throw new Error('matchExpressions are not translated');
  return Object.entries(selector.matchLabels ?? {}).every(([key, value]) => labels[key] === value);
}
const labelsOf = (pod: Pod): Labels => pod.metadata.labels ?? {};

/** @returns matches for the other end; an empty list matches nobody, `['']` everybody */
function peersOf(
  world: World,
  peers: readonly Peer[] | undefined,
  namespace: string,
  side: string,
): string[] {
  if (!peers?.length) return [''];
  return peers.flatMap(({ ipBlock, podSelector, namespaceSelector }) => {
    if (ipBlock !== undefined) {
      if (ipBlock.cidr.includes(':')) return [];
      const except = ipBlock.except?.length ? ` ip ${side} != { ${ipBlock.except.join(', ')} }` : '';
      return [`ip ${side} ${ipBlock.cidr}${except}`];
    }
    const there = (pod: Pod): boolean => {
      const where = pod.metadata.namespace ?? '';
      if (namespaceSelector === undefined) return where === namespace;
      return matches(namespaceSelector, world.namespaces.get(where) ?? {});
    };
    const found = world.pods.filter(
      (pod) => there(pod) && (podSelector === undefined || matches(podSelector, labelsOf(pod))),
    );
    if (found.length === 0) return [];
    return [`ip ${side} { ${[...new Set(found.map(({ status }) => status.podIP))].join(', ')} }`];
  });
}

/** @param target the pod whose named ports count, null for egress, where only numbers are known */
function portsOf(ports: readonly Port[] | undefined, target: Pod | null): string[] {
  if (!ports?.length) return [''];
  return ports.flatMap(({ port, protocol = 'TCP' }) => {
    const named = (target?.spec.containers ?? [])
      .flatMap((one) => one.ports ?? [])
      .filter((one) => one.name === port)
      .map((one) => one.containerPort);
    const numbers = typeof port === 'number' ? [port] : named;
    if (numbers.length === 0) throw new Error(`port ${port} is not known`);
    return numbers.map((number) => `${protocol.toLowerCase()} dport ${number}`);
  });
}

/** Rules of one direction: what is allowed, then a drop for each pod that a policy selects. */
function chain(world: World, policies: readonly Policy[], direction: 'Ingress' | 'Egress'): string {
  const [own, other] = direction === 'Ingress' ? ['daddr', 'saddr'] : ['saddr', 'daddr'];
  const allowed: string[] = [];
  const drops = new Set<string>();
  for (const { metadata, spec } of policies.filter((one) => one.spec.policyTypes.includes(direction))) {
    const selected = world.pods.filter(
      (pod) => pod.metadata.namespace === metadata.namespace && matches(spec.podSelector, labelsOf(pod)),
    );
    for (const pod of selected) {
      drops.add(`ip ${own} ${pod.status.podIP ?? ''} drop`);
      for (const rule of (direction === 'Ingress' ? spec.ingress : spec.egress) ?? [])
        for (const peer of peersOf(world, rule.from ?? rule.to, metadata.namespace ?? '', other))
          for (const port of portsOf(rule.ports, direction === 'Ingress' ? pod : null))
            allowed.push(`ip ${own} ${pod.status.podIP ?? ''} ${peer} ${port} return`);
    }
  }
  return [...allowed, ...drops].map((rule) => `    ${rule}\n`).join('');
}

/** Enforces every NetworkPolicy for the pods of now; called again when pods change. */
export async function enforcePolicies(client: Client): Promise<void> {
  const policies = (await client.list(['networkpolicies', '-A'])) as Policy[];
  const pods = ((await client.list(['pods', '-A'])) as Pod[]).filter(
    ({ status }) => status.podIP !== undefined && ['Running', 'Pending'].includes(status.phase),
  );
  const namespaces = new Map(
    (await client.list(['namespaces'])).map(({ metadata }) => [metadata.name, metadata.labels ?? {}]),
  );
  const world = { pods, namespaces };
  // A connection must be let out by the policies of its sender and in by those of its receiver.
  const table = `table inet policies
delete table inet policies
table inet policies {
  chain out {
${chain(world, policies, 'Egress')}  }
  chain in {
${chain(world, policies, 'Ingress')}  }
  chain forward {
    type filter hook forward priority 10; policy accept;
    ct state established,related accept
    jump out
    jump in
  }
}
`;
  await command('nft', ['-f', '-'], { input: table });
}

export async function stopEnforcing(): Promise<void> {
  await command('nft', ['delete', 'table', 'inet', 'policies']);
}
