/** `Prefer: reserve`: a refused call keeps its position, and its client comes back for it with `Sluice-Ticket`. */
import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { scripted, type Scripted } from './scripted.ts';
import { closeAll } from './world.ts';

let api: Scripted;
async function begin(limits: string, workspaces: Record<string, string> = { acme: '' }): Promise<void> {
  api = await scripted(undefined, {
    clock: fastClock(20),
    upstreams: { api: `credential: "Bearer one", limits: { ${limits} }` },
    workspaces,
  });
}
afterEach(closeAll);

interface Asked {
  readonly prefer?: string;
  readonly ticket?: string | null;
  readonly workspace?: string;
}
async function call(name: string, { prefer, ticket, workspace = 'acme' }: Asked = {}) {
  const preferred = prefer === undefined ? {} : { prefer };
  const shown = typeof ticket === 'string' ? { 'sluice-ticket': ticket } : {};
  const reply = await api.ask(`/via/api/${name}`, { workspace, headers: { ...preferred, ...shown } });
  const { status, error, headers } = reply;
  const waitMs = Number(headers.get('retry-after-ms'));
  return { status, error, ticket: headers.get('sluice-ticket'), waitMs };
}
const pass = (ms: number): Promise<void> => new Promise((resolve) => void api.clock.after(ms, resolve));
const names = (): string[] => api.arrivals.map(({ path }) => path.slice(1));

const reserve = { prefer: 'reserve, wait=0' };
const noCeiling = '    requestsPerMinute: { api: none }\n';

test.each([
  // Slots of a ceiling come free one after the other as they were taken.
  ['its bucket', 'requestsPerMinute: 6', noCeiling, 0],
  ['its ceiling', 'requestsPerMinute: none', '    requestsPerMinute: { api: 6 }\n', 5_000],
  ['its ceiling, which its bucket has as well', 'requestsPerMinute: 6', '', 5_000],
])(
  'a call that is refused by %s keeps its position, and leaves before a call that came later and waited',
  async (_what, limits, workspace, apartMs) => {
    await begin(limits, { acme: workspace });
    for (let n = 0; n < 6; n += 1) {
      expect((await call(`${n}`)).status).toBe(200);
      await pass(apartMs);
    }
    const refused = await call('a', reserve);
    const ticket = expect.stringMatching(/^[\x21-\x7e]{1,256}$/);
    expect(refused).toMatchObject({ status: 429, error: 'wait_too_long', ticket });
    const waiting = Promise.all(['x', 'y', 'z'].map((name) => call(name, { prefer: 'wait=300' })));
    await pass(refused.waitMs);
    expect(names()).toHaveLength(6);
    expect((await call('b', { ...reserve, ticket: refused.ticket })).status).toBe(200);
    expect((await waiting).map(({ status }) => status)).toEqual([200, 200, 200]);
    expect(names().slice(6)).toEqual(['b', 'x', 'y', 'z']);
    expect(api.arrivals[6]?.headers).not.toHaveProperty('sluice-ticket');
  },
);

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
