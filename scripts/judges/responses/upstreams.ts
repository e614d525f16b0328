/**
 * The upstreams of the recorded responses: one that says what its path asks for, and ones in trouble, each of which makes the
 * gateway refuse in another way. Owns the configuration that goes with them.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { serve, type Serving } from '../../cluster/upstream.ts';
import { kinds } from './upstream-responses.ts';

export interface Upstreams {
  /** Content of `upstreams:`. */
  readonly yaml: string;
  /** Origin of the upstream that says what it is asked for. */
  readonly origin: string;
  stop(): void;
}

function saidByPath(request: IncomingMessage, response: ServerResponse): void {
  const kind = kinds[request.url?.split('/')[1]?.split('?')[0] ?? ''];
  if (kind === undefined) response.writeHead(500).end();
  else void kind.say(response, request);
}

/** What upstreams with something wrong do with every call. */
const inTrouble = {
  quick: (_request, response) => void response.end('ok'),
  slow: (_request, response) => void setTimeout(() => response.end('late'), 10_000),
} satisfies Readonly<Record<string, (request: IncomingMessage, response: ServerResponse) => void>>;

export async function startUpstreams(): Promise<Upstreams> {
  const servers: Serving[] = [];
  const start = async (respond: Parameters<typeof serve>[0]): Promise<string> => {
    const serving = await serve(respond);
    servers.push(serving);
    return serving.origin;
  };
  const trouble = (name: keyof typeof inTrouble): Promise<string> => start(inTrouble[name]);
  const origin = await start(saidByPath);
  const garbled = await start(({ socket }) => socket.end('this is not HTTP\r\n\r\n'));
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
  return { yaml, origin, stop: () => servers.forEach((server) => server.stop()) };
}
