/** One call as bytes, and the bytes of its response. */
import { connect } from 'node:net';
import { readResponses } from '../../../test/support/raw-client.ts';

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

function bytesOf({ base, method = 'GET', path, fields = [], body = '', version = '1.1', connection }: Asked) {
  const isGiven = (name: string): boolean => fields.some((line) => line.toLowerCase().startsWith(`${name}:`));
  const hasBody = body !== '' || ['POST', 'PUT', 'PATCH'].includes(method);
  const lines = [
    `${method} ${path} HTTP/${version}`,
    ...(isGiven('host') ? [] : [`Host: ${new URL(base).host}`]),
    ...(isGiven('connection') || connection === 'kept' ? [] : ['Connection: close']),
    ...(hasBody && !isGiven('content-length') && !isGiven('transfer-encoding')
      ? [`Content-Length: ${Buffer.byteLength(body)}`]
      : []),
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

export function record(asked: Asked): Promise<Recorded> {
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
