/** An upstream that responds as a test says, behind a gateway; and clients that are programs of their own. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { IncomingHttpHeaders } from 'node:http';
import { promisify } from 'node:util';
import { afterEach } from '@jest/globals';
import { systemClock } from '../../src/clock.ts';
import { scripted } from '../journey/scripted.ts';
import { closeAll } from '../journey/world.ts';
import type { TestGateway } from '../support/gateway.ts';

export interface Received {
  /** `POST /v1/refunds?x=1`. */
  readonly line: string;
  readonly fields: IncomingHttpHeaders;
  readonly body: string;
  /** Of the upstream itself. */
  readonly origin: string;
}
/** Status, body (what is neither text nor bytes becomes JSON) and fields. */
export type Answer = readonly [status: number, body: unknown, fields?: Readonly<Record<string, string>>];
/** Of the n-th call, from 1. */
export type Respond = (received: Received, n: number) => Answer | Promise<Answer>;
export type Behind = Awaited<ReturnType<ReturnType<typeof upstreams>>>;

/** Starts upstreams; after each test they and their gateways are closed. `url` is where the upstream's own paths follow. */
export function upstreams() {
  afterEach(closeAll);
  return async (settings: string, respond: Respond, { clock = systemClock, name = 'api' } = {}) => {
    const log: Received[] = [];
    const { gateway, origin } = await scripted(
      async ({ method, path, headers: fields, body, response }) => {
        const received = { line: `${method} ${path}`, fields, body, origin: `http://${fields.host ?? ''}` };
        const [status, said, more] = await respond(received, log.push(received));
        response.writeHead(status, { 'content-type': 'application/json', ...more });
        response.end(typeof said === 'string' || Buffer.isBuffer(said) ? said : JSON.stringify(said));
      },
      { clock, upstreams: { [name]: settings } },
    );
    return { gateway, origin, url: `${gateway.url}/via/${name}`, apiKey: gateway.keys['acme'] ?? '', log };
  };
}

interface WithGateway {
  readonly gateway: TestGateway;
}
/** The environment of a client: ours, a key and an address. */
export const envOf = ({ gateway }: WithGateway, more: Readonly<Record<string, string>> = {}) => ({
  ...process.env,
  SLUICE_URL: gateway.url,
  SLUICE_KEY: gateway.keys['acme'] ?? '',
  ...more,
});

/** Runs a client to its end; what it prints. Rejects with what it wrote to stderr, and its code. */
export async function run(
  behind: WithGateway,
  program: string,
  args: readonly string[],
  more?: Readonly<Record<string, string>>,
): Promise<string> {
  return (await promisify(execFile)(program, [...args], { env: envOf(behind, more) })).stdout;
}

/** Starts a server of `examples/` for as long as `use` takes, which gets its address. */
export async function withWorker(behind: WithGateway, path: string, use: (url: string) => Promise<void>) {
  const env = envOf(behind, { PORT: '0' });
  const worker = spawn(process.execPath, [path], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const [said] = (await once(worker.stdout, 'data')) as [Buffer];
    await use(`http://127.0.0.1:${/\d+/.exec(said.toString())?.[0] ?? ''}/`);
  } finally {
    worker.kill();
    await once(worker, 'exit');
  }
}
