/** `Prefer: reserve`: a refused call keeps its position, and its client comes back for it with `Sluice-Ticket`. */
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import type { Clock } from '../../src/clock.ts';
import { fastClock } from '../support/fast-clock.ts';
import { startGateway, type TestGateway } from '../support/gateway.ts';

let clock: Clock;
let gateway: TestGateway;
/** What came upstream: the name of the call, and when. */
let arrivals: { readonly name: string; readonly at: number; readonly fields: IncomingHttpHeaders }[];
/** Answers the call `late`. */
let answerLate: (status: number, fields: Record<string, string>) => void;

const upstream = createServer((request, response) => {
  arrivals.push({ name: request.url ?? '', at: clock.monotonic(), fields: request.headers });
  answerLate = (status, fields) => response.writeHead(status, fields).end();
  if (request.url !== '/late' || arrivals.filter(({ name }) => name === '/late').length > 1)
    response.writeHead(200).end('served');
});

async function begin(limits: string, workspaces: Record<string, string> = { acme: '' }): Promise<void> {
  clock = fastClock(20);
  arrivals = [];
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve));
  const { port } = upstream.address() as AddressInfo;
  gateway = await startGateway({
    clock,
    upstreams: `  api: { origins: ["http://127.0.0.1:${port}"], allowPrivateAddresses: true, credential: "Bearer one", limits: { ${limits} } }`,
    workspaces,
  });
}

afterEach(async () => {
  await gateway.close();
  upstream.closeAllConnections();
  await new Promise((resolve) => upstream.close(resolve));
});

interface Reply {
  readonly status: number;
  readonly code: string | null;
  readonly ticket: string | null;
  readonly waitMs: number;
}

interface Sending {
  readonly prefer?: string;
  readonly ticket?: string | null;
  readonly workspace?: string;
}

async function call(name: string, { prefer, ticket, workspace = 'acme' }: Sending = {}): Promise<Reply> {
  const response = await fetch(`${gateway.url}/via/api/${name}`, {
    headers: {
      'sluice-key': gateway.keys[workspace] ?? '',
      ...(prefer === undefined ? {} : { prefer }),
      ...(typeof ticket === 'string' ? { 'sluice-ticket': ticket } : {}),
    },
  });
  await response.text();
  const { headers, status } = response;
  return {
    status,
    code: headers.get('sluice-error'),
    ticket: headers.get('sluice-ticket'),
    waitMs: Number(headers.get('retry-after-ms')),
  };
}

const pass = (ms: number): Promise<void> => new Promise((resolve) => void clock.after(ms, resolve));
const names = (): string[] => arrivals.map(({ name }) => name.slice(1));

const reserve = 'reserve, wait=0';

/** Six calls have used up the limits. */
async function useUp(limits: string, workspace: string, apartMs: number): Promise<void> {
  await begin(limits, { acme: workspace });
  for (let n = 0; n < 6; n += 1) {
    expect((await call(`${n}`)).status).toBe(200);
    await pass(apartMs);
  }
}

