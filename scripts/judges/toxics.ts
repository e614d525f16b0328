/** toxiproxy as a process of this run: proxies with ports of their own, and what is done to their connections. */
import { freePort, child, until } from '../cluster/processes.ts';

export interface Toxic {
  readonly type: 'latency' | 'slow_close' | 'limit_data' | 'reset_peer' | 'bandwidth';
  /** Milliseconds, bytes or KB/s, as toxiproxy names them. */
  readonly attributes: Readonly<Record<string, number>>;
}

export interface Proxy {
  readonly port: number;
  /** On new connections and open ones, in both directions where the toxic has two. */
  poison(toxic: Toxic): Promise<void>;
  heal(): Promise<void>;
}

export interface Toxiproxy {
  /** A proxy before this port of this machine. */
  before(name: string, port: number): Promise<Proxy>;
}

export async function startToxiproxy(program: string): Promise<Toxiproxy> {
  const port = await freePort();
  const base = `http://127.0.0.1:${port}`;
  const process_ = child(program, ['-host', '127.0.0.1', '-port', String(port)]);
  for (const output of [process_.stdout, process_.stderr]) output?.resume();
  const isUp = await until(async () => (await fetch(`${base}/version`)).ok, 10_000);
  if (!isUp) throw new Error('toxiproxy does not answer');
  const asked = async (method: string, path: string, body?: unknown): Promise<unknown> => {
    const response = await fetch(`${base}${path}`, {
      method,
      body: body === undefined ? null : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`toxiproxy: ${method} ${path}: ${text}`);
    return text === '' ? null : JSON.parse(text);
  };
  return {
    async before(name, to) {
      const listen = await freePort();
      const proxy = { name, listen: `127.0.0.1:${listen}`, upstream: `127.0.0.1:${to}`, enabled: true };
      await asked('POST', '/proxies', proxy);
      let poisons: string[] = [];
      return {
        port: listen,
        async poison({ type, attributes }) {
          for (const stream of ['upstream', 'downstream']) {
            const toxic = { name: `${type}-${stream}`, type, stream, toxicity: 1, attributes };
            await asked('POST', `/proxies/${name}/toxics`, toxic);
            poisons.push(toxic.name);
          }
        },
        async heal() {
          for (const poison of poisons) await asked('DELETE', `/proxies/${name}/toxics/${poison}`);
          poisons = [];
        },
      };
    },
  };
}
