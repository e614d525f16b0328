/** The gateway whose responses are recorded, the upstreams behind it, and the recording: each call as bytes, and the bytes of its response. */
import { connect } from 'node:net';
import { createKey } from '../../../src/cli/keys.ts';
import { readResponses } from '../../../test/support/raw-client.ts';
import { startFleet, yamlOf } from '../../fleet/gateways.ts';
import { serve, type Serving } from '../../fleet/http.ts';
import { kinds } from './upstream-responses.ts';

export interface Gateways {
  /** Of the data port and the admin port. */
  readonly data: string;
  readonly admin: string;
  /** The key of a workspace that may call every upstream, and of one that may call `plain` only. */
  readonly key: string;
  readonly narrowKey: string;
  /** Origin of the upstream that says what its path asks for. */
  readonly origin: string;
  stop(): Promise<void>;
}

/** Upstreams, each of which but the first makes the gateway refuse in another way. */
export async function startGateways(): Promise<Gateways> {
  const servers: Serving[] = [];
  const start = async (respond: Parameters<typeof serve>[0]): Promise<string> => {
    const serving = await serve(respond);
    servers.push(serving);
    return serving.origin;
  };
  const origin = await start((request, response) => {
    const kind = kinds[request.url?.split('/')[1]?.split('?')[0] ?? ''];
    return kind === undefined ? response.writeHead(500).end() : kind.say(response, request);
  });
  const quick = await start((_, response) => response.end('ok'));
  const slow = await start((_, response) => setTimeout(() => response.end('late'), 10_000));
  const garbled = await start(({ socket }) => socket.end('this is not HTTP\r\n\r\n'));
  const [wide, narrow] = [createKey(), createKey()];
  const one = (name: string, at: string, more = '', addresses = 'true'): string =>
    `${name}: { origins: ["${at}"], allowPrivateAddresses: ${addresses}${more === '' ? '' : `, ${more}`} }`;
  const token = 'tokenUrl: "http://127.0.0.1:9/token", clientId: a, clientSecret: b';
  const yaml = yamlOf({
    server: ['maxBodyBytes: 100000'],
    upstreams: [
      one('any', origin, 'limits: { requestsPerMinute: 100000 }'),
      one('plain', quick, 'idempotencyFields: [x-webhook-id]'),
      one('narrow', quick, 'limits: { requestsPerMinute: 1, maxQueued: 1 }'),
      one('daily', quick, 'limits: { requestsPerDay: 1 }'),
      one('slow', slow, 'timeouts: { headSeconds: 1 }'),
      one('garbled', garbled),
      one('unreachable', 'http://127.0.0.1:9'),
      one('tokenless', quick, `credential: { header: authorization, oauth: { ${token} } }`),
      one('denied', quick.replace('127.0.0.1', 'localhost'), '', '["10.0.0.0/8"]'),
    ],
    workspaces: [
      `wide: { keys: ["${wide.hash}"] }`,
      `narrow: { keys: ["${narrow.hash}"], upstreams: [plain] }`,
    ],
  });
  const fleet = await startFleet(1, yaml);
  const { url: data = '', adminUrl: admin = '' } = fleet.gateways[0] ?? {};
  // What is left of a day and of a minute.
  for (const upstream of ['daily', 'narrow'])
    await fetch(`${data}/via/${upstream}/x`, { headers: { 'sluice-key': wide.key } });
  return {
    data,
    admin,
    key: wide.key,
    narrowKey: narrow.key,
    origin,
    async stop() {
      await fleet.stop();
      for (const server of servers) server.stop();
    },
  };
}

export interface Asked {
  /** What the response is called in a finding. */
  readonly name: string;
  /** `http://host:port` of the port that is asked. */
  readonly base: string;
  readonly method?: string;
  readonly path: string;
  /** Field lines beside Host, Connection and Content-Length, each of which may be given here in the place of the usual one. */
  readonly fields?: readonly string[];
  readonly body?: string;
  /** Default 1.1. */
  readonly version?: '1.0' | '1.1' | '2.0';
  /** `kept`: as most clients do, the connection stays open · `cut`: the head is never finished. Default: closed by the response. */
  readonly connection?: 'kept' | 'cut';
  /** What has to come back, so that the response is the one that was meant: `200`, or `429 queue_full`. */
  readonly expected: string;
}

export interface Recorded extends Asked {
  readonly response: Buffer;
  /** When its last byte came, seconds since 1970. */
  readonly at: number;
  /** As `expected`. */
  readonly got: string;
}

/** Longer than a head may take until it is answered 408. */
const maxMs = 90_000;
/** Calls under way at once. */
const width = 16;

/** Sends the calls in any order, and some at the same time. */
export async function recorded(calls: readonly Asked[]): Promise<readonly Recorded[]> {
  const left = [...calls];
  const all: Recorded[] = [];
  const lane = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) all.push(await record(next));
  };
  await Promise.all(Array.from({ length: width }, lane));
  return all;
}

function record(asked: Asked): Promise<Recorded> {
  const { hostname, port } = new URL(asked.base);
  let at = 0;
  const chunks: Buffer[] = [];
  const got = (isOver: boolean): string => gotOf(Buffer.concat(chunks), asked.method ?? 'GET', isOver);
  return new Promise((resolve) => {
    const socket = connect(Number(port), hostname, () => void socket.write(bytesOf(asked), 'latin1'));
    socket.setTimeout(maxMs, () => socket.destroy());
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      chunks.push(chunk);
      at = Date.now() / 1_000;
      if (asked.connection === 'kept' && got(false) !== '') socket.destroy();
    });
    socket.on('close', () => resolve({ ...asked, at, response: Buffer.concat(chunks), got: got(true) }));
  });
}

function bytesOf({ base, method = 'GET', path, fields = [], body = '', version = '1.1', connection }: Asked) {
  const isGiven = (name: string): boolean => fields.some((line) => line.toLowerCase().startsWith(`${name}:`));
  const hasBody = body !== '' || ['POST', 'PUT', 'PATCH'].includes(method);
  const hasLength = hasBody && !isGiven('content-length') && !isGiven('transfer-encoding');
  const lines = [
    `${method} ${path} HTTP/${version}`,
    ...(isGiven('host') ? [] : [`Host: ${new URL(base).host}`]),
    ...(isGiven('connection') || connection === 'kept' ? [] : ['Connection: close']),
    ...(hasLength ? [`Content-Length: ${Buffer.byteLength(body)}`] : []),
    ...fields,
  ];
  return `${lines.join('\r\n')}${connection === 'cut' ? '' : `\r\n\r\n${body}`}`;
}

/** Status and code of the final response; empty while there is none, or where it is not well framed. */
function gotOf(response: Buffer, method: string, isOver: boolean): string {
  try {
    const final = readResponses(response, [method], isOver).responses.find(({ status }) => status >= 200);
    return final === undefined ? '' : `${final.status} ${final.field('sluice-error') ?? ''}`.trim();
  } catch (failure) {
    return String(failure);
  }
}
