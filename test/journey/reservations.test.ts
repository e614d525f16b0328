/** `Prefer: reserve`: a refused call keeps its position, and its client comes back for it with `Sluice-Ticket`. */
import { afterEach, beforeEach, describe, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { scripted, type Scripted } from './scripted.ts';
import { closeAll } from './world.ts';

let api: Scripted;
async function begin(limits: string, workspaces: Record<string, string> = { acme: '' }): Promise<void> {
  // The first call `late` is answered by the test.
  let isLate = false;
  const answer = (path: string) => {
    if (path !== '/late' || isLate) return { body: 'served' };
    return void (isLate = true);
  };
  api = await scripted(({ path }) => answer(path), {
    clock: fastClock(20),
    upstreams: { api: `credential: "Bearer one", limits: { ${limits} }` },
    workspaces,
  });
}
afterEach(closeAll);

async function call(
  name: string,
  {
    prefer,
    ticket,
    workspace = 'acme',
  }: { prefer?: string; ticket?: string | null; workspace?: string } = {},
) {
  const preferred = prefer === undefined ? {} : { prefer };
  const shown = typeof ticket === 'string' ? { 'sluice-ticket': ticket } : {};
  const reply = await api.ask(`/via/api/${name}`, { workspace, headers: { ...preferred, ...shown } });
  const { status, error, headers } = reply;
  return {
    status,
    error,
    ticket: headers.get('sluice-ticket'),
    waitMs: Number(headers.get('retry-after-ms')),
  };
}
const pass = (ms: number): Promise<void> => new Promise((resolve) => void api.clock.after(ms, resolve));
const names = (): string[] => api.arrivals.map(({ path }) => path.slice(1));

const reserve = { prefer: 'reserve, wait=0' };
/** Waits in the line. */
const others = () => Promise.all(['x', 'y', 'z'].map((name) => call(name, { prefer: 'wait=300' })));

/** Six calls have used up the limits. */
async function useUp(limits: string, workspace: string, apartMs: number): Promise<void> {
  await begin(limits, { acme: workspace });
  for (let n = 0; n < 6; n += 1) {
    expect((await call(`${n}`)).status).toBe(200);
    await pass(apartMs);
  }
}
const noCeiling = '    requestsPerMinute: { api: none }\n';

test.each([
  // Slots of a ceiling come free one after the other as they were taken.
  ['its bucket', 'requestsPerMinute: 6', noCeiling, 0],
  ['its ceiling', 'requestsPerMinute: none', '    requestsPerMinute: { api: 6 }\n', 5_000],
  ['its ceiling, which its bucket has as well', 'requestsPerMinute: 6', '', 5_000],
])(
  'a call that is refused by %s keeps its position, and leaves before a call that came later and waited',
  async (_what, limits, workspace, apartMs) => {
    await useUp(limits, workspace, apartMs);
    const refused = await call('a', reserve);
    const ticket = expect.stringMatching(/^[\x21-\x7e]{1,256}$/);
    expect(refused).toMatchObject({ status: 429, error: 'wait_too_long', ticket });
    const waiting = others();
    await pass(refused.waitMs);
    expect(names()).toHaveLength(6);
    expect((await call('b', { ...reserve, ticket: refused.ticket })).status).toBe(200);
    expect((await waiting).map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(names().slice(6)).toEqual(['b', 'x', 'y', 'z']);
    expect(api.arrivals[6]?.headers).not.toHaveProperty('sluice-ticket');
  },
);

describe('a call that is refused by its bucket', () => {
  beforeEach(() => useUp('requestsPerMinute: 6', noCeiling, 0));

  test('is told the time left where it comes too early, with its ticket', async () => {
    const { ticket, waitMs } = await call('a', reserve);
    await pass(waitMs / 2);
    const early = await call('b', { prefer: 'wait=0', ticket });
    expect(early).toMatchObject({ status: 429, error: 'wait_too_long', ticket });
    expect(early.waitMs).toBeLessThanOrEqual(waitMs / 2 + 1);
    const waiting = others();
    await pass(early.waitMs);
    expect((await call('c', { prefer: 'wait=0', ticket })).status).toBe(200);
    // The second time it is a call behind the others.
    expect(await call('d', { prefer: 'wait=0', ticket })).toMatchObject({ status: 429, ticket: null });
    await waiting;
  });
});

test('a ticket of another workspace is a new call’s, and nobody learns of it', async () => {
  await begin('requestsPerMinute: 2', { acme: '', other: '' });
  for (const name of ['0', '1']) await call(name);
  const { ticket, waitMs } = await call('a', reserve);
  const none = { status: 429, ticket: null };
  expect(await call('b', { prefer: 'wait=0', ticket, workspace: 'other' })).toMatchObject(none);
  for (const forged of ['', 'x', `${'0'.repeat(32)}.${'0'.repeat(32)}`, `${ticket}0`])
    expect(await call('c', { prefer: 'wait=0', ticket: forged })).toMatchObject(none);
  await pass(waitMs);
  expect((await call('d', { ticket, prefer: 'wait=0' })).status).toBe(200);
});

test('no more calls than `maxReserved` keep their positions', async () => {
  await begin('requestsPerMinute: 2, maxReserved: 3');
  for (const name of ['0', '1']) await call(name);
  const tickets = new Set<string | null>();
  for (let n = 0; n < 5; n += 1) tickets.add((await call(`r${n}`, reserve)).ticket);
  expect([tickets.size, [...tickets].at(-1)]).toEqual([4, null]);
});

test('a ticket outlives that the upstream closes, with a new time', async () => {
  await begin('requestsPerMinute: 2', { acme: noCeiling });
  await call('0');
  const late = call('late', { prefer: 'wait=300' });
  await api.arrived(2);
  const { ticket, waitMs } = await call('a', reserve);
  const opensAt = api.clock.monotonic() + 90_000;
  api.arrivals[1]?.response.writeHead(429, { 'retry-after': '90' }).end();
  await pass(waitMs);
  const closed = await call('b', { prefer: 'wait=0', ticket });
  expect(closed).toMatchObject({ status: 429, ticket });
  expect(api.clock.monotonic() + closed.waitMs).toBeGreaterThanOrEqual(opensAt);
  await pass(closed.waitMs);
  expect((await call('c', { prefer: 'wait=0', ticket })).status).toBe(200);
  expect((await late).status).toBe(200);
});
