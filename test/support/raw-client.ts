/** A client that speaks bytes, and a reader of responses that repairs and hides nothing. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

/** One response as it stood on the wire. */
export interface RawResponse {
  readonly status: number;
  /** Name (lower case) and value, in order. */
  readonly fields: readonly (readonly [string, string])[];
  readonly body: Buffer;
  readonly field: (name: string) => string | undefined;
}

export type RawClient = Awaited<ReturnType<typeof connectRaw>>;

/** Name (lower case) and value of each line. */
export const splitFields = (lines: readonly string[]): (readonly [string, string])[] =>
  lines.map((line) => {
    const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\t\x20-\x7e\x80-\xff]*)$/.exec(line);
    if (match === null) throw new Error(`malformed field line ${JSON.stringify(line)}`);
    return [(match[1] ?? '').toLowerCase(), match[2] ?? ''] as const;
  });

/** Bytes of a chunked body and where it ends; `null` = not whole yet. */
function readChunked(bytes: Buffer, from: number): { body: Buffer; end: number } | null {
  const parts: Buffer[] = [];
  let at = from;
  for (;;) {
    const lineEnd = bytes.indexOf('\r\n', at);
    if (lineEnd < 0) return null;
    const size = bytes.toString('latin1', at, lineEnd);
    if (!/^[0-9a-f]+$/i.test(size)) throw new Error(`malformed chunk size ${JSON.stringify(size)}`);
    const length = Number.parseInt(size, 16);
    const start = lineEnd + 2;
    if (bytes.length < start + length + 2) return null;
    if (bytes.toString('latin1', start + length, start + length + 2) !== '\r\n')
      throw new Error('chunk without its end');
    if (length === 0) return { body: Buffer.concat(parts), end: start + 2 };
    parts.push(bytes.subarray(start, start + length));
    at = start + length + 2;
  }
}

function readOne(bytes: Buffer, from: number, method: string, closed: boolean) {
  const headEnd = bytes.indexOf('\r\n\r\n', from);
  if (headEnd < 0) return null;
  const [line = '', ...lines] = bytes.toString('latin1', from, headEnd).split('\r\n');
  const statusLine = /^HTTP\/1\.1 ([1-5][0-9][0-9]) [\x20-\x7e]*$/.exec(line);
  if (statusLine === null) throw new Error(`malformed status line ${JSON.stringify(line)}`);
  const status = Number(statusLine[1]);
  const fields = splitFields(lines);
  const field = (name: string): string | undefined => fields.find(([key]) => key === name)?.[1];
  const whole = (body: Buffer, end: number) => ({ response: { status, fields, body, field }, end });
  const start = headEnd + 4;
  const lengths = fields.filter(([key]) => key === 'content-length');
  const coding = field('transfer-encoding');
  if (lengths.length > 1 || (lengths.length > 0 && coding !== undefined)) throw new Error('unclear framing');
  if (method === 'HEAD' || status < 200 || status === 204 || status === 304)
    return whole(Buffer.alloc(0), start);
  if (coding === 'chunked') {
    const chunked = readChunked(bytes, start);
    return chunked === null ? null : whole(chunked.body, chunked.end);
  }
  const length = lengths[0]?.[1];
  if (length === undefined) return closed ? whole(bytes.subarray(start), bytes.length) : null;
  const end = start + Number(length);
  return bytes.length < end ? null : whole(bytes.subarray(start, end), end);
}

/**
 * Reads as many whole responses as there are. Throws on anything that is not well framed.
 * @param methods method of the request behind each final response, in order; `GET` where none is given.
 * @param closed true when the connection has ended, which ends a body without a length.
 */
export function readResponses(bytes: Buffer, methods: readonly string[] = [], closed = false) {
  const responses: RawResponse[] = [];
  let at = 0;
  let finals = 0;
  while (at < bytes.length) {
    const one = readOne(bytes, at, methods[finals] ?? 'GET', closed);
    if (one === null) break;
    responses.push(one.response);
    if (one.response.status >= 200) finals += 1;
    at = one.end;
  }
  return { responses, /** Bytes behind the last whole response. */ rest: bytes.subarray(at) };
}

/** What comes on a socket. */
export function heardOn(socket: Socket) {
  const chunks: Buffer[] = [];
  let isOver = false;
  let next = Promise.withResolvers<void>();
  const noticed = (): void => {
    next.resolve();
    next = Promise.withResolvers();
  };
  const received = (): Buffer => Buffer.concat(chunks);
  socket.on('data', (chunk) => {
    chunks.push(chunk);
    noticed();
  });
  socket.on('close', () => {
    isOver = true;
    noticed();
  });
  /** Resolves once what was received satisfies the condition; rejects when the connection closes before. */
  const until = async (condition: (received: string) => boolean): Promise<string> => {
    for (;;) {
      const text = received().toString('latin1');
      if (condition(text)) return text;
      if (isOver) throw new Error(`connection closed after ${JSON.stringify(text)}`);
      await next.promise;
    }
  };
  return { received, until, isOver: () => isOver };
}

/** Connects to a port of this machine. */
export async function connectRaw(port: number) {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  const { received, until, isOver } = heardOn(socket);
  let reset = false;
  /** Resolves when the connection is closed: everything received, and whether it was reset. */
  const closed = new Promise<{ bytes: Buffer; reset: boolean }>((done) => {
    socket.on('close', () => done({ bytes: received(), reset }));
  });
  socket.on('end', () => socket.end());
  socket.on('error', () => (reset = true));
  await once(socket, 'connect');
  return {
    socket,
    received,
    /** Writes; resolves when the bytes were handed to the system, or the socket is gone. */
    send: (bytes: string | Buffer): Promise<void> =>
      new Promise((done) => {
        if (socket.writable) socket.write(bytes, () => done());
        else done();
      }),
    until,
    closed,
    /** Whole responses received, waiting for `count` of them. */
    async responses(count: number) {
      await until(() => readResponses(received(), [], isOver()).responses.length >= count);
      return readResponses(received(), [], isOver()).responses;
    },
    halfClose: () => void socket.end(),
    abort: () => void socket.resetAndDestroy(),
  };
}
