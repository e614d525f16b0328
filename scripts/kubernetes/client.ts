/** kubectl and both helms, bound to one cluster. Every output is text or parsed JSON; a refusal throws what was said. */
import { join } from 'node:path';
import { command, type Output } from './command.ts';

/** Objects as the API server gives them: read where needed, never trusted to have a part. */
export interface ApiObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace?: string;
    readonly uid?: string;
    readonly generation?: number;
    readonly resourceVersion?: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly annotations?: Readonly<Record<string, string>>;
    readonly deletionTimestamp?: string;
  };
  readonly [part: string]: unknown;
}

export type Helm = 3 | 4;

/** Paths of programs. */
export interface Tools {
  readonly kubectl: string;
  readonly helm3: string;
  readonly helm4: string;
}

export class Client {
  readonly #env: NodeJS.ProcessEnv;
  readonly #programs: { readonly kubectl: string; readonly 3: string; readonly 4: string };

  /** @param home folder for helm's own files */
  constructor(kubeconfig: string, home: string, tools: Tools) {
    this.#programs = { kubectl: tools.kubectl, 3: tools.helm3, 4: tools.helm4 };
    this.#env = {
      ...process.env,
      KUBECONFIG: kubeconfig,
      HELM_CACHE_HOME: join(home, 'cache'),
      HELM_CONFIG_HOME: join(home, 'config'),
      HELM_DATA_HOME: join(home, 'data'),
    };
  }

  /** Program, arguments and environment of a kubectl that runs on, such as a watch. */
  longRunning(args: readonly string[]): [string, string[], NodeJS.ProcessEnv] {
    return [this.#programs.kubectl, [...args], this.#env];
  }

  async kubectl(args: readonly string[], input?: string): Promise<string> {
    return (await this.output(args, input)).stdout;
  }

  output(args: readonly string[], input?: string): Promise<Output> {
    return command(this.#programs.kubectl, args, {
      env: this.#env,
      ...(input === undefined ? {} : { input }),
    });
  }

  helm(major: Helm, args: readonly string[]): Promise<Output> {
    return command(this.#programs[major], args, { env: this.#env, timeoutMs: 600_000 });
  }

  succeeds(args: readonly string[]): Promise<boolean> {
    return this.output(args).then(
      () => true,
      () => false,
    );
  }

  /** @returns the output as JSON */
  async json(args: readonly string[]): Promise<unknown> {
    return JSON.parse(await this.kubectl([...args, '-o', 'json']));
  }

  /** @returns the items of a list */
  async list(args: readonly string[]): Promise<ApiObject[]> {
    const output = await this.json(['get', ...args]);
    return isList(output) ? output.items : [];
  }

  apply(...objects: readonly object[]): Promise<string> {
    const text = objects.map((object) => JSON.stringify(object)).join('\n---\n');
    return this.kubectl(['apply', '-f', '-'], text);
  }

  /** As `v1.36.3`: what the server says of itself. */
  async serverVersion(): Promise<string> {
    const output = await this.json(['version']);
    const version = /"gitVersion":"(v[^"]+)"/.exec(
      JSON.stringify(Object.entries(output ?? {}).find(([name]) => name === 'serverVersion')),
    );
    if (version?.[1] === undefined) throw new Error('the server states no version');
    return version[1];
  }
}

const isList = (value: unknown): value is { items: ApiObject[] } =>
  typeof value === 'object' && value !== null && 'items' in value && Array.isArray(value.items);

/** What kubectl and helm print when the API server warns of something. */
export function warnings({ stdout, stderr }: Output): string[] {
  return `${stdout}\n${stderr}`
    .split('\n')
    .filter((line) => /^Warning:|^W[0-9]{4} |level=WARN|PodSecurity/.test(line));
}
