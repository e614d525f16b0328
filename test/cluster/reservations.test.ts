/** A position that one replica keeps is good at the others: also when that one is killed, and when Redis loses its data meanwhile. */
import { expect, test } from '@jest/globals';
import { clean, serve } from '../cli/started.ts';
import { pause } from '../support/redis-fleet.ts';
import { onRedis, read, type Reply } from './fleet.ts';

const { open, probe, fleet, upstream } = onRedis();

/** Two replicas of an upstream that takes four calls at once, then one every two seconds; and a third as a process of its own. */
async function world() {
  const arrivals: string[] = [];
  const { url } = await upstream((response, request) => {
    arrivals.push((request.url ?? '').slice(1));
    response.end('served');
  });
  const speaks = { windows: [{ requests: 4, seconds: 8, kind: 'leaky' }] };
  const all = await fleet({ upstreams: { api: { origins: [url], speaks, reserveSeconds: 60 } } });
  const call = (replica: number, name: string, prefer: string, ticket?: string | null): Promise<Reply> => {
    const headers = { prefer, ...(ticket && { 'sluice-ticket': ticket }) };
    return all.call(replica, `api/${name}`, { headers });
  };
  const useUp = async (): Promise<void> => {
    const first = await Promise.all([0, 1, 2, 3].map((n) => call(0, `first${n}`, 'wait=30')));
    expect(first.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
  };
  return { all, call, useUp, later: () => arrivals.slice(4) };
}

const waitOf = ({ headers }: Reply): number => Number(headers.get('retry-after-ms'));
const ticketOf = ({ headers }: Reply): string | null => headers.get('sluice-ticket');

test('a ticket of a replica that was killed is good at another one, before calls that came later and waited', async () => {
  const { all, call, useUp, later } = await world();
  const killed = await serve(all.text());
  open.push(clean);
  await useUp();
  const headers = { 'sluice-key': all.keys['acme'] ?? '', prefer: 'reserve, wait=0' };
  const given = await read(await fetch(`${killed.url}/via/api/refused`, { headers }));
  expect([given.status, ticketOf(given)]).toEqual([429, expect.any(String)]);
  const x = call(0, 'x', 'wait=120');
  killed.signal('SIGKILL');
  await killed.ended;
  await pause(waitOf(given));
  const back = await call(1, 'back', 'wait=30', ticketOf(given));
  expect([back.status, (await x).status]).toEqual([200, 200]);
  expect(later()).toEqual(['back', 'x']);
});

test('where Redis loses its data nobody is sent twice, and whoever comes back is served', async () => {
  const { call, useUp, later } = await world();
  await useUp();
  const given = await call(0, 'refused', 'reserve, wait=0');
  const x = call(1, 'x', 'wait=120');
  await probe().flushall();
  await pause(waitOf(given));
  const back = await call(0, 'back', 'wait=60', ticketOf(given));
  expect([back.status, (await x).status]).toEqual([200, 200]);
  expect(later().toSorted()).toEqual(['back', 'x']);
});
