/** `Prefer: reserve`: a refused call keeps its position, and its client comes back for it with `Sluice-Ticket`. */
import { afterEach, expect, test } from '@jest/globals';
import { fastClock } from '../support/fast-clock.ts';
import { scripted } from './scripted.ts';
import { closeAll } from './world.ts';

afterEach(closeAll);

/** An upstream that takes two calls a minute, which are used up, and calls that keep their positions or come back for them. */
async function usedUp(limits = '') {
  const { ask, clock } = await scripted(undefined, {
    clock: fastClock(20),
    upstreams: { api: `credential: "Bearer one", limits: { requestsPerMinute: 2${limits} }` },
    workspaces: { acme: '', other: '' },
  });
  const call = async (name: string, prefer: string, ticket: string | null = null, workspace = 'acme') => {
    const headers = { prefer, ...(ticket === null ? {} : { 'sluice-ticket': ticket }) };
    const reply = await ask(`/via/api/${name}`, { workspace, headers });
    return { status: reply.status, headers: reply.headers, ticket: reply.headers.get('sluice-ticket') };
  };
  for (const name of ['0', '1']) expect((await call(name, 'wait=0')).status).toBe(200);
  const pass = (ms: number): Promise<void> => new Promise((resolve) => void clock.after(ms, resolve));
  return { call, pass };
}
const reserve = 'reserve, wait=0';

test('a ticket of another workspace is a new call’s, and nobody learns of it', async () => {
  const { call, pass } = await usedUp();
  const { ticket, headers } = await call('a', reserve);
  const none = { status: 429, ticket: null };
  expect(await call('b', 'wait=0', ticket, 'other')).toMatchObject(none);
  for (const forged of ['', 'x', `${'0'.repeat(32)}.${'0'.repeat(32)}`, `${ticket}0`])
    expect(await call('c', 'wait=0', forged)).toMatchObject(none);
  await pass(Number(headers.get('retry-after-ms')));
  expect((await call('d', 'wait=0', ticket)).status).toBe(200);
});

test('no more calls than `maxReserved` keep their positions', async () => {
  const { call } = await usedUp(', maxReserved: 3');
  const tickets = new Set<string | null>();
  for (let n = 0; n < 5; n += 1) tickets.add((await call(`r${n}`, reserve)).ticket);
  expect([tickets.size, [...tickets].at(-1)]).toEqual([4, null]);
});
