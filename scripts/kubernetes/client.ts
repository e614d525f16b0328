/** kubectl, both helms and plain requests, bound to one cluster. A refusal throws what was said. */
import { execFile } from 'node:child_process';
import { request } from 'node:https';
import { join } from 'node:path';

export interface Output {
  readonly stdout: string;
  readonly stderr: string;
}

/** A program ended with another code than 0. `output` holds what it wrote. */
export class CommandFailure extends Error {
  readonly output: Output;

  constructor(line: string, output: Output) {
    super(`${line}\n${output.stdout}${output.stderr}`);
    this.output = output;
  }
}

/** @throws {CommandFailure} with everything it wrote */
export function command(
  program: string,
  args: readonly string[],
  options: { env?: NodeJS.ProcessEnv; input?: string; timeoutMs?: number; cwd?: string } = {},
): Promise<Output> {
  const { input = '', timeoutMs: timeout = 600_000, ...rest } = options;
  return new Promise((resolve, reject) => {
    const how = { ...rest, timeout, maxBuffer: 1 << 27 };
    const child = execFile(program, [...args], how, (error, stdout, stderr) => {
      if (error === null) return resolve({ stdout, stderr });
      const line = `${program.split('/').at(-1) ?? program} ${args.join(' ')}`;
      reject(new CommandFailure(line, { stdout, stderr: stderr || error.message }));
    });
    child.stdin?.on('error', () => {});
    child.stdin?.end(input);
  });
}

/** Objects as the API server gives them: read where needed, never trusted to have a part. */
export interface ApiObject {
  readonly kind: string;
  readonly metadata: {
    readonly name: string;
    readonly namespace: string;
    readonly generation?: number;
    readonly annotations?: Readonly<Record<string, string>>;
    readonly deletionTimestamp?: string;
    readonly creationTimestamp: string;
  };
  readonly spec?: { readonly type?: string };
  readonly status?: {
    readonly conditions?: readonly { readonly type: string; readonly status: string }[];
    readonly loadBalancer?: { readonly ingress?: unknown };
  };
}

export type Helm = 3 | 4;

/** Who may do everything at the API server on this port. */
export interface Access {
  readonly port: number;
  readonly token: string;
  /** Path of a kubeconfig, and a folder for helm's own files. */
  readonly kubeconfig: string;
  readonly home: string;
}

export class Client {
  readonly #access: Access;
  readonly #env: NodeJS.ProcessEnv;
  readonly #tools: { readonly kubectl: string; readonly helm3: string; readonly helm4: string };

  constructor(access: Access, tools: { kubectl: string; helm3: string; helm4: string }) {
    this.#access = access;
    this.#tools = tools;
    const folders = ['cache', 'config', 'data'].map((name) => [
      `HELM_${name.toUpperCase()}_HOME`,
      join(access.home, name),
    ]);
    this.#env = { ...process.env, KUBECONFIG: access.kubeconfig, ...Object.fromEntries(folders) };
  }

  /** @returns what it wrote to its standard output */
  async kubectl(args: readonly string[], input?: string): Promise<string> {
    return (await this.output(args, input)).stdout;
  }

  output(args: readonly string[], input = ''): Promise<Output> {
    return command(this.#tools.kubectl, args, { env: this.#env, input });
  }

  helm(major: Helm, args: readonly string[]): Promise<Output> {
    return command(this.#tools[`helm${major}`], args, { env: this.#env });
  }

  async list(args: readonly string[]): Promise<readonly ApiObject[]> {
    const text = await this.kubectl(['get', ...args, '-o', 'json']);
    return (JSON.parse(text) as { readonly items: readonly ApiObject[] }).items;
  }

  apply(...objects: readonly object[]): Promise<string> {
    return this.kubectl(
      ['apply', '-f', '-'],
      objects.map((object) => JSON.stringify(object)).join('\n---\n'),
    );
  }

  /** A request of its own, for what is asked all the time. @returns status and text */
  request(method: 'GET' | 'POST' | 'PATCH', path: string, body?: object): Promise<[number, string]> {
    const { port, token } = this.#access;
    const type = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json';
    const headers = { authorization: `Bearer ${token}`, 'content-type': type };
    return new Promise((resolve, reject) => {
      const options = { host: '127.0.0.1', port, path, method, headers, rejectUnauthorized: false };
      const outgoing = request(options, (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (part: string) => (text += part));
        response.on('end', () => resolve([response.statusCode ?? 0, text])).on('error', reject);
      });
      outgoing.on('error', reject).end(body === undefined ? '' : JSON.stringify(body));
    });
  }
}

/** @throws what kubectl or helm printed of warnings by the API server */
export function withoutWarning(output: Output): Output {
  const lines = `${output.stdout}\n${output.stderr}`.split('\n');
  const said = lines.filter((line) => /^Warning:|^W[0-9]{4} |level=WARN|PodSecurity/.test(line));
  if (said.length > 0) throw new Error(`the API server warns:\n${said.join('\n')}`);
  return output;
}
