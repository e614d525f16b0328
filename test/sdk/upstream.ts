/** An upstream that responds as a test says, behind a gateway; and clients that are programs of their own. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterEach } from '@jest/globals';
import { systemClock, type Clock } from '../../src/clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

export interface Received {
  /** `POST /v1/refunds?x=1`. */
  readonly line: string;
  readonly fields: IncomingHttpHeaders;
  readonly body: Buffer;
  /** Of the upstream itself. */
  readonly origin: string;
}
/** Status, body (what is neither text nor bytes becomes JSON) and fields. */
export type Answer = readonly [status: number, body: unknown, fields?: Readonly<Record<string, string>>];
/** Of the n-th call, from 1. */
export type Respond = (received: Received, n: number) => Answer | Promise<Answer>;

export interface Behind {
  readonly gateway: TestGateway;
  readonly origin: string;
  /** Where the upstream's own paths follow. */
  readonly url: string;
  readonly apiKey: string;
  readonly log: readonly Received[];
}

/** Starts upstreams; after each test they and their gateways are closed. */
export function upstreams(): (
  settings: string,
  respond: Respond,
  more?: { readonly clock?: Clock; readonly name?: string },
) => Promise<Behind> {
  const opened: { readonly gateway: TestGateway; readonly server: Server }[] = [];
  afterEach(async () => {
    for (const { gateway, server } of opened.splice(0)) {
      await gateway.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  });
  return async (settings, respond, { clock = systemClock, name = 'api' } = {}) => {
    const log: Received[] = [];
    let origin = '';
    const server = createServer((request, response) => {
      const { method, url, headers: fields } = request;
      void buffer(request).then(async (body) => {
        const received = { line: `${method} ${url}`, fields, body, origin };
        const [status, answer, more] = await respond(received, log.push(received));
        response.writeHead(status, { 'content-type': 'application/json', ...more });
        response.end(typeof answer === 'string' || Buffer.isBuffer(answer) ? answer : JSON.stringify(answer));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const gateway = await startGateway({
      upstreams: `  ${name}: { origins: ["${origin}"], allowPrivateAddresses: true, ${settings} }`,
      clock,
    });
    opened.push({ gateway, server });
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
