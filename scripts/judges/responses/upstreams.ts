/**
 * The upstreams of the recorded responses: one that says what its path asks for, and ones in trouble, each of which makes the
 * gateway refuse in another way. Owns the configuration that goes with them.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createRawServer, type AddressInfo, type Server } from 'node:net';
import { kinds, type Kind } from './upstream-responses.ts';

export interface Upstreams {
  /** Content of `upstreams:`. */
  readonly yaml: string;
  /** Origin of the upstream that says what it is asked for. */
  readonly origin: string;
  stop(): void;
}

function kindOf({ url = '' }: IncomingMessage): Kind | null {
  const name = url.split('/')[1]?.split('?')[0] ?? '';
  return Object.hasOwn(kinds, name) ? (name as Kind) : null;
}

function saidByPath(request: IncomingMessage, response: ServerResponse): void {
  const kind = kindOf(request);
  request.resume().on('end', () => {
    if (kind === null) response.writeHead(500).end();
    else kinds[kind](response, request);
  });
}

/** What upstreams with something wrong do with every call. */
const inTrouble = {
  quick: (_request, response) => void response.end('ok'),
  slow: (_request, response) => void setTimeout(() => response.end('late'), 10_000),
} satisfies Readonly<Record<string, (request: IncomingMessage, response: ServerResponse) => void>>;

async function listening<T extends Server>(server: T): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
}

export async function startUpstreams(): Promise<Upstreams> {
  const servers: Server[] = [];
  const start = async (server: Server): Promise<string> => {
    servers.push(server);
    return `http://127.0.0.1:${await listening(server)}`;
  };
  const trouble = async (name: keyof typeof inTrouble): Promise<string> =>
    start(
      createServer(
        (request, response) => void request.resume().on('end', () => inTrouble[name](request, response)),
      ),
    );
  const origin = await start(createServer(saidByPath));
  const garbled = await start(
    createRawServer((socket) => socket.on('error', () => {}).end('this is not HTTP\r\n\r\n')),
  );
  const hidden = await trouble('quick');
  const one = (name: string, at: string, more: readonly string[] = []): string =>
    [
      `  ${name}:`,
      `    origins: ["${at}"]`,
      '    allowPrivateAddresses: true',
      ...more.map((line) => `    ${line}`),
    ].join('\n');
  const yaml = [
    one('any', origin, ['limits: { requestsPerMinute: 100000 }']),
    one('plain', await trouble('quick'), ['idempotencyFields: [x-webhook-id]']),
    one('narrow', await trouble('quick'), ['limits: { requestsPerMinute: 1, maxQueued: 1 }']),
    one('daily', await trouble('quick'), ['limits: { requestsPerDay: 1 }']),
    one('slow', await trouble('slow'), ['timeouts: { headSeconds: 1 }']),
    one('garbled', garbled),
    one('unreachable', 'http://127.0.0.1:9'),
    one('tokenless', await trouble('quick'), [
      'credential: { header: authorization, oauth: { tokenUrl: "http://127.0.0.1:9/token", clientId: a, clientSecret: b } }',
    ]),
    `  denied:\n    origins: ["${hidden.replace('127.0.0.1', 'localhost')}"]\n    allowPrivateAddresses: ["10.0.0.0/8"]`,
  ].join('\n');
  return { yaml, origin, stop: () => servers.forEach((server) => server.close()) };
}