test.each([
  // Slots of a ceiling come free one after the other as they were taken.
  ['its bucket', 'requestsPerMinute: 6', '    requestsPerMinute: { api: none }\n', 0],
  ['its ceiling', 'requestsPerMinute: none', '    requestsPerMinute: { api: 6 }\n', 5_000],
  ['its ceiling, which its bucket has as well', 'requestsPerMinute: 6', '', 5_000],
])(
  'a call that is refused by %s keeps its position, and leaves before a call that came later and waited',
  async (_what, limits, workspace, apartMs) => {
    await useUp(limits, workspace, apartMs);
    const refused = await call('a', { prefer: reserve });
    expect(refused).toMatchObject({ status: 429, code: 'wait_too_long' });
    expect(refused.ticket).toMatch(/^[\x21-\x7e]{1,256}$/);
    const others = ['x', 'y', 'z'].map((name) => call(name, { prefer: 'wait=300' }));
    await pass(refused.waitMs);
    expect(names()).toHaveLength(6);
    expect(await call('b', { prefer: reserve, ticket: refused.ticket })).toMatchObject({ status: 200 });
    expect((await Promise.all(others)).map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(names().slice(6)).toEqual(['b', 'x', 'y', 'z']);
    expect(arrivals[6]?.fields).not.toHaveProperty('sluice-ticket');
  },
);

describe('a call that is refused by its bucket', () => {
  beforeEach(() => useUp('requestsPerMinute: 6', '    requestsPerMinute: { api: none }\n', 0));

  test('is told the time left where it comes too early, with its ticket', async () => {
    const { ticket, waitMs } = await call('a', { prefer: reserve });
    await pass(waitMs / 2);
    const early = await call('b', { prefer: 'wait=0', ticket });
    expect(early).toMatchObject({ status: 429, code: 'wait_too_long', ticket });
    expect(early.waitMs).toBeLessThanOrEqual(waitMs / 2 + 1);
    const others = ['x', 'y', 'z'].map((name) => call(name, { prefer: 'wait=300' }));
    await pass(early.waitMs);
    expect((await call('c', { prefer: 'wait=0', ticket })).status).toBe(200);
    // The second time it is a call behind the others.
    expect(await call('d', { prefer: 'wait=0', ticket })).toMatchObject({ status: 429, ticket: null });
    await Promise.all(others);
  });

  test('holds others up for as long as it is kept, and lets them go then', async () => {
    const { waitMs } = await call('a', { prefer: reserve });
    const toldAt = clock.monotonic() + waitMs;
    expect((await call('x', { prefer: 'wait=300' })).status).toBe(200);
    expect(arrivals[6]?.at).toBeGreaterThan(toldAt);
  });
});

test('a ticket of another workspace is a new call’s, and nobody learns of it', async () => {
  await begin('requestsPerMinute: 2', { acme: '', other: '' });
  for (const name of ['0', '1']) await call(name);
  const { ticket, waitMs } = await call('a', { prefer: reserve });
  const stranger = await call('b', { prefer: 'wait=0', ticket, workspace: 'other' });
  expect(stranger).toMatchObject({ status: 429, ticket: null });
  for (const forged of ['', 'x', `${'0'.repeat(32)}.${'0'.repeat(32)}`, `${ticket}0`])
    expect(await call('c', { prefer: 'wait=0', ticket: forged })).toMatchObject({
      status: 429,
      ticket: null,
    });
  await pass(waitMs);
  expect((await call('d', { ticket, prefer: 'wait=0' })).status).toBe(200);
});

test('no more calls than `maxReserved` keep their positions', async () => {
  await begin('requestsPerMinute: 2, maxReserved: 3');
  for (const name of ['0', '1']) await call(name);
  const replies = [];
  for (let n = 0; n < 5; n += 1) replies.push(await call(`r${n}`, { prefer: reserve }));
  expect(replies.map(({ ticket }) => ticket !== null)).toEqual([true, true, true, false, false]);
  expect(new Set(replies.map(({ ticket }) => ticket)).size).toBe(4);
});

test('a ticket outlives that the upstream closes, with a new time', async () => {
  await begin('requestsPerMinute: 2', { acme: '    requestsPerMinute: { api: none }\n' });
  await call('0');
  const late = call('late', { prefer: 'wait=300' });
  while (names().length < 2) await pass(10);
  const { ticket, waitMs } = await call('a', { prefer: reserve });
  const opensAt = clock.monotonic() + 90_000;
  answerLate(429, { 'retry-after': '90' });
  await pass(waitMs);
  const closed = await call('b', { prefer: 'wait=0', ticket });
  expect(closed).toMatchObject({ status: 429, ticket });
  expect(clock.monotonic() + closed.waitMs).toBeGreaterThanOrEqual(opensAt);
  await pass(closed.waitMs);
  expect((await call('c', { prefer: 'wait=0', ticket })).status).toBe(200);
  expect((await late).status).toBe(200);
});
