/** Several requests on one connection: order, bounds, and what errors do to their neighbours. */
import { describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import type { Call, Outcome } from '../../src/call.ts';
import { Refusal } from '../../src/errors.ts';
import {
  later,
  outcomeOf,
  serverSettings,
  settled,
  startDataServer,
} from '../ingress/data-server-fixture.ts';
import type { Later } from '../ingress/data-server-fixture.ts';
import { readResponses } from '../support/raw-client.ts';

const get = (n: number | string): string => `GET /proxy?${n} HTTP/1.1\r\nHost: a\r\n\r\n`;
const numberOf = (call: Call): string => call.rawUrl.slice('/proxy?'.length);
const echoNumber = (call: Call): Outcome => outcomeOf({ body: Buffer.from(numberOf(call)) });

/** A journey whose calls end when the test says so, by number. */
function held() {
  const calls = new Map<string, Later<void>>();
  const gate = (n: string): Later<void> => {
    const known = calls.get(n) ?? later<void>();
    calls.set(n, known);
    return known;
  };
  const handle = async (call: Call): Promise<Outcome> => {
    const gone = new Promise<never>((_resolve, reject) => {
      call.clientGone.addEventListener('abort', () => reject(call.clientGone.reason as Error));
    });
    await Promise.race([gate(numberOf(call)).promise, gone]);
    return echoNumber(call);
  };
  return { handle, release: (n: number) => gate(String(n)).resolve() };
}

describe('pipelined requests', () => {
  test('get their responses in order, whichever ends first', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(handle);
    const raw = await client();
    await raw.send(get(0) + get(1) + get(2));
    await settled(() => calls.length === 3);
    release(2);
    release(1);
    release(0);
    const responses = await raw.responses(3);
    expect(responses.map(({ body }) => body.toString())).toEqual(['0', '1', '2']);
  });

  test('beyond the bound of one connection are refused, and other connections are served', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(handle, {
      settings: { ...serverSettings, maxCallsPerConnection: 3 },
    });
    const raw = await client();
    await raw.send(get(0) + get(1) + get(2) + get(3) + get(4));
    await settled(() => calls.length === 3);
    const other = await client();
    await other.send(get(9));
    await settled(() => calls.length === 4);
    for (const n of [0, 1, 2, 9]) release(n);
    await other.responses(1);
    const { responses } = readResponses((await raw.closed).bytes);
    expect(responses.map(({ status }) => status)).toEqual([200, 200, 200, 503]);
    expect(responses[3]?.field('sluice-error')).toBe('overloaded');
    expect(calls).toHaveLength(4);
  });

  test('beyond the bound of the process are refused', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(handle, {
      settings: { ...serverSettings, maxOpenCalls: 1 },
    });
    const [first, second] = await Promise.all([client(), client()]);
    await first.send(get(0));
    await settled(() => calls.length === 1);
    await second.send(get(1));
    expect((await second.responses(1))[0]?.field('sluice-error')).toBe('overloaded');
    release(0);
    await first.responses(1);
    await first.send(get(2));
    release(2);
    expect((await first.responses(2))[1]?.body.toString()).toBe('2');
  });

  test('hidden in the body of another request stay a body', async () => {
    const { client, calls } = await startDataServer(async (call) =>
      outcomeOf({ body: (await call.readBody('w')).bytes }),
    );
    const raw = await client();
    const hidden = get('hidden');
    await raw.send(
      `POST /proxy HTTP/1.1\r\nHost: a\r\nContent-Length: ${hidden.length}\r\n\r\n${hidden}${get(1)}`,
    );
    const responses = await raw.responses(2);
    expect(responses[0]?.body.toString()).toBe(hidden);
    expect(calls.map(({ rawUrl }) => rawUrl)).toEqual(['/proxy', '/proxy?1']);
  });
});

