/** Several requests on one connection: order, bounds, and what errors do to their neighbours. */
import { describe, expect, test } from '@jest/globals';
import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import type { Call, Outcome } from '../../src/call.ts';
import { Refusal } from '../../src/errors.ts';
import { outcomeOf, serverSettings, settled } from '../ingress/data-server-fixture.ts';
import { allOf, answer, echo, head, served } from './served.ts';

const get = (n: number | string): string => head(`GET /proxy?${n} HTTP/1.1`);
const numberOf = (call: Call): string => call.rawUrl.slice('/proxy?'.length);
const echoNumber = (call: Call): Outcome => outcomeOf({ body: Buffer.from(numberOf(call)) });
const bodies = (responses: Awaited<ReturnType<typeof allOf>>): string[] =>
  responses.map(({ status, body }) => `${status} ${body.toString()}`);
const garbage = 'NOT HTTP AT ALL\r\n\r\n';

/** A server whose calls end when the test says so, by number. */
async function holding(more: Parameters<typeof served>[1] = {}) {
  const gates = new Map<string, PromiseWithResolvers<void>>();
  const gate = (n: string): PromiseWithResolvers<void> => {
    const known = gates.get(n) ?? Promise.withResolvers<void>();
    gates.set(n, known);
    return known;
  };
  const server = await served(async (call) => {
    const gone = Promise.withResolvers<never>();
    call.clientGone.addEventListener('abort', () => gone.reject(call.clientGone.reason));
    await Promise.race([gate(numberOf(call)).promise, gone.promise]);
    return echoNumber(call);
  }, more);
  return { ...server, release: (...numbers: number[]) => numbers.forEach((n) => gate(String(n)).resolve()) };
}

describe('pipelined requests', () => {
  test('get their responses in order, whichever ends first', async () => {
    const { raw, calls, release } = await holding();
    await raw.send(get(0) + get(1) + get(2));
    await settled(() => calls.length === 3);
    release(2, 1, 0);
    expect(bodies(await raw.responses(3))).toEqual(['200 0', '200 1', '200 2']);
  });

  test('beyond the bound of one connection are refused, and other connections are served', async () => {
    const settings = { ...serverSettings, maxCallsPerConnection: 3 };
    const { raw, client, calls, release } = await holding({ settings });
    await raw.send(get(0) + get(1) + get(2) + get(3) + get(4));
    await settled(() => calls.length === 3);
    const other = await client();
    await other.send(get(9));
    await settled(() => calls.length === 4);
    release(0, 1, 2, 9);
    await other.responses(1);
    const responses = await allOf(raw);
    expect(responses.map(({ status }) => status)).toEqual([200, 200, 200, 503]);
    expect(responses[3]?.field('sluice-error')).toBe('overloaded');
    expect(calls).toHaveLength(4);
  });

  test('beyond the bound of the process are refused', async () => {
    const { raw, client, calls, release } = await holding({
      settings: { ...serverSettings, maxOpenCalls: 1 },
    });
    const second = await client();
    await raw.send(get(0));
    await settled(() => calls.length === 1);
    await second.send(get(1));
    expect(await answer(second)).toMatch(/^503 overloaded/);
    release(0, 2);
    await raw.responses(1);
    await raw.send(get(2));
    expect(bodies(await raw.responses(2))).toEqual(['200 0', '200 2']);
  });

  test('hidden in the body of another request stay a body', async () => {
    const { raw, calls } = await served(echo);
    const hidden = get('hidden');
    await raw.send(head('POST /proxy HTTP/1.1', `Content-Length: ${hidden.length}`) + hidden + get(1));
    expect(bodies(await raw.responses(2))).toEqual([`200 ${hidden}`, '200 ']);
    expect(calls.map(({ rawUrl }) => rawUrl)).toEqual(['/proxy', '/proxy?1']);
  });
});

describe('after an error response', () => {
  const codes = ['unauthenticated', 'target_invalid', 'queue_full', 'upstream_timeout'] as const;
  test.each(codes)('%s, the next request on the connection gets a well-framed response', async (code) => {
    const { raw } = await served(async (call) => {
      if (numberOf(call) === '0') throw new Refusal(code);
      return echoNumber(call);
    });
    await raw.send(get(0) + get(1));
    const [refusal, next] = await raw.responses(2);
    expect([refusal?.field('sluice-error'), next?.body.toString()]).toEqual([code, '1']);
  });

  test('that ends the connection, the next request is not served', async () => {
    const { raw, calls } = await served();
    await raw.send(head('TRACE /proxy HTTP/1.1') + get(1));
    expect((await allOf(raw)).map(({ status }) => status)).toEqual([405]);
    expect(calls).toHaveLength(0);
  });
});

describe('garbage behind a request', () => {
  test('neither removes its response nor gets a response in its place', async () => {
    const { raw, calls, release } = await holding();
    await raw.send(get(0) + get(1) + garbage);
    await settled(() => calls.length === 2);
    release(1, 0);
    const responses = await allOf(raw);
    expect(bodies(responses)).toEqual(['200 0', '200 1']);
    expect(responses[1]?.field('connection')).toBe('close');
  });

  test('does not hide that the client left', async () => {
    const { raw, calls, data } = await holding();
    await raw.send(get(0) + garbage);
    await settled(() => calls.length === 1);
    raw.halfClose();
    await settled(() => data.stats().openCalls === 0 && data.stats().connections === 0);
    expect(calls[0]?.clientGone.aborted).toBe(true);
  });

  test('does not get into a response that streams', async () => {
    const body = new PassThrough();
    const { raw, data } = await served(() => Promise.resolve(outcomeOf({ body })));
    await raw.send(get(0));
    body.write('first ');
    await raw.until((text) => text.includes('first'));
    const noticed = once(data.server, 'clientError');
    await raw.send(garbage);
    await noticed;
    body.end('last');
    expect(bodies(await allOf(raw))).toEqual(['200 first last']);
  });

  test('that is a CONNECT ends the connection, without a response in the place of that of an open call', async () => {
    const { raw, calls, bugs } = await holding();
    await raw.send(get(0));
    await settled(() => calls.length === 1);
    await raw.send('CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n');
    expect((await raw.closed).bytes).toHaveLength(0);
    await settled(() => calls[0]?.clientGone.aborted === true);
    expect(bugs).toEqual([]);
  });
});
