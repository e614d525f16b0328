/** A real gateway on real sockets: settings from YAML text, ports chosen by the system, log lines kept. */
import { parseSettings } from '../../src/config/load.ts';
import { createKey } from '../../src/cli/keys.ts';
import { systemClock, systemRandom, type Clock } from '../../src/clock.ts';
import { startService, type Service, type ServiceParts } from '../../src/service.ts';
import { watchAdmission, watchStores } from './open-calls.ts';

export type TestGateway = Awaited<ReturnType<typeof startGateway>>;

export interface GatewayOptions {
  /** YAML of `upstreams:`'s content, indented by two blanks. */
  readonly upstreams: string;
  /** YAML of each workspace beside `keys`, indented by four blanks. */
  readonly workspaces?: Readonly<Record<string, string>>;
  /** Further keys of `server:`, indented by two blanks. */
  readonly server?: string;
  readonly clock?: Clock;
  /** Default: nothing is shed for load. */
  readonly load?: ServiceParts['load'];
}

/** Configuration text of a gateway on ports of the system's choice. */
export function gatewayYaml(options: GatewayOptions, hashes: Readonly<Record<string, string>>): string {
  const workspaces = Object.entries(options.workspaces ?? { acme: '' }).map(
    ([name, more]) => `  ${name}:\n    keys: [{ hash: "${hashes[name] ?? ''}" }]\n${more}`,
  );
  return [
    `server:\n  host: 127.0.0.1\n  adminHost: 127.0.0.1\n  port: 0\n  adminPort: 0\n${options.server ?? ''}`,
    'privacy: { labelKey: "a label key for tests only" }',
    `upstreams:\n${options.upstreams}`,
    `workspaces:\n${workspaces.join('\n')}`,
  ].join('\n');
}

const parse = (yaml: string) => parseSettings(yaml, { path: 'test.yaml', env: {} });

/** The service of this configuration text in this process; its log lines go to `logs`. */
export async function serviceOf(
  yaml: string,
  logs: string[] = [],
  changes: Partial<ServiceParts> = {},
): Promise<Service> {
  watchAdmission();
  const service = await startService({
    settings: parse(yaml),
    clock: systemClock,
    random: systemRandom,
    destination: { write: (line: string) => void logs.push(line) },
    env: {},
    ...changes,
  });
  watchStores(service.gateway);
  return service;
}

/** Every name of an upstream leads to this machine. */
export const homeward: NonNullable<ServiceParts['resolve']> = () =>
  Promise.resolve([{ address: '127.0.0.1', family: 4 }]);

export async function startGateway(options: GatewayOptions) {
  const names = Object.keys(options.workspaces ?? { acme: '' });
  const made = names.map((name) => [name, createKey()] as const);
  const keys: Readonly<Record<string, string>> = Object.fromEntries(
    made.map(([name, { key }]) => [name, key]),
  );
  const yaml = gatewayYaml(options, Object.fromEntries(made.map(([name, { hash }]) => [name, hash])));
  const logs: string[] = [];
  const service = await serviceOf(yaml, logs, {
    clock: options.clock ?? systemClock,
    ...(options.load === undefined ? {} : { load: options.load }),
  });
  return {
    url: `http://127.0.0.1:${service.dataAddress.port}`,
    adminUrl: `http://127.0.0.1:${service.adminAddress.port}`,
    keys,
    service,
    logs,
    /** The configuration in use; change it and `reload`. */
    yaml,
    /** Takes over another configuration; `keys` stay as they are. Resolves when calls see it. */
    reload: async (text: string) => service.reload(parse(text)),
    close: () => service.close(),
  };
}