describe('after an error response', () => {
  test.each(['unauthenticated', 'target_invalid', 'queue_full', 'upstream_timeout'] as const)(
    '%s, the next request on the connection gets a well-framed response',
    async (code) => {
      const { client } = await startDataServer((call) =>
        numberOf(call) === '0' ? Promise.reject(new Refusal(code)) : Promise.resolve(echoNumber(call)),
      );
      const raw = await client();
      await raw.send(get(0) + get(1));
      const responses = await raw.responses(2);
      expect(responses.map((response) => response.field('sluice-error'))).toEqual([code, undefined]);
      expect(responses[1]?.body.toString()).toBe('1');
    },
  );

  test('that ends the connection, the next request is not served', async () => {
    const { client, calls } = await startDataServer();
    const raw = await client();
    await raw.send(`TRACE /proxy HTTP/1.1\r\nHost: a\r\n\r\n${get(1)}`);
    const { responses, rest } = readResponses((await raw.closed).bytes);
    expect(responses.map(({ status }) => status)).toEqual([405]);
    expect(rest).toHaveLength(0);
    expect(calls).toHaveLength(0);
  });
});

describe('garbage behind a request', () => {
  const garbage = 'NOT HTTP AT ALL\r\n\r\n';

  test('neither removes its response nor gets a response in its place', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(handle);
    const raw = await client();
    await raw.send(get(0) + get(1) + garbage);
    await settled(() => calls.length === 2);
    release(1);
    release(0);
    const { responses, rest } = readResponses((await raw.closed).bytes);
    expect(responses.map(({ status, body }) => [status, body.toString()])).toEqual([
      [200, '0'],
      [200, '1'],
    ]);
    expect(responses[1]?.field('connection')).toBe('close');
    expect(rest).toHaveLength(0);
  });

  test('does not hide that the client left', async () => {
    const { handle } = held();
    const { client, calls, data } = await startDataServer(handle);
    const raw = await client();
    await raw.send(get(0) + garbage);
    await settled(() => calls.length === 1);
    raw.halfClose();
    await settled(() => data.stats().openCalls === 0 && data.stats().connections === 0);
    expect(calls[0]?.clientGone.aborted).toBe(true);
  });

  test('does not get into a response that streams', async () => {
    const body = new PassThrough();
    const { client, data } = await startDataServer(() => Promise.resolve(outcomeOf({ body })));
    const raw = await client();
    await raw.send(get(0));
    body.write('first ');
    await raw.until((text) => text.includes('first'));
    const noticed = once(data.server, 'clientError');
    await raw.send(garbage);
    await noticed;
    body.end('last');
    const { responses, rest } = readResponses((await raw.closed).bytes);
    expect(responses.map((response) => response.body.toString())).toEqual(['first last']);
    expect(rest).toHaveLength(0);
  });

  test('is ignored behind Connection: close', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(handle);
    const raw = await client();
    await raw.send(`GET /proxy?0 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n${get(1)}`);
    await settled(() => calls.length === 1);
    release(0);
    const { responses, rest } = readResponses((await raw.closed).bytes);
    expect(responses.map((response) => response.body.toString())).toEqual(['0']);
    expect(rest).toHaveLength(0);
    expect(calls).toHaveLength(1);
  });

  test('in the body of a second request does not harm the first', async () => {
    const { handle, release } = held();
    const { client, calls } = await startDataServer(async (call) => {
      await call.readBody('w');
      return handle(call);
    });
    const raw = await client();
    await raw.send(get(0) + 'POST /proxy?1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n');
    await settled(() => calls.length === 2);
    release(0);
    const { responses } = readResponses((await raw.closed).bytes);
    expect(responses.map((response) => response.body.toString())).toEqual(['0']);
    expect(calls[1]?.clientGone.aborted).toBe(true);
    expect(calls[0]?.clientGone.aborted).toBe(false);
  });
});

test('CONNECT behind an open call ends the connection without a response in the place of that call’s', async () => {
  const { handle } = held();
  const { client, calls, bugs } = await startDataServer(handle);
  const raw = await client();
  await raw.send(get(0));
  await settled(() => calls.length === 1);
  await raw.send('CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n');
  expect((await raw.closed).bytes).toHaveLength(0);
  await settled(() => calls[0]?.clientGone.aborted === true);
  expect(bugs).toEqual([]);
});
